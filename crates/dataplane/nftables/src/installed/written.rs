//! What was written, element by element, so that it can be compared with the kernel.

use std::collections::HashSet;

use portwarden_model::{NamespacedName, ProxiedPort};
use portwarden_netlink::nftables::Image;

use super::{Installed, has_comments};
use crate::masquerading::hairpin_key;
use crate::plan::{ElementChanges, Plan};
use crate::port_elements::{self, PortElement};
use crate::port_lists::PortLists;
use crate::route::STICKY_LIST_MASK;
use crate::session_affinity::StickyClass;
use crate::sets::SetId;

/// Sets of elements that belong to a list of endpoints.
const LIST_SETS: [SetId; 3] = [SetId::Endpoints, SetId::StickySlots, SetId::StickyEndpoints];

/// The sets and keys of some elements.
pub(crate) type Keys = HashSet<(SetId, Vec<u8>)>;

impl Installed {
    /// The names of all Services.
    pub(crate) fn service_names(&self) -> Vec<NamespacedName> {
        self.services.keys().cloned().collect()
    }

    /// Adds all elements of one Service to a plan.
    pub(crate) fn write_service(&self, name: &NamespacedName, plan: &mut Plan) {
        plan.begin(name);
        for (port, lists) in self.services.get(name).into_iter().flat_map(|state| state.ports()) {
            lists.iter().for_each(|list| list.write(plan));
            for element in self.port_elements(port, lists) {
                add(port, &element, plan);
            }
        }
    }

    /// Adds the elements that Services share.
    pub(crate) fn write_shared(&self, plan: &mut impl ElementChanges) {
        for ip in self.cluster_addresses.keys() {
            plan.add(SetId::ClusterAddresses, Image::new().address(*ip), Image::new());
        }
        for endpoint in self.hairpin.keys() {
            plan.add(SetId::Hairpin, hairpin_key(*endpoint), Image::new());
        }
    }

    /// Adds the elements of one set.
    pub(crate) fn write_set(&self, set: SetId, plan: &mut Plan) {
        for (port, lists) in self.services.values().flat_map(|state| state.ports()) {
            if LIST_SETS.contains(&set) {
                lists.iter().for_each(|list| list.write(&mut OneSet { set, plan }));
            } else {
                let elements = self.port_elements(port, lists);
                elements.iter().filter(|element| element.set == set).for_each(|one| add(port, one, plan));
            }
        }
        self.write_shared(&mut OneSet { set, plan });
    }

    /// Adds those elements that have one of these keys. The cost grows with the number of Services, not with that of endpoints.
    pub(crate) fn write_keys(&self, keys: &Keys, plan: &mut Plan) {
        let lists_of_keys: HashSet<u32> = keys.iter().filter_map(|(set, key)| list_of(*set, key)).collect();
        for (port, lists) in self.services.values().flat_map(|state| state.ports()) {
            for list in lists.iter().filter(|list| lists_of_keys.contains(&list.id.key())) {
                list.write(&mut OnlyKeys { keys, plan });
            }
            for element in self.port_elements(port, lists) {
                if keys.contains(&(element.set, element.key.as_bytes().to_vec())) {
                    add(port, &element, plan);
                }
            }
        }
        self.write_shared(&mut OnlyKeys { keys, plan });
    }

    /// How many elements each set has, by its index.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; SetId::ALL.len()];
        for (port, lists) in self.services.values().flat_map(|state| state.ports()) {
            for list in lists.iter() {
                let sets: &[SetId] = if list.id.is_sticky() {
                    &[SetId::StickySlots, SetId::StickyEndpoints]
                } else {
                    &[SetId::Endpoints]
                };
                sets.iter().for_each(|set| counts[*set as usize] += list.pool.len());
            }
            for element in self.port_elements(port, lists) {
                counts[element.set as usize] += 1;
            }
        }
        counts[SetId::ClusterAddresses as usize] += self.cluster_addresses.keys().count();
        counts[SetId::Hairpin as usize] += self.hairpin.keys().count();
        counts
    }

    fn port_elements(&self, port: &ProxiedPort, lists: &PortLists) -> Vec<PortElement> {
        let class = |class: StickyClass| self.sticky_classes.get(&class).copied().unwrap_or(0);
        port_elements::elements(port, lists, &class)
    }
}

fn add(port: &ProxiedPort, element: &PortElement, plan: &mut Plan) {
    let comment = has_comments(element.set).then(|| port.name.to_string());
    plan.add_element(element, comment.as_deref());
}

/// The key of the list that an element belongs to.
fn list_of(set: SetId, key: &[u8]) -> Option<u32> {
    let number = u32::from_ne_bytes(key.get(..4)?.try_into().ok()?);
    match set {
        SetId::Endpoints | SetId::StickySlots => Some(number),
        SetId::StickyEndpoints => Some(number & STICKY_LIST_MASK),
        _ => None,
    }
}

/// Passes on what belongs to one set.
struct OneSet<'a> {
    set: SetId,
    plan: &'a mut Plan,
}

impl ElementChanges for OneSet<'_> {
    fn add(&mut self, set: SetId, key: Image, value: Image) {
        if set == self.set {
            self.plan.add(set, key, value);
        }
    }

    fn delete(&mut self, _: SetId, _: Image) {}
}

/// Passes on what has one of these keys.
struct OnlyKeys<'a> {
    keys: &'a Keys,
    plan: &'a mut Plan,
}

impl ElementChanges for OnlyKeys<'_> {
    fn add(&mut self, set: SetId, key: Image, value: Image) {
        if self.keys.contains(&(set, key.as_bytes().to_vec())) {
            self.plan.add(set, key, value);
        }
    }

    fn delete(&mut self, _: SetId, _: Image) {}
}

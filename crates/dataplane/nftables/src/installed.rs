//! What the kernel has acknowledged, and the plan that leads from there to the desired state.

mod list_planning;
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use portwarden_model::{NamespacedName, PoolKind, PortName, ProxiedPort, ProxiedService};
use portwarden_netlink::nftables::Image;

use crate::endpoint_list::EndpointList;
use crate::error::Refusal;
use crate::list_numbers::ListNumbers;
use crate::masquerading::{HairpinEndpoint, hairpin_endpoints, hairpin_key};
use crate::plan::{ElementChanges, Plan};
use crate::port_elements::{self, PortElement};
use crate::port_lists::PortLists;
use crate::route::{Draw, FIRST_STICKY_CLASS, LISTS, ListId, STICKY_ENTRIES, STICKY_PORTS};
use crate::session_affinity::StickyClass;
use crate::sets::SetId;
use crate::shared_elements::SharedElements;

pub(crate) use written::Keys;

/// The elements of all Services in the kernel.
#[derive(Debug)]
pub(crate) struct Installed {
    services: HashMap<NamespacedName, ServiceState>,
    cluster_addresses: SharedElements<IpAddr>,
    hairpin: SharedElements<HairpinEndpoint>,
    numbers: ListNumbers,
    sticky_numbers: ListNumbers,
    sticky_classes: BTreeMap<StickyClass, u8>,
    /// Sticky lists that an earlier process left, by the hash of their port's name.
    recovered: HashMap<Vec<u8>, EndpointList>,
    pending: Pending,
}

/// A Service with the lists of each of its ports.
#[derive(Debug, Clone)]
struct ServiceState {
    service: Arc<ProxiedService>,
    ports: Box<[PortLists]>,
}

impl ServiceState {
    fn ports(&self) -> impl Iterator<Item = (&ProxiedPort, &PortLists)> {
        self.service.ports.iter().zip(&self.ports)
    }

    /// The port of this name, probably at this index.
    fn port(&self, name: &PortName, guess: usize) -> Option<(&ProxiedPort, &PortLists)> {
        let index = find(&self.service.ports, name, guess)?;
        Some((self.service.ports.get(index)?, self.ports.get(index)?))
    }
}

/// The index of the port of this name. The order of ports hardly ever changes, so the guess is tried first.
fn find(ports: &[ProxiedPort], name: &PortName, guess: usize) -> Option<usize> {
    if ports.get(guess).is_some_and(|port| port.name == *name) {
        return Some(guess);
    }
    ports.iter().position(|port| port.name == *name)
}

/// Becomes part of [`Installed`] when the kernel acknowledges the plan, and is discarded when it refuses.
#[derive(Debug, Default)]
struct Pending {
    services: Vec<(NamespacedName, Option<ServiceState>)>,
    taken: Vec<ListId>,
    released: Vec<ListId>,
    classes: Vec<StickyClass>,
}

impl Installed {
    pub(crate) fn new(recovered: HashMap<Vec<u8>, EndpointList>) -> Self {
        let mut sticky_numbers = ListNumbers::new(STICKY_PORTS);
        for state in recovered.values() {
            sticky_numbers.reserve(state.id.number());
        }
        Installed {
            services: HashMap::new(),
            cluster_addresses: SharedElements::default(),
            hairpin: SharedElements::default(),
            numbers: ListNumbers::new(LISTS),
            sticky_numbers,
            sticky_classes: BTreeMap::new(),
            recovered,
            pending: Pending::default(),
        }
    }

    /// The state after everything but the map of clients is removed from the kernel: sticky lists keep their numbers and entries.
    pub(crate) fn without_elements(&mut self) -> Installed {
        let mut recovered = std::mem::take(&mut self.recovered);
        for state in self.services.values() {
            for (port, lists) in state.ports() {
                for kind in [PoolKind::Cluster, PoolKind::Local] {
                    if let Some(list) = lists.get(kind).filter(|list| list.id.is_sticky()) {
                        recovered
                            .insert(port_elements::name_key(port, kind).as_bytes().to_vec(), list.clone());
                    }
                }
            }
        }
        Installed::new(recovered)
    }

    /// The ways to draw with affinity that are used or planned.
    pub(crate) fn sticky_classes(&self) -> BTreeSet<StickyClass> {
        self.sticky_classes.keys().copied().collect()
    }

    /// The elements of the map of classes that belong to affinity.
    pub(crate) fn sticky_class_numbers(&self) -> impl Iterator<Item = (StickyClass, u8)> + '_ {
        self.sticky_classes.iter().map(|(class, number)| (*class, *number))
    }

    /// The ways to draw with affinity that this plan uses for the first time.
    pub(crate) fn new_classes(&self) -> impl Iterator<Item = (StickyClass, u8)> + '_ {
        self.pending.classes.iter().filter_map(|class| Some((*class, *self.sticky_classes.get(class)?)))
    }

    /// Plans the changes of one Service; `None` removes it.
    pub(crate) fn plan(
        &mut self,
        name: &NamespacedName,
        wanted: Option<&Arc<ProxiedService>>,
        plan: &mut Plan,
    ) -> Result<(), Refusal> {
        // Taken out, so that it can be read while `self` assigns numbers.
        let services = std::mem::take(&mut self.services);
        let outcome = self.plan_service(services.get(name), name, wanted, plan);
        self.services = services;
        outcome
    }

    fn plan_service(
        &mut self,
        old: Option<&ServiceState>,
        name: &NamespacedName,
        wanted: Option<&Arc<ProxiedService>>,
        plan: &mut Plan,
    ) -> Result<(), Refusal> {
        if let (Some(old), Some(wanted)) = (old, wanted)
            && Arc::ptr_eq(&old.service, wanted)
        {
            return Ok(());
        }
        if let Some(wanted) = wanted {
            self.check_limits(wanted)?;
        }
        plan.begin(name);
        let ports = wanted.map_or(&[][..], |wanted| &wanted.ports);
        let mut states = Vec::with_capacity(ports.len());
        for (index, port) in ports.iter().enumerate() {
            let old = old.and_then(|old| old.port(&port.name, index));
            states.push(self.plan_port(old, port, plan)?);
        }
        for (index, (port, state)) in old.iter().flat_map(|old| old.ports()).enumerate() {
            if find(ports, &port.name, index).is_none() {
                self.remove_port(port, state, plan);
            }
        }
        let state = wanted.map(|wanted| ServiceState { service: Arc::clone(wanted), ports: states.into() });
        self.pending.services.push((name.clone(), state));
        Ok(())
    }

    /// Plans the elements that Services share. Call this after [`Installed::plan`] for all of them.
    pub(crate) fn plan_shared(&self, plan: &mut Plan) {
        let (add, delete) = self.cluster_addresses.difference();
        let key = |ip: IpAddr| Image::new().address(ip);
        delete.into_iter().for_each(|ip| plan.delete(SetId::ClusterAddresses, key(ip)));
        add.into_iter().for_each(|ip| plan.add(SetId::ClusterAddresses, key(ip), Image::new()));
        let (add, delete) = self.hairpin.difference();
        delete.into_iter().for_each(|endpoint| plan.delete(SetId::Hairpin, hairpin_key(endpoint)));
        add.into_iter().for_each(|endpoint| plan.add(SetId::Hairpin, hairpin_key(endpoint), Image::new()));
    }

    /// The kernel acknowledged the plan.
    pub(crate) fn commit(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for (name, state) in pending.services {
            match state {
                Some(state) => self.services.insert(name, state),
                None => self.services.remove(&name),
            };
        }
        for list in pending.released {
            self.release(list);
        }
        self.recovered.clear();
        self.cluster_addresses.commit();
        self.hairpin.commit();
    }

    /// The kernel refused the plan.
    pub(crate) fn roll_back(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for list in pending.taken {
            self.release(list);
        }
        for class in pending.classes {
            self.sticky_classes.remove(&class);
        }
        self.cluster_addresses.roll_back();
        self.hairpin.roll_back();
    }

    /// Refuses a Service that does not fit, before anything is planned.
    fn check_limits(&self, wanted: &ProxiedService) -> Result<(), Refusal> {
        for port in &wanted.ports {
            let (cluster, local) = (port.cluster.len(), port.local.len());
            let (count, limit) = match port.affinity {
                // Both lists share entries. Endpoints in both are counted once, but only if it matters.
                Some(_) if cluster + local > STICKY_ENTRIES.into() => {
                    (port.reachable().len(), STICKY_ENTRIES.into())
                }
                _ => (cluster.max(local), 1 << 17),
            };
            if count > limit {
                return Err(Refusal::Endpoints { port: port.name.to_string(), count, limit });
            }
        }
        Ok(())
    }

    fn plan_port(
        &mut self,
        old: Option<(&ProxiedPort, &PortLists)>,
        port: &ProxiedPort,
        plan: &mut Plan,
    ) -> Result<PortLists, Refusal> {
        let none = PortLists::default();
        let old_state = old.map_or(&none, |(_, state)| state);
        let state = self.plan_lists(old_state, port, plan)?;
        self.ensure_classes(port, &state)?;
        let class = |class: StickyClass| self.sticky_classes.get(&class).copied().unwrap_or(0);
        let old_elements =
            old.map(|(port, state)| port_elements::elements(port, state, &class)).unwrap_or_default();
        let new_elements = port_elements::elements(port, &state, &class);
        plan_elements(&old_elements, &new_elements, &port.name.to_string(), plan);
        self.count_shared(old.map(|(port, _)| port), Some(port));
        Ok(state)
    }

    fn remove_port(&mut self, port: &ProxiedPort, state: &PortLists, plan: &mut Plan) {
        let class = |class: StickyClass| self.sticky_classes.get(&class).copied().unwrap_or(0);
        plan_elements(&port_elements::elements(port, state, &class), &[], "", plan);
        self.remove_lists(state, plan);
        self.count_shared(Some(port), None);
    }

    fn ensure_classes(&mut self, port: &ProxiedPort, state: &PortLists) -> Result<(), Refusal> {
        let Some(timeout) = port.affinity else { return Ok(()) };
        for draw in state.iter().filter_map(|list| Draw::sticky(list.pool.len())) {
            let class = StickyClass { timeout: timeout.get(), draw, linked: state.is_linked() };
            if self.sticky_classes.contains_key(&class) {
                continue;
            }
            let used: BTreeSet<u8> = self.sticky_classes.values().copied().collect();
            let number = (FIRST_STICKY_CLASS..=u8::MAX).find(|number| !used.contains(number));
            self.sticky_classes.insert(class, number.ok_or(Refusal::Timeouts { timeout: timeout.get() })?);
            self.pending.classes.push(class);
        }
        Ok(())
    }

    fn count_shared(&mut self, old: Option<&ProxiedPort>, new: Option<&ProxiedPort>) {
        if let Some(ip) = new.and_then(port_elements::cluster_address) {
            self.cluster_addresses.add_user(ip);
        }
        if let Some(ip) = old.and_then(port_elements::cluster_address) {
            self.cluster_addresses.remove_user(ip);
        }
        new.into_iter().flat_map(hairpin_endpoints).for_each(|endpoint| self.hairpin.add_user(endpoint));
        old.into_iter().flat_map(hairpin_endpoints).for_each(|endpoint| self.hairpin.remove_user(endpoint));
    }
}

/// Deletes elements that are gone or changed, and adds those that are new or changed.
fn plan_elements(old: &[PortElement], new: &[PortElement], comment: &str, plan: &mut Plan) {
    for element in old.iter().filter(|element| !new.contains(element)) {
        plan.delete_element(element);
    }
    for element in new.iter().filter(|element| !old.contains(element)) {
        plan.add_element(element, has_comments(element.set).then_some(comment));
    }
}

/// Whether the elements of a set carry the name of their service port, for people who read the table.
fn has_comments(set: SetId) -> bool {
    matches!(
        set,
        SetId::Frontends
            | SetId::NodePorts
            | SetId::Unserved
            | SetId::UnservedNodePorts
            | SetId::Dropped
            | SetId::DroppedNodePorts
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{Cluster, Family};
    use portwarden_testkit::build::{ServiceBuilder, port};

    fn web() -> ServiceBuilder {
        samples::dual_stack("web", 1).port(port(80))
    }

    fn cluster(service: ServiceBuilder, endpoints: &[u8]) -> Cluster {
        let mut objects = samples::endpoints("web", endpoints);
        objects.push(service.into());
        samples::cluster(samples::settings(), objects)
    }

    /// Plans `demo/web` as it is in this cluster, and returns how many elements change.
    fn plan(installed: &mut Installed, cluster: Option<&Cluster>) -> Result<usize, Refusal> {
        let (name, mut plan) = (NamespacedName::new("demo", "web"), Plan::new());
        let service = cluster.and_then(|cluster| cluster.desired(Family::V4).service(&name));
        installed.plan(&name, service, &mut plan)?;
        installed.plan_shared(&mut plan);
        Ok(plan.len())
    }

    /// A frontend, two endpoints, a cluster address and a hairpin.
    #[test]
    fn an_acknowledged_service_is_not_written_again_and_leaves_nothing_behind() {
        let mut installed = Installed::new(HashMap::new());
        let cluster = cluster(web(), &[1, 10]);
        assert_eq!(plan(&mut installed, Some(&cluster)), Ok(5));
        installed.commit();
        assert_eq!(plan(&mut installed, Some(&cluster)), Ok(0));
        installed.commit();
        assert_eq!(plan(&mut installed, None), Ok(5));
        installed.commit();
        assert!(installed.services.is_empty());
    }

    /// What the kernel refused is planned again in full, and its class is free for another timeout.
    #[test]
    fn a_refused_plan_leaves_no_trace() {
        let mut installed = Installed::new(HashMap::new());
        let sticky = cluster(web().affinity(600), &[1, 10]);
        let first = plan(&mut installed, Some(&sticky)).unwrap();
        assert_eq!(installed.new_classes().count(), 1);
        installed.roll_back();
        assert!(installed.sticky_classes().is_empty() && installed.services.is_empty());
        assert_eq!(plan(&mut installed, Some(&sticky)), Ok(first));
    }

    /// After the loss of the table, a list with session affinity has its old number and entries.
    #[test]
    fn session_affinity_survives_a_full_write() {
        let mut installed = Installed::new(HashMap::new());
        let sticky = cluster(web().affinity(600), &[1, 10]);
        plan(&mut installed, Some(&sticky)).unwrap();
        installed.commit();
        let name = NamespacedName::new("demo", "web");
        let list = |installed: &Installed| {
            let list = installed.services[&name].ports[0].cluster.clone().unwrap();
            (list.id, list.entries().collect::<BTreeMap<_, _>>())
        };
        let before = list(&installed);
        let mut next = installed.without_elements();
        plan(&mut next, Some(&sticky)).unwrap();
        next.commit();
        assert_eq!(list(&next), before);
    }
}

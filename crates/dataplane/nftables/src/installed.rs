//! What the kernel has acknowledged, and the plan that leads from there to what is wanted.

mod lists;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use portwarden_model::{NamespacedName, PoolKind, PortName, ProxiedPort, ProxiedService};
use portwarden_netlink::nftables::Image;

use crate::chains::StickyClass;
use crate::counted::Counted;
use crate::error::Refusal;
use crate::lists::ListState;
use crate::numbers::Numbers;
use crate::plan::{ElementChanges, Plan};
use crate::ports::{self, Item, PortState};
use crate::route::{Draw, FIRST_STICKY_CLASS, LISTS, List, STICKY_ENTRIES, STICKY_PORTS};
use crate::sets::SetId;

/// What is in the kernel, as far as it follows from Services.
#[derive(Debug)]
pub(crate) struct Installed {
    services: HashMap<NamespacedName, ServiceState>,
    cluster_addresses: Counted<IpAddr>,
    hairpin: Counted<(IpAddr, u8, u16)>,
    numbers: Numbers,
    sticky_numbers: Numbers,
    sticky_classes: BTreeMap<StickyClass, u8>,
    /// Sticky lists that an earlier process left, by the key of their name.
    recovered: HashMap<Vec<u8>, ListState>,
    pending: Pending,
}

/// A Service with the lists of each of its ports.
#[derive(Debug, Clone)]
struct ServiceState {
    service: Arc<ProxiedService>,
    ports: Box<[PortState]>,
}

impl ServiceState {
    fn ports(&self) -> impl Iterator<Item = (&ProxiedPort, &PortState)> {
        self.service.ports.iter().zip(&self.ports)
    }

    /// The port of this name, which was probably at this place.
    fn port(&self, name: &PortName, place: usize) -> Option<(&ProxiedPort, &PortState)> {
        let index = find(&self.service.ports, name, place)?;
        Some((self.service.ports.get(index)?, self.ports.get(index)?))
    }
}

/// Where the port of this name is; ports seldom change their place.
fn find(ports: &[ProxiedPort], name: &PortName, guess: usize) -> Option<usize> {
    if ports.get(guess).is_some_and(|port| port.name == *name) {
        return Some(guess);
    }
    ports.iter().position(|port| port.name == *name)
}

/// What becomes true when the kernel takes the plan, and is forgotten when it does not.
#[derive(Debug, Default)]
struct Pending {
    services: Vec<(NamespacedName, Option<ServiceState>)>,
    taken: Vec<List>,
    released: Vec<List>,
    classes: Vec<StickyClass>,
}

impl Installed {
    pub(crate) fn new(recovered: HashMap<Vec<u8>, ListState>) -> Self {
        let mut sticky_numbers = Numbers::new(STICKY_PORTS);
        for state in recovered.values() {
            sticky_numbers.reserve(state.list.number());
        }
        Installed {
            services: HashMap::new(),
            cluster_addresses: Counted::default(),
            hairpin: Counted::default(),
            numbers: Numbers::new(LISTS),
            sticky_numbers,
            sticky_classes: BTreeMap::new(),
            recovered,
            pending: Pending::default(),
        }
    }

    /// The kernel has lost (or is about to lose) everything but session affinity: sticky lists keep their names and entries.
    pub(crate) fn forget(&mut self) -> Installed {
        let mut recovered = std::mem::take(&mut self.recovered);
        for state in self.services.values() {
            for (port, lists) in state.ports() {
                for kind in [PoolKind::Cluster, PoolKind::Local] {
                    if let Some(list) = lists.list(kind).filter(|list| list.list.is_sticky()) {
                        recovered.insert(ports::name_key(port, kind).as_bytes().to_vec(), list.clone());
                    }
                }
            }
        }
        Installed::new(recovered)
    }

    /// The ways to draw with affinity that are in use or about to be.
    pub(crate) fn sticky_classes(&self) -> BTreeSet<StickyClass> {
        self.sticky_classes.keys().copied().collect()
    }

    /// Elements for the map of classes: those with affinity.
    pub(crate) fn sticky_class_numbers(&self) -> impl Iterator<Item = (StickyClass, u8)> + '_ {
        self.sticky_classes.iter().map(|(class, number)| (*class, *number))
    }

    /// Ways to draw with affinity that this plan needs for the first time.
    pub(crate) fn new_classes(&self) -> impl Iterator<Item = (StickyClass, u8)> + '_ {
        self.pending.classes.iter().filter_map(|class| Some((*class, *self.sticky_classes.get(class)?)))
    }

    /// Plans the way of one Service to what is wanted.
    pub(crate) fn plan(
        &mut self,
        name: &NamespacedName,
        wanted: Option<&Arc<ProxiedService>>,
        plan: &mut Plan,
    ) -> Result<(), Refusal> {
        // Lent out, so that it can be read while numbers are taken.
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
            self.check(wanted)?;
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

    /// Plans what several Services can ask for at once; comes after all of them.
    pub(crate) fn plan_shared(&self, plan: &mut Plan) {
        let (add, delete) = self.cluster_addresses.difference();
        let key = |ip: IpAddr| Image::new().address(ip);
        delete.into_iter().for_each(|ip| plan.delete(SetId::ClusterAddresses, key(ip)));
        add.into_iter().for_each(|ip| plan.add(SetId::ClusterAddresses, key(ip), Image::new()));
        let (add, delete) = self.hairpin.difference();
        let key = |(ip, protocol, port)| Image::new().address(ip).address(ip).protocol(protocol).port(port);
        delete.into_iter().for_each(|endpoint| plan.delete(SetId::Hairpin, key(endpoint)));
        add.into_iter().for_each(|endpoint| plan.add(SetId::Hairpin, key(endpoint), Image::new()));
    }

    /// The kernel took the plan.
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

    /// What cannot be expressed is refused before anything is planned.
    fn check(&self, wanted: &ProxiedService) -> Result<(), Refusal> {
        for port in &wanted.ports {
            let (cluster, local) = (port.cluster.len(), port.local.len());
            let (count, limit) = match port.affinity {
                // Both lists together; seldom worth counting those that are in both.
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
        old: Option<(&ProxiedPort, &PortState)>,
        port: &ProxiedPort,
        plan: &mut Plan,
    ) -> Result<PortState, Refusal> {
        let none = PortState::default();
        let old_state = old.map_or(&none, |(_, state)| state);
        let state = self.plan_lists(old_state, port, plan)?;
        self.ensure_classes(port, &state)?;
        let class = |class: StickyClass| self.sticky_classes.get(&class).copied().unwrap_or(0);
        let old_items = old.map(|(port, state)| ports::items(port, state, &class)).unwrap_or_default();
        let new_items = ports::items(port, &state, &class);
        plan_items(&old_items, &new_items, &port.name.to_string(), plan);
        self.count_shared(old.map(|(port, _)| port), Some(port));
        Ok(state)
    }

    fn remove_port(&mut self, port: &ProxiedPort, state: &PortState, plan: &mut Plan) {
        let class = |class: StickyClass| self.sticky_classes.get(&class).copied().unwrap_or(0);
        plan_items(&ports::items(port, state, &class), &[], "", plan);
        self.remove_lists(state, plan);
        self.count_shared(Some(port), None);
    }

    fn ensure_classes(&mut self, port: &ProxiedPort, state: &PortState) -> Result<(), Refusal> {
        let Some(timeout) = port.affinity else { return Ok(()) };
        for draw in state.lists().filter_map(|list| Draw::sticky(list.pool.len())) {
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
        if let Some(ip) = new.and_then(ports::cluster_address) {
            self.cluster_addresses.want(ip);
        }
        if let Some(ip) = old.and_then(ports::cluster_address) {
            self.cluster_addresses.unwant(ip);
        }
        new.into_iter().flat_map(ports::local_endpoints).for_each(|endpoint| self.hairpin.want(endpoint));
        old.into_iter().flat_map(ports::local_endpoints).for_each(|endpoint| self.hairpin.unwant(endpoint));
    }
}

/// Deletes what is no longer wanted or has another value, and adds what is new.
fn plan_items(old: &[Item], new: &[Item], comment: &str, plan: &mut Plan) {
    for item in old.iter().filter(|item| !new.contains(item)) {
        plan.delete_item(item);
    }
    for item in new.iter().filter(|item| !old.contains(item)) {
        plan.add_item(item, commented(item.set).then_some(comment));
    }
}

/// Sets whose elements say whose they are, for those who read the table.
fn commented(set: SetId) -> bool {
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

//! The cluster as the source reports it, and the desired state that follows for this node.
//!
//! [`Cluster::apply`] stores one event and notes which Services it touches; [`Cluster::resolve`] brings [`Desired`] up to date for those
//! alone. A change to one slice costs work in proportion to its one Service.

mod lists;
mod store;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::address_conflicts::{Claims, FrontendKey};
use crate::changes::{Changes, GoneFrontend};
use crate::desired::{Desired, Frontend, NodeView, ProxiedPort, ProxiedService};
use crate::endpoint_selection::DecisionObserver;
use crate::endpoints::NodeLocation;
use crate::event::{Event, Kind};
use crate::explain::{Explanation, Recorder};
use crate::frontend::{Context, build};
use crate::ip::{Family, PerFamily};
use crate::name::{Name, NamespacedName, Protocol};
use crate::node_view::{node_view, primary_family};
use crate::object::Node;
use crate::problem::Problem;
use crate::reserved_ports;
use crate::settings::Settings;
use crate::timestamp::Timestamp;

use lists::Lists;
use store::Store;

/// The objects of the cluster and the desired state that follows from them.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    store: Store,
    lists: Lists,
    host_addresses: Box<[IpAddr]>,
    /// The Node object was deleted; its last content is retained.
    node_deleted: bool,
    /// The Node's zone that all Services were last resolved with.
    zone: Option<Name>,
    families: PerFamily<State>,
    /// Not yet taken by [`Cluster::take_problems`].
    problems: Vec<Problem>,
}

/// A frontend, found by its address.
#[derive(Debug, Clone, Copy)]
pub struct FrontendAt<'a> {
    /// The Service that has it.
    pub service: &'a NamespacedName,
    /// The port of that Service.
    pub port: &'a ProxiedPort,
    /// Always an active one.
    pub frontend: &'a Frontend,
}

/// The state of one family.
#[derive(Debug)]
struct State {
    desired: Desired,
    /// The current view of the node. [`Desired`] gets it together with the Services that depend on it.
    node: NodeView,
    claims: Claims,
    dirty: BTreeSet<NamespacedName>,
    trigger_times: BTreeMap<NamespacedName, Vec<Timestamp>>,
}

impl Cluster {
    /// A cluster without objects, in which nothing was listed yet.
    pub fn new(settings: Settings) -> Self {
        let families = PerFamily::from_fn(|family| {
            let node = node_view(family, &settings, None, &[], [].iter());
            State {
                desired: Desired::new(family, node.clone()),
                node,
                claims: Claims::default(),
                dirty: BTreeSet::new(),
                trigger_times: BTreeMap::new(),
            }
        });
        Cluster {
            settings,
            store: Store::default(),
            lists: Lists::default(),
            host_addresses: Box::default(),
            node_deleted: false,
            zone: None,
            families,
            problems: Vec::new(),
        }
    }

    /// Applies one event. Returns whether it changed anything.
    pub fn apply(&mut self, event: Event) -> bool {
        match event {
            Event::ServiceApplied(service) => {
                let name = service.name.clone();
                let known = self.reserved_port_problems(&name);
                let changed = self.store.apply_service(service, self.lists.generation(Kind::Service));
                self.add_new_problems(&name, &known);
                self.touch_if(changed, &name)
            }
            Event::ServiceDeleted(name) => {
                let changed = self.store.delete_service(&name);
                self.touch_if(changed, &name)
            }
            Event::SliceApplied(slice) => self.apply_slice(slice),
            Event::SliceDeleted(name) => self.delete_slice(&name),
            Event::NodeApplied(node) if node.name == self.settings.node_name => {
                let changed =
                    self.store.apply_node(node, self.lists.generation(Kind::Node)) | self.node_deleted;
                self.node_deleted = false;
                self.refresh_if(changed)
            }
            Event::NodeDeleted(name) if name == self.settings.node_name => self.retain_deleted_node(),
            Event::NodeApplied(_) | Event::NodeDeleted(_) => false,
            Event::ServiceCidrApplied(cidr) => {
                let changed = self.store.apply_service_cidr(cidr, self.lists.generation(Kind::ServiceCidr));
                self.refresh_if(changed)
            }
            Event::ServiceCidrDeleted(name) => {
                let changed = self.store.delete_service_cidr(&name);
                self.refresh_if(changed)
            }
            Event::ListStarted(kind) => {
                self.lists.start(kind);
                false
            }
            Event::ListDone(kind) => self.finish_list(kind),
            Event::HostAddresses(ips) => {
                let changed = self.host_addresses != ips;
                self.host_addresses = ips;
                self.refresh_if(changed)
            }
        }
    }

    /// Whether Services and EndpointSlices were listed once. Nothing may be written to the kernel before.
    pub fn is_synced(&self) -> bool {
        self.lists.is_synced(Kind::Service) && self.lists.is_synced(Kind::EndpointSlice)
    }

    /// Whether this kind was listed once.
    pub fn is_listed(&self, kind: Kind) -> bool {
        self.lists.is_synced(kind)
    }

    /// Brings the desired state up to date and returns what differs.
    pub fn resolve(&mut self) -> PerFamily<Changes> {
        PerFamily::from_fn(|family| self.resolve_family(family))
    }

    /// The desired state of a family, as of the last [`Cluster::resolve`].
    pub fn desired(&self, family: Family) -> &Desired {
        &self.families[family].desired
    }

    /// How many Services the next [`Cluster::resolve`] will look at in a family.
    pub fn pending(&self, family: Family) -> usize {
        self.families[family].dirty.len()
    }

    /// Changes the settings. The next [`Cluster::resolve`] looks at every Service.
    pub fn set_settings(&mut self, settings: Settings) {
        if self.settings != settings {
            if self.settings.node_name != settings.node_name {
                // The stored Node is another one now; the source will bring ours.
                self.store.forget_node();
                self.node_deleted = false;
            }
            let names: Vec<NamespacedName> = self.store.service_names().cloned().collect();
            let known: Vec<Vec<Problem>> =
                names.iter().map(|name| self.reserved_port_problems(name)).collect();
            self.settings = settings;
            for (name, known) in names.iter().zip(known) {
                self.add_new_problems(name, &known);
            }
            self.touch_everything();
            self.refresh_node_views();
        }
    }

    /// Problems that only this node's settings reveal, each once.
    pub fn take_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.problems)
    }

    fn reserved_port_problems(&self, name: &NamespacedName) -> Vec<Problem> {
        let service = self.store.service(name);
        service.map(|service| reserved_ports::problems(&self.settings, service)).unwrap_or_default()
    }

    fn add_new_problems(&mut self, name: &NamespacedName, known: &[Problem]) {
        let found = self.reserved_port_problems(name);
        self.problems.extend(found.into_iter().filter(|problem| !known.contains(problem)));
    }

    /// The current settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The addresses of this host's interfaces, from the last [`Event::HostAddresses`].
    pub fn host_addresses(&self) -> &[IpAddr] {
        &self.host_addresses
    }

    /// Whether load balancers should send new traffic to this node: it is known and not being removed.
    pub fn is_node_eligible(&self) -> bool {
        self.store.node().is_some_and(|node| node.eligible)
    }

    /// Whether our Node was known and then deleted.
    pub fn is_node_deleted(&self) -> bool {
        self.node_deleted
    }

    /// Our Node, once known. A deleted Node keeps its last content, but is not eligible.
    pub fn node(&self) -> Option<&Node> {
        self.store.node()
    }

    /// The node's primary family: that of its bind address or first address.
    pub fn primary_family(&self) -> Family {
        primary_family(&self.settings, self.store.node())
    }

    /// All Services that are proxied in some family.
    pub fn service_names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.store.service_names()
    }

    /// The decisions about a Service and their reasons, as of the last event. `None` if it is not proxied in this family.
    pub fn explain(&self, name: &NamespacedName, family: Family) -> Option<Explanation> {
        let mut recorder = Recorder::default();
        let mut service = self.build(name, family, &mut recorder)?;
        self.families[family].claims.mark(name, &mut service);
        Some(recorder.finish(service, self.store.slices(name), family))
    }

    /// The frontend that gets packets to an address and port, as of the last [`Cluster::resolve`]. An address of a Service comes before a
    /// node port, which needs one of this host's addresses.
    pub fn frontend_at(&self, to: SocketAddr, protocol: Protocol) -> Option<FrontendAt<'_>> {
        let State { desired, claims, .. } = &self.families[Family::of(to.ip())];
        let find = |ip: Option<IpAddr>| {
            let service = claims.owner(&FrontendKey { ip, port: to.port(), protocol })?;
            let ports = desired.service(service)?.ports.iter().filter(|port| port.protocol() == protocol);
            let mut frontends = ports.flat_map(|port| port.frontends.iter().map(move |f| (port, f)));
            let (port, frontend) =
                frontends.find(|(_, f)| f.ip == ip && f.port == to.port() && f.is_active())?;
            Some(FrontendAt { service, port, frontend })
        };
        let is_own = || self.host_addresses.contains(&to.ip()) || to.ip().is_loopback();
        find(Some(to.ip()))
            .or_else(|| find(None).filter(|_| is_own() && desired.node.node_ports.contains(to.ip())))
    }

    fn build(
        &self,
        name: &NamespacedName,
        family: Family,
        observer: &mut impl DecisionObserver,
    ) -> Option<ProxiedService> {
        let context = Context {
            family,
            settings: &self.settings,
            node: &self.families[family].node,
            location: NodeLocation {
                node: self.settings.node_name.as_str(),
                zone: self.zone.as_ref().map(Name::as_str),
            },
        };
        build(self.store.service(name)?, self.store.slices(name), context, observer)
    }

    fn resolve_family(&mut self, family: Family) -> Changes {
        let dirty = std::mem::take(&mut self.families[family].dirty);
        let mut built: Vec<(NamespacedName, Option<ProxiedService>)> = Vec::with_capacity(dirty.len());
        let mut affected = BTreeSet::new();
        for name in dirty {
            let service = self.build(&name, family, &mut ());
            let state = &mut self.families[family];
            let old = state.desired.service(&name).map(AsRef::as_ref);
            affected.append(&mut state.claims.update(&name, old, service.as_ref()));
            built.push((name, service));
        }
        let state = &mut self.families[family];
        // Other Services that won or lost an address; they did not change otherwise.
        affected.retain(|name| built.binary_search_by(|(other, _)| other.cmp(name)).is_err());
        for name in affected {
            let service = state.desired.service(&name).map(|service| ProxiedService::clone(service));
            built.push((name, service));
        }
        let mut changes = Changes::default();
        if state.desired.node != state.node {
            state.desired.node = state.node.clone();
            changes.node = true;
        }
        for (name, service) in built {
            state.replace(&name, service, &mut changes);
        }
        changes.trigger_times = std::mem::take(&mut state.trigger_times).into_values().flatten().collect();
        changes
    }

    fn apply_slice(&mut self, slice: crate::object::EndpointSlice) -> bool {
        let (name, family, time) = (slice.service.clone(), slice.family(), slice.trigger_time);
        let outcome = self.store.apply_slice(slice, self.lists.generation(Kind::EndpointSlice));
        if let Some((old_service, old_family)) = outcome.left {
            self.lose_slice(&old_service, old_family);
        }
        if outcome.changed {
            self.touch(&name, family);
            if let Some(time) = time.filter(|time| *time > self.settings.started) {
                self.families[family].trigger_times.entry(name).or_default().push(time);
            }
        }
        outcome.changed
    }

    fn delete_slice(&mut self, name: &NamespacedName) -> bool {
        let Some((service, family)) = self.store.delete_slice(name) else { return false };
        self.lose_slice(&service, family);
        true
    }

    /// A removal makes the trigger times of earlier changes meaningless: they belong to endpoints that are gone.
    fn lose_slice(&mut self, service: &NamespacedName, family: Family) {
        self.families[family].trigger_times.remove(service);
        self.touch(service, family);
    }

    /// Removes the objects that the finished list did not contain.
    fn finish_list(&mut self, kind: Kind) -> bool {
        let generation = self.lists.finish(kind);
        let mut changed = false;
        match kind {
            Kind::Service => {
                for name in self.store.unseen_services(generation) {
                    changed |= self.apply(Event::ServiceDeleted(name));
                }
            }
            Kind::EndpointSlice => {
                for name in self.store.unseen_slices(generation) {
                    changed |= self.delete_slice(&name);
                }
            }
            Kind::Node => {
                changed = self.store.node_unseen(generation) && self.retain_deleted_node();
            }
            Kind::ServiceCidr => {
                for name in self.store.unseen_service_cidrs(generation) {
                    changed |= self.apply(Event::ServiceCidrDeleted(name));
                }
            }
        }
        changed
    }

    /// Retains the address and zone of a deleted Node, and makes it ineligible for new traffic. Without the address, node ports restricted to it
    /// would answer on every address of the host while its pods still run.
    fn retain_deleted_node(&mut self) -> bool {
        self.node_deleted = self.store.node().is_some();
        self.store.retain_node_as_ineligible()
    }

    fn touch_if(&mut self, changed: bool, name: &NamespacedName) -> bool {
        if changed {
            for family in Family::BOTH {
                self.touch(name, family);
            }
        }
        changed
    }

    /// Marks a Service for the next resolve, if it is or was proxied in this family.
    fn touch(&mut self, name: &NamespacedName, family: Family) {
        let is_proxied =
            self.store.service(name).is_some_and(|service| service.cluster_ips[family].is_some());
        let state = &mut self.families[family];
        if is_proxied || state.desired.service(name).is_some() {
            state.dirty.insert(name.clone());
        }
    }

    fn touch_everything(&mut self) {
        let names: Vec<NamespacedName> = self.store.service_names().cloned().collect();
        for family in Family::BOTH {
            for name in &names {
                self.touch(name, family);
            }
        }
    }

    fn refresh_if(&mut self, changed: bool) -> bool {
        if changed {
            self.refresh_node_views();
        }
        changed
    }

    /// The Node, the host's addresses or the service ranges changed: updates the views and marks the Services that depend on them.
    fn refresh_node_views(&mut self) {
        let zone = self.store.node().and_then(|node| node.zone.clone());
        let mut touch = self.zone != zone;
        self.zone = zone;
        for family in Family::BOTH {
            let cidrs = self.store.service_cidrs();
            let view = node_view(family, &self.settings, self.store.node(), &self.host_addresses, cidrs);
            let state = &mut self.families[family];
            touch |= services_depend(&view, &state.node);
            state.node = view;
        }
        if touch {
            self.touch_everything();
        }
    }
}

/// Whether the difference between two views can change a Service's frontends.
fn services_depend(new: &NodeView, old: &NodeView) -> bool {
    new.ip != old.ip || new.pod_traffic != old.pod_traffic
}

impl State {
    fn replace(&mut self, name: &NamespacedName, mut service: Option<ProxiedService>, changes: &mut Changes) {
        if let Some(service) = &mut service {
            self.claims.mark(name, service);
        }
        let old = self.desired.service(name).cloned();
        let udp_before = old.as_deref().is_some_and(has_udp);
        let udp_after = service.as_ref().is_some_and(has_udp);
        if !self.desired.set_service(name, service) {
            return;
        }
        changes.services.insert(name.clone());
        changes.udp |= udp_before || udp_after;
        if udp_before && let Some(old) = old {
            changes.gone.extend(self.gone(&old));
        }
    }

    /// UDP frontends of an earlier state that no Service has any more.
    fn gone<'a>(&'a self, old: &'a ProxiedService) -> impl Iterator<Item = GoneFrontend> + 'a {
        old.ports.iter().filter(|port| port.protocol() == Protocol::Udp).flat_map(|port| {
            port.frontends
                .iter()
                .filter(|frontend| frontend.is_allowed())
                .map(|frontend| FrontendKey { ip: frontend.ip, port: frontend.port, protocol: Protocol::Udp })
                .filter(|key| !self.claims.is_claimed(key))
                .map(|key| GoneFrontend { ip: key.ip, port: key.port, protocol: key.protocol })
        })
    }
}

fn has_udp(service: &ProxiedService) -> bool {
    service.ports.iter().any(|port| port.protocol() == Protocol::Udp)
}

//! The sockets and Services of one family.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use portwarden_model::{
    Changes, Desired, Exposure, Family, Frontend, NamespacedName, NodeView, PoolKind, PortName, Protocol,
    ProxiedPort, ProxiedService, RefusedService, Report, Verdict,
};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::sockets::{self, PortsBefore, Sockets};
use super::{Context, GRACE};
use crate::core::{Target, UdpListener, UdpRoute, UdpSockets};
use crate::error::Error;
use crate::flows::StaleFlows;
use crate::redirect::{Action, Origin, Place, Portal, Recovered, ServiceRules, Wanted, Written, sources};
use crate::routes::{Entry, Routes};

/// What one family has.
#[derive(Debug)]
pub(super) struct FamilyState {
    family: Family,
    routes: Arc<Routes>,
    recovered: Option<Recovered>,
    sockets: Option<Sockets>,
    /// Sockets on addresses that the node had before, to which the kernel's rules may still lead.
    retired: Vec<Sockets>,
    /// The UDP sockets of all Services.
    udp: UdpSockets,
    /// Who has a UDP port. Rules of an earlier process may name it for others, too.
    udp_owners: HashMap<u16, UdpKey>,
    services: HashMap<NamespacedName, ServiceState>,
}

/// A Service as it is served.
#[derive(Debug, Default)]
struct ServiceState {
    targets: BTreeMap<PortName, Arc<Target>>,
    places: BTreeMap<Place, (Arc<Target>, Portal)>,
    udp: HashMap<UdpKey, Arc<UdpPort>>,
}

/// A socket for each pool of a service port: a datagram does not say where it comes from, so the rules choose the socket by that.
type UdpKey = (PortName, PoolKind);

#[derive(Debug)]
struct UdpPort {
    address: SocketAddr,
    listener: UdpListener,
}

/// A Service as it should be served.
struct Draft {
    state: ServiceState,
    rules: ServiceRules,
    refused: Option<String>,
}

impl FamilyState {
    pub(super) fn new(family: Family) -> Self {
        FamilyState {
            family,
            routes: Arc::default(),
            recovered: None,
            sockets: None,
            retired: Vec::new(),
            udp: UdpSockets::default(),
            udp_owners: HashMap::new(),
            services: HashMap::new(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// The dataplane is about to end. The result changes to true when the next one serves; `None` if nothing is open.
    pub(super) fn end(&self) -> Option<watch::Receiver<bool>> {
        self.sockets.as_ref()?.end()
    }

    /// Sockets first, then the rules that lead to them, then what is no longer needed: no connection ever meets a closed port.
    pub(super) fn sync(
        &mut self,
        context: &mut Context,
        desired: &Desired,
        changes: &Changes,
        now: Instant,
    ) -> Result<Report, Error> {
        self.recover(context)?;
        let opened = self.open_sockets(context, &desired.node, changes);
        let mut full = changes.full || opened || !context.redirect.in_step(self.family);
        let outcome = loop {
            match self.apply(context, desired, changes, (full, now)) {
                Err(Error::Commit { source, .. }) if !full && source.is_out_of_step() => {
                    debug!(ipFamily = %self.family, err = %source, "Writing all redirection rules again");
                    full = true;
                }
                outcome => break outcome,
            }
        };
        if outcome.is_ok() {
            if !self.retired.is_empty() {
                // No rule leads there any more, but connections may be under way.
                let retired = std::mem::take(&mut self.retired);
                context.workers.linger(retired, async { tokio::time::sleep(GRACE).await });
            }
            if let Some(sockets) = &mut self.sockets {
                let udp = self.services.values().flat_map(|service| service.udp.values());
                sockets.relieve_predecessor(udp.map(|open| open.address));
            }
        }
        outcome
    }

    fn apply(
        &mut self,
        context: &mut Context,
        desired: &Desired,
        changes: &Changes,
        (full, now): (bool, Instant),
    ) -> Result<Report, Error> {
        let names: BTreeSet<&NamespacedName> = if full {
            desired.services().map(|(name, _)| name).collect()
        } else {
            changes.services.iter().collect()
        };
        let mut report = Report::default();
        let (mut states, mut rules) = (BTreeMap::new(), BTreeMap::new());
        for name in names {
            let draft = desired.service(name).map(|service| self.draft(context, service, now));
            if let Some(reason) = draft.as_ref().and_then(|draft| draft.refused.clone()) {
                report.refused.push(RefusedService { service: name.clone(), reason });
            }
            let (state, service_rules) = draft.map(|draft| (draft.state, draft.rules)).unzip();
            rules.insert(name.clone(), service_rules);
            states.insert(name.clone(), state);
        }
        if let Some(sockets) = &mut self.sockets {
            sockets.accept(context, &self.routes);
        }
        let failed = |source| Error::Commit { family: self.family, source };
        let own = self.sockets.as_ref().map(Sockets::rules).unwrap_or_default();
        let wanted = Wanted { family: self.family, node: &desired.node, own: &own, services: &rules, full };
        let written = context.redirect.write(&wanted).map_err(failed)?;
        let Written { objects, full, missed_notifications } = written;
        self.accept(context, states, full);
        self.forget_flows(desired, changes);
        Ok(Report { full, written: objects, missed_notifications, flows_removed: true, ..report })
    }

    /// Takes over what the rules lead to now.
    fn accept(
        &mut self,
        context: &mut Context,
        mut states: BTreeMap<NamespacedName, Option<ServiceState>>,
        full: bool,
    ) {
        if full {
            let gone = self.services.keys().filter(|name| !states.contains_key(*name));
            let gone: Vec<NamespacedName> = gone.cloned().collect();
            states.extend(gone.into_iter().map(|name| (name, None)));
        }
        for (name, state) in states {
            let old = match state {
                Some(state) => self.services.insert(name.clone(), state),
                None => {
                    context.shared.counters.forget(&name);
                    self.services.remove(&name)
                }
            };
            let Some(old) = old else { continue };
            let kept = self.services.get(&name);
            for (place, (target, _)) in old.places {
                if !kept.is_some_and(|kept| kept.places.contains_key(&place)) {
                    self.routes.remove(place, &target);
                }
            }
            for (key, open) in old.udp {
                let (port, present) = (open.address.port(), kept.and_then(|kept| kept.udp.get(&key)));
                if present.is_none_or(|present| present.address.port() != port) {
                    context.ports.release(self.family, Protocol::Udp, port);
                    self.udp_owners.remove(&port);
                }
            }
        }
    }

    /// Lets the kernel forget flows that lead to where they should no longer go.
    fn forget_flows(&self, desired: &Desired, changes: &Changes) {
        if !changes.udp && !changes.full && changes.gone.is_empty() {
            return;
        }
        let portals = self.services.values().flat_map(|service| service.places.values());
        let stale = StaleFlows::new(desired, changes, portals.map(|(_, portal)| portal));
        if let Err(error) = stale.delete(self.family) {
            warn!(ipFamily = %self.family, err = %error, "Cannot remove stale connection tracking entries");
        }
    }

    /// Decides what a Service needs, and makes its sockets and routes ready before the rules lead to them.
    fn draft(&mut self, context: &mut Context, service: &ProxiedService, now: Instant) -> Draft {
        let mut draft =
            Draft { state: ServiceState::default(), rules: ServiceRules::default(), refused: None };
        for port in &service.ports {
            let known = self.services.get(&port.name.service).and_then(|s| s.targets.get(&port.name));
            let target = match known {
                Some(target) => {
                    target.balancer.update(port, now);
                    Arc::clone(target)
                }
                None => Arc::new(Target::new(port, &context.shared.counters, now)),
            };
            for frontend in port.active_frontends() {
                if frontend.exposure == Exposure::ClusterIp {
                    draft.rules.cluster_ips.extend(frontend.ip);
                }
                match self.portal(context, port, frontend, &target, &mut draft) {
                    Ok(portal) => {
                        self.route(port, frontend, &target);
                        draft.rules.portals.push(portal.clone());
                        draft.state.places.insert(portal.place, (Arc::clone(&target), portal));
                    }
                    Err(reason) => draft.refused = Some(reason),
                }
            }
            draft.state.targets.insert(port.name.clone(), target);
        }
        draft
    }

    fn portal(
        &mut self,
        context: &mut Context,
        port: &ProxiedPort,
        frontend: &Frontend,
        target: &Arc<Target>,
        draft: &mut Draft,
    ) -> Result<Portal, String> {
        let place = Place::of(port, frontend);
        let mut action = |origin, verdict| match verdict {
            Verdict::Reject => Ok(Action::Reject),
            Verdict::Drop => Ok(Action::Drop),
            Verdict::Forward(pool) => {
                let address = match port.protocol() {
                    Protocol::Tcp => self.tcp_socket(origin),
                    Protocol::Udp => {
                        let recovered = self.recovered.as_ref();
                        let kept = recovered.and_then(|known| known.udp.get(&(origin, place)).copied());
                        self.udp_socket(context, port, (target, pool), kept, draft)
                    }
                    Protocol::Sctp => Err(format!("mode userspace does not support SCTP ({})", port.name)),
                };
                address.map(Action::Redirect)
            }
        };
        Ok(Portal {
            name: port.name.clone(),
            place,
            from_node: action(Origin::Node, frontend.from_node)?,
            from_elsewhere: action(Origin::Elsewhere, frontend.from_elsewhere)?,
            sources: sources(port, frontend),
        })
    }

    fn sockets(&self) -> Result<&Sockets, String> {
        self.sockets.as_ref().ok_or_else(|| {
            format!("this node has no {} address to which connections could be redirected", self.family)
        })
    }

    fn tcp_socket(&self, origin: Origin) -> Result<SocketAddr, String> {
        let address = self.sockets()?.address(origin);
        address.ok_or_else(|| format!("no {} socket is open", self.family))
    }

    /// The socket of a pool of a UDP service port, opened with the port that it had before where there is one.
    fn udp_socket(
        &mut self,
        context: &mut Context,
        port: &ProxiedPort,
        (target, pool): (&Arc<Target>, PoolKind),
        kept: Option<u16>,
        draft: &mut Draft,
    ) -> Result<SocketAddr, String> {
        let sockets = self.sockets()?;
        let (key, ip) = ((port.name.clone(), pool), sockets.ip);
        if let Some(open) = draft.state.udp.get(&key) {
            return Ok(open.address);
        }
        let known = self.services.get(&port.name.service).and_then(|service| service.udp.get(&key));
        let open = match known.filter(|open| open.address.ip() == ip) {
            Some(open) => {
                let usable: HashSet<SocketAddr> = usable(port, pool).collect();
                open.listener.retain(|endpoint| usable.contains(&endpoint));
                Arc::clone(open)
            }
            None => {
                let failed = |error| format!("cannot open a UDP socket on {ip} for {}: {error}", port.name);
                let bind = |port, sharing| sockets.open_udp(port, sharing);
                let kept = kept.filter(|port| self.udp_owners.get(port).is_none_or(|owner| *owner == key));
                let opened = context.ports.open((self.family, Protocol::Udp), kept, bind);
                let (socket, number) = opened.map_err(failed)?;
                let worker = &context.workers.all()[context.workers.next()].handle;
                let socket = self.udp.open(worker, socket).map_err(failed)?;
                let route =
                    UdpRoute { target: Arc::clone(target), pool, timeout: context.options.udp_timeout };
                let listener = UdpListener::start(worker, (self.family, socket), route, &context.shared);
                self.udp_owners.insert(number, key.clone());
                Arc::new(UdpPort { address: SocketAddr::new(ip, number), listener })
            }
        };
        let address = open.address;
        draft.rules.sockets.push((Protocol::Udp, address));
        draft.state.udp.insert(key, open);
        Ok(address)
    }

    fn route(&self, port: &ProxiedPort, frontend: &Frontend, target: &Arc<Target>) {
        let pool = |verdict| match verdict {
            Verdict::Forward(pool) => Some(pool),
            Verdict::Reject | Verdict::Drop => None,
        };
        if port.protocol() == Protocol::Tcp {
            let entry = Entry {
                target: Arc::clone(target),
                from_node: pool(frontend.from_node),
                from_elsewhere: pool(frontend.from_elsewhere),
            };
            self.routes.insert(Place::of(port, frontend), entry);
        }
    }

    /// Reads once which ports the process before this one used.
    fn recover(&mut self, context: &mut Context) -> Result<(), Error> {
        if self.recovered.is_some() {
            return Ok(());
        }
        let failed = |source| Error::Read { family: self.family, source };
        let recovered = context.redirect.recover(self.family).map_err(failed)?;
        for (protocol, port) in recovered.ports() {
            context.ports.reserve(self.family, protocol, port);
        }
        self.recovered = Some(recovered);
        Ok(())
    }

    /// Listens on the node's address. Returns whether that is another one now.
    fn open_sockets(&mut self, context: &mut Context, node: &NodeView, changes: &Changes) -> bool {
        if self.sockets.is_some() && !changes.node && !changes.full {
            return false;
        }
        for ip in sockets::addresses(self.family, context, node) {
            if self.sockets.as_ref().is_some_and(|sockets| sockets.ip == ip) {
                return false;
            }
            let kept = PortsBefore { sockets: self.sockets.as_ref(), recovered: self.recovered.as_ref() };
            match Sockets::open((self.family, &self.udp), context, ip, &kept) {
                Ok(sockets) => {
                    info!(ipFamily = %self.family, address = %ip, "Redirecting connections of Services to this address");
                    self.retired.extend(self.sockets.replace(sockets).map(Sockets::retire));
                    return true;
                }
                Err(error) => {
                    debug!(ipFamily = %self.family, address = %ip, err = %error, "Cannot listen on an address");
                }
            }
        }
        // Better the address that was good before than none.
        false
    }
}

/// Endpoints at which a UDP session may stay: those that still answer, though new sessions may go elsewhere.
fn usable(port: &ProxiedPort, pool: PoolKind) -> impl Iterator<Item = SocketAddr> + '_ {
    let serving = port.endpoints.iter().filter(|backend| backend.conditions.serving);
    let allowed = serving.filter(move |backend| pool == PoolKind::Cluster || backend.local);
    allowed.map(|backend| backend.address())
}

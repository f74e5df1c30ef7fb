//! The sockets and Services of one family.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use portwarden_model::{
    Changes, Desired, Exposure, Family, Frontend, NamespacedName, NodeView, PoolKind, PortName, Protocol,
    ProxiedPort, ProxiedService, RefusedService, Report, Verdict,
};
use portwarden_netlink::IpFamily;
use portwarden_netlink::route::{Route, scope};
use tracing::{debug, info, warn};

use super::{Context, GRACE};
use crate::core::{Listener, Sharing, Target, UdpListener, UdpRoute, bind_udp, listen, listening};
use crate::error::Error;
use crate::flows::StaleFlows;
use crate::redirect::{Action, Origin, Place, Portal, Recovered, ServiceRules, Written, sources};
use crate::routes::{Entry, Redirected, Routes};

/// How long a first sync waits for the process before this one, at most: so many times this interval.
const PREDECESSOR_CHECKS: usize = 50;
const PREDECESSOR_INTERVAL: Duration = Duration::from_millis(5);

/// What one family has.
#[derive(Debug)]
pub(super) struct FamilyState {
    family: Family,
    routes: Arc<Routes>,
    recovered: Option<Recovered>,
    sockets: Option<Sockets>,
    /// Sockets on addresses that the node had before, to which the kernel's rules may still lead.
    retired: Vec<Sockets>,
    services: HashMap<NamespacedName, ServiceState>,
}

/// The TCP listeners, all on one address.
#[derive(Debug)]
struct Sockets {
    ip: IpAddr,
    ports: BTreeMap<Origin, u16>,
    /// Bound and listening, but nothing accepts yet: connections wait until routes are known.
    waiting: Vec<(Origin, Sharing, Vec<StdListener>)>,
    listeners: Vec<Listener>,
    /// The addresses, each with the inodes of all sockets that listened there when ours had been opened: ours, and those of processes before.
    known: Vec<(SocketAddr, BTreeSet<u64>)>,
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
            services: HashMap::new(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// The addresses of the TCP listeners.
    pub(super) fn listening(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let address = |sockets: &Sockets, port: &u16| SocketAddr::new(sockets.ip, *port);
        self.sockets.iter().flat_map(move |s| s.ports.values().map(move |port| address(s, port)))
    }

    /// The addresses of the TCP listeners, each with the inodes of the sockets that listened there when ours had been opened.
    pub(super) fn known_listeners(&self) -> Vec<(SocketAddr, BTreeSet<u64>)> {
        self.sockets.as_ref().map_or_else(Vec::new, |sockets| sockets.known.clone())
    }

    /// Sockets first, then the rules that lead to them, then what is no longer needed: no connection ever meets a closed port.
    pub(super) fn sync(
        &mut self,
        context: &mut Context,
        desired: &Desired,
        changes: &Changes,
    ) -> Result<Report, Error> {
        self.recover(context)?;
        let first = self.sockets.is_none();
        let opened = self.open_sockets(context, &desired.node, changes);
        let mut full = changes.full || opened || !context.redirect.in_step(self.family);
        let outcome = loop {
            match self.apply(context, desired, changes, full) {
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
            if opened && first {
                self.await_predecessor(context);
            }
        }
        outcome
    }

    fn apply(
        &mut self,
        context: &mut Context,
        desired: &Desired,
        changes: &Changes,
        full: bool,
    ) -> Result<Report, Error> {
        let names: BTreeSet<&NamespacedName> = if full {
            desired.services().map(|(name, _)| name).collect()
        } else {
            changes.services.iter().collect()
        };
        let mut report = Report::default();
        let (mut states, mut rules) = (BTreeMap::new(), BTreeMap::new());
        for name in names {
            let draft = desired.service(name).map(|service| self.draft(context, service));
            if let Some(reason) = draft.as_ref().and_then(|draft| draft.refused.clone()) {
                report.refused.push(RefusedService { service: name.clone(), reason });
            }
            let (state, service_rules) = draft.map(|draft| (draft.state, draft.rules)).unzip();
            rules.insert(name.clone(), service_rules);
            states.insert(name.clone(), state);
        }
        self.accept_connections(context);
        let failed = |source| Error::Commit { family: self.family, source };
        let own = self.own_rules();
        let written =
            context.redirect.write(self.family, &desired.node, &own, &rules, full).map_err(failed)?;
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
                if !kept.is_some_and(|kept| kept.udp.contains_key(&key)) {
                    context.ports.release(self.family, Protocol::Udp, open.address.port());
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
    fn draft(&mut self, context: &mut Context, service: &ProxiedService) -> Draft {
        let mut draft =
            Draft { state: ServiceState::default(), rules: ServiceRules::default(), refused: None };
        for port in &service.ports {
            let known = self.services.get(&port.name.service).and_then(|s| s.targets.get(&port.name));
            let target = match known {
                Some(target) => {
                    target.balancer.update(port);
                    Arc::clone(target)
                }
                None => Arc::new(Target::new(port, &context.shared.counters)),
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
        &self,
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
                let ip = self.sockets.as_ref().map(|sockets| sockets.ip).ok_or_else(|| {
                    format!(
                        "this node has no {} address to which connections could be redirected",
                        self.family
                    )
                })?;
                let address = match port.protocol() {
                    Protocol::Tcp => self.tcp_socket(origin),
                    Protocol::Udp => {
                        let kept = self
                            .recovered
                            .as_ref()
                            .and_then(|known| known.udp.get(&(origin, place)).copied());
                        self.udp_socket(context, port, (target, pool), (ip, kept), draft)
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

    fn tcp_socket(&self, origin: Origin) -> Result<SocketAddr, String> {
        let address = self.sockets.as_ref().and_then(|s| Some(SocketAddr::new(s.ip, *s.ports.get(&origin)?)));
        address.ok_or_else(|| format!("no {} socket is open", self.family))
    }

    /// The socket of a pool of a UDP service port, opened with the port that it had before where there is one.
    fn udp_socket(
        &self,
        context: &mut Context,
        port: &ProxiedPort,
        (target, pool): (&Arc<Target>, PoolKind),
        (ip, kept): (IpAddr, Option<u16>),
        draft: &mut Draft,
    ) -> Result<SocketAddr, String> {
        let key = (port.name.clone(), pool);
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
                let bind = |port, sharing| {
                    let socket = bind_udp(SocketAddr::new(ip, port), sharing)?;
                    let port = socket.local_addr()?.port();
                    Ok((socket, port))
                };
                let opened = context.ports.open((self.family, Protocol::Udp), kept, bind);
                let (socket, number) = opened.map_err(|error| {
                    format!("cannot open a UDP socket on {ip} for {}: {error}", port.name)
                })?;
                let route =
                    UdpRoute { target: Arc::clone(target), pool, timeout: context.options.udp_timeout };
                let worker = &context.workers.all()[context.workers.next()].handle;
                let listener = UdpListener::start(worker, (self.family, socket), route, &context.shared);
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
        let present = self.sockets.as_ref().map(|sockets| sockets.ip);
        for ip in self.addresses(context, node) {
            if present == Some(ip) {
                return false;
            }
            match self.listen(context, ip) {
                Ok(sockets) => {
                    info!(ipFamily = %self.family, address = %ip, "Redirecting connections of Services to this address");
                    self.retired.extend(self.sockets.replace(sockets));
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

    /// The addresses to listen on, the best first: the bind address, or the node's, or any other of the host.
    fn addresses(&self, context: &Context, node: &NodeView) -> Vec<IpAddr> {
        let given = context.options.bind_address.filter(|ip| !ip.is_unspecified());
        if let Some(ip) = given.filter(|ip| Family::of(*ip) == self.family) {
            return vec![ip];
        }
        let family = match self.family {
            Family::V4 => IpFamily::Ipv4,
            Family::V6 => IpFamily::Ipv6,
        };
        let host = Route::open().and_then(|mut route| route.addresses(Some(family))).unwrap_or_default();
        let global = host.into_iter().filter(|one| one.scope == scope::UNIVERSE).map(|one| one.address);
        let own = Some(node.ip).filter(|ip| !ip.is_loopback());
        own.into_iter().chain(global.filter(|ip| *ip != node.ip && !ip.is_loopback())).collect()
    }

    fn listen(&self, context: &mut Context, ip: IpAddr) -> io::Result<Sockets> {
        let mut sockets = Sockets {
            ip,
            ports: BTreeMap::new(),
            waiting: Vec::new(),
            listeners: Vec::new(),
            known: Vec::new(),
        };
        for origin in Origin::BOTH {
            let kept = self.kept_port(origin);
            let open = |port, sharing| {
                let socket = listen(SocketAddr::new(ip, port), sharing)?;
                let port = socket.local_addr()?.port();
                Ok((socket, port))
            };
            let (first, port) = context.ports.open((self.family, Protocol::Tcp), kept, open)?;
            sockets.ports.insert(origin, port);
            let mut of_workers = vec![first];
            for _ in 1..context.workers.all().len() {
                of_workers.push(listen(SocketAddr::new(ip, port), Sharing::Existing)?);
            }
            let address = SocketAddr::new(ip, port);
            sockets.known.push((address, listening(address)));
            let sharing = if kept == Some(port) { Sharing::Existing } else { Sharing::New };
            sockets.waiting.push((origin, sharing, of_workers));
        }
        Ok(sockets)
    }

    /// The port of the listener before, on another address or of another process.
    fn kept_port(&self, origin: Origin) -> Option<u16> {
        let own = self.sockets.as_ref().and_then(|sockets| sockets.ports.get(&origin));
        own.or_else(|| self.recovered.as_ref()?.tcp.get(&origin)).copied()
    }

    /// Starts to accept on sockets that only waited so far.
    fn accept_connections(&mut self, context: &Context) {
        let Some(sockets) = &mut self.sockets else { return };
        for (origin, sharing, of_workers) in sockets.waiting.drain(..) {
            let router = Arc::new(Redirected { routes: Arc::clone(&self.routes), origin });
            let workers = context.workers.all();
            let started = of_workers.into_iter().enumerate().map(|(own, socket)| {
                Listener::start((workers, own), (socket, sharing), Arc::clone(&router), &context.shared)
            });
            sockets.listeners.extend(started);
        }
    }

    /// Waits, but not for long, until a process that is about to end has closed its sockets: it knows only what was wanted before.
    fn await_predecessor(&self, context: &Context) {
        let own = context.workers.all().len();
        for _ in 0..PREDECESSOR_CHECKS {
            if self.listening().all(|address| listening(address).len() <= own) {
                return;
            }
            std::thread::sleep(PREDECESSOR_INTERVAL);
        }
    }

    /// The rules for the listeners: nothing reaches them directly.
    fn own_rules(&self) -> ServiceRules {
        let sockets = self.sockets.iter().flat_map(|sockets| {
            sockets.ports.values().map(|port| (Protocol::Tcp, SocketAddr::new(sockets.ip, *port)))
        });
        ServiceRules { sockets: sockets.collect(), ..ServiceRules::default() }
    }
}

/// Endpoints at which a UDP session may stay: those that still answer, though new sessions may go elsewhere.
fn usable(port: &ProxiedPort, pool: PoolKind) -> impl Iterator<Item = SocketAddr> + '_ {
    let serving = port.endpoints.iter().filter(|backend| backend.conditions.serving);
    let allowed = serving.filter(move |backend| pool == PoolKind::Cluster || backend.local);
    allowed.map(|backend| backend.address())
}

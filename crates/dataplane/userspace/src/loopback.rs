//! TCP node ports on 127.0.0.1 and ::1 beside mode nftables: the kernel cannot translate packets to these addresses, so a proxy serves them.
//!
//! It serves them only where `nodePortAddresses` names a loopback range. Rules of the nftables dataplane refuse other protocols.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portwarden_model::{
    Admission, Changes, Count, Dataplane, Desired, Exposure, Family, Frontend, Gauge, LoopbackNodePorts,
    NamespacedName, PoolKind, Protocol, ProxiedPort, RefusedService, Report, SyncError, Verdict,
};
use tokio::net::TcpStream;
use tracing::{debug, error, trace};

use crate::core::{
    Counters, Drain, Limits, Listener, Route, Router, Shared, Sharing, Target, Workers, listen,
};
use crate::dataplane::DIALS_PER_ENDPOINT;

/// kube-proxy's gauge of open listeners, without prefix.
pub const LISTENERS: &str = "nftables_localhost_nodeport_listeners";

/// kube-proxy's counter of listeners that could not be opened, without prefix.
pub const CREATION_FAILURES: &str = "nftables_localhost_nodeport_listener_creation_failures_total";

/// Connections of all ports and of one Service. A convenience for processes on the node must not take the descriptors of everything else.
const CONNECTIONS: u32 = 1024;
const CONNECTIONS_OF_ONE_SERVICE: u64 = 256;

/// How long connections may go on after the proxy is switched off.
const DRAIN: Duration = Duration::from_secs(30);

/// Serves node ports on loopback addresses, for both families.
#[derive(Debug)]
pub struct LoopbackProxy {
    shared: Arc<Shared>,
    workers: Workers,
    services: BTreeMap<(Family, NamespacedName), BTreeMap<u16, Arc<Fixed>>>,
    listeners: BTreeMap<(Family, u16), Listener>,
    /// Ports that could not be opened, with the reason that was logged.
    failed: BTreeMap<(Family, u16), String>,
}

/// Everything that reaches one port goes to one service port.
#[derive(Debug)]
struct Fixed {
    target: Arc<Target>,
    pool: PoolKind,
    family: Family,
}

/// A port that should be open.
struct Wanted<'a> {
    port: &'a ProxiedPort,
    node_port: u16,
    pool: PoolKind,
}

impl LoopbackProxy {
    /// Starts the proxy's thread, in the network namespace of the calling thread. No port is open yet.
    pub fn new() -> io::Result<Self> {
        let limits = Limits::new(CONNECTIONS, CONNECTIONS_OF_ONE_SERVICE);
        let workers = Workers::start_some(1, &limits, DRAIN, &Drain::default())?;
        let shared = Arc::new(Shared {
            limits,
            counters: Arc::default(),
            mark: None,
            dials_per_endpoint: DIALS_PER_ENDPOINT,
        });
        Ok(LoopbackProxy {
            shared,
            workers,
            services: BTreeMap::new(),
            listeners: BTreeMap::new(),
            failed: BTreeMap::new(),
        })
    }

    /// What happened to connections.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Brings the ports of one Service to what is wanted, those first that are no longer: another Service may want the same number.
    fn close(&mut self, family: Family, name: &NamespacedName, wanted: &[Wanted<'_>]) -> usize {
        let Some(ports) = self.services.get_mut(&(family, name.clone())) else { return 0 };
        let gone = |number: &u16, fixed: &mut Arc<Fixed>| {
            let same = |w: &Wanted<'_>| {
                w.node_port == *number && w.pool == fixed.pool && w.port.name == fixed.target.name
            };
            !wanted.iter().any(same)
        };
        let closing: Vec<u16> = ports.extract_if(.., gone).map(|(number, _)| number).collect();
        if ports.is_empty() {
            self.services.remove(&(family, name.clone()));
        }
        if wanted.is_empty() {
            self.shared.counters.forget(name);
        }
        for port in &closing {
            debug!(ipFamily = %family, protocol = "TCP", port, service = %name, "Removing localhost nodeport proxy");
            self.listeners.remove(&(family, *port));
        }
        closing.len()
    }

    /// Opens a port, or changes where its connections go. Returns whether it was opened.
    fn open(&mut self, family: Family, wanted: &Wanted<'_>, now: Instant) -> io::Result<bool> {
        let Wanted { port, node_port, pool } = *wanted;
        let ports = self.services.entry((family, port.name.service.clone())).or_default();
        if let Some(open) = ports.get(&node_port) {
            open.target.balancer.update(port, now);
            return Ok(false);
        }
        let socket = listen(SocketAddr::new(family.loopback(), node_port), Sharing::Existing)?;
        let target = Arc::new(Target::new(port, &self.shared.counters, now));
        let fixed = Arc::new(Fixed { target, pool, family });
        let listener = Listener::start(
            (self.workers.all(), self.workers.next()),
            socket,
            Arc::clone(&fixed),
            &self.shared,
        );
        trace!(ipFamily = %family, protocol = "TCP", port = node_port, service = %port.name, "Created localhost nodeport proxy");
        ports.insert(node_port, fixed);
        self.listeners.insert((family, node_port), listener);
        self.failed.remove(&(family, node_port));
        Ok(true)
    }

    fn refuse(&mut self, family: Family, wanted: &Wanted<'_>, problem: &io::Error) -> RefusedService {
        let address = SocketAddr::new(family.loopback(), wanted.node_port);
        let reason = format!("cannot listen on {address} for the node port: {problem}");
        let service = &wanted.port.name.service;
        if self.failed.get(&(family, wanted.node_port)) != Some(&reason) {
            error!(
                ipFamily = %family, protocol = "TCP", port = wanted.node_port, service = %wanted.port.name, err = %problem,
                "Failed to create localhost nodeport proxy; Portwarden tries again"
            );
            self.failed.insert((family, wanted.node_port), reason.clone());
        }
        RefusedService { service: service.clone(), reason }
    }

    fn names(&self, desired: &Desired, changes: &Changes) -> BTreeSet<NamespacedName> {
        if !changes.full && !changes.node {
            return changes.services.clone();
        }
        let known = self.services.keys().filter(|(family, _)| *family == desired.family);
        known.map(|(_, name)| name).chain(desired.services().map(|(name, _)| name)).cloned().collect()
    }
}

impl Dataplane for LoopbackProxy {
    fn families(&self) -> &[Family] {
        &Family::BOTH
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        let family = desired.family;
        let served = desired.node.loopback_node_ports == LoopbackNodePorts::Named;
        let wanted: Vec<(NamespacedName, Vec<Wanted<'_>>)> = self
            .names(desired, changes)
            .into_iter()
            .map(|name| {
                let wanted = if served { node_ports(desired, &name) } else { Vec::new() };
                (name, wanted)
            })
            .collect();
        let mut report = Report { full: changes.full, ..Report::default() };
        for (name, wanted) in &wanted {
            report.written += self.close(family, name, wanted);
        }
        let mut failures = 0;
        for wanted in wanted.iter().flat_map(|(_, ports)| ports) {
            match self.open(family, wanted, now) {
                Ok(opened) => report.written += usize::from(opened),
                Err(problem) => {
                    failures += 1;
                    report.refused.push(self.refuse(family, wanted, &problem));
                }
            }
        }
        if served {
            let value = self.listeners.keys().filter(|(open, _)| *open == family).count();
            report.gauges.push(Gauge { metric: LISTENERS, labels: Vec::new(), value });
        }
        if failures > 0 {
            report.counts.push(Count { metric: CREATION_FAILURES, labels: Vec::new(), by: failures });
        }
        Ok(report)
    }
}

impl Router for Fixed {
    fn route(&self, _: &TcpStream, _: SocketAddr) -> Option<Route> {
        // All clients count as one, whichever loopback address they use.
        let client: IpAddr = self.family.loopback();
        Some(Route { target: Arc::clone(&self.target), pool: self.pool, client })
    }
}

fn node_ports<'a>(desired: &'a Desired, name: &NamespacedName) -> Vec<Wanted<'a>> {
    let ports = desired.service(name).into_iter().flat_map(|service| service.ports.iter());
    ports.filter(|port| port.protocol() == Protocol::Tcp).filter_map(node_port).collect()
}

fn node_port(port: &ProxiedPort) -> Option<Wanted<'_>> {
    let is_node_port = |f: &&Frontend| f.exposure == Exposure::NodePort && f.admission == Admission::Active;
    let frontend = port.frontends.iter().find(is_node_port)?;
    // Policy Local holds here as for traffic from elsewhere.
    let Verdict::Forward(pool) = frontend.from_elsewhere else { return None };
    Some(Wanted { port, node_port: frontend.port, pool })
}

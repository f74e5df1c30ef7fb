//! Judges every request by the model: may it fail, and which endpoints may answer it.
//!
//! A request is sent at one moment and over at another. The kernel acted on some version of the Service and of its slices in between;
//! which one cannot be known while a change is on its way, so all that are possible count:
//!
//! * It must succeed if it would succeed under every possible pair of versions. A datagram may get lost with its flow when the
//!   endpoint it went to is no endpoint any more: over UDP, all pairs must have the same endpoints, too.
//! * The host that answers must be an endpoint under one of these pairs.
//! * While rules are damaged, until every Service that should answer does so again, requests may fail. They are counted
//!   separately, and the time of repair is limited and shown. The same holds while this machine stalls, and shortly after.
//! * A starting process, and one that changes its mode, exchanges all rules in one transaction. The kernel looks up maps by what is valid at
//!   that instant, even for a packet whose evaluation began before. So one request in each such exchange may hit
//!   that instant (some microseconds) and fail; it is counted separately, too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use portwarden_model::manifest::{EndpointSlice, Service};
use portwarden_model::{Cluster, Event, Family, Interner, Kind, PerFamily, Settings};
use portwarden_testkit::build::service_cidr;
use portwarden_testkit::oracle::{Expected, Mode, Oracle, Packet, Served};
use portwarden_testkit::rig::{Object, Rig};
use portwarden_testkit::topology::addresses::SERVICE_CIDR;
use portwarden_testkit::{Outcome, Topology, Transport};

use crate::timeline::Timeline;

/// Requests are judged soon after their end; older history is dropped.
const MEMORY: Duration = Duration::from_secs(60);

/// Modes differ only in how they refuse packets, which does not matter here.
const MODE: Mode = Mode {
    guards_cluster_ips: true,
    remote_hairpin: true,
    ranges_without_endpoints: true,
    refuses_own_host: true,
    localhost_node_ports: false,
    dead_node_ports_everywhere: false,
    proxies: false,
    virtual_servers: false,
    at_sockets: false,
    untracked_pods: false,
    contested_frontends: false,
};

/// A way to a Service.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) service: usize,
    /// The name of the host that asks.
    pub(crate) client: &'static str,
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
}

/// A request that is over.
#[derive(Debug)]
pub(crate) struct Request {
    /// The number of its target.
    pub(crate) target: usize,
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    pub(crate) outcome: Outcome,
    /// The address it was sent from, if it was sent.
    pub(crate) client: Option<SocketAddr>,
    /// It was sent on a socket that had been answered before, by an endpoint chosen then.
    pub(crate) kept: bool,
}

/// A Service under traffic and its slices.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) service: Timeline<Option<Service>>,
    pub(crate) slices: PerFamily<Timeline<Option<EndpointSlice>>>,
}

/// The results of all requests.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) requests: u64,
    pub(crate) due: u64,
    pub(crate) excluded: u64,
    /// Those of them that failed and would have had to succeed.
    pub(crate) excluded_failures: u64,
    /// Failures in the instant of an exchange of all rules.
    pub(crate) exchanged: u64,
    /// Requests that failed and must not.
    pub(crate) failures: Vec<String>,
    /// How long after an endpoint left it got new connections, by mode.
    pub(crate) history: BTreeMap<&'static str, History>,
}

/// New connections of one mode, each judged by what the API allowed when it began.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) connections: u64,
    /// For each connection that met an endpoint which had left: how long before.
    pub(crate) late: Vec<Duration>,
}

impl std::fmt::Display for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut late = self.late.clone();
        late.sort_unstable();
        let rank = (late.len() * 99).div_ceil(100).max(1) - 1;
        let (p99, max) =
            (late.get(rank).copied().unwrap_or_default(), late.last().copied().unwrap_or_default());
        write!(
            f,
            "{} new connections, {} of them to an endpoint that had left: 99 % within {p99:.0?}, all within {max:.0?} of its leaving",
            self.connections,
            late.len()
        )
    }
}

/// A time in which all rules are exchanged.
struct Exchange {
    start: Instant,
    end: Option<Instant>,
    /// Requests that may still fail.
    allowance: u32,
}

/// Counts and judges requests.
pub(crate) struct Ledger {
    pub(crate) services: Vec<Tracked>,
    pub(crate) targets: Vec<Target>,
    pub(crate) count: Count,
    served: Served,
    windows: Vec<(Instant, Option<Instant>)>,
    exchanges: Vec<Exchange>,
    known: BTreeMap<(usize, u64, u64), Expected>,
    beginning: Instant,
    mode: &'static str,
}

impl Ledger {
    /// For Services that do not exist yet. All hosts in `served` answer always.
    pub(crate) fn new(services: usize, targets: Vec<Target>, served: Served, beginning: Instant) -> Ledger {
        let tracked =
            || Tracked { service: Timeline::new(None), slices: PerFamily::from_fn(|_| Timeline::new(None)) };
        Ledger {
            services: (0..services).map(|_| tracked()).collect(),
            targets,
            count: Count::default(),
            served,
            windows: Vec::new(),
            exchanges: Vec::new(),
            known: BTreeMap::new(),
            beginning,
            mode: "",
        }
    }

    /// Everything that was written is in the kernel.
    pub(crate) fn confirm(&mut self) {
        let now = Instant::now();
        for tracked in &mut self.services {
            tracked.service.confirm(now);
            tracked.slices.v4.confirm(now);
            tracked.slices.v6.confirm(now);
        }
        self.exchanges.iter_mut().for_each(|exchange| exchange.end = exchange.end.or(Some(now)));
    }

    /// Requests from now on are counted under this mode.
    pub(crate) fn set_mode(&mut self, mode: &'static str) {
        self.mode = mode;
    }

    /// All rules are about to be exchanged, some time before the next confirmation.
    pub(crate) fn exchange(&mut self) {
        self.exchanges.push(Exchange { start: Instant::now(), end: None, allowance: 1 });
    }

    /// The machine stalled.
    pub(crate) fn stalled(&mut self, start: Instant, end: Instant) {
        // An open window stays the last one.
        self.windows.insert(0, (start, Some(end)));
    }

    /// Rules are about to be damaged.
    pub(crate) fn damaged(&mut self) {
        if self.is_whole() {
            self.windows.push((Instant::now(), None));
        }
    }

    /// Rules are repaired. Returns how long they were damaged.
    pub(crate) fn repaired(&mut self) -> Option<Duration> {
        let (start, end) = self.windows.last_mut().filter(|(_, end)| end.is_none())?;
        *end = Some(Instant::now());
        Some(start.elapsed())
    }

    /// Whether rules are undamaged.
    pub(crate) fn is_whole(&self) -> bool {
        self.windows.last().is_none_or(|(_, end)| end.is_some())
    }

    /// Whether a target must answer, if the kernel has everything that was written.
    pub(crate) fn is_due(&mut self, topology: &Topology, target: usize) -> Result<bool> {
        let now = Instant::now();
        let Some(tracked) = self.targets.get(target).map(|target| &self.services[target.service]) else {
            return Ok(false);
        };
        let family = Family::of(self.targets[target].address.ip());
        let last = |number: Option<u64>| number.unwrap_or(0);
        let service = last(tracked.service.now().map(|version| version.number));
        let slice = last(tracked.slices[family].now().map(|version| version.number));
        let expected = self.expected(topology, target, now, now)?;
        Ok(expected
            .iter()
            .filter(|(versions, _)| *versions == (service, slice))
            .all(|(_, expected)| must_answer(expected)))
    }

    /// Judges a request.
    pub(crate) fn judge(&mut self, topology: &Topology, request: &Request) -> Result<()> {
        self.count.requests += 1;
        let answered = request.outcome.is_answered();
        let overlaps = |(start, end): &(Instant, Option<Instant>)| {
            *start <= request.ended && end.is_none_or(|end| end >= request.started)
        };
        let excluded = self.windows.iter().any(overlaps);
        let possible = self.expected(topology, request.target, request.started, request.ended)?;
        let steady = possible.windows(2).all(|pair| pair[0].1.answers == pair[1].1.answers);
        let due = possible.iter().all(|(_, expected)| must_answer(expected))
            && (steady || self.targets[request.target].transport == Transport::Tcp);
        if excluded {
            self.count.excluded += 1;
            self.count.excluded_failures += u64::from(due && !answered);
            return Ok(());
        }
        self.count.due += u64::from(due);
        let allowed: BTreeSet<SocketAddr> = possible
            .iter()
            .flat_map(|(_, expected)| expected.answers.iter().map(|seen| seen.endpoint))
            .collect();
        let wrong = match request.outcome.answer() {
            Some(answer) if !request.kept && !allowed.contains(&answer.endpoint) => Some("not an endpoint"),
            None if due && self.met_exchange(request) => {
                self.count.exchanged += 1;
                None
            }
            None if due => Some("no answer"),
            _ => None,
        };
        if let Some(answer) = request.outcome.answer().filter(|_| !request.kept) {
            let late = self.left_before(request, answer.endpoint, &possible);
            let history = self.count.history.entry(self.mode).or_default();
            history.connections += 1;
            history.late.extend(late);
        }
        if let Some(wrong) = wrong {
            let text = self.describe(request, wrong, &possible);
            self.count.failures.push(text);
        }
        Ok(())
    }

    /// How long before the request its endpoint had left, by what was written to the API server; `None` if it had not.
    fn left_before(
        &self,
        request: &Request,
        endpoint: SocketAddr,
        possible: &[((u64, u64), Expected)],
    ) -> Option<Duration> {
        let target = &self.targets[request.target];
        let (tracked, family) = (&self.services[target.service], Family::of(target.address.ip()));
        let written = |(service, slice): (u64, u64)| {
            let service = tracked.service.written(service)?;
            Some(service.max(tracked.slices[family].written(slice)?))
        };
        let mut pairs: Vec<(Instant, bool)> = possible
            .iter()
            .filter_map(|(versions, expected)| {
                Some((written(*versions)?, expected.answers.iter().any(|seen| seen.endpoint == endpoint)))
            })
            .filter(|(at, _)| *at <= request.started)
            .collect();
        pairs.sort_unstable();
        // Everything after the last pair that has the endpoint lacks it.
        let left = pairs.iter().rev().take_while(|(_, has)| !has).last()?.0;
        Some(request.started.saturating_duration_since(left))
    }

    /// Whether a request may have met the instant of an exchange; it is then used up.
    fn met_exchange(&mut self, request: &Request) -> bool {
        let met = self.exchanges.iter_mut().find(|exchange| {
            let over = exchange.end.is_some_and(|end| end < request.started);
            exchange.allowance > 0 && exchange.start <= request.ended && !over
        });
        if let Some(exchange) = met {
            exchange.allowance -= 1;
            return true;
        }
        false
    }

    /// Drops versions that no request can have met any more.
    pub(crate) fn forget(&mut self) {
        let Some(before) = Instant::now().checked_sub(MEMORY) else { return };
        for tracked in &mut self.services {
            tracked.service.forget(before);
            tracked.slices.v4.forget(before);
            tracked.slices.v6.forget(before);
        }
        self.windows.retain(|(_, end)| end.is_none_or(|end| end >= before));
        self.exchanges.retain(|exchange| exchange.end.is_none_or(|end| end >= before));
        if self.known.len() > 10_000 {
            self.known.clear();
        }
    }

    /// What the model says, for each pair of versions that a request may have met.
    fn expected(
        &mut self,
        topology: &Topology,
        target: usize,
        start: Instant,
        end: Instant,
    ) -> Result<Vec<((u64, u64), Expected)>> {
        let Target { service, client, transport, address } = self.targets[target].clone();
        let tracked = &self.services[service];
        let family = Family::of(address.ip());
        let mut all = Vec::new();
        for service in tracked.service.during(start, end) {
            for slice in tracked.slices[family].during(start, end) {
                let key = (target, service.number, slice.number);
                let expected = match self.known.get(&key) {
                    Some(expected) => expected.clone(),
                    None => {
                        let cluster = cluster(topology, service.value.as_ref(), slice.value.as_ref());
                        let desired = PerFamily::from_fn(|family| cluster.desired(family));
                        let oracle = Oracle::new(topology, &self.served, desired, MODE);
                        let Some(host) = topology.host(client) else {
                            anyhow::bail!("there is no host {client}")
                        };
                        let packet = Packet::new(topology, host, transport, address);
                        let expected = oracle.expect(&packet);
                        self.known.insert(key, expected.clone());
                        expected
                    }
                };
                all.push(((service.number, slice.number), expected));
            }
        }
        Ok(all)
    }

    fn describe(&self, request: &Request, wrong: &str, possible: &[((u64, u64), Expected)]) -> String {
        let Target { service, client, transport, address } = &self.targets[request.target];
        let time = |instant: Instant| instant.saturating_duration_since(self.beginning).as_secs_f64();
        let kept = if request.kept { ", on a kept socket" } else { "" };
        let expected: Vec<String> = possible
            .iter()
            .map(|((service, slice), expected)| format!("with versions {service}/{slice}: {expected}"))
            .collect();
        format!(
            "{wrong}: {client} to service-{service} at {address} ({transport:?}{kept}), {:.3} s to {:.3} s: {}\n    {}",
            time(request.started),
            time(request.ended),
            request.outcome,
            expected.join("\n    ")
        )
    }
}

fn must_answer(expected: &Expected) -> bool {
    !expected.answers.is_empty() && !expected.refused && !expected.dropped
}

/// A cluster of one Service.
fn cluster(topology: &Topology, service: Option<&Service>, slice: Option<&EndpointSlice>) -> Cluster {
    let mut names = Interner::default();
    let mut cluster = Cluster::new(settings());
    cluster.apply(Event::HostAddresses(topology.node_addresses().into()));
    let node = Object::from(Rig::node());
    let cidr = Object::from(service_cidr("kubernetes", SERVICE_CIDR.both()));
    let service = service.map(|service| Object::Service(Box::new(service.clone())));
    let slice = slice.map(|slice| Object::Slice(slice.clone()));
    for object in [Some(node), Some(cidr), service, slice].into_iter().flatten() {
        cluster.apply(object.event(&mut names));
    }
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    cluster
}

fn settings() -> Settings {
    use portwarden_model::{DetectLocal, NodePortRange};
    use portwarden_testkit::topology::addresses::CLUSTER_CIDR;
    Settings {
        detect_local: DetectLocal::ClusterCidr(CLUSTER_CIDR.both().into()),
        node_port_addresses: [NodePortRange::Primary].into(),
        ..Settings::new("node-a")
    }
}

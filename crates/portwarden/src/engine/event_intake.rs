//! Takes events into the cluster: counts them, and decides when the first sync may happen.

use std::time::{Duration, Instant};

use portwarden_model::object::Node;
use portwarden_model::{Cluster, DetectLocal, Event, Family, Kind};
use tracing::{error, info, warn};

use super::node_wait::{Missing, Reminder};
use crate::metrics::ChangeMetrics;

/// How long the first sync waits for the Node once Services and slices are known. Without the Node's address, node ports that should
/// answer on it alone would answer everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeWait {
    /// The limit for its addresses; then the sync happens without.
    pub addresses: Duration,
    /// The further limit for its pod ranges, where they identify pod traffic; then the engine fails. `None` means that the sync happens without.
    pub pod_cidrs: Option<Duration>,
}

impl NodeWait {
    /// kube-proxy's limits.
    pub const FOR_API_SERVER: NodeWait =
        NodeWait { addresses: Duration::from_secs(30), pod_cidrs: Some(Duration::from_secs(300)) };

    /// A folder of manifests is complete from the start, and need not have a Node.
    pub const NONE: NodeWait = NodeWait { addresses: Duration::ZERO, pod_cidrs: None };

    fn is_none(self) -> bool {
        self == NodeWait::NONE
    }
}

/// Whether the first sync may happen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The first sync may happen.
    Ready,
    /// Not before something else comes in, or this point in time.
    Wait(Option<Instant>),
    /// Never.
    Failed(Missing),
}

/// What events affect.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Touched {
    /// Services or slices.
    pub(super) objects: bool,
    /// The Node, its addresses or the service ranges.
    pub(super) node: bool,
}

/// Counts events and follows the Node.
pub(super) struct EventIntake {
    wait: NodeWait,
    metrics: ChangeMetrics,
    /// When Services and slices were first known.
    synced: Option<Instant>,
    ready: bool,
    reminder: Reminder,
    services_pending: u32,
    endpoints_pending: u32,
    node: Option<Node>,
}

impl EventIntake {
    pub(super) fn new(wait: NodeWait, metrics: ChangeMetrics) -> Self {
        EventIntake {
            wait,
            metrics,
            synced: None,
            ready: false,
            reminder: Reminder::default(),
            services_pending: 0,
            endpoints_pending: 0,
            node: None,
        }
    }

    /// Applies events to the cluster.
    pub(super) fn apply(
        &mut self,
        cluster: &mut Cluster,
        events: Vec<Event>,
        families: &[Family],
    ) -> Touched {
        let mut touched = Touched::default();
        for event in events {
            let kind = Subject::of(&event);
            let completed = completed(&event, cluster);
            let changed = cluster.apply(event);
            if let Some(kind) = completed {
                info!(controller = controller(kind), "Caches are synced");
            }
            self.count(kind, changed, families);
            match kind {
                Subject::Other => touched.node |= changed,
                _ => touched.objects |= changed,
            }
            // A list that ends may remove objects of any kind.
            touched.objects |= changed && kind == Subject::Other;
        }
        self.follow_node(cluster);
        self.metrics.services_pending.set(f64::from(self.services_pending));
        self.metrics.endpoints_pending.set(f64::from(self.endpoints_pending));
        touched
    }

    /// Whether load balancers may send new traffic here.
    pub(super) fn is_node_eligible(&self, cluster: &Cluster) -> bool {
        let no_node_is_needed = self.wait.is_none() && cluster.is_listed(Kind::Node);
        cluster.is_node_eligible() || (no_node_is_needed && cluster.node().is_none())
    }

    /// Everything received so far was resolved.
    pub(super) fn resolved(&mut self) {
        self.services_pending = 0;
        self.endpoints_pending = 0;
        self.metrics.services_pending.set(0.0);
        self.metrics.endpoints_pending.set(0.0);
    }

    /// Whether the first sync may happen. Once `true`, always `true`.
    pub(super) fn readiness(&mut self, cluster: &Cluster, now: Instant) -> Readiness {
        if self.ready {
            return Readiness::Ready;
        }
        if !cluster.is_synced() {
            return Readiness::Wait(None);
        }
        let since = *self.synced.get_or_insert(now);
        let (name, node) = (&cluster.settings().node_name, cluster.node());
        let missing_or = |other| if node.is_none() { Missing::Node } else { other };
        let addresses_until = since + self.wait.addresses;
        if node.is_none_or(|node| node.ips.is_empty()) && now < addresses_until {
            let missing = missing_or(Missing::Addresses);
            return Readiness::Wait(Some(self.reminder.remind(name.as_str(), missing, now, addresses_until)));
        }
        let needs_pod_cidrs = cluster.settings().detect_local == DetectLocal::NodeCidr
            && node.is_none_or(|node| node.pod_cidrs.is_empty());
        if let Some(wait) = self.wait.pod_cidrs.filter(|_| needs_pod_cidrs) {
            let (missing, until) = (missing_or(Missing::PodCidrs), addresses_until + wait);
            if now < until {
                return Readiness::Wait(Some(self.reminder.remind(name.as_str(), missing, now, until)));
            }
            return Readiness::Failed(missing);
        }
        self.ready = true;
        match node {
            None if self.wait.is_none() => {
                info!(node = %name, "No Node of this name is known; using this host's own addresses");
            }
            None => error!(
                node = %name,
                "Timed out waiting for node to exist; node ports answer on all addresses. Set --hostname-override to the name of this Node"
            ),
            Some(node) if node.ips.is_empty() => {
                error!(node = %node.name, "Timed out waiting for node to be assigned IPs");
            }
            Some(node) => info!(NodeIPs = ?node.ips, "Successfully retrieved NodeIPs"),
        }
        Readiness::Ready
    }

    fn count(&mut self, kind: Subject, changed: bool, families: &[Family]) {
        match kind {
            Subject::Service => {
                self.metrics.services_total.inc_by(families.len() as u64);
                self.services_pending += u32::from(changed);
            }
            Subject::Slice(family) if family.is_none_or(|family| families.contains(&family)) => {
                self.metrics.endpoints_total.inc();
                self.endpoints_pending += u32::from(changed);
            }
            Subject::Slice(_) | Subject::Other => {}
        }
    }

    /// Logs what is new about the Node.
    fn follow_node(&mut self, cluster: &Cluster) {
        let Some(node) = cluster.node() else { return };
        if let Some(before) = &self.node {
            log_differences(before, node);
            if before.eligible && cluster.is_node_deleted() {
                warn!(node = %node.name, "Node is being deleted; keeping its addresses");
            }
        }
        self.node = Some(node.clone());
    }
}

fn log_differences(before: &Node, node: &Node) {
    if before.name != node.name {
        return;
    }
    if before.ips != node.ips {
        info!(node = %node.name, before = ?before.ips, now = ?node.ips, "NodeIPs changed for the node");
    }
    if before.pod_cidrs != node.pod_cidrs {
        info!(node = %node.name, before = ?before.pod_cidrs, now = ?node.pod_cidrs, "PodCIDRs changed for the node");
    }
}

/// The kind of objects that an event completes for the first time.
fn completed(event: &Event, before: &Cluster) -> Option<Kind> {
    match event {
        Event::ListDone(kind) => (!before.is_listed(*kind)).then_some(*kind),
        _ => None,
    }
}

/// Logs that all kinds of objects are being listed, in kube-proxy's words.
pub fn log_waiting_for_caches() {
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr, Kind::Node] {
        let controller = controller(kind);
        info!("Starting {controller} controller");
        info!(controller, "Waiting for caches to sync");
    }
}

fn controller(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "service config",
        Kind::EndpointSlice => "endpoint slice config",
        Kind::Node => "node config",
        Kind::ServiceCidr => "serviceCIDR config",
    }
}

/// The kind under which an event is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Service,
    /// A deletion does not say of which family.
    Slice(Option<Family>),
    Other,
}

impl Subject {
    fn of(event: &Event) -> Self {
        match event {
            Event::ServiceApplied(_) | Event::ServiceDeleted(_) => Subject::Service,
            Event::SliceApplied(slice) => Subject::Slice(Some(slice.family())),
            Event::SliceDeleted(_) => Subject::Slice(None),
            Event::NodeApplied(_)
            | Event::NodeDeleted(_)
            | Event::ServiceCidrApplied(_)
            | Event::ServiceCidrDeleted(_)
            | Event::ListStarted(_)
            | Event::ListDone(_)
            | Event::HostAddresses(_) => Subject::Other,
        }
    }
}

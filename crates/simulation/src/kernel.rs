//! The modelled kernel: what dataplanes have written, flows, and the faults that calls will meet. It outlives the process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portwarden::engine::Moment;
use portwarden_model::{
    FULL_SYNC_INTERVAL, Family, Flow, Frontend, GoneFrontend, NamespacedName, NodeView, PerFamily, Protocol,
    ProxiedService, Timestamp,
};

use crate::process::Configuration;
use crate::schedule::{Fault, Layer, Mode};

/// The interval of full syncs of the lower layer, which holds for the upper one, too.
pub(crate) const LOWER_INTERVAL: Duration = Duration::from_secs(600);

/// The clock of a simulation: it stands still unless a step or a slow call moves it.
#[derive(Clone)]
pub(crate) struct Time(Arc<Passed>);

struct Passed {
    start: Instant,
    nanos: AtomicU64,
    wall_offset: AtomicI64,
}

impl Time {
    pub(crate) fn new() -> Self {
        let passed =
            Passed { start: Instant::now(), nanos: AtomicU64::new(0), wall_offset: AtomicI64::new(0) };
        Time(Arc::new(passed))
    }

    pub(crate) fn now(&self) -> Instant {
        self.0.start + self.since_start()
    }

    pub(crate) fn since_start(&self) -> Duration {
        Duration::from_nanos(self.0.nanos.load(Ordering::Relaxed))
    }

    pub(crate) fn moment(&self) -> Moment {
        let passed = i64::try_from(self.since_start().as_nanos()).unwrap_or(i64::MAX);
        let wall = 1_000_000_000_000_000 + passed + self.0.wall_offset.load(Ordering::Relaxed);
        Moment { instant: self.now(), wall: Timestamp::from_nanos(wall) }
    }

    pub(crate) fn pass(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn jump(&self, seconds: i32) {
        self.0.wall_offset.store(i64::from(seconds) * 1_000_000_000, Ordering::Relaxed);
    }
}

/// One family of one layer.
pub(crate) type Place = (Layer, Family);

/// What a layer has in the kernel for one family.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) node: Option<NodeView>,
    pub(crate) services: BTreeMap<NamespacedName, Arc<ProxiedService>>,
    /// Changes by other processes that the kernel has reported so far.
    pub(crate) reported_edits: u64,
    /// Another process changed something, and no notification says so.
    pub(crate) unnoticed: Option<Unnoticed>,
}

/// A change by another process that was not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unnoticed {
    /// The dataplane knows that it may have missed something.
    Suspected,
    /// Nothing knows of it: only the periodic full sync finds it.
    Lost,
}

/// A conntrack entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrackedFlow {
    pub(crate) flow: Flow,
    /// Whether the present process knows the frontend, from the tables or from events.
    pub(crate) known: bool,
}

/// The kernel's state, and what the simulation observes in it.
#[derive(Default)]
pub(crate) struct Kernel {
    pub(crate) tables: BTreeMap<Place, Table>,
    pub(crate) flows: Vec<TrackedFlow>,
    pub(crate) faults: BTreeMap<Place, VecDeque<Fault>>,
    pub(crate) flow_faults: VecDeque<u8>,
    /// Services that are refused.
    pub(crate) refusing: BTreeSet<(Family, NamespacedName)>,
    /// Services that were refused and would be accepted now. Until the next attempt they are reported as refused, not as late.
    pub(crate) accepted_again: BTreeSet<(Family, NamespacedName)>,
    /// Services that were refused after their sync, and no dataplane has reported it yet.
    pub(crate) refused_late: BTreeSet<(Family, NamespacedName)>,
    /// Dataplanes install accepted Services by themselves.
    pub(crate) announce_accepted: bool,
    /// When a fault last had an effect.
    pub(crate) disturbed: BTreeMap<Place, Instant>,
    /// The longest full sync of each family; repairs and comparisons are spread by it.
    pub(crate) slowest_full: BTreeMap<Family, Duration>,
    /// Modes that have a cause for a full sync before its time.
    pub(crate) full_causes: BTreeSet<(Mode, Family)>,
    pub(crate) last_full: BTreeMap<(Mode, Family), Instant>,
    /// What the newest dataplanes serve.
    pub(crate) configuration: Configuration,
    /// A change of mode is under way: the old one is in force until the new one is complete.
    pub(crate) changing_mode: bool,
    /// Whether this process has received complete lists of Services and slices.
    pub(crate) listed: bool,
    /// Since when the engine has been busy; `None` while it sleeps.
    pub(crate) busy_since: Option<Instant>,
    /// The process was killed during a call.
    pub(crate) killed: bool,
    pub(crate) calls: Calls,
    /// What must never happen, and did.
    pub(crate) violations: Vec<String>,
}

/// How often dataplanes were called.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) full: u64,
    pub(crate) partial: u64,
}

/// The kernel, shared by all that write to it.
#[derive(Clone, Default)]
pub(crate) struct SharedKernel(Arc<Mutex<Kernel>>);

impl SharedKernel {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Kernel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel {
    pub(crate) fn table(&mut self, place: Place) -> &mut Table {
        self.tables.entry(place).or_default()
    }

    /// The addresses of UDP ports in the tables that a configuration writes to, as a process that starts reads them.
    pub(crate) fn udp_frontends(&self, configuration: Configuration) -> PerFamily<BTreeSet<GoneFrontend>> {
        PerFamily::from_fn(|family| {
            let places = configuration.places().into_iter().filter(|place| place.1 == family);
            let services =
                places.filter_map(|place| self.tables.get(&place)).flat_map(|table| table.services.values());
            let ports =
                services.flat_map(|service| &service.ports).filter(|port| port.protocol() == Protocol::Udp);
            let frontend = |frontend: &Frontend| GoneFrontend {
                ip: frontend.ip,
                port: frontend.port,
                protocol: Protocol::Udp,
            };
            ports.flat_map(|port| port.active_frontends().map(frontend)).collect()
        })
    }

    /// Writes or removes a Service. Returns false if the kernel refuses it.
    pub(crate) fn write(
        &mut self,
        place: Place,
        name: &NamespacedName,
        service: Option<&Arc<ProxiedService>>,
    ) -> bool {
        let key = (place.1, name.clone());
        self.accepted_again.remove(&key);
        match service {
            Some(_) if self.refusing.contains(&key) => return false,
            Some(service) => self.table(place).services.insert(name.clone(), service.clone()),
            None => self.table(place).services.remove(name),
        };
        true
    }

    /// A fault has an effect until then, on all layers: they are synced together.
    pub(crate) fn disturb(&mut self, (layer, family): Place, until: Instant) {
        for layer in layer.mode().layers() {
            let disturbed = self.disturbed.entry((*layer, family)).or_insert(until);
            *disturbed = until.max(*disturbed);
        }
    }

    /// The engine as a whole could not work until now.
    pub(crate) fn disturb_all(&mut self, now: Instant) {
        for layer in [Layer::Single, Layer::Lower, Layer::Upper] {
            for family in Family::BOTH {
                self.disturb((layer, family), now);
            }
        }
    }

    /// Removes all flows to a Service.
    pub(crate) fn forget_flows(&mut self, service: &ProxiedService) {
        let frontends = || service.ports.iter().flat_map(|port| &port.frontends);
        self.flows.retain(|tracked| {
            let destination = tracked.flow.destination;
            !frontends().any(|one| one.ip == Some(destination.ip()) && one.port == destination.port())
        });
    }

    pub(crate) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }
}

impl Mode {
    /// Where the mode writes to.
    pub(crate) fn layers(self) -> &'static [Layer] {
        match self {
            Mode::Single => &[Layer::Single],
            Mode::Layered => &[Layer::Lower, Layer::Upper],
        }
    }

    /// How often everything is compared with the kernel: the lower layer has an interval of its own.
    pub(crate) fn full_sync_interval(self) -> Duration {
        match self {
            Mode::Single => FULL_SYNC_INTERVAL,
            Mode::Layered => LOWER_INTERVAL,
        }
    }

    pub(crate) fn other(self) -> Mode {
        match self {
            Mode::Single => Mode::Layered,
            Mode::Layered => Mode::Single,
        }
    }
}

impl Layer {
    /// The mode that it belongs to.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Layer::Single => Mode::Single,
            Layer::Lower | Layer::Upper => Mode::Layered,
        }
    }
}

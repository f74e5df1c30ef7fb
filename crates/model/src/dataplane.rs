//! The contract between the engine and a dataplane.
//!
//! Five mechanisms keep it: nf_tables transactions, `iptables-restore`, IPVS with a device and sets, listening sockets, BPF maps. They differ in
//! what they can do at once, so the contract promises convergence, not atomicity.

use std::error::Error;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::changes::Changes;
use crate::desired::Desired;
use crate::ip::Family;
use crate::name::NamespacedName;

/// How often a dataplane compares everything with the kernel unless it says otherwise. kube-proxy's interval.
pub const FULL_SYNC_INTERVAL: Duration = Duration::from_secs(3600);

/// Brings the kernel to the desired state of one or both families.
///
/// Calls block for a bounded time; the engine has a thread for them. Time is an argument: an implementation neither reads a clock nor sets a timer.
/// It reports deadlines through [`Dataplane::next_deadline`], and the engine calls [`Dataplane::poll`] when they come.
pub trait Dataplane: Send {
    /// The families it serves, never empty. Each family is synced by a call of its own.
    fn families(&self) -> &[Family];

    /// Brings the kernel to `desired`. `changes` says what may differ from the last successful call for this family; the first call has
    /// [`Changes::everything`].
    ///
    /// An error may leave part of the change applied: [`SyncError::report`] says which. The engine repeats the call with these changes and
    /// newer ones, and the repetition converges. The same call twice writes nothing the second time.
    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError>;

    /// Descriptors that become readable when [`Dataplane::poll`] has something to do.
    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// When [`Dataplane::poll`] has something to do even if no descriptor is readable: a drain ends, a retry, an expiry.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles what is readable or due, and returns what the engine must know.
    fn poll(&mut self, _now: Instant) -> Vec<Notification> {
        Vec::new()
    }

    /// How long after the last full sync the next one is due without any other cause; `None` means never.
    fn full_sync_interval(&self, _desired: &Desired) -> Option<Duration> {
        Some(FULL_SYNC_INTERVAL)
    }
}

/// What a sync applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything was written or compared, not only what changed. A large comparison may continue in [`Dataplane::poll`], in pieces.
    pub full: bool,
    /// How many objects or rules were written or removed.
    pub written: usize,
    /// Services that the kernel refused. Everything else was committed; the engine tries them again later.
    pub refused: Vec<RefusedService>,
    /// Notifications were off during a large write, so changes by other processes may have gone unnoticed. Only a full sync finds them.
    pub missed_notifications: bool,
    /// The dataplane removed stale flows itself. Otherwise the engine does, on the assumption that flows lead to endpoints.
    pub flows_removed: bool,
    /// Current values of the mode's own metrics.
    pub gauges: Vec<Gauge>,
    /// Increments of the mode's own counters.
    pub counts: Vec<Count>,
}

/// A Service that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedService {
    /// Only this Service is affected.
    pub service: NamespacedName,
    /// The refused object and the kernel's error.
    pub reason: String,
}

/// A value that a mode publishes after a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauge {
    /// The metric's name without `kubeproxy_`.
    pub metric: &'static str,
    /// Labels in addition to `ip_family`.
    pub labels: Vec<(&'static str, String)>,
    /// Replaces the previous value.
    pub value: usize,
}

/// An increment of a counter that a mode publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The metric's name without `kubeproxy_`.
    pub metric: &'static str,
    /// Labels in addition to `ip_family`.
    pub labels: Vec<(&'static str, String)>,
    /// Added to the counter.
    pub by: u64,
}

impl Count {
    /// An increment by one, without labels.
    pub fn one(metric: &'static str) -> Self {
        Count { metric, labels: Vec::new(), by: 1 }
    }
}

impl Report {
    /// Adds what another part of the same sync did. The sum is full only if both were.
    pub fn merge(&mut self, other: Report) {
        self.full &= other.full;
        self.written += other.written;
        self.refused.extend(other.refused);
        self.missed_notifications |= other.missed_notifications;
        self.flows_removed |= other.flows_removed;
        self.gauges.extend(other.gauges);
        self.counts.extend(other.counts);
    }
}

/// A sync that did not finish, with what it applied.
#[derive(Debug)]
pub struct SyncError {
    /// The dataplane's own typed error.
    pub source: Box<dyn Error + Send + Sync>,
    /// What was applied before the error.
    pub report: Report,
    /// When the next attempt makes sense.
    pub retry: Retry,
}

/// When the next attempt at a failed sync makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// After a delay that grows with each failure.
    Backoff,
    /// After [`Notification::Ready`]: a child process is still running, or another process holds a lock.
    OnNotification,
}

impl<E: Error + Send + Sync + 'static> From<E> for SyncError {
    fn from(error: E) -> Self {
        SyncError { source: Box::new(error), report: Report::default(), retry: Retry::Backoff }
    }
}

// `SyncError` is not an `Error` itself: the conversion above would then overlap with the reflexive one.
impl fmt::Display for SyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// What a dataplane detects outside of a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Another process changed our objects: the next sync must be a full one.
    Tampered {
        /// The family it concerns.
        family: Family,
        /// What was changed, for the log.
        what: String,
    },
    /// A sync that failed with [`Retry::OnNotification`] may be repeated now.
    Ready {
        /// The family it concerns.
        family: Family,
    },
    /// A Service failed after its sync: a listener cannot bind.
    Refused {
        /// The family it concerns.
        family: Family,
        /// The Service and the reason, as in a report.
        refused: RefusedService,
    },
    /// A Service that was refused works now.
    Accepted {
        /// The family it concerns.
        family: Family,
        /// It was refused before.
        service: NamespacedName,
    },
    /// A comparison that continued after its sync found differences, and undid them.
    Restored {
        /// The family it concerns.
        family: Family,
        /// How many objects were written or removed.
        written: usize,
    },
    /// Increments of counters since the last report.
    Counts {
        /// The family it concerns.
        family: Family,
        /// Added to the mode's own counters.
        counts: Vec<Count>,
    },
}

impl Notification {
    /// The family of any variant.
    pub fn family(&self) -> Family {
        match self {
            Notification::Tampered { family, .. }
            | Notification::Ready { family }
            | Notification::Refused { family, .. }
            | Notification::Accepted { family, .. }
            | Notification::Restored { family, .. }
            | Notification::Counts { family, .. } => *family,
        }
    }
}

//! What every dataplane offers to the engine.

use std::os::fd::BorrowedFd;

use crate::changes::Changes;
use crate::desired::Desired;
use crate::ip::Family;
use crate::name::NamespacedName;

/// Why a sync did not happen. Dataplanes have typed errors of their own; the engine only logs, counts and tries again.
pub type SyncError = Box<dyn std::error::Error + Send + Sync>;

/// Brings the kernel to a desired state, for one family. Calls block; the engine has a thread for them.
pub trait Dataplane: Send {
    /// The mode's name, as in `--proxy-mode`.
    fn mode(&self) -> &'static str;

    /// The family it serves.
    fn family(&self) -> Family;

    /// Brings the kernel to `desired`. `changes` says what may differ from the last successful call; the first call has
    /// [`Changes::full`]. After an error the kernel is as before, nothing is forgotten, and the engine repeats the call with these
    /// changes and newer ones. The same call twice writes nothing the second time.
    fn sync(&mut self, desired: &Desired, changes: &Changes) -> Result<Report, SyncError>;

    /// Readable when the kernel has something to tell about our objects; `None` if this dataplane cannot know.
    fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads what the kernel told. `Some` says what somebody else changed: the next sync must be a full one.
    fn tampering(&mut self) -> Option<String> {
        None
    }
}

/// What a successful sync did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether everything was written or compared, not only what changed.
    pub full: bool,
    /// How many objects or rules were written or removed.
    pub written: usize,
    /// Services that the kernel refused; everything else was committed. They are to be tried again.
    pub isolated: Vec<Isolated>,
    /// While this was written, nobody listened to what others did: only another full sync can tell whether they did anything.
    pub unwatched: bool,
    /// What this mode counts, by metric name without prefix, for example `iptables_total` by table.
    pub gauges: Vec<Gauge>,
}

/// A Service that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolated {
    /// The Service.
    pub service: NamespacedName,
    /// The object and the kernel's reason.
    pub reason: String,
}

/// One number that a mode publishes after a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauge {
    /// The metric's name without `kubeproxy_`.
    pub metric: &'static str,
    /// Labels beside `ip_family`.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: usize,
}

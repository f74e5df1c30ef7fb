//! What the engine publishes to the runtime's thread.

use std::collections::BTreeMap;

use portwarden_model::{
    Changes, Desired, Family, HealthCheck, NamespacedName, NodePortAddresses, PerFamily, Problem,
    RefusedService,
};
use tokio::sync::{mpsc, watch};

/// Something to report to the operator as an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The kernel refuses a Service.
    Refused {
        /// The family it concerns.
        family: Family,
        /// The Service and the reason.
        refused: RefusedService,
    },
    /// A field of an object cannot be used.
    Problem(Problem),
}

/// The health-check ports of one family, in step with the Services in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckPorts {
    /// The addresses on which they are open.
    pub addresses: NodePortAddresses,
    /// The ports, and how many local endpoints each Service has.
    pub ports: BTreeMap<NamespacedName, HealthCheck>,
}

impl Default for HealthCheckPorts {
    fn default() -> Self {
        HealthCheckPorts { addresses: NodePortAddresses::All, ports: BTreeMap::new() }
    }
}

/// The engine's ends of the channels to the other thread.
pub struct EngineOutputs {
    health_checks: watch::Sender<PerFamily<HealthCheckPorts>>,
    notices: mpsc::Sender<Notice>,
    installed: watch::Sender<bool>,
}

/// The other thread's ends.
pub struct EngineReceivers {
    /// The health-check ports that should be open.
    pub health_checks: watch::Receiver<PerFamily<HealthCheckPorts>>,
    /// What to report as Events.
    pub notices: mpsc::Receiver<Notice>,
    /// Whether every family has been written once.
    pub installed: watch::Receiver<bool>,
}

impl EngineOutputs {
    /// Creates both ends. While `limit` notices wait, new ones are dropped: they are in the log anyway.
    pub fn new(limit: usize) -> (Self, EngineReceivers) {
        let (health_checks, health_checks_out) = watch::channel(PerFamily::default());
        let (notices, notices_out) = mpsc::channel(limit);
        let (installed, installed_out) = watch::channel(false);
        let receivers = EngineReceivers {
            health_checks: health_checks_out,
            notices: notices_out,
            installed: installed_out,
        };
        (EngineOutputs { health_checks, notices, installed }, receivers)
    }

    pub(super) fn notice(&self, notice: Notice) {
        let _ = self.notices.try_send(notice);
    }

    /// Everything has been written at least once.
    pub(super) fn installed(&self) {
        self.installed.send_if_modified(|installed| !std::mem::replace(installed, true));
    }

    /// Publishes the health-check ports after a sync that brought `changes` to the kernel.
    pub(super) fn health_checks(&self, desired: &Desired, changes: &Changes) {
        self.health_checks.send_if_modified(|families| {
            let published = &mut families[desired.family];
            let mut modified = false;
            if published.addresses != desired.node.node_ports {
                published.addresses = desired.node.node_ports.clone();
                modified = true;
            }
            if changes.full {
                let all = desired
                    .services()
                    .filter_map(|(name, service)| Some((name.clone(), service.health_check?)));
                let all: BTreeMap<_, _> = all.collect();
                modified |= published.ports != all;
                published.ports = all;
                return modified;
            }
            for name in &changes.services {
                let wanted = desired.service(name).and_then(|service| service.health_check);
                let before = match wanted {
                    Some(wanted) => published.ports.insert(name.clone(), wanted),
                    None => published.ports.remove(name),
                };
                modified |= before != wanted;
            }
            modified
        });
    }
}

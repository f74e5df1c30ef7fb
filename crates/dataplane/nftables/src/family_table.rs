//! The table of one family: decides between a full and a partial write, and remembers what the kernel acknowledged.

mod comparison;
mod refused_services;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use portwarden_model::{
    Changes, Count, Desired, Family, NamespacedName, ProxiedService, Report, Retry, SyncError,
};
use portwarden_netlink::Errno;
use portwarden_netlink::error::Rejected;
use portwarden_netlink::nftables::{Client, TableId};

use crate::chains::Chains;
use crate::dataplane::{Options, TABLE};
use crate::error::Error;
use crate::installed::Installed;
use crate::kernel::Kernel;
use crate::probe::probe;
use crate::sets::{SetId, Sets};
use crate::source_ranges;
use crate::tampering::TamperMonitor;
pub(crate) use comparison::Progress;
use comparison::{Comparison, Structure};
use refused_services::Excluded;
use write::WriteError;

/// Counts syncs that failed, under kube-proxy's name.
const SYNC_FAILURES: &str = "sync_proxy_rules_nftables_sync_failures_total";

/// The table of one family, and what the kernel has of it.
#[derive(Debug)]
pub(crate) struct FamilyTable {
    family: Family,
    /// The bit of the packet mark that requests masquerading, as a mask.
    mark: u32,
    loopback_node_ports: bool,
    untracked_pods: bool,
    kernel: Kernel,
    sets: Sets,
    installed: Installed,
    chains: Chains,
    node_addresses: BTreeSet<IpAddr>,
    /// Whether `installed`, `chains` and `node_addresses` are what the kernel has.
    in_step: bool,
    /// A comparison with the kernel that is under way.
    comparison: Option<Comparison>,
}

/// The Services of a sync: all, or those that changed; `None` removes one.
type Wanted<'a> = BTreeMap<&'a NamespacedName, Option<&'a Arc<ProxiedService>>>;

impl FamilyTable {
    /// Connects to the kernel and probes its features. Nothing is changed.
    pub(crate) fn open(family: Family, options: Options, monitor: &mut TamperMonitor) -> Result<Self, Error> {
        let open = |source| Error::Open { family, source };
        probe(&mut Client::open().map_err(open)?, family)?;
        let kernel = Kernel::open(family, TABLE).map_err(open)?;
        monitor.add_table(kernel.table(), &kernel.client);
        let sets = Sets::new(kernel.table(), family);
        Ok(FamilyTable {
            family,
            mark: 1 << (options.masquerade_bit % 32),
            loopback_node_ports: options.loopback_node_ports,
            untracked_pods: options.untracked_pods,
            kernel,
            sets,
            installed: Installed::new(Default::default()),
            chains: Chains::default(),
            node_addresses: BTreeSet::new(),
            in_step: false,
            comparison: None,
        })
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }

    pub(crate) fn id(&self) -> &TableId {
        self.kernel.table()
    }

    /// Brings the table to the desired state. An error carries what was applied before it.
    pub(crate) fn sync(
        &mut self,
        desired: &Desired,
        changes: &Changes,
        monitor: &mut TamperMonitor,
        now: Instant,
    ) -> Result<Report, SyncError> {
        let mut report = Report::default();
        let outcome = if !self.in_step {
            monitor.take_damage(self.id());
            self.sync_all(desired, monitor, &mut report)
        } else if changes.full {
            self.check(desired, monitor, now, &mut report)
        } else {
            let wanted = changes.services.iter().map(|name| (name, desired.service(name))).collect();
            self.sync_changes(desired, changes.node, wanted, monitor, &mut report)
        };
        report.missed_notifications = self.kernel.take_missed_notifications();
        match outcome {
            Ok(()) => Ok(report),
            Err(error) => {
                report.counts.push(Count::one(SYNC_FAILURES));
                Err(SyncError { source: error.into(), report, retry: Retry::Backoff })
            }
        }
    }

    /// A full sync of a table that was written before: writes what differs, and starts a comparison of all elements unless it is known which ones
    /// another process changed.
    fn check(
        &mut self,
        desired: &Desired,
        monitor: &mut TamperMonitor,
        now: Instant,
        report: &mut Report,
    ) -> Result<(), Error> {
        let damage = monitor.take_damage(self.id());
        let structure = self.structure().map_err(|source| Error::Read { family: self.family, source })?;
        match structure {
            Structure::Broken => return self.sync_all(desired, monitor, report),
            _ if damage.table || self.has_idle_hooks() => return self.sync_all(desired, monitor, report),
            Structure::Rules(chains) => report.written += self.restore_rules(&chains, monitor)?,
            Structure::Intact => {}
        }
        report.written += self.restore_named(&damage, monitor)?;
        let installed = self.installed.service_names();
        let mut wanted: Wanted<'_> = installed.iter().map(|name| (name, None)).collect();
        wanted.extend(desired.services().map(|(name, service)| (name, Some(service))));
        self.sync_changes(desired, true, wanted, monitor, report)?;
        if damage.more || damage.elements.is_empty() {
            self.start_comparison(damage.more, now);
        }
        report.full = true;
        Ok(())
    }

    /// Whether packets pass hooks for source ranges although no Service has any more. Only a new table is without them.
    fn has_idle_hooks(&self) -> bool {
        source_ranges::has_hooks(&self.chains) && self.installed.counts()[SetId::Restricted as usize] == 0
    }

    fn sync_all(
        &mut self,
        desired: &Desired,
        monitor: &TamperMonitor,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut wanted: Wanted<'_> =
            desired.services().map(|(name, service)| (name, Some(service))).collect();
        loop {
            let error = match self.write_all(&desired.node, &wanted, monitor) {
                Ok(written) => {
                    (report.full, report.written) = (true, written);
                    return Ok(());
                }
                Err(error) => error,
            };
            match self.exclude(error, &mut wanted, &mut report.refused)? {
                Excluded::Some => {}
                Excluded::None(source) if wanted.is_empty() => {
                    return Err(Error::Commit { family: self.family, source });
                }
                // The kernel does not identify a Service: write the rules alone, then find it with ever smaller groups.
                Excluded::None(_) => {
                    let services: Vec<_> = std::mem::take(&mut wanted).into_iter().collect();
                    report.written = self
                        .write_all(&desired.node, &wanted, monitor)
                        .map_err(|error| error.into_error(self.family))?;
                    self.write_groups(&services, monitor, report)?;
                    report.full = true;
                    return Ok(());
                }
            }
        }
    }

    fn sync_changes(
        &mut self,
        desired: &Desired,
        node: bool,
        mut wanted: Wanted<'_>,
        monitor: &TamperMonitor,
        report: &mut Report,
    ) -> Result<(), Error> {
        loop {
            let error = match self.write_changes(node.then_some(&desired.node), &wanted, monitor) {
                Ok(written) => {
                    report.written += written;
                    return Ok(());
                }
                Err(error) => error,
            };
            let out_of_step = matches!(&error, WriteError::Rejected(rejected, _) if is_out_of_step(rejected));
            if out_of_step {
                report.refused.clear();
                return self.sync_all(desired, monitor, report);
            }
            match self.exclude(error, &mut wanted, &mut report.refused)? {
                Excluded::Some => {}
                Excluded::None(_) => {
                    report.refused.clear();
                    return self.sync_all(desired, monitor, report);
                }
            }
        }
    }
}

/// Whether a full write helps: an element that we delete is missing, one that we add exists, or a set is full.
fn is_out_of_step(rejected: &Rejected) -> bool {
    let drift = |errno| matches!(errno, Errno::ENOENT | Errno::EEXIST | Errno::ENFILE);
    rejected.failures.iter().any(|failure| drift(failure.answer.errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::error::{Answer, FailedPart, Failure};

    #[test]
    fn drift_is_repaired_by_a_full_write_and_other_failures_are_not() {
        let rejected = |errno| Rejected {
            failures: vec![Failure {
                part: FailedPart::Whole,
                answer: Answer { errno, code: errno as i32, text: None, offset: None },
            }],
        };
        for errno in [Errno::ENOENT, Errno::EEXIST, Errno::ENFILE] {
            assert!(is_out_of_step(&rejected(errno)), "{errno}");
        }
        for errno in [Errno::EINVAL, Errno::ENOMEM, Errno::EPERM] {
            assert!(!is_out_of_step(&rejected(errno)), "{errno}");
        }
    }
}

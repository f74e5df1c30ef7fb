//! The dataplane itself: decide between all and only what changed, commit, and keep what the kernel acknowledged.

mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use portwarden_model::{
    Changes, Count, Dataplane, Desired, Family, NamespacedName, Notification, ProxiedService, RefusedService,
    Report, SyncError,
};
use portwarden_netlink::error::Rejected;
use portwarden_netlink::nftables::{Client, Table, Transaction};
use portwarden_netlink::{Errno, Error as NetlinkError};

use crate::chains::Chains;
use crate::error::Error;
use crate::installed::Installed;
use crate::kernel::{Kernel, Watch, kernel_family};
use crate::probe::probe;
use crate::sets::Sets;
use write::Failed;

/// The table, shared with kube-proxy: whoever comes later takes it over in one transaction.
pub(crate) const TABLE: &str = "kube-proxy";
/// Counts syncs that failed, under kube-proxy's name.
const SYNC_FAILURES: &str = "sync_proxy_rules_nftables_sync_failures_total";
const TABLE_COMMENT: &str = "rules of Portwarden";

/// What only this mode has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The bit of the packet mark that asks for masquerading, 0 to 31.
    pub masquerade_bit: u8,
    /// Refuse node ports on loopback addresses that no proxy in user space answers for, and count what is refused.
    pub localhost_node_ports: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { masquerade_bit: 14, localhost_node_ports: false }
    }
}

/// The nftables dataplane of one family.
#[derive(Debug)]
pub struct Nftables {
    family: Family,
    mark: u32,
    localhost_node_ports: bool,
    kernel: Kernel,
    sets: Sets,
    installed: Installed,
    chains: Chains,
    node_addresses: BTreeSet<IpAddr>,
    /// Whether `installed`, `chains` and `node_addresses` are what the kernel has.
    in_step: bool,
}

/// The Services of a sync: all, or those that changed, without those that the kernel refused.
type Wanted<'a> = BTreeMap<&'a NamespacedName, Option<&'a Arc<ProxiedService>>>;

impl Nftables {
    /// Connects to the kernel and tries out what it can do. Nothing is changed. The dataplanes of both families share a watch.
    pub fn new(family: Family, options: Options, watch: Watch) -> Result<Self, Error> {
        let open = |source| Error::Open { family, source };
        probe(&mut Client::open().map_err(open)?, family)?;
        let kernel = Kernel::open(family, TABLE, watch).map_err(open)?;
        let sets = Sets::new(kernel.table(), family);
        Ok(Nftables {
            family,
            mark: 1 << (options.masquerade_bit % 32),
            localhost_node_ports: options.localhost_node_ports,
            kernel,
            sets,
            installed: Installed::new(Default::default()),
            chains: Chains::default(),
            node_addresses: BTreeSet::new(),
            in_step: false,
        })
    }

    fn sync_all(&mut self, desired: &Desired) -> Result<Report, Error> {
        let mut wanted: Wanted<'_> =
            desired.services().map(|(name, service)| (name, Some(service))).collect();
        let mut refused = Vec::new();
        loop {
            match self.write_all(&desired.node, &wanted) {
                Ok(written) => return Ok(Report { full: true, written, refused, ..Report::default() }),
                Err(failed) => match self.exclude(failed, &mut wanted, &mut refused)? {
                    Excluded::Some => {}
                    // The kernel does not say whose fault it is: write the rules alone, then find out with ever smaller groups.
                    Excluded::None(source) if wanted.is_empty() => {
                        return Err(Error::Commit { family: self.family, source });
                    }
                    Excluded::None(_) => {
                        let names: Vec<_> = std::mem::take(&mut wanted).into_iter().collect();
                        let written =
                            self.write_all(&desired.node, &wanted).map_err(|failed| self.fatal(failed))?;
                        let written = written + self.write_groups(&names, &mut refused)?;
                        return Ok(Report { full: true, written, refused, ..Report::default() });
                    }
                },
            }
        }
    }

    fn sync_changes(&mut self, desired: &Desired, changes: &Changes) -> Result<Report, Error> {
        let mut wanted: Wanted<'_> =
            changes.services.iter().map(|name| (name, desired.service(name))).collect();
        let mut refused = Vec::new();
        loop {
            match self.write_changes(changes.node.then_some(&desired.node), &wanted) {
                Ok(written) => return Ok(Report { written, refused, ..Report::default() }),
                Err(Failed::Rejected(rejected, _)) if is_out_of_step(&rejected) => {
                    return self.sync_all(desired);
                }
                Err(failed) => match self.exclude(failed, &mut wanted, &mut refused)? {
                    Excluded::Some => {}
                    Excluded::None(_) => return self.sync_all(desired),
                },
            }
        }
    }

    /// Takes the Services out that a failure is about.
    fn exclude<'a>(
        &self,
        failed: Failed,
        wanted: &mut Wanted<'a>,
        refused: &mut Vec<RefusedService>,
    ) -> Result<Excluded, Error> {
        let culprits: Vec<RefusedService> = match failed {
            Failed::Fatal(error) => return Err(error),
            Failed::Refused(service, reason) => vec![RefusedService { service, reason }],
            Failed::Rejected(rejected, plan) => {
                let found = rejected.failures.iter().filter_map(|failure| {
                    let service = plan.culprit(&failure.place)?.clone();
                    Some(RefusedService { service, reason: failure.to_string() })
                });
                let found: Vec<RefusedService> = found.collect();
                if found.is_empty() {
                    return Ok(Excluded::None(NetlinkError::Rejected(*rejected)));
                }
                found
            }
        };
        for culprit in culprits {
            if wanted.remove(&culprit.service).is_some() {
                refused.push(culprit);
            }
        }
        Ok(Excluded::Some)
    }

    /// Writes Services in groups; a group that the kernel refuses is halved until the guilty ones are alone.
    fn write_groups(
        &mut self,
        names: &[(&NamespacedName, Option<&Arc<ProxiedService>>)],
        refused: &mut Vec<RefusedService>,
    ) -> Result<usize, Error> {
        let wanted: Wanted<'_> = names.iter().copied().collect();
        match self.write_changes(None, &wanted) {
            Ok(written) => Ok(written),
            Err(Failed::Fatal(error)) => Err(error),
            Err(failed) if names.len() <= 1 => {
                let reason = self.fatal(failed);
                let reason =
                    std::error::Error::source(&reason).map_or(reason.to_string(), ToString::to_string);
                refused.extend(
                    names.first().map(|(name, _)| RefusedService { service: (*name).clone(), reason }),
                );
                Ok(0)
            }
            Err(_) => {
                let (left, right) = names.split_at(names.len() / 2);
                Ok(self.write_groups(left, refused)? + self.write_groups(right, refused)?)
            }
        }
    }

    fn fatal(&self, failed: Failed) -> Error {
        match failed {
            Failed::Fatal(error) => error,
            Failed::Rejected(rejected, _) => {
                Error::Commit { family: self.family, source: NetlinkError::Rejected(*rejected) }
            }
            Failed::Refused(service, reason) => {
                // Only reached while looking for culprits one by one, where the reason is all that is used.
                let text = format!("{service}: {reason}");
                Error::Refused { family: self.family, text }
            }
        }
    }
}

/// Whether a failure could be laid at some Service's door.
enum Excluded {
    Some,
    None(NetlinkError),
}

impl Dataplane for Nftables {
    fn families(&self) -> &[Family] {
        std::slice::from_ref(&self.family)
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, _now: Instant) -> Result<Report, SyncError> {
        let report = if changes.full || !self.in_step {
            self.sync_all(desired)
        } else {
            self.sync_changes(desired, changes)
        };
        let missed_notifications = self.kernel.take_unwatched();
        let mut report = report.map_err(|error| {
            let counts = vec![Count::one(SYNC_FAILURES)];
            SyncError { report: Report { counts, ..Report::default() }, ..SyncError::from(error) }
        })?;
        report.missed_notifications = missed_notifications;
        Ok(report)
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.kernel.watch_fd()]
    }

    fn poll(&mut self, _now: Instant) -> Vec<Notification> {
        let found = match self.kernel.tampering() {
            Ok(found) => found,
            Err(error) => Some(format!("notifications cannot be read: {error}")),
        };
        found.map(|what| Notification::Tampered { family: self.family, what }).into_iter().collect()
    }
}

/// Removes the table of one family, whoever made it. Returns whether there was one.
pub fn cleanup(family: Family) -> Result<bool, Error> {
    let open = |source| Error::Open { family, source };
    let failed = |source| Error::Cleanup { family, source };
    let mut client = Client::open().map_err(open)?;
    let table = portwarden_netlink::nftables::TableId::new(kernel_family(family), TABLE);
    let tables = client.tables(Some(table.family)).map_err(failed)?;
    if !tables.iter().any(|listed| listed.object.id == table) {
        return Ok(false);
    }
    let mut transaction = Transaction::new();
    transaction.delete(Table::new(&table));
    match client.commit(&transaction) {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(true),
    }
}

/// Whether writing everything anew helps: what we delete is not there, what we add is, or a set is full.
fn is_out_of_step(rejected: &Rejected) -> bool {
    let drift = |errno| matches!(errno, Errno::ENOENT | Errno::EEXIST | Errno::ENFILE);
    rejected.failures.iter().any(|failure| drift(failure.answer.errno))
}

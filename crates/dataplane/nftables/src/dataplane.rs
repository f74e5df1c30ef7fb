//! The nftables dataplane: one table per family, one monitor for changes by other processes.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use portwarden_model::{Changes, Dataplane, Desired, Family, Notification, Report, SyncError};
use portwarden_netlink::nftables::{Client, Table, TableId, Transaction};

use crate::error::Error;
use crate::family_table::{FamilyTable, Progress};
use crate::kernel::kernel_family;
use crate::tampering::TamperMonitor;

/// kube-proxy uses the same table name: the program that starts later takes over the table in one transaction.
pub(crate) const TABLE: &str = "kube-proxy";

/// The settings of this mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub masquerade_bit: u8,
    /// Reject and count connections to node ports on loopback addresses, unless a proxy in user space serves them.
    pub loopback_node_ports: bool,
    /// Take packets from pod to pod out of connection tracking, and masquerade what is translated for pods. Needs `NodeView::pod_range`.
    pub untracked_pods: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { masquerade_bit: 14, loopback_node_ports: false, untracked_pods: false }
    }
}

/// The nftables dataplane of one or both families.
#[derive(Debug)]
pub struct Nftables {
    families: Vec<Family>,
    tables: Vec<FamilyTable>,
    monitor: TamperMonitor,
}

impl Nftables {
    /// Connects to the kernel and probes its features for each family. Nothing is changed.
    pub fn new(families: &[Family], options: Options) -> Result<Self, Error> {
        let mut monitor = TamperMonitor::open().map_err(|source| Error::Subscribe { source })?;
        let tables: Result<Vec<FamilyTable>, Error> =
            families.iter().map(|family| FamilyTable::open(*family, options, &mut monitor)).collect();
        Ok(Nftables { families: families.to_vec(), tables: tables?, monitor })
    }
}

impl Dataplane for Nftables {
    fn families(&self) -> &[Family] {
        &self.families
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        let family = desired.family;
        match self.tables.iter_mut().find(|table| table.family() == family) {
            Some(table) => table.sync(desired, changes, &mut self.monitor, now),
            None => Err(Error::Family { family }.into()),
        }
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.monitor.as_fd()]
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.tables.iter().filter_map(FamilyTable::comparison_due).min()
    }

    fn poll(&mut self, now: Instant) -> Vec<Notification> {
        let failed = self.monitor.read().err();
        let mut notifications = Vec::new();
        for table in &mut self.tables {
            let family = table.family();
            if failed.is_some() {
                self.monitor.lost(table.id());
            }
            let found = self.monitor.take(table.id());
            let what = found
                .or_else(|| failed.as_ref().map(|error| format!("notifications cannot be read: {error}")));
            notifications.extend(what.map(|what| Notification::Tampered { family, what }));
            match table.compare(&self.monitor, now) {
                Some(Progress::Lost(what)) => notifications.push(Notification::Tampered { family, what }),
                Some(Progress::Done(written)) if written > 0 => {
                    notifications.push(Notification::Restored { family, written });
                }
                _ => {}
            }
        }
        notifications
    }
}

/// Removes the table of one family, whichever program made it. Returns whether there was one.
pub fn cleanup(family: Family) -> Result<bool, Error> {
    let open = |source| Error::Open { family, source };
    let failed = |source| Error::Cleanup { family, source };
    let mut client = Client::open().map_err(open)?;
    let table = TableId::new(kernel_family(family), TABLE);
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

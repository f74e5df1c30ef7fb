//! Detects changes that other processes make to our tables.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use portwarden_netlink::Result;
use portwarden_netlink::nftables::{Change, Client, Event, Monitor, Notice, Subject, TableId};

/// Reads the kernel's notifications, and remembers which of our tables another process changed.
#[derive(Debug)]
pub(crate) struct TamperMonitor {
    monitor: Monitor,
    /// The netlink ports of our own sockets.
    own_ports: BTreeSet<u32>,
    /// Our tables, with the first change by another process since [`TamperMonitor::take`].
    tables: BTreeMap<TableId, Option<String>>,
}

impl TamperMonitor {
    /// Subscribes in the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self> {
        let monitor = Monitor::open()?;
        Ok(TamperMonitor { monitor, own_ports: BTreeSet::new(), tables: BTreeMap::new() })
    }

    /// Watches a table that only this client may change.
    pub(crate) fn add_table(&mut self, table: &TableId, client: &Client) {
        self.own_ports.insert(client.port());
        self.tables.insert(table.clone(), None);
    }

    /// Reads all notifications that the kernel has queued.
    pub(crate) fn read(&mut self) -> Result<()> {
        let (own_ports, tables) = (&self.own_ports, &mut self.tables);
        self.monitor.read(|notice| {
            for (table, found) in tables.iter_mut() {
                let change = match &notice {
                    Notice::Missed => Some("more changes at once than could be read".to_owned()),
                    Notice::Event(event) if own_ports.contains(&event.port) => None,
                    Notice::Event(event) => describe(event, table),
                };
                // Of a table that is removed, the kernel reports every chain and rule first.
                if found.is_none() || change.as_deref() == Some(TABLE_REMOVED) {
                    *found = change.or_else(|| found.take());
                }
            }
        })?;
        Ok(())
    }

    /// What another process changed in a table since the last call.
    pub(crate) fn take(&mut self, table: &TableId) -> Option<String> {
        self.tables.get_mut(table).and_then(Option::take)
    }

    /// Commits a large transaction. While a socket is subscribed, the kernel builds a notification for each element of a transaction,
    /// which takes longer than the transaction.
    pub(crate) fn with_notifications_paused<T>(&self, commit: impl FnOnce() -> T) -> Result<T> {
        self.monitor.with_notifications_paused(commit)
    }
}

impl AsFd for TamperMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

/// All rules are gone.
const TABLE_REMOVED: &str = "all rules were flushed: the whole table was removed";

/// The change in a few words; `None` if it concerns another table.
fn describe(event: &Event, table: &TableId) -> Option<String> {
    if let (Subject::Table(listed), Change::Gone) = (&event.subject, event.change) {
        return (listed.object.id == *table).then(|| TABLE_REMOVED.to_owned());
    }
    let what = match &event.subject {
        Subject::Table(listed) => (listed.object.id == *table).then(|| "the table".to_owned()),
        Subject::Chain(listed) => {
            (listed.object.table == *table).then(|| format!("chain {}", listed.object.name))
        }
        Subject::Rule(listed) => {
            (listed.object.table == *table).then(|| format!("a rule of chain {}", listed.object.chain))
        }
        Subject::Set(listed) => {
            (listed.object.table == *table).then(|| format!("set {}", listed.object.name))
        }
        Subject::Elements(elements) => {
            (elements.table == *table).then(|| format!("an element of {}", elements.set))
        }
        Subject::Counter(_) | Subject::Generation(_) | Subject::Other { .. } => None,
    }?;
    let done = match event.change {
        Change::Present => "was added or changed",
        Change::Gone => "was removed",
    };
    Some(format!("{what} {done}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::{Chain, Family, Listed, Table};

    fn removed(subject: Subject) -> Event {
        Event { change: Change::Gone, subject, port: 7 }
    }

    #[test]
    fn only_changes_of_our_table_are_described() {
        let ours = TableId::new(Family::Ip, "kube-proxy");
        let others = TableId::new(Family::Ip6, "kube-proxy");
        let table = |id: &TableId| removed(Subject::Table(Listed { object: Table::new(id), handle: 1 }));
        let chain =
            |id: &TableId| removed(Subject::Chain(Listed { object: Chain::new(id, "services"), handle: 1 }));
        assert_eq!(describe(&table(&ours), &ours).as_deref(), Some(TABLE_REMOVED));
        assert_eq!(describe(&chain(&ours), &ours).as_deref(), Some("chain services was removed"));
        assert_eq!(describe(&table(&others), &ours), None);
        assert_eq!(describe(&chain(&others), &ours), None);
    }
}

//! Detects changes that other processes make to our tables.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use portwarden_netlink::Result;
use portwarden_netlink::nftables::{Change, Client, Event, Monitor, Name, Notice, Subject, TableId};

/// More changed elements than this are not remembered one by one.
const MOST_KEYS: usize = 4096;

/// What other processes changed in one table.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// The first change, in a few words.
    found: Option<String>,
    /// Elements that were added, changed or removed: the set's name, and the key.
    pub(crate) elements: Vec<(Name, Vec<u8>)>,
    /// The table itself was changed or removed.
    pub(crate) table: bool,
    /// There were more changes than these: any element may differ.
    pub(crate) more: bool,
}

/// Reads the kernel's notifications, and remembers what other processes changed in our tables.
#[derive(Debug)]
pub(crate) struct TamperMonitor {
    monitor: Monitor,
    /// The netlink ports of our own sockets.
    own_ports: BTreeSet<u32>,
    /// Our tables, with the changes by other processes since [`TamperMonitor::take_damage`].
    tables: BTreeMap<TableId, Damage>,
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
        self.tables.insert(table.clone(), Damage::default());
    }

    /// Reads all notifications that the kernel has queued.
    pub(crate) fn read(&mut self) -> Result<()> {
        let (own_ports, tables) = (&self.own_ports, &mut self.tables);
        self.monitor.read(|notice| {
            for (table, damage) in tables.iter_mut() {
                match &notice {
                    Notice::Missed => {
                        damage.more = true;
                        damage
                            .found
                            .get_or_insert_with(|| "more changes at once than could be read".to_owned());
                    }
                    Notice::Event(event) if own_ports.contains(&event.port) => {}
                    Notice::Event(event) => damage.add(event, table),
                }
            }
        })?;
        Ok(())
    }

    /// The first change that another process made to a table since the last call, in a few words.
    pub(crate) fn take(&mut self, table: &TableId) -> Option<String> {
        self.tables.get_mut(table).and_then(|damage| damage.found.take())
    }

    /// Notifications about a table were lost.
    pub(crate) fn lost(&mut self, table: &TableId) {
        if let Some(damage) = self.tables.get_mut(table) {
            damage.more = true;
        }
    }

    /// Everything that other processes changed in a table since the last call.
    pub(crate) fn take_damage(&mut self, table: &TableId) -> Damage {
        self.tables.get_mut(table).map(std::mem::take).unwrap_or_default()
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

impl Damage {
    fn add(&mut self, event: &Event, table: &TableId) {
        let Some(what) = describe(event, table) else { return };
        // Of a table that is removed, the kernel reports every chain and rule first.
        if self.found.is_none() || what == TABLE_REMOVED {
            self.found = Some(what);
        }
        match &event.subject {
            Subject::Table(_) => self.table = true,
            Subject::Elements(changed) if self.elements.len() + changed.elements.len() <= MOST_KEYS => {
                let keys = changed.elements.iter().map(|element| (changed.set.clone(), element.key.clone()));
                self.elements.extend(keys);
            }
            Subject::Elements(_) => self.more = true,
            _ => {}
        }
    }
}

/// All rules are gone.
const TABLE_REMOVED: &str = "all rules were flushed: the whole table was removed";

/// The change in a few words; `None` if it concerns another table.
fn describe(event: &Event, table: &TableId) -> Option<String> {
    if let (Subject::Table(listed), Change::Gone) = (&event.subject, event.change) {
        return (listed.object.id == *table).then(|| TABLE_REMOVED.to_owned());
    }
    event.describe(table)
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

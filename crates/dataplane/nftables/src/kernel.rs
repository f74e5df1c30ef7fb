//! One family's table in the kernel: find out what is there, commit transactions.

use std::collections::BTreeSet;

use portwarden_model::Family;
use portwarden_netlink::Result;
use portwarden_netlink::nftables::{self, Batch, Client, Image, TableId, Transaction};

use crate::sets::{SetId, Sets};
use crate::tampering::TamperMonitor;

/// From this many elements on, notifications are paused while a transaction is committed.
const PAUSE_FROM: usize = 512;

/// A connection to the kernel for one family's table.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) client: Client,
    table: TableId,
    missed_notifications: bool,
}

/// What the kernel has under the name of our table.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    /// A table of this layout: session affinity can stay. Chains and counters by name.
    Ours {
        sets: Vec<nftables::Set>,
        chains: BTreeSet<String>,
        counters: BTreeSet<String>,
    },
    /// A table of another layout, or of another program.
    Other,
}

impl Kernel {
    pub(crate) fn open(family: Family, table: &str) -> Result<Self> {
        let table = TableId::new(kernel_family(family), table);
        Ok(Kernel { client: Client::open()?, table, missed_notifications: false })
    }

    pub(crate) fn table(&self) -> &TableId {
        &self.table
    }

    /// Finds out whose table there is. It is ours if its map of clients has our type.
    pub(crate) fn inspect(&mut self, sets: &Sets) -> Result<Found> {
        let tables = self.client.tables(Some(self.table.family))?;
        if !tables.iter().any(|table| table.object.id == self.table) {
            return Ok(Found::Nothing);
        }
        let found: Vec<nftables::Set> =
            self.client.sets(&self.table)?.into_iter().map(|set| set.object).collect();
        let affinity = sets.get(SetId::Affinity);
        if !found.iter().any(|set| set == affinity.as_ref()) {
            return Ok(Found::Other);
        }
        let chains =
            self.client.chains(&self.table)?.into_iter().map(|chain| chain.object.name.to_string()).collect();
        let counters = self.client.counters(&self.table)?;
        let counters = counters.into_iter().map(|counter| counter.object.name.to_string()).collect();
        Ok(Found::Ours { sets: found, chains, counters })
    }

    /// Commits the transaction whole; on an error the kernel has none of it.
    pub(crate) fn commit(&mut self, transaction: &Transaction, monitor: &TamperMonitor) -> Result<()> {
        if transaction.element_count() < PAUSE_FROM {
            return self.client.commit(transaction);
        }
        let batch = Batch::encode(transaction)?;
        let before = self.client.generation()?.id;
        let outcome =
            monitor.with_notifications_paused(|| self.client.commit_encoded(transaction, &batch))?;
        // The kernel counts transactions: more than ours were made by other processes.
        let expected = before.wrapping_add(u32::from(outcome.is_ok()));
        self.missed_notifications |= self.client.generation()?.id != expected;
        outcome
    }

    /// Whether other processes changed something, in whatever table, while notifications were paused.
    pub(crate) fn take_missed_notifications(&mut self) -> bool {
        std::mem::take(&mut self.missed_notifications)
    }
}

/// nf_tables' name for a family.
pub(crate) fn kernel_family(family: Family) -> nftables::Family {
    match family {
        Family::V4 => nftables::Family::Ip,
        Family::V6 => nftables::Family::Ip6,
    }
}

/// The key of one element in a map of numbers.
pub(crate) fn number_key(number: u32) -> Image {
    Image::new().number(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::{Elements, Object, Set, Table};
    use portwarden_testkit::Namespace;

    fn commit(kernel: &mut Kernel, objects: impl IntoIterator<Item = Object>) {
        let mut transaction = Transaction::new();
        objects.into_iter().for_each(|object| transaction.add(object));
        kernel.client.commit(&transaction).unwrap();
    }

    /// Only the type of the map of clients decides whose table it is: kube-proxy's has the same name.
    #[test]
    fn a_table_is_ours_if_its_map_of_clients_is() {
        let namespace = Namespace::new("nftables-kernel").unwrap();
        let _inside = namespace.enter().unwrap();
        let mut kernel = Kernel::open(Family::V4, "kube-proxy").unwrap();
        let table = kernel.table().clone();
        let sets = Sets::new(&table, Family::V4);
        assert!(matches!(kernel.inspect(&sets).unwrap(), Found::Nothing));
        commit(&mut kernel, [Table::new(&table).into()]);
        assert!(matches!(kernel.inspect(&sets).unwrap(), Found::Other));
        let address = nftables::DataType::Ipv4Address;
        commit(&mut kernel, [Set::map(&table, SetId::Affinity.name(), [address], [address]).into()]);
        assert!(matches!(kernel.inspect(&sets).unwrap(), Found::Other), "another type");
        let mut again = Transaction::new();
        again.delete(Table::new(&table));
        again.add(Table::new(&table));
        again.add(sets.get(SetId::Affinity));
        kernel.client.commit(&again).unwrap();
        assert!(matches!(kernel.inspect(&sets).unwrap(), Found::Ours { sets, .. } if sets.len() == 1));
    }

    #[test]
    fn a_large_transaction_is_not_reported_to_the_monitor() {
        let namespace = Namespace::new("nftables-kernel").unwrap();
        let _inside = namespace.enter().unwrap();
        let mut monitor = TamperMonitor::open().unwrap();
        let mut kernel = Kernel::open(Family::V4, "kube-proxy").unwrap();
        let table = kernel.table().clone();
        // A monitor that does not know our client takes its changes for another process's.
        monitor.add_table(&table, &Client::open().unwrap());
        let sets = Sets::new(&table, Family::V4);
        let load = |count: usize| {
            let mut elements = Elements::new();
            (0_u32..).take(count).for_each(|number| elements.push_key(Image::new().ipv4(number.into())));
            let mut transaction = Transaction::new();
            transaction.add(Table::new(&table));
            transaction.add(sets.get(SetId::ClusterAddresses));
            transaction.add_elements(sets.get(SetId::ClusterAddresses), elements);
            transaction
        };
        for (count, reported) in [(PAUSE_FROM, false), (PAUSE_FROM - 1, true)] {
            kernel.commit(&load(count), &monitor).unwrap();
            monitor.read().unwrap();
            assert_eq!(monitor.take(&table).is_some(), reported, "{count} elements");
        }
        assert!(!kernel.take_missed_notifications(), "no other process made changes");
    }
}

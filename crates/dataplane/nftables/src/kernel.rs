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

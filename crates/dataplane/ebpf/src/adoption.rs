//! What an earlier process left in the maps. A port finds its pools and counter again through the records of its frontends, so that clients keep their
//! endpoints over a restart.

use std::collections::{BTreeSet, HashMap};

use portwarden_model::{Family, PoolKind};

use crate::frontends::Wanted;
use crate::layout::{Key, Record};
use crate::pools::Pools;
use crate::service_table::ServiceTable;

/// What an earlier process left, until ports claim it. Nothing of it is given to others meanwhile: its records still lead there.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    records: HashMap<Key, Record>,
    /// Sound pools that no port has claimed yet.
    pools: BTreeSet<u32>,
}

impl Earlier {
    /// Reserves what the records lead to. Those that lead to nothing sound are ignored from now on: nftables serves their frontends until the first sync
    /// writes or removes them.
    pub(crate) fn take_over(services: &ServiceTable, pools: &mut Pools) -> Self {
        let mut records: HashMap<Key, Record> = services.iter().collect();
        let named: BTreeSet<u32> =
            records.values().map(|record| record.pool).filter(|pool| *pool != Record::REFUSED).collect();
        let sound: BTreeSet<u32> = named.into_iter().filter(|pool| pools.adopt(*pool)).collect();
        let broken = |record: &Record| record.pool != Record::REFUSED && !sound.contains(&record.pool);
        for (key, record) in records.extract_if(|_, record| broken(record)) {
            services.change(key, Record { pool: Record::IGNORED, ..record });
        }
        Earlier { records, pools: sound }
    }

    /// Claims the pool that served one of these frontends, if no other port has.
    pub(crate) fn claim_pool(&mut self, wanted: &[Wanted], kind: PoolKind) -> Option<u32> {
        let local = kind == PoolKind::Local;
        let of_kind = |record: &&Record| record.local == local && self.pools.contains(&record.pool);
        let pool = self.records(wanted).find(of_kind)?.pool;
        self.pools.remove(&pool);
        Some(pool)
    }

    /// The number of the counter of one of these frontends.
    pub(crate) fn counter(&self, wanted: &[Wanted]) -> Option<u32> {
        self.records(wanted).map(|record| record.counter).find(|counter| *counter != 0)
    }

    /// All counters that records lead to.
    pub(crate) fn counters(&self) -> BTreeSet<u32> {
        self.records.values().map(|record| record.counter).collect()
    }

    /// The frontend has a new owner.
    pub(crate) fn claim(&mut self, key: Key) -> Option<Record> {
        self.records.remove(&key)
    }

    /// The frontends that nothing has claimed, in a family.
    pub(crate) fn unclaimed(&self, family: Family) -> Vec<Key> {
        self.records.keys().copied().filter(|key| key.family() == family).collect()
    }

    /// Takes out all frontends and pools that nothing has claimed.
    pub(crate) fn finish(&mut self) -> (Vec<Key>, BTreeSet<u32>) {
        let records = std::mem::take(&mut self.records);
        (records.into_keys().collect(), std::mem::take(&mut self.pools))
    }

    fn records(&self, wanted: &[Wanted]) -> impl Iterator<Item = &Record> {
        wanted.iter().filter_map(|wanted| self.records.get(&wanted.key))
    }
}

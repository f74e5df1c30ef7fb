//! What an earlier process left in the maps. A port finds its pools and counter again through the records of its frontends, so that clients keep their
//! endpoints over a restart.

use std::collections::{BTreeSet, HashMap};

use portwarden_model::{Family, PoolKind};

use crate::error::Error;
use crate::frontends::Wanted;
use crate::layout::{Key, Record};
use crate::maps::ServiceMap;
use crate::pools::Pools;

/// All records of the map `services`.
pub(crate) fn read_records(services: &ServiceMap) -> Result<HashMap<Key, Record>, Error> {
    let failed = |source| Error::Map { action: "read", map: "services", source };
    let mut records = HashMap::new();
    for key in services.keys().map_err(failed)? {
        if let Some(bytes) = services.get(&key).map_err(failed)? {
            records.insert(Key(key), Record::from_bytes(bytes));
        }
    }
    Ok(records)
}

/// What an earlier process left, until ports claim it. Nothing of it is given to others meanwhile: its records still lead there.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    records: HashMap<Key, Record>,
    /// Sound pools that no port has claimed yet.
    pools: BTreeSet<u32>,
}

impl Earlier {
    /// Reserves what the records lead to. Those that lead to nothing sound are deleted: nftables serves their frontends.
    pub(crate) fn take_over(services: &ServiceMap, pools: &mut Pools) -> Result<Self, Error> {
        let mut records = read_records(services)?;
        let named: BTreeSet<u32> =
            records.values().map(|record| record.pool).filter(|pool| *pool != 0).collect();
        let sound: BTreeSet<u32> = named.into_iter().filter(|pool| pools.adopt(*pool)).collect();
        let broken = |record: &Record| record.pool != 0 && !sound.contains(&record.pool);
        for (key, _) in records.extract_if(|_, record| broken(record)) {
            let failed = |source| Error::Map { action: "delete from", map: "services", source };
            services.remove(&key.0).map_err(failed)?;
        }
        Ok(Earlier { records, pools: sound })
    }

    /// Claims the pool that served one of these frontends, if no other port has.
    pub(crate) fn claim_pool(&mut self, wanted: &[Wanted], kind: PoolKind) -> Option<u32> {
        let flags = pool_flags(kind);
        let of_kind = |record: &&Record| record.flags == flags && self.pools.contains(&record.pool);
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

/// What a record says about its pool.
pub(crate) fn pool_flags(kind: PoolKind) -> u32 {
    match kind {
        PoolKind::Cluster => 0,
        PoolKind::Local => Record::LOCAL_POOL,
    }
}

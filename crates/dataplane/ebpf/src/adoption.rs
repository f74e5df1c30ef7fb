//! What an earlier process left in the maps. A port finds its pools and counter again through the records of its frontends, so that clients keep their
//! endpoints over a restart.

use std::collections::HashMap;

use portwarden_model::{Family, PoolKind};

use crate::error::Error;
use crate::frontends::Wanted;
use crate::layout::{Key, Record};
use crate::maps::ServiceMap;

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

/// Records that no port has claimed yet.
#[derive(Debug, Default)]
pub(crate) struct Earlier(HashMap<Key, Record>);

impl Earlier {
    pub(crate) fn new(records: HashMap<Key, Record>) -> Self {
        Earlier(records)
    }

    /// The number of the pool that served one of these frontends.
    pub(crate) fn pool(&self, wanted: &[Wanted], kind: PoolKind) -> Option<u32> {
        let flags = pool_flags(kind);
        let of_kind = |record: &&Record| record.pool != 0 && record.flags == flags;
        self.records(wanted).find(of_kind).map(|record| record.pool)
    }

    /// The number of the counter of one of these frontends.
    pub(crate) fn counter(&self, wanted: &[Wanted]) -> Option<u32> {
        self.records(wanted).map(|record| record.counter).find(|counter| *counter != 0)
    }

    /// The frontend has a new owner.
    pub(crate) fn claim(&mut self, key: Key) -> Option<Record> {
        self.0.remove(&key)
    }

    /// Takes out what nothing has claimed in a family.
    pub(crate) fn unclaimed(&mut self, family: Family) -> Vec<Key> {
        let left: Vec<Key> = self.0.keys().copied().filter(|key| key.family() == family).collect();
        for key in &left {
            self.0.remove(key);
        }
        left
    }

    fn records(&self, wanted: &[Wanted]) -> impl Iterator<Item = &Record> {
        wanted.iter().filter_map(|wanted| self.0.get(&wanted.key))
    }
}

/// What a record says about its pool.
pub(crate) fn pool_flags(kind: PoolKind) -> u32 {
    match kind {
        PoolKind::Cluster => 0,
        PoolKind::Local => Record::LOCAL_POOL,
    }
}

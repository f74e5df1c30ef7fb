//! Brings the records and pools of one Service into the maps.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use portwarden_model::{Exposure, Family, NodeView, PoolKind, PortName, ProxiedPort};
use tracing::debug;

use crate::adoption::Earlier;
use crate::counters::ServiceCounters;
use crate::frontends::{Wanted, wanted};
use crate::layout::{Affinity, Key, PoolEndpoint, Record};
use crate::maps::AffinityMap;
use crate::pools::{Full, Pools};
use crate::service_table::ServiceTable;

/// The maps, and what is in them.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) services: ServiceTable,
    pub(crate) affinities: AffinityMap,
    pub(crate) pools: Pools,
    pub(crate) counters: ServiceCounters,
    /// The records that are in the table.
    pub(crate) records: HashMap<Key, Owned>,
    pub(crate) earlier: Earlier,
    pub(crate) next_port: u64,
    /// Endpoints that left since the last look and to which UDP sockets may be connected.
    pub(crate) left_with_sockets: Vec<PoolEndpoint>,
}

/// A record and the port that has written it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    pub(crate) record: Record,
    port: u64,
    exposure: Exposure,
}

/// What a service port has in the maps.
#[derive(Debug)]
pub(crate) struct InstalledPort {
    pub(crate) name: PortName,
    number: u64,
    counter: u32,
    cluster: Option<u32>,
    local: Option<u32>,
    keys: Vec<Key>,
}

impl Tables {
    /// Writes a port: pools first, then the records that lead to them, then what is no longer needed. Returns the number of writes.
    pub(crate) fn write_port(
        &mut self,
        installed: &mut InstalledPort,
        port: &ProxiedPort,
        wanted: &[Wanted],
        now: Instant,
    ) -> Result<usize, Full> {
        let mut written = 0;
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            if wanted.iter().any(|wanted| wanted.pool == Some(kind)) {
                written += self.write_pool(installed, port, wanted, kind, now)?;
            }
        }
        if port.affinity.is_some() {
            self.carry_clients_over(installed, wanted);
        }
        let mut keys = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            let pool = wanted.pool.and_then(|kind| *installed.pool(kind));
            let record = Record {
                pool: pool.unwrap_or(Record::REFUSED),
                affinity: port.affinity.map_or(0, |seconds| seconds.get()),
                counter: installed.counter,
                local: wanted.pool == Some(PoolKind::Local),
            };
            let owned = Owned { record, port: installed.number, exposure: wanted.exposure };
            if self.is_taken(wanted.key, &owned) {
                continue;
            }
            keys.push(wanted.key);
            written += self.write_record(wanted.key, owned, now)?;
        }
        let unwanted: Vec<Key> = installed.keys.iter().copied().filter(|key| !keys.contains(key)).collect();
        installed.keys = keys;
        for key in unwanted {
            written += self.remove_record(key, installed.number, now);
        }
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            if !wanted.iter().any(|wanted| wanted.pool == Some(kind)) {
                written += self.release_pool(installed, kind, now);
            }
        }
        Ok(written)
    }

    /// When the policy changes and another pool takes the place of the one so far, clients keep an endpoint that both have.
    fn carry_clients_over(&self, installed: &InstalledPort, wanted: &[Wanted]) {
        let is_wanted = |kind| wanted.iter().any(|wanted| wanted.pool == Some(kind));
        let (from, to) = match (is_wanted(PoolKind::Cluster), is_wanted(PoolKind::Local)) {
            (true, false) => (installed.local, installed.cluster),
            (false, true) => (installed.cluster, installed.local),
            _ => return,
        };
        let (Some(from), Some(to)) = (from, to) else { return };
        if let Err(error) = self.copy_affinities(from, to) {
            debug!(err = %error, "Clients with session affinity choose an endpoint once more");
        }
    }

    fn copy_affinities(&self, from: u32, to: u32) -> io::Result<()> {
        let counterparts = self.pools.counterparts(from, to);
        for key in self.affinities.keys()? {
            let Some(value) = self.affinities.get(&key)? else { continue };
            let known = Affinity::from_bytes(key, value);
            if known.pool == from
                && let Some(backend) = counterparts.get(&known.backend)
            {
                let (key, value) = Affinity { pool: to, backend: *backend, ..known }.to_bytes();
                self.affinities.insert(&key, &value)?;
            }
        }
        Ok(())
    }

    /// Removes all that a port has.
    pub(crate) fn remove_port(&mut self, mut installed: InstalledPort, now: Instant) -> usize {
        let mut written = 0;
        for key in std::mem::take(&mut installed.keys) {
            written += self.remove_record(key, installed.number, now);
        }
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            written += self.release_pool(&mut installed, kind, now);
        }
        self.counters.give_back(installed.counter);
        written
    }

    /// A port that has nothing yet, except what it had before a restart.
    pub(crate) fn new_port(&mut self, family: Family, name: &PortName, wanted: &[Wanted]) -> InstalledPort {
        self.next_port += 1;
        let kept = self.earlier.counter(wanted).filter(|index| self.counters.adopt(*index, family, name));
        let counter = kept.unwrap_or_else(|| self.counters.take(family, name));
        InstalledPort {
            name: name.clone(),
            number: self.next_port,
            counter,
            cluster: None,
            local: None,
            keys: Vec::new(),
        }
    }

    fn write_pool(
        &mut self,
        installed: &mut InstalledPort,
        port: &ProxiedPort,
        wanted: &[Wanted],
        kind: PoolKind,
        now: Instant,
    ) -> Result<usize, Full> {
        let endpoints = port.pool(kind);
        let place = installed.pool(kind);
        if place.is_none() {
            *place = self.earlier.claim_pool(wanted, kind);
        }
        let Some(pool) = *place else {
            let first = wanted.iter().find(|wanted| wanted.pool == Some(kind));
            let preferred = first.and_then(|wanted| self.services.preferred_pool(wanted.key));
            let (pool, written) = self.pools.create(endpoints, preferred, now)?;
            *place = Some(pool);
            return Ok(written);
        };
        let updated = self.pools.update(pool, endpoints, now)?;
        self.left_with_sockets.extend(updated.left_with_sockets);
        Ok(updated.written)
    }

    fn release_pool(&mut self, installed: &mut InstalledPort, kind: PoolKind, now: Instant) -> usize {
        let Some(pool) = installed.pool(kind).take() else { return 0 };
        let updated = self.pools.release(pool, now);
        self.left_with_sockets.extend(updated.left_with_sockets);
        updated.written
    }

    /// An address of a Service goes before a node port on the same address. nftables does the same.
    fn is_taken(&self, key: Key, by: &Owned) -> bool {
        self.records.get(&key).is_some_and(|owned| owned.port != by.port && owned.exposure < by.exposure)
    }

    fn write_record(&mut self, key: Key, owned: Owned, now: Instant) -> Result<usize, Full> {
        let earlier = self.earlier.claim(key);
        let before = self.records.get(&key).map(|owned| owned.record).or(earlier);
        if before != Some(owned.record) {
            self.services.insert(key, owned.record, now)?;
        }
        self.records.insert(key, owned);
        Ok(usize::from(before != Some(owned.record)))
    }

    fn remove_record(&mut self, key: Key, port: u64, now: Instant) -> usize {
        if self.records.get(&key).is_none_or(|owned| owned.port != port) {
            return 0;
        }
        self.records.remove(&key);
        usize::from(self.services.remove(key, now))
    }

    /// Removes frontends of an earlier process that nothing has claimed, in a family or (`None`) all, and then the pools behind them.
    pub(crate) fn remove_unclaimed(&mut self, family: Option<Family>, now: Instant) -> usize {
        let (keys, pools) = match family {
            Some(family) => (self.earlier.unclaimed(family), BTreeSet::new()),
            None => {
                self.counters.free_unclaimed();
                self.earlier.finish()
            }
        };
        let written = keys.len() + pools.len();
        for key in keys {
            self.services.remove(key, now);
            self.earlier.claim(key);
        }
        for pool in pools {
            let updated = self.pools.release(pool, now);
            self.left_with_sockets.extend(updated.left_with_sockets);
        }
        written
    }

    /// Removes and repairs what differs from the records of a family. Returns the number of repairs.
    pub(crate) fn repair_records(&mut self, family: Family, now: Instant) -> usize {
        let records = &self.records;
        let ours = |key: Key| key.family() != family || records.contains_key(&key);
        let mut repaired = self.services.repair(ours, now);
        for (key, owned) in records.iter().filter(|(key, _)| key.family() == family) {
            // Where what another process has written still takes up all room, nftables serves, and the next full sync tries again.
            let differs = self.services.get(*key) != Some(owned.record);
            repaired += usize::from(differs && self.services.insert(*key, owned.record, now).is_ok());
        }
        repaired
    }
}

impl InstalledPort {
    fn pool(&mut self, kind: PoolKind) -> &mut Option<u32> {
        match kind {
            PoolKind::Cluster => &mut self.cluster,
            PoolKind::Local => &mut self.local,
        }
    }
}

/// The records that the ports of a Service should have.
pub(crate) fn wanted_by_port<'a>(
    node: &NodeView,
    addresses: &[IpAddr],
    ports: &'a [ProxiedPort],
) -> Vec<(&'a ProxiedPort, Vec<Wanted>)> {
    ports.iter().map(|port| (port, wanted(node, addresses, port))).collect()
}

//! Counters of service ports, which the programs keep for each processor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portwarden_model::{Family, PortName};
use tracing::debug;

use crate::sys::PerProcessorArray;

/// The counters of all service ports, for whoever publishes them. Empty until a dataplane starts.
#[derive(Debug, Clone, Default)]
pub struct ServiceCounters(Arc<Mutex<Option<Table>>>);

/// What happened at one service port since Portwarden first saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortCounts {
    /// Its addresses are of this family.
    pub family: Family,
    /// Service, port name and protocol.
    pub name: PortName,
    /// Connections, and destinations of datagrams, that were pointed at an endpoint.
    pub connections: u64,
    /// Connections and datagrams that were refused because there is no endpoint.
    pub refusals: u64,
}

/// Which counter belongs to which port.
#[derive(Debug)]
struct Table {
    array: PerProcessorArray,
    names: BTreeMap<u32, (Family, PortName)>,
    free: Vec<u32>,
    /// Those of an earlier process, until their ports claim them.
    reserved: BTreeSet<u32>,
}

impl ServiceCounters {
    /// The current values. Ports beyond the size of the map have none.
    pub fn read(&self) -> Vec<PortCounts> {
        let table = self.table();
        let Some(table) = table.as_ref() else { return Vec::new() };
        let counts = |(index, (family, name)): (&u32, &(Family, PortName))| {
            let values = table
                .array
                .get(*index)
                .inspect_err(|error| debug!(err = %error, "Cannot read a counter"))
                .ok()?;
            let sum = |field: usize| values.iter().skip(field).step_by(2).sum();
            Some(PortCounts { family: *family, name: name.clone(), connections: sum(0), refusals: sum(1) })
        };
        table.names.iter().filter_map(counts).collect()
    }

    /// Starts with an array of this length. `reserved` counters wait for their ports.
    pub(crate) fn start(&self, array: PerProcessorArray, length: u32, reserved: BTreeSet<u32>) {
        let free = (1..length).rev().filter(|index| !reserved.contains(index)).collect();
        *self.table() = Some(Table { array, names: BTreeMap::new(), free, reserved });
    }

    /// Counters that no port has claimed are free.
    pub(crate) fn free_unclaimed(&self) {
        if let Some(table) = self.table().as_mut() {
            table.free.extend(std::mem::take(&mut table.reserved).into_iter().filter(|index| *index != 0));
        }
    }

    /// Keeps the counter that a port had before a restart, if nothing else has it.
    pub(crate) fn adopt(&self, index: u32, family: Family, name: &PortName) -> bool {
        let mut table = self.table();
        let Some(table) = table.as_mut() else { return false };
        if !table.reserved.remove(&index) {
            return false;
        }
        table.names.insert(index, (family, name.clone()));
        true
    }

    /// A counter that starts at zero; 0, which counts nothing, if none is left.
    pub(crate) fn take(&self, family: Family, name: &PortName) -> u32 {
        let mut table = self.table();
        let Some(table) = table.as_mut() else { return 0 };
        let Some(index) = table.free.pop() else { return 0 };
        if let Err(error) = table.array.clear(index) {
            debug!(err = %error, "Cannot clear a counter");
        }
        table.names.insert(index, (family, name.clone()));
        index
    }

    /// The port is gone.
    pub(crate) fn give_back(&self, index: u32) {
        if let Some(table) = self.table().as_mut()
            && table.names.remove(&index).is_some()
        {
            table.free.push(index);
        }
    }

    fn table(&self) -> MutexGuard<'_, Option<Table>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Counters of service ports, which the programs keep for each processor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use portwarden_model::{Family, PortName};

use crate::error::Error;
use crate::layout::CounterCell;
use crate::sys::Mapping;

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

/// The counters of all processors, one processor after the other.
#[derive(Debug)]
pub(crate) struct CounterArray {
    cells: Mapping<CounterCell>,
    per_processor: usize,
}

impl CounterArray {
    pub(crate) fn new(cells: Mapping<CounterCell>, per_processor: u32) -> Self {
        CounterArray { cells, per_processor: per_processor as usize }
    }

    /// A counter on all processors.
    fn cells(&self, index: u32) -> impl Iterator<Item = &CounterCell> {
        self.cells.chunks(self.per_processor).filter_map(move |own| own.get(index as usize))
    }
}

/// The number of processors that there may be, by the highest number that one has.
pub(crate) fn processors() -> Result<u32, Error> {
    const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
    let failed = |source| Error::Pin { action: "read", path: POSSIBLE.into(), source };
    let text = fs::read_to_string(POSSIBLE).map_err(failed)?;
    highest(&text).map(|number| number + 1).ok_or_else(|| failed(io::Error::other("no list of processors")))
}

/// The highest number in a list such as `0-3,8-11`.
fn highest(list: &str) -> Option<u32> {
    list.trim().split([',', '-']).filter_map(|number| number.parse().ok()).max()
}

/// Which counter belongs to which port.
#[derive(Debug)]
struct Table {
    array: CounterArray,
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
        let counts = |(index, (family, name)): (&u32, &(Family, PortName))| PortCounts {
            family: *family,
            name: name.clone(),
            connections: table.array.cells(*index).map(CounterCell::connections).sum(),
            refusals: table.array.cells(*index).map(CounterCell::refusals).sum(),
        };
        table.names.iter().map(counts).collect()
    }

    /// Starts with these counters. `reserved` ones wait for their ports.
    pub(crate) fn start(&self, array: CounterArray, reserved: BTreeSet<u32>) {
        let length = u32::try_from(array.per_processor).unwrap_or(0);
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
        table.array.cells(index).for_each(CounterCell::clear);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_processor_has_counters_of_its_own() {
        let array = CounterArray::new(Mapping::anonymous(12).unwrap(), 4);
        let places = |index| array.cells(index).map(std::ptr::from_ref).collect::<Vec<_>>();
        let expected: Vec<_> = [3, 7, 11].map(|place| std::ptr::from_ref(&array.cells[place])).into();
        assert_eq!(places(3), expected);
        assert_eq!(places(4), [], "no counter");
    }

    #[test]
    fn processors_are_counted_by_their_highest_number() {
        assert_eq!([highest("0\n"), highest("0-127\n"), highest("0-3,8-11")], [Some(0), Some(127), Some(11)]);
        assert_eq!(highest("\n"), None);
        assert!(processors().unwrap() >= 1);
    }
}

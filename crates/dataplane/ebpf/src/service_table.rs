//! The table of frontends: a hash table with linear probing, in memory that the programs read at any time.
//!
//! The map itself is the only copy. An entry never moves. One that is removed rests before another frontend gets it, so that a program which has just found it
//! does not read what belongs to the other; until then, and as long as entries follow it, searches go on behind it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use crate::layout::{Key, Record, ServiceCell};
use crate::pools::{Full, REST};
use crate::sys::Mapping;

/// `MAX_PROBES` of the programs: a frontend is at most so many entries away from where its hash leads, that one included.
pub(crate) const MAX_PROBES: usize = 64;

/// The frontends of both families.
#[derive(Debug)]
pub(crate) struct ServiceTable {
    /// The first one holds the seed.
    cells: Mapping<ServiceCell>,
    seed: u64,
    /// How many frontends may be in use, and are.
    limit: usize,
    used: usize,
    /// Removed entries that nothing else may get yet.
    resting: VecDeque<(Instant, usize)>,
    is_resting: Vec<bool>,
}

impl ServiceTable {
    /// The number of cells of a table for so many frontends: twice as many values of the hash, so that searches are short.
    pub(crate) fn cells(frontends: u32) -> u32 {
        let probes = u32::try_from(MAX_PROBES).unwrap_or(u32::MAX);
        Self::hash_values(frontends).saturating_add(probes)
    }

    /// The number of different values of the hash.
    pub(crate) fn hash_values(frontends: u32) -> u32 {
        frontends.saturating_mul(2)
    }

    /// The number of pools: each frontend may have one, and each cell has one beside it.
    pub(crate) fn pools(frontends: u32) -> u32 {
        Self::pool_beside(Self::cells(frontends) as usize)
    }

    /// `POOL_BESIDE` of the programs: a frontend at this index finds this pool faster than others.
    fn pool_beside(index: usize) -> u32 {
        u32::try_from(index / 2 + 1).unwrap_or(u32::MAX)
    }

    /// A table that is new, or one that an earlier process has left. `frontends` is how many it may hold.
    pub(crate) fn open(cells: Mapping<ServiceCell>, frontends: u32) -> Self {
        let mut seed = cells[0].seed();
        if seed == 0 {
            // Objects in the cluster cannot be chosen so that they collide. It must not be 0, which stands for no seed.
            seed = RandomState::new().hash_one(0) | 1;
            cells[0].set_seed(seed);
        }
        let mut used = 0;
        for cell in &cells[1..] {
            used += usize::from(cell.get().is_some());
            if cell.is_removed() {
                // The earlier process may have ended before it had removed all of it.
                cell.remove();
            }
        }
        let is_resting = vec![false; cells.len()];
        ServiceTable { cells, seed, limit: frontends as usize, used, resting: VecDeque::new(), is_resting }
    }

    /// All frontends.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, Record)> {
        self.cells[1..].iter().filter_map(ServiceCell::get)
    }

    /// The pool that a frontend finds fastest.
    pub(crate) fn preferred_pool(&self, key: Key) -> Option<u32> {
        self.index_for(key).ok().map(Self::pool_beside)
    }

    /// Adds a frontend, or changes its record.
    pub(crate) fn insert(&mut self, key: Key, record: Record, now: Instant) -> Result<(), Full> {
        if self.change(key, record) {
            return Ok(());
        }
        self.wake(now);
        if self.used >= self.limit {
            return Err(Full::Frontends);
        }
        self.cells[self.index_for(key)?].fill(key, record);
        self.used += 1;
        Ok(())
    }

    /// Changes the record of a frontend. Returns whether it is there.
    pub(crate) fn change(&self, key: Key, record: Record) -> bool {
        let found = self.index_of(key);
        found.inspect(|index| self.cells[*index].set(record)).is_some()
    }

    /// Removes a frontend. Returns whether it was there.
    pub(crate) fn remove(&mut self, key: Key, now: Instant) -> bool {
        let found = self.index_of(key);
        found.inspect(|index| self.remove_at(*index, now)).is_some()
    }

    /// Restores the seed, and removes frontends that no search finds or that are not `ours`: another process has written them. Returns the number of repairs.
    pub(crate) fn repair(&mut self, ours: impl Fn(Key) -> bool, now: Instant) -> usize {
        let seed_differs = self.cells[0].seed() != self.seed;
        if seed_differs {
            self.cells[0].set_seed(self.seed);
        }
        let is_stray = |index: &usize| {
            let found = self.cells[*index].get();
            found.is_some_and(|(key, _)| !ours(key) || self.index_of(key) != Some(*index))
        };
        let stray: Vec<usize> = (1..self.cells.len()).filter(is_stray).collect();
        stray.iter().for_each(|index| self.remove_at(*index, now));
        self.used = self.iter().count();
        stray.len() + usize::from(seed_differs)
    }

    /// What the table says about a frontend.
    pub(crate) fn get(&self, key: Key) -> Option<Record> {
        self.cells[self.index_of(key)?].get().map(|(_, record)| record)
    }

    /// Where a frontend is.
    fn index_of(&self, key: Key) -> Option<usize> {
        self.index_for(key).ok().filter(|index| self.cells[*index].get().is_some())
    }

    /// Where a frontend is or, if it is not there, could be written.
    fn index_for(&self, key: Key) -> Result<usize, Full> {
        let first = self.first_index(key);
        let mut available = None;
        for index in first..first + MAX_PROBES {
            match self.cells[index].get() {
                Some((found, _)) if found == key => return Ok(index),
                None if !self.is_resting[index] => available = available.or(Some(index)),
                _ => {}
            }
            if self.cells[index].is_free() {
                break;
            }
        }
        available.ok_or(Full::Frontends)
    }

    /// Where a search starts.
    fn first_index(&self, key: Key) -> usize {
        let values = (self.cells.len() - MAX_PROBES) as u64;
        let scaled = (u64::from(key.hash(self.seed)) * values) >> 32;
        1 + usize::try_from(scaled).unwrap_or(0)
    }

    fn remove_at(&mut self, index: usize, now: Instant) {
        self.cells[index].remove();
        self.used = self.used.saturating_sub(1);
        self.is_resting[index] = true;
        self.resting.push_back((now, index));
    }

    /// Makes available what has rested. Where nothing follows, searches end again.
    fn wake(&mut self, now: Instant) {
        while let Some((since, index)) = self.resting.front().copied()
            && now.saturating_duration_since(since) >= REST
        {
            self.resting.pop_front();
            self.is_resting[index] = false;
            let mut last = index;
            while self.cells[last].is_removed()
                && !self.is_resting[last]
                && self.cells.get(last + 1).is_none_or(ServiceCell::is_free)
            {
                self.cells[last].free();
                last -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::SocketAddr;
    use std::time::Duration;

    use portwarden_model::Protocol;
    use proptest::prelude::*;

    use super::*;

    fn table(frontends: u32) -> ServiceTable {
        let cells = Mapping::anonymous(ServiceTable::cells(frontends) as usize).unwrap();
        ServiceTable::open(cells, frontends)
    }

    fn key(number: u16) -> Key {
        let [high, low] = number.to_be_bytes();
        let address = SocketAddr::from(([10, 96, high, low], 80));
        Key::new(address, if number.is_multiple_of(2) { Protocol::Tcp } else { Protocol::Udp })
    }

    fn record(pool: u32) -> Record {
        Record { pool, affinity: pool ^ 7, counter: pool & 3, local: pool.is_multiple_of(3) }
    }

    /// What a program finds: it knows nothing but the cells.
    fn lookup(table: &ServiceTable, key: Key) -> Option<Record> {
        let first = table.first_index(key);
        let probed = table.cells[first..][..MAX_PROBES].iter().take_while(|cell| !cell.is_free());
        probed.filter_map(ServiceCell::get).find(|(found, _)| *found == key).map(|(_, record)| record)
    }

    #[test]
    fn a_table_holds_as_many_frontends_as_it_says() {
        for frontends in [1, 4, 64, 1000] {
            let now = Instant::now();
            let mut table = table(frontends);
            for number in 0..u16::try_from(frontends).unwrap() {
                table.insert(key(number), record(number.into()), now).unwrap();
            }
            assert_eq!(table.insert(key(9999), record(1), now), Err(Full::Frontends));
            assert_eq!(table.iter().count(), frontends as usize);
            assert_eq!(table.insert(key(0), record(5), now), Ok(()), "one that is there can change");
            assert!(table.remove(key(0), now) && !table.remove(key(0), now));
            assert_eq!(table.insert(key(9999), record(1), now + REST), Ok(()));
        }
    }

    #[test]
    fn an_entry_rests_before_another_frontend_gets_it() {
        let now = Instant::now();
        let mut table = table(8);
        table.insert(key(1), record(1), now).unwrap();
        let index = table.index_of(key(1)).unwrap();
        table.remove(key(1), now);
        assert!(table.cells[index].is_removed());
        table.insert(key(1), record(2), now).unwrap();
        assert_ne!(table.index_of(key(1)), Some(index), "it rests");
        table.remove(key(1), now);
        table.insert(key(1), record(3), now + REST).unwrap();
        assert_eq!(table.index_of(key(1)), Some(index), "it has rested");
        assert_eq!(
            table.cells.iter().filter(|cell| cell.is_removed()).count(),
            0,
            "searches are short again"
        );
    }

    #[test]
    fn another_process_finds_everything() {
        let now = Instant::now();
        let mut before = table(100);
        for number in 0..100 {
            before.insert(key(number), record(number.into()), now).unwrap();
        }
        before.remove(key(7), now);
        let mut after = ServiceTable::open(before.cells, 100);
        assert_eq!(after.seed, before.seed);
        for number in (0..100).filter(|number| *number != 7) {
            assert_eq!(after.get(key(number)), Some(record(number.into())));
        }
        assert_eq!(after.get(key(7)), None);
        assert_eq!(after.insert(key(7), record(1), now), Ok(()));
        assert_eq!(after.insert(key(100), record(1), now), Err(Full::Frontends));
    }

    #[test]
    fn what_another_process_has_written_is_repaired() {
        let now = Instant::now();
        let mut table = table(100);
        for number in 0..100 {
            table.insert(key(number), record(number.into()), now).unwrap();
        }
        assert_eq!(table.repair(|_| true, now), 0, "nothing differs");
        let own = table.index_of(key(3)).unwrap();
        // The entry is gone, a copy is where no search finds it, one that is not ours is there, and the seed is another.
        table.cells[own].free();
        let elsewhere = (1..table.cells.len()).rev().find(|index| table.cells[*index].is_free()).unwrap();
        table.cells[elsewhere].fill(key(3), record(9));
        let foreign = table.first_index(key(500));
        let foreign = (foreign..).find(|index| table.cells[*index].is_free()).unwrap();
        table.cells[foreign].fill(key(500), record(1));
        table.cells[0].set_seed(1);
        assert_eq!(table.repair(|key| key != self::key(500), now), 3);
        assert_eq!(table.cells[0].seed(), table.seed);
        assert_eq!((table.get(key(3)), table.get(key(500))), (None, None));
        assert_eq!(table.insert(key(3), record(3), now), Ok(()), "there is room for it again");
    }

    #[test]
    fn a_full_table_of_the_default_size_has_room_for_every_frontend() {
        let now = Instant::now();
        let mut table = table(1 << 17);
        let mut farthest = 0;
        for number in 0..1_u32 << 17 {
            let [_, b, c, d] = number.to_be_bytes();
            let key = Key::new(SocketAddr::from(([10, 96 + b, c, d], 443)), Protocol::Tcp);
            table.insert(key, record(number), now).unwrap();
            farthest = farthest.max(table.index_of(key).unwrap() - table.first_index(key));
        }
        assert!(farthest < MAX_PROBES, "{farthest}");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16, u32),
        Remove(u16),
        Wait(u16),
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..60_u16, 1..1000_u32).prop_map(|(number, pool)| Step::Insert(number, pool)),
            6 => (0..60_u16).prop_map(Step::Remove),
            2 => (0..1500_u16).prop_map(Step::Wait),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        /// A program finds exactly what was written last, whatever came before.
        #[test]
        fn programs_find_what_is_there(steps in prop::collection::vec(step(), 1..300)) {
            let mut table = table(64);
            let mut model = HashMap::new();
            let mut now = Instant::now();
            for step in steps {
                match step {
                    Step::Insert(number, pool) => {
                        // With many entries that rest, there may be no room.
                        if table.insert(key(number), record(pool), now).is_ok() {
                            model.insert(number, pool);
                        } else {
                            prop_assert!(!model.contains_key(&number));
                        }
                    }
                    Step::Remove(number) => {
                        prop_assert_eq!(table.remove(key(number), now), model.remove(&number).is_some());
                    }
                    Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds.into()),
                    Step::Restart => table = ServiceTable::open(table.cells, 64),
                }
                for number in 0..60 {
                    let expected = model.get(&number).map(|pool| record(*pool));
                    prop_assert_eq!(lookup(&table, key(number)), expected);
                    prop_assert_eq!(table.get(key(number)), expected);
                }
                prop_assert_eq!(table.used, model.len());
            }
        }
    }
}

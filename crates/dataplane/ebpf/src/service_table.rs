//! The table of frontends: a hash table with linear probing, in memory that the programs read at any time.
//!
//! The map itself is the only copy. An entry never moves. One that is removed rests before another frontend gets it, so that a program which has just found it
//! does not read what belongs to the other; until then, and as long as entries follow it, searches go on behind it.
//!
//! The table has two parts, of which one is in use. Most clusters never leave the small one, and a program then finds frontends and pools on few pages of
//! memory. When it is half full, everything is written to the large one, and then the programs look there.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::time::Instant;

use crate::layout::{Key, Record, ServiceCell, TableHead, TablePart};
use crate::pools::{Full, REST};
use crate::sys::Mapping;

/// `MAX_PROBES` of the programs: a frontend is at most so many entries away from where its hash leads, that one included.
const MAX_PROBES: u32 = 64;

/// The number of hash values of the small part. At most half of them are in use, so that searches are short.
const SMALL: u32 = 1 << 14;

/// The frontends of both families.
#[derive(Debug)]
pub(crate) struct ServiceTable {
    /// The first one describes the table.
    cells: Mapping<ServiceCell>,
    head: TableHead,
    large: TablePart,
    /// How many frontends may be in use, and are.
    limit: usize,
    used: usize,
    /// Removed entries that nothing else may get yet.
    resting: VecDeque<(Instant, usize)>,
    is_resting: Vec<bool>,
}

/// The small and the large part of a table for so many frontends. The small one is empty where the large one would be no larger.
fn parts(frontends: u32) -> [TablePart; 2] {
    let large = frontends.saturating_mul(2);
    let small = TablePart { first: 1, hash_values: if large > SMALL { SMALL } else { 0 } };
    [small, TablePart { first: small.end(), hash_values: large }]
}

impl TablePart {
    /// The cell behind the last one.
    fn end(self) -> u32 {
        let cells = if self.hash_values == 0 { 0 } else { self.hash_values.saturating_add(MAX_PROBES - 1) };
        self.first.saturating_add(cells)
    }

    fn range(self) -> Range<usize> {
        self.first as usize..self.end() as usize
    }
}

impl ServiceTable {
    /// The number of cells of a table for so many frontends.
    pub(crate) fn cells(frontends: u32) -> u32 {
        let [_, large] = parts(frontends);
        large.end()
    }

    /// The number of pools: each frontend may have one, and each cell of a part has one beside it.
    pub(crate) fn pools(frontends: u32) -> u32 {
        let [_, large] = parts(frontends);
        pool_beside(large.end() - large.first)
    }

    /// A table that is new, or one that an earlier process has left. `frontends` is how many it may hold.
    pub(crate) fn open(cells: Mapping<ServiceCell>, frontends: u32) -> Self {
        let [small, large] = parts(frontends);
        let mut head = cells[0].head();
        if head.seed == 0 || (head.part != large && (head.part != small || small.hash_values == 0)) {
            // It is not known to those who create objects in the cluster, so they cannot choose some that collide. 0 stands for a new table.
            let seed = RandomState::new().hash_one(0) | 1;
            head = TableHead { seed, part: if small.hash_values == 0 { large } else { small } };
            cells[0].set_head(head);
        }
        if head.part != large {
            // The earlier process may have ended before it used this part.
            cells[large.range()].iter().for_each(ServiceCell::free);
        }
        // Or before it had removed all of an entry.
        cells[head.part.range()].iter().filter(|cell| cell.is_removed()).for_each(ServiceCell::remove);
        let is_resting = vec![false; cells.len()];
        let limit = frontends as usize;
        let mut table =
            ServiceTable { cells, head, large, limit, used: 0, resting: VecDeque::new(), is_resting };
        table.used = table.iter().count();
        table
    }

    /// All frontends.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, Record)> {
        self.cells[self.head.part.range()].iter().filter_map(ServiceCell::get)
    }

    /// The pool that a frontend finds fastest.
    pub(crate) fn preferred_pool(&self, key: Key) -> Option<u32> {
        let index = u32::try_from(self.index_for(key).ok()?).ok()?;
        Some(pool_beside(index - self.head.part.first))
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
        self.reserve(self.used + 1);
        let index = match self.index_for(key) {
            Ok(index) => index,
            // Too many entries around rest or collide.
            Err(_) => {
                self.use_large_part()?;
                self.index_for(key)?
            }
        };
        self.cells[index].fill(key, record);
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

    /// What the table says about a frontend.
    pub(crate) fn get(&self, key: Key) -> Option<Record> {
        self.cells[self.index_of(key)?].get().map(|(_, record)| record)
    }

    /// Makes sure that the part in use is large enough for so many frontends. Pools that were made before are no longer beside their frontends, so it is
    /// best to know the number beforehand.
    pub(crate) fn reserve(&mut self, frontends: usize) {
        if frontends * 2 > self.head.part.hash_values as usize {
            // Where that cannot be, searches are longer.
            let _ = self.use_large_part();
        }
    }

    /// Restores the table's head, and removes frontends that no search finds or that are not `ours`: another process has written them. Returns the number of
    /// repairs.
    pub(crate) fn repair(&mut self, ours: impl Fn(Key) -> bool, now: Instant) -> usize {
        let head_differs = self.cells[0].head() != self.head;
        if head_differs {
            self.cells[0].set_head(self.head);
        }
        let is_stray = |index: &usize| {
            let found = self.cells[*index].get();
            found.is_some_and(|(key, _)| !ours(key) || self.index_of(key) != Some(*index))
        };
        let strays: Vec<usize> = self.head.part.range().filter(is_stray).collect();
        strays.iter().for_each(|index| self.remove_at(*index, now));
        self.used = self.iter().count();
        strays.len() + usize::from(head_differs)
    }

    /// Writes everything to the large part, and then lets the programs look there. Those that are just searching still find everything in the small one, which
    /// nothing changes any more.
    fn use_large_part(&mut self) -> Result<(), Full> {
        let before = self.head;
        if before.part == self.large {
            return Err(Full::Frontends);
        }
        let all: Vec<(Key, Record)> = self.iter().collect();
        self.head.part = self.large;
        for (key, record) in all {
            match self.index_for(key) {
                Ok(index) => self.cells[index].fill(key, record),
                Err(full) => {
                    self.cells[self.large.range()].iter().for_each(ServiceCell::free);
                    self.head = before;
                    return Err(full);
                }
            }
        }
        self.cells[0].set_head(self.head);
        Ok(())
    }

    /// Where a frontend is.
    fn index_of(&self, key: Key) -> Option<usize> {
        self.index_for(key).ok().filter(|index| self.cells[*index].get().is_some())
    }

    /// Where a frontend is or, if it is not there, could be written.
    fn index_for(&self, key: Key) -> Result<usize, Full> {
        let first = self.first_index(key);
        let mut available = None;
        for index in first..first + MAX_PROBES as usize {
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
        let TableHead { seed, part } = self.head;
        let scaled = (u64::from(key.hash(seed)) * u64::from(part.hash_values)) >> 32;
        part.first as usize + usize::try_from(scaled).unwrap_or(0)
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
            let part = self.head.part.range();
            let mut last = index;
            while part.contains(&last)
                && self.cells[last].is_removed()
                && !self.is_resting[last]
                && (last + 1 == part.end || self.cells[last + 1].is_free())
            {
                self.cells[last].free();
                last -= 1;
            }
        }
    }
}

/// `POOL_BESIDE` of the programs: a frontend at this index of the part in use finds this pool faster than others.
fn pool_beside(index: u32) -> u32 {
    index / 2 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::SocketAddr;
    use std::time::Duration;

    use portwarden_model::Protocol;
    use proptest::prelude::*;

    use super::*;

    /// With a seed that is not random, so that a test always does the same.
    fn table(frontends: u32) -> ServiceTable {
        let cells = Mapping::anonymous(ServiceTable::cells(frontends) as usize).unwrap();
        let mut table = ServiceTable::open(cells, frontends);
        table.head.seed = 0x0123_4567_89ab_cdef;
        table.cells[0].set_head(table.head);
        table
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
        let probed = table.cells[first..][..MAX_PROBES as usize].iter().take_while(|cell| !cell.is_free());
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
    fn every_table_has_a_seed_of_its_own() {
        let seeds = [(); 2].map(|()| ServiceTable::open(Mapping::anonymous(100).unwrap(), 8).head.seed);
        assert!(seeds[0] != seeds[1] && !seeds.contains(&0), "{seeds:?}");
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
        assert_eq!(after.head, before.head);
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
        table.cells[0].set_head(TableHead { seed: 1, ..table.head });
        // Searches for others may have passed the entry that is gone.
        assert!(table.repair(|key| key != self::key(500), now) >= 3);
        assert_eq!((table.cells[0].head(), table.get(key(3)), table.get(key(500))), (table.head, None, None));
        for number in 0..100 {
            table.insert(key(number), record(number.into()), now + REST).unwrap();
        }
        for number in 0..100 {
            assert_eq!(lookup(&table, key(number)), Some(record(number.into())));
        }
        assert_eq!((table.repair(|_| true, now), table.used), (0, 100));
    }

    #[test]
    fn a_table_of_the_default_size_has_room_for_every_frontend() {
        const FRONTENDS: u32 = 1 << 17;
        let many = |number: u32| {
            let [_, b, c, d] = number.to_be_bytes();
            Key::new(SocketAddr::from(([10, 96 + b, c, d], 443)), Protocol::Tcp)
        };
        let now = Instant::now();
        for known in [0, FRONTENDS as usize] {
            let mut table = table(FRONTENDS);
            assert_eq!(table.head.part.hash_values, SMALL, "it starts small");
            table.reserve(known);
            for number in 0..FRONTENDS {
                table.insert(many(number), record(number), now).unwrap();
            }
            assert_eq!(table.head.part.hash_values, FRONTENDS * 2, "all of it is in use");
            for number in 0..FRONTENDS {
                assert_eq!(lookup(&table, many(number)), Some(record(number)));
            }
            assert_eq!(table.iter().count(), FRONTENDS as usize);
            let after = ServiceTable::open(table.cells, FRONTENDS);
            assert_eq!((after.head, after.used), (table.head, FRONTENDS as usize));
        }
    }

    #[test]
    fn a_process_that_ends_while_the_table_grows_leaves_it_as_it_was() {
        let now = Instant::now();
        let mut before = table(SMALL);
        for number in 0..100 {
            before.insert(key(number), record(number.into()), now).unwrap();
        }
        let small = before.head;
        before.use_large_part().unwrap();
        assert_eq!(before.use_large_part(), Err(Full::Frontends), "there is no larger one");
        before.cells[0].set_head(small);
        let mut after = ServiceTable::open(before.cells, SMALL);
        assert_eq!((after.head, after.used), (small, 100));
        assert!(after.cells[after.large.range()].iter().all(ServiceCell::is_free));
        after.insert(key(100), record(100), now).unwrap();
        after.reserve(SMALL as usize);
        assert_eq!(after.head.part, after.large);
        for number in 0..=100 {
            assert_eq!(lookup(&after, key(number)), Some(record(number.into())));
        }
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

//! Pools in the maps: which endpoints each has, and the memory behind them.
//!
//! The maps themselves are the only copy. One endpoint more or less is a backend, a slot and the pool's word. Anything bigger is written to new slots
//! first; then the pool's one word leads to them. A small IPv4 pool is near: its cell holds the endpoints, too, so that a program finds everything in one
//! cache line.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use portwarden_model::Pool;

use crate::layout::{BackendCell, PoolCell, PoolEndpoint, PoolWord, SlotCell};
use crate::ranges::Ranges;
use crate::sys::Mapping;

/// What is no longer used rests this long before something else gets it. A program that has just read a number needs microseconds.
pub(crate) const REST: Duration = Duration::from_secs(1);

/// The three array maps of pools.
#[derive(Debug)]
pub(crate) struct PoolMaps {
    pub(crate) pools: Mapping<PoolCell>,
    pub(crate) slots: Mapping<SlotCell>,
    pub(crate) backends: Mapping<BackendCell>,
}

/// A map has no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Frontends,
    Pools,
    Slots,
    Backends,
}

/// What a change of a pool did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Updated {
    /// Writes to maps.
    pub(crate) written: usize,
    /// Endpoints that left and to which UDP sockets may be connected.
    pub(crate) left_with_sockets: Vec<PoolEndpoint>,
}

/// The pools of both families.
#[derive(Debug)]
pub(crate) struct Pools {
    maps: PoolMaps,
    ranges: Ranges,
    free_pools: Numbers,
    free_backends: Numbers,
    resting: VecDeque<(Instant, Resting)>,
}

#[derive(Debug)]
enum Resting {
    Pool(u32),
    Range { first: u32, order: u8 },
    Backend(u32),
}

impl Pools {
    /// Maps without any pool that is in use. The number of slots is a power of two.
    pub(crate) fn new(maps: PoolMaps) -> Self {
        let order = u8::try_from(maps.slots.len().trailing_zeros()).unwrap_or(0);
        let (pools, backends) = (maps.pools.len(), maps.backends.len());
        Pools {
            maps,
            ranges: Ranges::new(order),
            // Those that nothing prefers begin far behind the preferred numbers of a small cluster.
            free_pools: Numbers { next: (pools / 2).max(1), ..Numbers::below(pools) },
            free_backends: Numbers::below(backends),
            resting: VecDeque::new(),
        }
    }

    /// Takes over a pool that an earlier process has left. Returns false, and changes nothing, if it is not sound.
    pub(crate) fn adopt(&mut self, pool: u32) -> bool {
        let Some(word) = self.maps.pools.get(pool as usize).map(PoolCell::word) else { return false };
        let end = u64::from(word.first) + u64::from(word.count);
        let sound = pool != 0
            && word.count > 0
            && word.order < 31
            && word.count <= 1 << word.order
            && usize::try_from(end).is_ok_and(|end| end <= self.maps.slots.len());
        if !sound || !self.free_pools.is_free(pool) {
            return false;
        }
        let numbers: Vec<u32> = self.numbers(word).collect();
        let distinct: HashSet<u32> = numbers.iter().copied().collect();
        let ours = |number: &u32| {
            self.free_backends.is_free(*number)
                && self.maps.backends.get(*number as usize).is_some_and(|cell| cell.pool() == pool)
        };
        if distinct.len() != numbers.len()
            || !numbers.iter().all(ours)
            || !self.ranges.take_at(word.first, word.order)
        {
            return false;
        }
        self.free_pools.take_at(pool);
        numbers.into_iter().for_each(|number| self.free_backends.take_at(number));
        // The earlier process may have ended between two writes.
        self.publish(pool, word);
        true
    }

    /// A new pool with these endpoints, of which there must be some. It has the preferred number if that is free.
    pub(crate) fn create(
        &mut self,
        wanted: &Pool,
        preferred: Option<u32>,
        now: Instant,
    ) -> Result<(u32, usize), Full> {
        self.wake(now);
        let preferred = preferred.filter(|number| self.free_pools.is_free(*number));
        let pool = match preferred {
            Some(number) => {
                self.free_pools.take_at(number);
                number
            }
            None => self.free_pools.take().ok_or(Full::Pools)?,
        };
        let addresses: Vec<SocketAddr> = wanted.iter().map(|backend| backend.address()).collect();
        match self.write_anew(pool, Vec::new(), &addresses) {
            Ok(written) => Ok((pool, written)),
            Err(full) => {
                self.free_pools.give_back(pool);
                Err(full)
            }
        }
    }

    /// Brings a pool to the wanted endpoints, of which there must be some. If a map is full, nothing changes.
    pub(crate) fn update(&mut self, pool: u32, wanted: &Pool, now: Instant) -> Result<Updated, Full> {
        self.wake(now);
        let word = self.word(pool);
        let mut missing: HashSet<SocketAddr> = wanted.iter().map(|backend| backend.address()).collect();
        let (mut kept, mut leaving) = (Vec::new(), Vec::new());
        for (position, number) in (0..word.count).zip(self.numbers(word)) {
            match missing.remove(&self.maps.backends[number as usize].address()) {
                true => kept.push(number),
                false => leaving.push((position, number)),
            }
        }
        let missing: Vec<SocketAddr> = missing.into_iter().collect();
        let written = match (leaving.as_slice(), missing.as_slice()) {
            ([], []) => return Ok(Updated::default()),
            ([], [one]) if word.count < 1 << word.order => self.append(pool, word, *one)?,
            ([(position, _)], [one]) => self.replace(pool, word, *position, *one)?,
            ([(position, _)], []) if word.count > 1 => self.remove(pool, word, *position),
            _ => {
                let written = self.write_anew(pool, kept, &missing)?;
                self.resting.push_back((now, Resting::Range { first: word.first, order: word.order }));
                written
            }
        };
        let mut updated = Updated { written: written + leaving.len(), left_with_sockets: Vec::new() };
        for (_, number) in leaving {
            self.retire(number, now, &mut updated.left_with_sockets);
        }
        Ok(updated)
    }

    /// Gives up a pool to which no record leads any more.
    pub(crate) fn release(&mut self, pool: u32, now: Instant) -> Updated {
        let word = self.word(pool);
        let mut updated = Updated::default();
        let numbers: Vec<u32> = self.numbers(word).collect();
        self.maps.pools[pool as usize].clear();
        updated.written = 1 + numbers.len();
        for number in numbers {
            self.retire(number, now, &mut updated.left_with_sockets);
        }
        self.resting.push_back((now, Resting::Range { first: word.first, order: word.order }));
        self.resting.push_back((now, Resting::Pool(pool)));
        updated
    }

    /// The number that a pool has for each endpoint which another pool has, too, by the number there.
    pub(crate) fn counterparts(&self, from: u32, to: u32) -> HashMap<u32, u32> {
        let address = |number: &u32| self.maps.backends[*number as usize].address();
        let known: HashMap<SocketAddr, u32> =
            self.numbers(self.word(to)).map(|number| (address(&number), number)).collect();
        let all = self.numbers(self.word(from));
        all.filter_map(|number| Some((number, *known.get(&address(&number))?))).collect()
    }

    /// Whether an endpoint serves, if its number is one of these tables.
    pub(crate) fn serves(&self, endpoint: &PoolEndpoint) -> Option<bool> {
        let cell = self.maps.backends.get(endpoint.backend as usize);
        cell.filter(|cell| cell.address() == endpoint.address).map(|cell| cell.pool() != 0)
    }

    /// A UDP socket is connected to a backend.
    pub(crate) fn note_datagram_socket(&self, backend: u32) {
        self.maps.backends[backend as usize].note_datagram_socket();
    }

    /// The number of each endpoint's backend, or `None` for one that several pools have.
    pub(crate) fn numbers_by_address(&self) -> HashMap<SocketAddr, Option<u32>> {
        let mut all = HashMap::new();
        for (cell, number) in self.maps.backends.iter().zip(0..).filter(|(cell, _)| cell.pool() != 0) {
            all.entry(cell.address()).and_modify(|known| *known = None).or_insert(Some(number));
        }
        all
    }

    fn word(&self, pool: u32) -> PoolWord {
        self.maps.pools[pool as usize].word()
    }

    /// Leads to slots that are written. The endpoints of a near pool come first: whoever reads one of them, with the old word or the new one, gets an
    /// endpoint of the old or the new state. Returns the number of writes.
    fn publish(&self, pool: u32, word: PoolWord) -> usize {
        let cell = &self.maps.pools[pool as usize];
        let near: Option<Vec<SocketAddrV4>> = (word.count as usize <= PoolCell::NEAR_COUNT)
            .then(|| self.numbers(word).map(|number| self.ipv4_address(number)).collect())
            .flatten();
        let near = near.as_deref();
        let written = near.unwrap_or_default().iter().enumerate();
        let written = written.filter(|(position, address)| cell.set_endpoint(*position, **address)).count();
        let word = PoolWord { near: near.is_some(), ..word };
        if cell.word() == word {
            return written;
        }
        cell.set_word(word);
        written + 1
    }

    fn ipv4_address(&self, number: u32) -> Option<SocketAddrV4> {
        match self.maps.backends[number as usize].address() {
            SocketAddr::V4(address) => Some(address),
            SocketAddr::V6(_) => None,
        }
    }

    fn numbers(&self, word: PoolWord) -> impl Iterator<Item = u32> {
        let slots = &self.maps.slots[word.first as usize..][..word.count as usize];
        slots.iter().map(SlotCell::get)
    }

    fn new_backend(&mut self, pool: u32, address: SocketAddr) -> Result<u32, Full> {
        let number = self.free_backends.take().ok_or(Full::Backends)?;
        self.maps.backends[number as usize].fill(address, pool);
        Ok(number)
    }

    fn append(&mut self, pool: u32, word: PoolWord, address: SocketAddr) -> Result<usize, Full> {
        let number = self.new_backend(pool, address)?;
        self.maps.slots[(word.first + word.count) as usize].set(number);
        Ok(2 + self.publish(pool, PoolWord { count: word.count + 1, ..word }))
    }

    fn replace(
        &mut self,
        pool: u32,
        word: PoolWord,
        position: u32,
        address: SocketAddr,
    ) -> Result<usize, Full> {
        let number = self.new_backend(pool, address)?;
        self.maps.slots[(word.first + position) as usize].set(number);
        Ok(2 + self.publish(pool, word))
    }

    fn remove(&mut self, pool: u32, word: PoolWord, position: u32) -> usize {
        let last = self.maps.slots[(word.first + word.count - 1) as usize].get();
        self.maps.slots[(word.first + position) as usize].set(last);
        1 + self.publish(pool, PoolWord { count: word.count - 1, ..word })
    }

    /// Writes all slots of a pool in a new range, then switches.
    fn write_anew(&mut self, pool: u32, kept: Vec<u32>, missing: &[SocketAddr]) -> Result<usize, Full> {
        let total = kept.len() + missing.len();
        let count =
            u32::try_from(total).ok().filter(|count| *count <= PoolWord::MAX_COUNT).ok_or(Full::Slots)?;
        if self.free_backends.available < missing.len() {
            return Err(Full::Backends);
        }
        let order = Ranges::order_for(count);
        let first = self.ranges.take(order).ok_or(Full::Slots)?;
        let mut numbers = kept;
        for address in missing {
            numbers.push(self.new_backend(pool, *address)?);
        }
        for (slot, number) in self.maps.slots[first as usize..].iter().zip(&numbers) {
            slot.set(*number);
        }
        // All at once; then, if the pool is near, its endpoints once more.
        let word = PoolWord { first, near: false, order, count };
        self.maps.pools[pool as usize].set_word(word);
        Ok(missing.len() + total + 1 + self.publish(pool, word))
    }

    fn retire(&mut self, number: u32, now: Instant, left_with_sockets: &mut Vec<PoolEndpoint>) {
        let cell = &self.maps.backends[number as usize];
        cell.retire();
        if cell.has_datagram_sockets() {
            left_with_sockets.push(PoolEndpoint { backend: number, address: cell.address() });
        }
        self.resting.push_back((now, Resting::Backend(number)));
    }

    /// Makes available what has rested.
    fn wake(&mut self, now: Instant) {
        while let Some((since, _)) = self.resting.front()
            && now.saturating_duration_since(*since) >= REST
            && let Some((_, rested)) = self.resting.pop_front()
        {
            match rested {
                Resting::Pool(pool) => self.free_pools.give_back(pool),
                Resting::Range { first, order } => self.ranges.give_back(first, order),
                Resting::Backend(number) => self.free_backends.give_back(number),
            }
        }
    }
}

/// Free numbers. 0 is never handed out: in the maps it stands for nothing.
#[derive(Debug)]
struct Numbers {
    taken: Vec<bool>,
    /// Where to look for the next one: behind the last one, so that each was not used for as long as possible.
    next: usize,
    available: usize,
}

impl Numbers {
    fn below(end: usize) -> Self {
        Numbers { taken: vec![false; end], next: 1, available: end.saturating_sub(1) }
    }

    fn is_free(&self, number: u32) -> bool {
        number != 0 && self.taken.get(number as usize) == Some(&false)
    }

    fn take(&mut self) -> Option<u32> {
        if self.available == 0 {
            return None;
        }
        let number = (self.next..self.taken.len()).chain(1..self.next).find(|number| !self.taken[*number])?;
        self.next = number + 1;
        let number = u32::try_from(number).ok()?;
        self.take_at(number);
        Some(number)
    }

    fn take_at(&mut self, number: u32) {
        self.taken[number as usize] = true;
        self.available -= 1;
    }

    fn give_back(&mut self, number: u32) {
        self.taken[number as usize] = false;
        self.available += 1;
    }
}

#[cfg(test)]
mod tests;

//! Lists of endpoints in the kernel: which endpoint has which slot.
//!
//! The slots of a list of N endpoints are 0 to N-1. An endpoint keeps its slot as long as it can; when the list shrinks, the last ones move
//! into the gaps. So adding or removing one endpoint changes one or two elements, whatever the list's length.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use portwarden_model::{Backend, Pool};
use portwarden_netlink::nftables::Image;

use crate::plan::ElementChanges;
use crate::route::{List, STICKY_ENTRIES};
use crate::sets::SetId;

/// A list as it is in the kernel.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListState {
    /// Its key.
    pub(crate) list: List,
    /// Its endpoints.
    pub(crate) pool: Pool,
    /// Where its endpoints are; `None` while an ordinary list is in the pool's own order, as most are.
    places: Option<Box<Places>>,
}

/// Where the endpoints of a pool are.
#[derive(Debug, Clone, PartialEq)]
struct Places {
    /// The slot of each endpoint.
    slots: Slots,
    /// The entry of each endpoint; empty if the list is not sticky.
    entries: Box<[u16]>,
}

/// The slots of a pool's endpoints, as narrow as they can be: sooner or later most lists have some.
#[derive(Debug, Clone, PartialEq)]
enum Slots {
    InOrder,
    Narrow(Box<[u8]>),
    Wide(Box<[u32]>),
}

impl Slots {
    fn new(slots: Vec<u32>) -> Slots {
        if slots.iter().enumerate().all(|(index, slot)| index == *slot as usize) {
            return Slots::InOrder;
        }
        match slots.iter().map(|slot| u8::try_from(*slot)).collect() {
            Ok(narrow) => Slots::Narrow(narrow),
            Err(_) => Slots::Wide(slots.into()),
        }
    }

    fn get(&self, index: usize) -> Option<u32> {
        match self {
            Slots::InOrder => None,
            Slots::Narrow(slots) => slots.get(index).copied().map(u32::from),
            Slots::Wide(slots) => slots.get(index).copied(),
        }
    }
}

impl ListState {
    /// An empty list.
    pub(crate) fn new(list: List) -> Self {
        ListState { list, pool: Pool::default(), places: None }
    }

    /// A sticky list as it was found in the kernel: only which endpoint has which entry matters.
    pub(crate) fn recovered(list: List, mut found: Vec<(u16, Backend)>) -> Self {
        found.sort_by_key(|(_, backend)| *backend);
        let (entries, backends): (Vec<u16>, Vec<Backend>) = found.into_iter().unzip();
        ListState { list, pool: Pool::new(&backends), places: places(Vec::new(), entries) }
    }

    /// Brings the list to `pool`.
    pub(crate) fn update(&self, pool: &Pool, changes: &mut impl ElementChanges) -> ListState {
        if self.pool == *pool {
            return self.clone();
        }
        let old: HashMap<SocketAddr, Place> =
            self.places().map(|(backend, place)| (backend.address(), place)).collect();
        let moves = Moves::compute(old, pool);
        let entries = self.new_entries(pool, &moves);
        let next = ListState { list: self.list, pool: pool.clone(), places: places(moves.slots, entries) };
        for place in &moves.emptied {
            changes.delete(next.slot_set(), slot_key(self.list, place.slot));
        }
        for place in moves.gone.iter().filter_map(|place| place.entry) {
            changes.delete(SetId::StickyEndpoints, entry_key(self.list, place));
        }
        for index in moves.filled {
            next.add_slot(index, changes);
        }
        next.add_entries(moves.fresh, changes);
        next
    }

    /// Writes all of the list, into a kernel that has nothing of it.
    pub(crate) fn write(&self, changes: &mut impl ElementChanges) {
        for index in 0..self.pool.len() {
            self.add_slot(index, changes);
        }
        self.add_entries(0..self.pool.len(), changes);
    }

    /// Removes all of the list.
    pub(crate) fn remove(&self, changes: &mut impl ElementChanges) {
        for (_, place) in self.places() {
            changes.delete(self.slot_set(), slot_key(self.list, place.slot));
            if let Some(entry) = place.entry {
                changes.delete(SetId::StickyEndpoints, entry_key(self.list, entry));
            }
        }
    }

    /// The same endpoints, each in the slot of its place in the pool.
    pub(crate) fn in_order(&self, pool: &Pool) -> ListState {
        let mut next = ListState { list: self.list, pool: pool.clone(), places: None };
        if self.list.is_sticky() {
            let old = self.places().map(|(backend, place)| (backend.address(), place)).collect();
            let entries = self.new_entries(pool, &Moves::compute(old, pool));
            next.places = places(Vec::new(), entries);
        }
        next
    }

    fn places(&self) -> impl Iterator<Item = (Backend, Place)> + '_ {
        self.pool.iter().enumerate().map(|(index, backend)| {
            let slot = self.slot(index);
            (backend, Place { slot, entry: self.entry(index) })
        })
    }

    fn slot(&self, index: usize) -> u32 {
        let identity = u32::try_from(index).unwrap_or(u32::MAX);
        self.places.as_ref().and_then(|places| places.slots.get(index)).unwrap_or(identity)
    }

    fn entry(&self, index: usize) -> Option<u16> {
        self.places.as_ref()?.entries.get(index).copied()
    }

    fn slot_set(&self) -> SetId {
        if self.list.is_sticky() { SetId::StickySlots } else { SetId::Endpoints }
    }

    fn add_slot(&self, index: usize, changes: &mut impl ElementChanges) {
        let key = slot_key(self.list, self.slot(index));
        match self.entry(index) {
            Some(entry) => changes.add(SetId::StickySlots, key, Image::new().number(self.list.entry(entry))),
            None => changes.add(SetId::Endpoints, key, self.endpoint(index)),
        }
    }

    fn add_entries(&self, indices: impl IntoIterator<Item = usize>, changes: &mut impl ElementChanges) {
        for index in indices {
            if let Some(entry) = self.entry(index) {
                changes.add(SetId::StickyEndpoints, entry_key(self.list, entry), self.endpoint(index));
            }
        }
    }

    fn endpoint(&self, index: usize) -> Image {
        match self.pool.get(index) {
            Some(backend) => Image::new().address(backend.ip).port(backend.port),
            None => Image::new(),
        }
    }

    /// Endpoints of a sticky list keep their entries; new ones take numbers that were not used lately.
    fn new_entries(&self, pool: &Pool, moves: &Moves) -> Vec<u16> {
        if !self.list.is_sticky() {
            return Vec::new();
        }
        let mut used: HashSet<u16> = moves.kept.iter().filter_map(|place| place.as_ref()?.entry).collect();
        let mut next = self.places.iter().flat_map(|places| &places.entries).copied().max().unwrap_or(0);
        let mut fresh = || {
            // Never endless: a list has at most STICKY_ENTRIES endpoints.
            loop {
                next = if next >= STICKY_ENTRIES { 1 } else { next + 1 };
                if used.insert(next) {
                    return next;
                }
            }
        };
        (0..pool.len())
            .map(|index| moves.kept[index].as_ref().and_then(|place| place.entry).unwrap_or_else(&mut fresh))
            .collect()
    }
}

/// Where an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    slot: u32,
    entry: Option<u16>,
}

/// What has to happen to get from one list to another.
#[derive(Debug, Default)]
struct Moves {
    /// The slot of each endpoint of the new pool.
    slots: Vec<u32>,
    /// Where each endpoint of the new pool was before.
    kept: Vec<Option<Place>>,
    /// Endpoints of the new pool whose slot has to be written.
    filled: Vec<usize>,
    /// Endpoints of the new pool that the old one did not have.
    fresh: Vec<usize>,
    /// Places whose slot has to be emptied.
    emptied: Vec<Place>,
    /// Places of endpoints that the new pool does not have.
    gone: Vec<Place>,
}

impl Moves {
    fn compute(mut old: HashMap<SocketAddr, Place>, pool: &Pool) -> Moves {
        const UNSET: u32 = u32::MAX;
        let mut moves = Moves::default();
        let mut taken = vec![false; pool.len()];
        for (index, backend) in pool.iter().enumerate() {
            let place = old.remove(&backend.address());
            let stays = place.filter(|place| taken.get(place.slot as usize) == Some(&false));
            if let Some(place) = stays {
                taken[place.slot as usize] = true;
            }
            moves.emptied.extend(place.filter(|_| stays.is_none()));
            if place.is_none() {
                moves.fresh.push(index);
            }
            moves.slots.push(stays.map_or(UNSET, |place| place.slot));
            moves.kept.push(place);
        }
        moves.gone = old.into_values().collect();
        moves.emptied.extend(&moves.gone);
        let mut free = (0..).zip(taken).filter(|(_, taken)| !taken).map(|(slot, _)| slot);
        for (index, slot) in moves.slots.iter_mut().enumerate().filter(|(_, slot)| **slot == UNSET) {
            *slot = free.next().unwrap_or(UNSET);
            moves.filled.push(index);
        }
        moves
    }
}

fn places(slots: Vec<u32>, entries: Vec<u16>) -> Option<Box<Places>> {
    let slots = Slots::new(slots);
    let trivial = slots == Slots::InOrder && entries.is_empty();
    (!trivial).then(|| Box::new(Places { slots, entries: entries.into() }))
}

fn slot_key(list: List, slot: u32) -> Image {
    Image::new().number(list.key()).number(slot)
}

fn entry_key(list: List, entry: u16) -> Image {
    Image::new().number(list.entry(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Elements as a kernel would hold them; refuses what a kernel refuses.
    #[derive(Default, Clone)]
    struct Kernel(BTreeMap<(SetId, Vec<u8>), Vec<u8>>);

    #[derive(Default)]
    struct Recorded {
        deletes: Vec<(SetId, Vec<u8>)>,
        adds: Vec<(SetId, Vec<u8>, Vec<u8>)>,
    }

    impl ElementChanges for Recorded {
        fn add(&mut self, set: SetId, key: Image, value: Image) {
            self.adds.push((set, key.as_bytes().to_vec(), value.as_bytes().to_vec()));
        }
        fn delete(&mut self, set: SetId, key: Image) {
            self.deletes.push((set, key.as_bytes().to_vec()));
        }
    }

    impl Kernel {
        fn commit(&mut self, recorded: Recorded) {
            for (set, key) in recorded.deletes {
                assert!(self.0.remove(&(set, key)).is_some(), "deleted twice or never there");
            }
            for (set, key, value) in recorded.adds {
                assert!(self.0.insert((set, key), value).is_none(), "added over another element");
            }
        }
    }

    fn pool(members: &std::collections::BTreeSet<u8>) -> Pool {
        let backends: Vec<Backend> =
            members.iter().map(|n| Backend { ip: [10, 0, 0, *n].into(), port: 80, local: false }).collect();
        Pool::new(&backends)
    }

    fn members(number: u8) -> std::collections::BTreeSet<u8> {
        (0..number).collect()
    }

    #[test]
    fn one_more_or_one_less_changes_few_elements() {
        let mut recorded = Recorded::default();
        let list = ListState::new(List::ordinary(1)).update(&pool(&members(50)), &mut recorded);
        assert_eq!((recorded.adds.len(), recorded.deletes.len()), (50, 0));
        let mut fewer = members(50);
        fewer.remove(&3);
        let mut recorded = Recorded::default();
        let list = list.update(&pool(&fewer), &mut recorded);
        assert_eq!((recorded.adds.len(), recorded.deletes.len()), (1, 2));
        let mut recorded = Recorded::default();
        list.update(&pool(&members(50)), &mut recorded);
        assert_eq!((recorded.adds.len(), recorded.deletes.len()), (1, 0));
    }

    #[test]
    fn slots_of_short_and_long_lists_are_told_as_they_are() {
        for length in [0_u32, 1, 2, 256, 257, 1000] {
            let slots: Vec<u32> = (0..length).rev().collect();
            let kept = Slots::new(slots.clone());
            let told: Vec<u32> = (0..length).map(|slot| kept.get(slot as usize).unwrap_or(slot)).collect();
            assert_eq!(told, slots);
            assert_eq!(matches!(kept, Slots::Narrow(_)), (2..=256).contains(&length));
        }
    }

    proptest! {
        /// Whatever the sequence, the kernel holds slots 0 to N-1, one for each endpoint, and sticky endpoints keep their entries.
        #[test]
        fn any_sequence_leaves_exactly_the_pool(
            steps in proptest::collection::vec(proptest::collection::btree_set(0u8..40, 0..40), 1..12),
            sticky: bool,
        ) {
            let list = if sticky { List::sticky(5) } else { List::ordinary(5) };
            let (mut kernel, mut state) = (Kernel::default(), ListState::new(list));
            let mut entries: HashMap<SocketAddr, u16> = HashMap::new();
            for step in steps {
                let wanted = pool(&step);
                let mut recorded = Recorded::default();
                let next = state.update(&wanted, &mut recorded);
                kernel.commit(recorded);
                let mut written = Recorded::default();
                next.write(&mut written);
                let mut fresh = Kernel::default();
                fresh.commit(written);
                prop_assert_eq!(&fresh.0, &kernel.0);
                let mut slots: Vec<u32> = next.places().map(|(_, place)| place.slot).collect();
                slots.sort_unstable();
                prop_assert!(slots.iter().copied().eq((0u32..).take(wanted.len())));
                for (backend, place) in next.places() {
                    if let (Some(entry), Some(before)) = (place.entry, entries.get(&backend.address())) {
                        prop_assert_eq!(entry, *before);
                    }
                }
                entries = next.places().filter_map(|(b, place)| Some((b.address(), place.entry?))).collect();
                state = next;
            }
            let mut recorded = Recorded::default();
            state.remove(&mut recorded);
            kernel.commit(recorded);
            prop_assert!(kernel.0.is_empty());
        }
    }
}

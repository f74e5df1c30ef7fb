//! Lists of endpoints in the kernel: which endpoint has which slot.
//!
//! The slots of a list of N endpoints are 0 to N-1. An endpoint keeps its slot as long as it can; when the list shrinks, the last ones move
//! into the gaps. So adding or removing one endpoint changes one or two elements, whatever the list's length.

use std::collections::HashMap;
use std::net::SocketAddr;

use portwarden_model::{Backend, Pool};
use portwarden_netlink::nftables::Image;

use crate::entries::Entries;
use crate::plan::ElementChanges;
use crate::route::List;
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
    /// Only of sticky lists.
    sticky: Option<Box<Sticky>>,
}

/// What a sticky list has besides slots.
#[derive(Debug, Clone, PartialEq)]
struct Sticky {
    /// The entry of each endpoint.
    entries: Box<[u16]>,
    /// The entry that was given out last.
    last: u16,
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
    /// A sticky list as it was found in the kernel: only which endpoint has which entry matters.
    pub(crate) fn recovered(list: List, mut found: Vec<(u16, Backend)>) -> Self {
        found.sort_by_key(|(_, backend)| *backend);
        let (entries, backends): (Vec<u16>, Vec<Backend>) = found.into_iter().unzip();
        let last = entries.iter().copied().max().unwrap_or(0);
        let sticky = Sticky { entries: entries.into(), last };
        ListState { list, pool: Pool::new(&backends), places: places(Vec::new(), Some(sticky)) }
    }

    /// A list whose endpoints are each in the slot of their place in the pool. Only a sticky one has entries.
    pub(crate) fn in_order(list: List, pool: &Pool, entries: Option<&Entries>) -> Self {
        let sticky = entries.map(|entries| Sticky::new(pool, entries));
        ListState { list, pool: pool.clone(), places: places(Vec::new(), sticky) }
    }

    /// Brings the list to `pool`.
    pub(crate) fn update(
        &self,
        pool: &Pool,
        entries: Option<&Entries>,
        changes: &mut impl ElementChanges,
    ) -> ListState {
        if self.pool == *pool && entries.is_none_or(|entries| entries.last() == self.last_entry()) {
            return self.clone();
        }
        let old: HashMap<SocketAddr, Place> =
            self.places().map(|(backend, place)| (backend.address(), place)).collect();
        let mut moves = Moves::compute(old, pool);
        let sticky = entries.map(|entries| Sticky::new(pool, entries));
        let slots = places(std::mem::take(&mut moves.slots), sticky);
        let next = ListState { list: self.list, pool: pool.clone(), places: slots };
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

    /// The entry of each endpoint; nothing if the list is not sticky.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SocketAddr, u16)> + '_ {
        self.places().filter_map(|(backend, place)| Some((backend.address(), place.entry?)))
    }

    /// The entry that was given out last.
    pub(crate) fn last_entry(&self) -> u16 {
        self.sticky().map_or(0, |sticky| sticky.last)
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
        self.sticky()?.entries.get(index).copied()
    }

    fn sticky(&self) -> Option<&Sticky> {
        self.places.as_ref()?.sticky.as_deref()
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
}

impl Sticky {
    fn new(pool: &Pool, entries: &Entries) -> Sticky {
        let numbers = pool.iter().map(|backend| entries.get(backend.address())).collect();
        Sticky { entries: numbers, last: entries.last() }
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

fn places(slots: Vec<u32>, sticky: Option<Sticky>) -> Option<Box<Places>> {
    let slots = Slots::new(slots);
    let trivial = slots == Slots::InOrder && sticky.is_none();
    (!trivial).then(|| Box::new(Places { slots, sticky: sticky.map(Box::new) }))
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

    impl Kernel {
        /// Brings a list to a pool; what is there then is what a fresh start would write.
        fn check(
            &mut self,
            state: &ListState,
            wanted: &Pool,
            entries: Option<&Entries>,
        ) -> Result<ListState, TestCaseError> {
            let mut recorded = Recorded::default();
            let next = state.update(wanted, entries, &mut recorded);
            self.commit(recorded);
            let mut written = Recorded::default();
            next.write(&mut written);
            for (set, key, value) in written.adds {
                prop_assert_eq!(self.0.get(&(set, key)), Some(&value));
            }
            let mut slots: Vec<u32> = next.places().map(|(_, place)| place.slot).collect();
            slots.sort_unstable();
            prop_assert!(slots.iter().copied().eq((0u32..).take(wanted.len())));
            Ok(next)
        }

        /// Removes lists; nothing else was there.
        fn remove(&mut self, lists: &[ListState]) -> Result<(), TestCaseError> {
            for list in lists {
                let mut recorded = Recorded::default();
                list.remove(&mut recorded);
                self.commit(recorded);
            }
            prop_assert!(self.0.is_empty());
            Ok(())
        }
    }

    fn address(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 80).into()
    }

    fn pool(members: &std::collections::BTreeSet<u8>) -> Pool {
        let backends: Vec<Backend> =
            members.iter().map(|n| Backend::new(([10, 0, 0, *n], 80).into(), false)).collect();
        Pool::new(&backends)
    }

    fn members(number: u8) -> std::collections::BTreeSet<u8> {
        (0..number).collect()
    }

    #[test]
    fn one_more_or_one_less_changes_few_elements() {
        let mut recorded = Recorded::default();
        let empty = ListState::in_order(List::ordinary(1), &Pool::default(), None);
        let list = empty.update(&pool(&members(50)), None, &mut recorded);
        assert_eq!((recorded.adds.len(), recorded.deletes.len()), (50, 0));
        let mut fewer = members(50);
        fewer.remove(&3);
        let mut recorded = Recorded::default();
        let list = list.update(&pool(&fewer), None, &mut recorded);
        assert_eq!((recorded.adds.len(), recorded.deletes.len()), (1, 2));
        let mut recorded = Recorded::default();
        list.update(&pool(&members(50)), None, &mut recorded);
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

    /// The entries of both lists after a change.
    fn entries(before: &[ListState; 2], wanted: &[Pool; 2]) -> Entries {
        Entries::assign(before.iter(), [&wanted[0], &wanted[1]])
    }

    #[test]
    fn the_entry_of_a_removed_endpoint_is_not_given_out_again_soon() {
        let lists = [List::sticky(5), List::sticky(5).sibling()];
        let mut state =
            lists.map(|list| ListState::in_order(list, &Pool::default(), Some(&Entries::default())));
        let mut last = 0;
        for step in [&[1, 2, 3][..], &[1, 2], &[1, 2, 4], &[], &[1]] {
            let wanted = [pool(&step.iter().copied().collect()), Pool::default()];
            let entries = entries(&state, &wanted);
            let fresh = step.len() - step.iter().filter(|n| state[0].pool.contains(address(**n))).count();
            assert_eq!(usize::from(entries.last()), last + fresh, "{step:?}");
            last = entries.last().into();
            state = [0, 1]
                .map(|index| state[index].update(&wanted[index], Some(&entries), &mut Recorded::default()));
        }
    }

    proptest! {
        /// Whatever the sequence, the kernel holds slots 0 to N-1, one for each endpoint.
        #[test]
        fn any_sequence_leaves_exactly_the_pool(
            steps in proptest::collection::vec(proptest::collection::btree_set(0u8..40, 0..40), 1..12),
        ) {
            let empty = ListState::in_order(List::ordinary(5), &Pool::default(), None);
            let (mut kernel, mut state) = (Kernel::default(), empty);
            for step in steps {
                let wanted = pool(&step);
                state = kernel.check(&state, &wanted, None)?;
            }
            kernel.remove(&[state])?;
        }

        /// The same for the two lists of a sticky port. Endpoints keep their entries as long as they are in one of them, and have the
        /// same in both.
        #[test]
        fn siblings_agree_about_entries(
            steps in proptest::collection::vec(
                [proptest::collection::btree_set(0u8..40, 0..40), proptest::collection::btree_set(0u8..40, 0..40)],
                1..12,
            ),
        ) {
            let lists = [List::sticky(5), List::sticky(5).sibling()];
            let empty = |list| ListState::in_order(list, &Pool::default(), Some(&Entries::default()));
            let (mut kernel, mut state) = (Kernel::default(), lists.map(empty));
            let mut before: HashMap<SocketAddr, u16> = HashMap::new();
            for step in steps {
                let wanted = [pool(&step[0]), pool(&step[1])];
                let entries = entries(&state, &wanted);
                let cluster = kernel.check(&state[0], &wanted[0], Some(&entries))?;
                let local = kernel.check(&state[1], &wanted[1], Some(&entries))?;
                state = [cluster, local];
                let mut after: HashMap<SocketAddr, u16> = HashMap::new();
                for (endpoint, entry) in state.iter().flat_map(ListState::entries) {
                    prop_assert_eq!(*after.entry(endpoint).or_insert(entry), entry);
                    prop_assert_eq!(*before.get(&endpoint).unwrap_or(&entry), entry);
                }
                let numbers: std::collections::BTreeSet<u16> = after.values().copied().collect();
                prop_assert_eq!((numbers.len(), numbers.contains(&0)), (after.len(), false));
                before = after;
            }
            kernel.remove(&state)?;
        }
    }
}

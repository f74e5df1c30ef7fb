use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Elements as the kernel would hold them. Panics on what the kernel would refuse.
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
    /// Brings a list to a pool, and compares the outcome with what a fresh start would write.
    fn check(
        &mut self,
        state: &EndpointList,
        wanted: &Pool,
        entries: Option<&AffinityEntries>,
    ) -> Result<EndpointList, TestCaseError> {
        let mut recorded = Recorded::default();
        let next = state.update(wanted, entries, &mut recorded);
        self.commit(recorded);
        let mut written = Recorded::default();
        next.write(&mut written);
        for (set, key, value) in written.adds {
            prop_assert_eq!(self.0.get(&(set, key)), Some(&value));
        }
        let mut slots: Vec<u32> = next.positions().map(|(_, position)| position.slot).collect();
        slots.sort_unstable();
        prop_assert!(slots.iter().copied().eq((0u32..).take(wanted.len())));
        Ok(next)
    }

    /// Removes all lists; nothing may be left.
    fn remove(&mut self, lists: &[EndpointList]) -> Result<(), TestCaseError> {
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

fn pool(members: &BTreeSet<u8>) -> Pool {
    let backends: Vec<Backend> =
        members.iter().map(|n| Backend::new(([10, 0, 0, *n], 80).into(), false)).collect();
    Pool::new(&backends)
}

fn members(number: u8) -> BTreeSet<u8> {
    (0..number).collect()
}

#[test]
fn adding_or_removing_one_endpoint_changes_few_elements() {
    let mut recorded = Recorded::default();
    let empty = EndpointList::in_order(ListId::ordinary(1), &Pool::default(), None);
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

/// The entries of both lists after a change.
fn entries(before: &[EndpointList; 2], wanted: &[Pool; 2]) -> AffinityEntries {
    AffinityEntries::assign(before.iter(), [&wanted[0], &wanted[1]])
}

#[test]
fn the_entry_of_a_removed_endpoint_is_not_reused_soon() {
    let lists = [ListId::sticky(5), ListId::sticky(5).sibling()];
    let mut state =
        lists.map(|list| EndpointList::in_order(list, &Pool::default(), Some(&AffinityEntries::default())));
    let mut last = 0;
    for step in [&[1, 2, 3][..], &[1, 2], &[1, 2, 4], &[], &[1]] {
        let wanted = [pool(&step.iter().copied().collect()), Pool::default()];
        let entries = entries(&state, &wanted);
        let fresh = step.len() - step.iter().filter(|n| state[0].pool.contains(address(**n))).count();
        assert_eq!(usize::from(entries.last()), last + fresh, "{step:?}");
        last = entries.last().into();
        state =
            [0, 1].map(|index| state[index].update(&wanted[index], Some(&entries), &mut Recorded::default()));
    }
}

proptest! {
    /// Whatever the sequence, the kernel holds slots 0 to N-1, one for each endpoint.
    #[test]
    fn any_sequence_leaves_exactly_the_pool(
        steps in proptest::collection::vec(proptest::collection::btree_set(0u8..40, 0..40), 1..12),
    ) {
        let empty = EndpointList::in_order(ListId::ordinary(5), &Pool::default(), None);
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
        let lists = [ListId::sticky(5), ListId::sticky(5).sibling()];
        let empty = |list| EndpointList::in_order(list, &Pool::default(), Some(&AffinityEntries::default()));
        let (mut kernel, mut state) = (Kernel::default(), lists.map(empty));
        let mut before: HashMap<SocketAddr, u16> = HashMap::new();
        for step in steps {
            let wanted = [pool(&step[0]), pool(&step[1])];
            let entries = entries(&state, &wanted);
            let cluster = kernel.check(&state[0], &wanted[0], Some(&entries))?;
            let local = kernel.check(&state[1], &wanted[1], Some(&entries))?;
            state = [cluster, local];
            let mut after: HashMap<SocketAddr, u16> = HashMap::new();
            for (endpoint, entry) in state.iter().flat_map(EndpointList::entries) {
                prop_assert_eq!(*after.entry(endpoint).or_insert(entry), entry);
                prop_assert_eq!(*before.get(&endpoint).unwrap_or(&entry), entry);
            }
            let numbers: BTreeSet<u16> = after.values().copied().collect();
            prop_assert_eq!((numbers.len(), numbers.contains(&0)), (after.len(), false));
            before = after;
        }
        kernel.remove(&state)?;
    }
}

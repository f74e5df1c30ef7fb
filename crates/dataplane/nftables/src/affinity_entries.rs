//! Entries: the numbers under which the map of clients refers to the endpoints of a service port.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use portwarden_model::Pool;

use crate::endpoint_list::EndpointList;
use crate::route::STICKY_ENTRIES;

/// The entries of a service port with session affinity. An endpoint has the same entry in both lists of the port.
#[derive(Debug, Default)]
pub(crate) struct AffinityEntries {
    numbers: HashMap<SocketAddr, u16>,
    last: u16,
}

impl AffinityEntries {
    /// Assigns entries to the endpoints of these pools. They keep the entries that they have in `lists`; new endpoints get the numbers
    /// that were not used for longest, since clients may still have an old one.
    pub(crate) fn assign<'a>(
        lists: impl Iterator<Item = &'a EndpointList>,
        pools: [&Pool; 2],
    ) -> AffinityEntries {
        let (mut before, mut last) = (HashMap::new(), 0);
        for list in lists {
            before.extend(list.entries());
            last = last.max(list.last_entry());
        }
        let endpoints = || pools.into_iter().flat_map(Pool::iter).map(|backend| backend.address());
        let mut numbers = HashMap::with_capacity(before.len());
        let mut used = HashSet::with_capacity(before.len());
        for endpoint in endpoints() {
            // The entries of an earlier process may contain duplicates.
            if let Some(number) =
                before.remove(&endpoint).filter(|number| *number > 0 && used.insert(*number))
            {
                numbers.insert(endpoint, number);
            }
        }
        for endpoint in endpoints() {
            numbers.entry(endpoint).or_insert_with(|| {
                // This loop ends: a port has at most STICKY_ENTRIES endpoints.
                loop {
                    last = if last >= STICKY_ENTRIES { 1 } else { last + 1 };
                    if used.insert(last) {
                        return last;
                    }
                }
            });
        }
        AffinityEntries { numbers, last }
    }

    /// The entry of an endpoint; 0, which leads nowhere, if it has none.
    pub(crate) fn get(&self, endpoint: SocketAddr) -> u16 {
        self.numbers.get(&endpoint).copied().unwrap_or(0)
    }

    /// The number that was assigned last.
    pub(crate) fn last(&self) -> u16 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::ListId;
    use portwarden_model::Backend;

    fn backend(number: u8) -> Backend {
        Backend::new(([10, 0, 0, number], 80).into(), false)
    }

    fn pool(numbers: &[u8]) -> Pool {
        Pool::new(&numbers.iter().copied().map(backend).collect::<Vec<_>>())
    }

    fn get(entries: &AffinityEntries, number: u8) -> u16 {
        entries.get(backend(number).address())
    }

    #[test]
    fn an_endpoint_of_both_pools_has_one_entry_and_an_unknown_one_has_none() {
        let entries = AffinityEntries::assign([].iter(), [&pool(&[1, 2]), &pool(&[2, 3])]);
        let numbers: HashSet<u16> = [1, 2, 3].map(|number| get(&entries, number)).into();
        assert_eq!((numbers.len(), numbers.contains(&0), entries.last()), (3, false, 3));
        assert_eq!(get(&entries, 4), 0);
    }

    #[test]
    fn duplicates_of_an_earlier_process_are_separated() {
        let found = EndpointList::recovered(ListId::sticky(1), vec![(5, backend(1)), (5, backend(2))]);
        let entries = AffinityEntries::assign([found].iter(), [&pool(&[1, 2]), &Pool::default()]);
        assert_eq!((get(&entries, 1), get(&entries, 2)), (5, 6));
    }

    #[test]
    fn numbers_start_over_at_one() {
        let found =
            EndpointList::recovered(ListId::sticky(1), vec![(STICKY_ENTRIES, backend(1)), (1, backend(2))]);
        let entries = AffinityEntries::assign([found].iter(), [&pool(&[1, 2, 3]), &Pool::default()]);
        assert_eq!((get(&entries, 1), get(&entries, 2), get(&entries, 3)), (STICKY_ENTRIES, 1, 2));
    }
}

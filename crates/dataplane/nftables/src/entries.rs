//! Entries: the numbers under which clients are remembered to belong to endpoints.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use portwarden_model::Pool;

use crate::lists::ListState;
use crate::route::STICKY_ENTRIES;

/// The entries of a sticky service port. An endpoint has the same one in both of the port's lists.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    numbers: HashMap<SocketAddr, u16>,
    last: u16,
}

impl Entries {
    /// For the endpoints of these pools. They keep the entries that they have in `lists`; new ones take numbers that were not used
    /// lately, since clients may still be remembered under them.
    pub(crate) fn assign<'a>(lists: impl Iterator<Item = &'a ListState>, pools: [&Pool; 2]) -> Entries {
        let (mut before, mut last) = (HashMap::new(), 0);
        for list in lists {
            before.extend(list.entries());
            last = last.max(list.last_entry());
        }
        let endpoints = || pools.into_iter().flat_map(Pool::iter).map(|backend| backend.address());
        let mut numbers = HashMap::with_capacity(before.len());
        let mut used = HashSet::with_capacity(before.len());
        for endpoint in endpoints() {
            // What an earlier process left is not trusted to be free of doubles.
            if let Some(number) =
                before.remove(&endpoint).filter(|number| *number > 0 && used.insert(*number))
            {
                numbers.insert(endpoint, number);
            }
        }
        for endpoint in endpoints() {
            numbers.entry(endpoint).or_insert_with(|| {
                // Never endless: a port has at most STICKY_ENTRIES endpoints.
                loop {
                    last = if last >= STICKY_ENTRIES { 1 } else { last + 1 };
                    if used.insert(last) {
                        return last;
                    }
                }
            });
        }
        Entries { numbers, last }
    }

    /// The entry of an endpoint; 0, which leads nowhere, if it has none.
    pub(crate) fn get(&self, endpoint: SocketAddr) -> u16 {
        self.numbers.get(&endpoint).copied().unwrap_or(0)
    }

    /// The number that was given out last.
    pub(crate) fn last(&self) -> u16 {
        self.last
    }
}

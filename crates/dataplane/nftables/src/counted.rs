//! Elements that several Services can ask for, such as a cluster address with two ports: the kernel has each once.

use std::collections::HashMap;
use std::hash::Hash;

/// Room for changes that is kept from one to the next.
const KEEP_ROOM: usize = 64;

/// Keys with the number of those who want them. Changes are kept apart until the kernel has them.
#[derive(Debug)]
pub(crate) struct Counted<K> {
    installed: HashMap<K, u32>,
    pending: HashMap<K, i64>,
}

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Counted { installed: HashMap::new(), pending: HashMap::new() }
    }
}

impl<K: Hash + Eq + Copy> Counted<K> {
    /// Somebody wants a key.
    pub(crate) fn want(&mut self, key: K) {
        *self.pending.entry(key).or_default() += 1;
    }

    /// Somebody no longer wants a key.
    pub(crate) fn unwant(&mut self, key: K) {
        *self.pending.entry(key).or_default() -= 1;
    }

    /// What the pending changes mean for the kernel: keys to add, keys to delete.
    pub(crate) fn difference(&self) -> (Vec<K>, Vec<K>) {
        let (mut add, mut delete) = (Vec::new(), Vec::new());
        for (key, change) in &self.pending {
            let before = i64::from(self.installed.get(key).copied().unwrap_or(0));
            match (before > 0, before + change > 0) {
                (false, true) => add.push(*key),
                (true, false) => delete.push(*key),
                _ => {}
            }
        }
        (add, delete)
    }

    /// The kernel has taken the pending changes.
    pub(crate) fn commit(&mut self) {
        for (key, change) in self.pending.drain() {
            let count = i64::from(self.installed.get(&key).copied().unwrap_or(0)) + change;
            match u32::try_from(count) {
                Ok(0) | Err(_) => self.installed.remove(&key),
                Ok(count) => self.installed.insert(key, count),
            };
        }
        // A full load leaves room for everything, which no change to come will need.
        self.pending.shrink_to(KEEP_ROOM);
    }

    /// The kernel has refused the pending changes.
    pub(crate) fn roll_back(&mut self) {
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_with_the_last_who_wants_it() {
        let mut counted = Counted::default();
        counted.want(1);
        counted.want(1);
        assert_eq!(counted.difference(), (vec![1], vec![]));
        counted.commit();
        counted.unwant(1);
        assert_eq!(counted.difference(), (vec![], vec![]));
        counted.commit();
        counted.unwant(1);
        assert_eq!(counted.difference(), (vec![], vec![1]));
        counted.roll_back();
        assert_eq!(counted.difference(), (vec![], vec![]));
        counted.unwant(1);
        counted.commit();
        assert!(counted.installed.is_empty());
    }
}

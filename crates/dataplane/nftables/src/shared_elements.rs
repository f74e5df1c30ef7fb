//! Elements that several service ports need, such as the address of a Service with two ports: the kernel has each once.

use std::collections::HashMap;
use std::hash::Hash;

/// The capacity that remains reserved for later changes.
const KEEP_ROOM: usize = 64;

/// Counts the users of each key. Changes are pending until the kernel has acknowledged them.
#[derive(Debug)]
pub(crate) struct SharedElements<K> {
    installed: HashMap<K, u32>,
    pending: HashMap<K, i64>,
}

impl<K> Default for SharedElements<K> {
    fn default() -> Self {
        SharedElements { installed: HashMap::new(), pending: HashMap::new() }
    }
}

impl<K: Hash + Eq + Copy> SharedElements<K> {
    pub(crate) fn add_user(&mut self, key: K) {
        *self.pending.entry(key).or_default() += 1;
    }

    pub(crate) fn remove_user(&mut self, key: K) {
        *self.pending.entry(key).or_default() -= 1;
    }

    /// The keys to add to the kernel and the keys to delete from it.
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

    /// The keys that the kernel has.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.installed.keys()
    }

    /// The kernel has acknowledged the pending changes.
    pub(crate) fn commit(&mut self) {
        for (key, change) in self.pending.drain() {
            let count = i64::from(self.installed.get(&key).copied().unwrap_or(0)) + change;
            match u32::try_from(count) {
                Ok(0) | Err(_) => self.installed.remove(&key),
                Ok(count) => self.installed.insert(key, count),
            };
        }
        // After a full load the capacity would fit everything; later changes are small.
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
    fn a_key_is_deleted_with_its_last_user() {
        let mut shared = SharedElements::default();
        shared.add_user(1);
        shared.add_user(1);
        assert_eq!(shared.difference(), (vec![1], vec![]));
        shared.commit();
        shared.remove_user(1);
        assert_eq!(shared.difference(), (vec![], vec![]));
        shared.commit();
        shared.remove_user(1);
        assert_eq!(shared.difference(), (vec![], vec![1]));
        shared.roll_back();
        assert_eq!(shared.difference(), (vec![], vec![]));
        shared.remove_user(1);
        shared.commit();
        assert!(shared.installed.is_empty());
    }
}

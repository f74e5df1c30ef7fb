//! Objects that are either there or not: how many Services want each, and whether the kernel has it.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Objects by key, with those that the kernel has to change.
#[derive(Debug)]
pub(crate) struct Slots<K> {
    slots: HashMap<K, Slot>,
    dirty: HashSet<K>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    wanted: u32,
    installed: bool,
}

impl Slot {
    fn is_settled(self) -> bool {
        (self.wanted > 0) == self.installed
    }
}

impl<K> Default for Slots<K> {
    fn default() -> Self {
        Slots { slots: HashMap::new(), dirty: HashSet::new() }
    }
}

impl<K: Copy + Eq + Hash + Ord> Slots<K> {
    /// One more Service wants it. Returns whether it is the first.
    pub(crate) fn want(&mut self, key: K) -> bool {
        self.update(key, |slot| {
            slot.wanted += 1;
            slot.wanted == 1
        })
    }

    /// One Service less wants it. Returns whether it was the last.
    pub(crate) fn unwant(&mut self, key: K) -> bool {
        self.update(key, |slot| {
            slot.wanted = slot.wanted.saturating_sub(1);
            slot.wanted == 0
        })
    }

    /// The kernel has it now, or has it no more.
    pub(crate) fn acknowledge(&mut self, key: K, installed: bool) {
        self.update(key, |slot| slot.installed = installed);
    }

    /// Replaces what is known about the kernel by what was read there.
    pub(crate) fn replace_installed(&mut self, found: impl IntoIterator<Item = K>) {
        let found: HashSet<K> = found.into_iter().collect();
        let known: Vec<K> = self.slots.keys().copied().collect();
        for key in known {
            self.acknowledge(key, found.contains(&key));
        }
        for key in found {
            self.acknowledge(key, true);
        }
    }

    /// Whether the kernel has it.
    pub(crate) fn is_installed(&self, key: &K) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.installed)
    }

    /// How many of them the kernel has.
    pub(crate) fn count_installed(&self) -> usize {
        self.slots.values().filter(|slot| slot.installed).count()
    }

    /// Whether a Service wants it.
    pub(crate) fn is_wanted(&self, key: &K) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.wanted > 0)
    }

    /// What the kernel lacks, in order.
    pub(crate) fn missing(&self) -> Vec<K> {
        self.pending(true)
    }

    /// What the kernel has and nothing wants, in order.
    pub(crate) fn surplus(&self) -> Vec<K> {
        self.pending(false)
    }

    fn pending(&self, wanted: bool) -> Vec<K> {
        let mut keys: Vec<K> =
            self.dirty.iter().filter(|key| self.is_wanted(key) == wanted).copied().collect();
        keys.sort_unstable();
        keys
    }

    fn update<R>(&mut self, key: K, change: impl FnOnce(&mut Slot) -> R) -> R {
        let slot = self.slots.entry(key).or_default();
        let result = change(slot);
        let slot = *slot;
        if slot.is_settled() {
            self.dirty.remove(&key);
            release_if_empty(&mut self.dirty);
            if slot.wanted == 0 {
                self.slots.remove(&key);
            }
        } else {
            self.dirty.insert(key);
        }
        result
    }
}

/// Frees the room of a set that was large: after the first sync hardly anything is pending any more.
pub(crate) fn release_if_empty<K>(set: &mut HashSet<K>) {
    const WORTHWHILE: usize = 1024;
    if set.is_empty() && set.capacity() >= WORTHWHILE {
        *set = HashSet::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_between_wanted_and_installed_are_pending() {
        let mut slots = Slots::default();
        assert!(slots.want(1) && !slots.want(1) && slots.want(2));
        assert_eq!((slots.missing(), slots.surplus()), (vec![1, 2], vec![]));
        slots.acknowledge(1, true);
        slots.acknowledge(2, true);
        assert_eq!((slots.missing(), slots.surplus()), (vec![], vec![]));
        assert!(!slots.unwant(1) && slots.unwant(1));
        assert_eq!((slots.missing(), slots.surplus()), (vec![], vec![1]));
        slots.acknowledge(1, false);
        assert!(slots.slots.len() == 1 && slots.dirty.is_empty(), "nothing is left of it");
    }

    #[test]
    fn what_is_read_replaces_what_was_known() {
        let mut slots = Slots::default();
        slots.want(1);
        slots.want(2);
        slots.acknowledge(1, true);
        slots.replace_installed([2, 3]);
        assert_eq!((slots.missing(), slots.surplus()), (vec![1], vec![3]));
        slots.replace_installed([1, 2]);
        assert_eq!((slots.missing(), slots.surplus()), (vec![], vec![]));
    }

    #[test]
    fn an_object_that_comes_and_goes_before_a_write_needs_none() {
        let mut slots = Slots::default();
        slots.want(7);
        slots.unwant(7);
        assert!(slots.missing().is_empty() && slots.surplus().is_empty() && slots.slots.is_empty());
    }
}

//! Ranges of slots: a buddy allocator, so that free neighbours join again.

use std::collections::BTreeSet;

/// Hands out ranges of `2^order` slots, aligned to their size.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// The starts of free ranges, by order.
    free: Vec<BTreeSet<u32>>,
}

impl Ranges {
    /// All of `2^order` slots are free.
    pub(crate) fn new(order: u8) -> Self {
        let mut free = vec![BTreeSet::new(); usize::from(order) + 1];
        free[usize::from(order)].insert(0);
        Ranges { free }
    }

    /// The order of the smallest range with room for `count`.
    pub(crate) fn order_for(count: u32) -> u8 {
        u8::try_from(count.max(1).next_power_of_two().trailing_zeros()).unwrap_or(31)
    }

    /// Takes a range, if one is free.
    pub(crate) fn take(&mut self, order: u8) -> Option<u32> {
        let order = usize::from(order);
        let found = (order..self.free.len()).find(|order| !self.free[*order].is_empty())?;
        let first = self.free[found].pop_first()?;
        self.split(first, found, order);
        Some(first)
    }

    /// Takes a certain range, which an earlier process has used. Returns whether it was free.
    pub(crate) fn take_at(&mut self, first: u32, order: u8) -> bool {
        let order = usize::from(order);
        for found in order..self.free.len() {
            let start = first & !((1_u32 << found) - 1);
            if !self.free[found].remove(&start) {
                continue;
            }
            // Split towards the wanted range.
            let mut start = start;
            for smaller in (order..found).rev() {
                let half = 1_u32 << smaller;
                let other = if first >= start + half { start } else { start + half };
                self.free[smaller].insert(other);
                if other == start {
                    start += half;
                }
            }
            if start == first {
                return true;
            }
            self.give_back(start, u8::try_from(order).unwrap_or(u8::MAX));
            return false;
        }
        false
    }

    /// Returns a range that was taken.
    pub(crate) fn give_back(&mut self, first: u32, order: u8) {
        let (mut first, mut order) = (first, usize::from(order));
        while order + 1 < self.free.len() && self.free[order].remove(&(first ^ (1 << order))) {
            first &= !(1_u32 << order);
            order += 1;
        }
        self.free[order].insert(first);
    }

    /// Puts the parts that are not needed back, from the largest on.
    fn split(&mut self, first: u32, from: usize, to: usize) {
        for smaller in (to..from).rev() {
            self.free[smaller].insert(first + (1 << smaller));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_join_again() {
        let mut ranges = Ranges::new(6);
        let taken: Vec<(u32, u8)> =
            [3, 0, 2, 4, 1].map(|order| (ranges.take(order).expect("room for all"), order)).into();
        for (index, (first, order)) in taken.iter().enumerate() {
            assert_eq!(first % (1 << order), 0, "aligned");
            for (other, size) in &taken[..index] {
                assert!(first + (1 << order) <= *other || other + (1 << size) <= *first, "{taken:?}");
            }
        }
        assert_eq!(ranges.take(6), None, "not all is free");
        taken.iter().for_each(|(first, order)| ranges.give_back(*first, *order));
        assert_eq!(ranges.take(6), Some(0), "all of it is one range again");
        assert_eq!(ranges.take(0), None);
    }

    #[test]
    fn a_certain_range_can_be_taken_once() {
        let mut ranges = Ranges::new(5);
        assert!(ranges.take_at(12, 2));
        assert!(!ranges.take_at(12, 2) && !ranges.take_at(8, 3), "taken, or overlapping");
        assert!(!ranges.take_at(13, 1), "not aligned");
        assert!(ranges.take_at(8, 2));
        ranges.give_back(12, 2);
        ranges.give_back(8, 2);
        assert_eq!(ranges.take(5), Some(0));
    }

    #[test]
    fn orders_have_room() {
        let orders = [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 20, 20)];
        orders.iter().for_each(|(count, order)| assert_eq!(Ranges::order_for(*count), *order, "{count}"));
    }
}

//! The numbers of endpoint lists. A released number is reused as late as possible: packets on their way may still carry it.

use std::collections::VecDeque;

/// Assigns the numbers below a limit.
#[derive(Debug)]
pub(crate) struct ListNumbers {
    next: u32,
    limit: u32,
    free: VecDeque<u32>,
}

impl ListNumbers {
    pub(crate) fn new(limit: u32) -> Self {
        ListNumbers { next: 0, limit, free: VecDeque::new() }
    }

    /// A number that is not in use; `None` if all are.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.next < self.limit {
            self.next += 1;
            return Some(self.next - 1);
        }
        self.free.pop_front()
    }

    /// Marks a number that was found in the kernel as used. Call this before the first [`ListNumbers::take`].
    pub(crate) fn reserve(&mut self, number: u32) {
        while self.next <= number && self.next < self.limit {
            if self.next != number {
                self.free.push_back(self.next);
            }
            self.next += 1;
        }
        self.free.retain(|free| *free != number);
    }

    pub(crate) fn release(&mut self, number: u32) {
        self.free.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_late_and_reserved_ones_are_not_assigned() {
        let mut numbers = ListNumbers::new(4);
        numbers.reserve(2);
        assert_eq!(numbers.take(), Some(3));
        assert_eq!((numbers.take(), numbers.take(), numbers.take()), (Some(0), Some(1), None));
        numbers.release(3);
        assert_eq!(numbers.take(), Some(3));
    }
}

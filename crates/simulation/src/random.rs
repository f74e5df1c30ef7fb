//! A small generator of pseudo-random numbers: the same seed gives the same schedule on every machine and in every version.

use std::ops::Range;

/// SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of this range, which must not be empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.number() % (range.end - range.start)
    }

    /// The low byte of a number below `limit`.
    pub(crate) fn below(&mut self, limit: u8) -> u8 {
        self.number().to_le_bytes()[0] % limit
    }

    /// Whether something happens that happens once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.number().is_multiple_of(times)
    }

    /// One of these, which must not be empty.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = self.number() % choices.len() as u64;
        choices[usize::try_from(index).expect("the index of a slice")]
    }
}

//! Samples allocations, and tracks which samples are still allocated.
//!
//! One allocation in every [`RATE`] bytes is sampled, at random, and its weight follows from its size. Each thread counts down to its next
//! sample without locks. A free must find out whether its allocation was sampled: a filter answers no in nearly all cases.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::profile::{Report, Stack, encode};

/// Bytes between two samples, on average; the same rate as in Go.
const RATE: usize = 512 * 1024;

/// The most frames of a stack.
const DEPTH: usize = 64;

/// The most different stacks; further ones count as one without frames.
const STACKS: usize = 16 * 1024;

/// The most live samples; at the rate above they represent many times the memory of a node.
const LIVE: usize = 60_000;

/// Slots of the filter. A slot can count all live samples, so it never overflows.
const SLOTS: usize = 1 << 16;

static SAMPLING: AtomicBool = AtomicBool::new(false);
static LIVE_SAMPLES: AtomicUsize = AtomicUsize::new(0);
static FILTER: [AtomicU16; SLOTS] = [const { AtomicU16::new(0) }; SLOTS];
static TABLE: Mutex<Option<Table>> = Mutex::new(None);
static SEED: AtomicU64 = AtomicU64::new(STEP);

/// An odd number without a pattern in its bits (2^64 divided by the golden ratio).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Walks the stack of the calling thread, innermost frame first, until `found` returns false.
type Walk = fn(&mut dyn FnMut(usize) -> bool);

/// The state of one thread. Plain cells without destructors: they exist as long as the thread can allocate.
struct Local {
    /// Bytes until the next sample.
    left: Cell<usize>,
    /// State of the random numbers; 0 before the first.
    random: Cell<u64>,
    /// Whether this thread uses the table: its allocations are then not sampled.
    busy: Cell<bool>,
}

thread_local! {
    static LOCAL: Local = const { Local { left: Cell::new(0), random: Cell::new(0), busy: Cell::new(false) } };
}

/// The default view of a heap profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapView {
    /// Memory that is still allocated.
    InUse,
    /// All allocations since sampling began.
    Allocated,
}

#[derive(Debug, Default)]
struct Table {
    live: HashMap<usize, Sample>,
    stacks: HashMap<Box<[usize]>, usize>,
    totals: Vec<Totals>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    stack: usize,
    size: usize,
}

/// Estimates for one stack.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    allocated: Amount,
    live: Amount,
}

#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    objects: f64,
    bytes: f64,
}

/// Starts or ends sampling. Earlier allocations are unknown; the end discards all samples.
pub fn sample_heap(on: bool) {
    let _busy = Busy::enter();
    let mut table = table();
    SAMPLING.store(on, Ordering::Relaxed);
    if on {
        table.get_or_insert_default();
    } else if let Some(table) = table.take() {
        table.live.keys().for_each(|address| {
            slot(*address).fetch_sub(1, Ordering::Relaxed);
        });
        LIVE_SAMPLES.store(0, Ordering::Relaxed);
    }
}

/// A heap profile in the compressed format of `pprof`.
pub fn heap(view: HeapView) -> Vec<u8> {
    encode(&Report {
        sample_types: vec![
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ],
        default_sample_type: match view {
            HeapView::InUse => "inuse_space",
            HeapView::Allocated => "alloc_space",
        },
        period_type: ("space", "bytes"),
        period: RATE as u64,
        start: SystemTime::now(),
        duration: std::time::Duration::ZERO,
        lost: 0,
        hidden: &[
            "portwarden_profiling::",
            "backtrace::",
            "__rustc::__rust_",
            "__rust_alloc",
            "__rust_realloc",
        ],
        stacks: stacks(),
    })
}

/// The profile. Copies the table first, so that no allocation waits while names are looked up.
fn stacks() -> Vec<Stack> {
    let _busy = Busy::enter();
    let table = table();
    let Some(table) = table.as_ref() else { return Vec::new() };
    let values = |totals: &Totals| {
        let Totals { allocated, live } = totals;
        [allocated.objects, allocated.bytes, live.objects, live.bytes].map(whole).into()
    };
    let known = table.stacks.iter().filter_map(|(frames, index)| {
        let totals = table.totals.get(*index)?;
        let frames = frames.iter().map(|address| address.saturating_sub(1) as u64).collect();
        Some(Stack { thread: None, frames, values: values(totals) })
    });
    known.collect()
}

/// Counts an allocation. `walk` walks the caller's stack until `found` returns false.
#[inline]
pub(crate) fn allocated(address: usize, size: usize, walk: Walk) {
    if SAMPLING.load(Ordering::Relaxed) && address != 0 {
        count_down(address, size, walk);
    }
}

/// Counts a free.
#[inline]
pub(crate) fn freed(address: usize) {
    if LIVE_SAMPLES.load(Ordering::Relaxed) != 0 && slot(address).load(Ordering::Relaxed) != 0 {
        forget(address);
    }
}

fn count_down(address: usize, size: usize, walk: Walk) {
    // A thread that is about to end has no local state any more; its last allocations are not sampled.
    let is_due = LOCAL.try_with(|local| !local.busy.get() && local.reaches(size));
    if is_due == Ok(true) {
        remember(address, size, walk);
    }
}

#[cold]
fn remember(address: usize, size: usize, walk: Walk) {
    let Some(_busy) = Busy::enter() else { return };
    let mut frames = [0; DEPTH];
    let mut depth = 0;
    walk(&mut |address| {
        if let Some(frame) = frames.get_mut(depth) {
            *frame = address;
            depth += 1;
        }
        depth < DEPTH
    });
    let mut table = table();
    // None if sampling has ended since the flag was read.
    let Some(table) = table.as_mut().filter(|table| table.live.len() < LIVE) else { return };
    let stack = table.stack(frames.get(..depth).unwrap_or_default());
    if let Some(totals) = table.totals.get_mut(stack) {
        totals.allocated.add(size, 1.0);
        totals.live.add(size, 1.0);
    }
    table.live.insert(address, Sample { stack, size });
    slot(address).fetch_add(1, Ordering::Relaxed);
    LIVE_SAMPLES.store(table.live.len(), Ordering::Relaxed);
}

#[cold]
fn forget(address: usize) {
    let Some(_busy) = Busy::enter() else { return };
    let mut table = table();
    let Some(table) = table.as_mut() else { return };
    if let Some(sample) = table.live.remove(&address) {
        slot(address).fetch_sub(1, Ordering::Relaxed);
        LIVE_SAMPLES.store(table.live.len(), Ordering::Relaxed);
        if let Some(totals) = table.totals.get_mut(sample.stack) {
            totals.live.add(sample.size, -1.0);
        }
    }
}

impl Table {
    /// The number of a stack, old or new.
    fn stack(&mut self, frames: &[usize]) -> usize {
        if let Some(number) = self.stacks.get(frames) {
            return *number;
        }
        let frames = if self.totals.len() < STACKS { frames } else { &[] };
        let next = self.totals.len();
        let number = *self.stacks.entry(frames.into()).or_insert(next);
        if number == next {
            self.totals.push(Totals::default());
        }
        number
    }
}

impl Amount {
    /// Adds what a looked-at allocation of this size stands for: the smaller, the less likely it was to be looked at.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn add(&mut self, size: usize, sign: f64) {
        let size = size as f64;
        let objects = sign / (1.0 - (-size / RATE as f64).exp());
        self.objects += objects;
        self.bytes += objects * size;
    }
}

impl Local {
    /// Counts down by an allocation of this size. Returns whether to sample it.
    fn reaches(&self, size: usize) -> bool {
        if self.random.get() == 0 {
            // Each thread has its own sequence.
            self.random.set(SEED.fetch_add(STEP, Ordering::Relaxed) | 1);
            self.left.set(self.distance());
        }
        match self.left.get().checked_sub(size) {
            Some(left) => {
                self.left.set(left);
                false
            }
            None => {
                self.left.set(self.distance());
                true
            }
        }
    }

    /// Bytes until the next look: exponentially distributed, so that no pattern of allocations can hide between looks.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a random distance; the logarithm is negative and finite"
    )]
    fn distance(&self) -> usize {
        let mut state = self.random.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.set(state);
        // From above 0 to 1.
        let uniform = ((state >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        (-uniform.ln() * RATE as f64) as usize
    }
}

/// This thread works on the table. Its own allocations and frees leave the table alone meanwhile.
struct Busy;

impl Busy {
    /// None if it does so already, or is about to end.
    fn enter() -> Option<Busy> {
        let was = LOCAL.try_with(|local| local.busy.replace(true));
        (was == Ok(false)).then_some(Busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = LOCAL.try_with(|local| local.busy.set(false));
    }
}

fn table() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn slot(address: usize) -> &'static AtomicU16 {
    // Allocations are aligned: the lowest bits carry no information. The high bits of a product depend on all others.
    let mixed = (address as u64 >> 4).wrapping_mul(STEP) >> 48;
    &FILTER[usize::from(mixed as u16)]
}

/// An estimate as a whole number; rounding may have left a little less than nothing.
#[expect(clippy::cast_possible_truncation, reason = "rounded, and far below the limit")]
fn whole(estimate: f64) -> i64 {
    estimate.round().max(0.0) as i64
}

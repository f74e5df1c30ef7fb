//! Where processor time goes: the kernel stops each thread's clock every few milliseconds and writes down its registers and a part of its
//! stack; the stacks are walked here, in a thread of their own.
//!
//! There is no signal handler. A handler runs between any two instructions of the program, may take no lock, allocate nothing, and walks a
//! stack that may just be changing; the kernel has none of these problems. The price: the kernel must allow it, which it does for
//! privileged processes, as a service proxy is one.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use framehop::Unwinder;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler, data};

use crate::modules::modules;
use crate::profile::{Report, Stack, encode};

/// Processor time between two samples of a thread: a hundred a second.
const PERIOD: Duration = Duration::from_millis(10);

/// Bytes of a stack that are looked at; what lies further out is cut off.
const STACK: u32 = 32 * 1024;

/// Room for samples of one thread: more than it can have between two rounds.
const ROOM: usize = 512 * 1024;

/// Time between two rounds.
const ROUND: Duration = Duration::from_millis(50);

/// Frames of a stack that are kept.
const DEPTH: usize = 128;

/// One profile at a time.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// No profile could be taken.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// Another one is being taken.
    #[error("another CPU profile is being taken; there is one at a time")]
    Busy,
    /// The kernel does not want to.
    #[error(
        "the kernel does not let this process measure itself: it needs to be privileged, or CAP_PERFMON, or a kernel.perf_event_paranoid of \
         2 or less"
    )]
    Refused(#[source] io::Error),
}

/// Ends a profile early.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the profile; what was sampled until now is returned.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Samples all threads for a while. Blocks; returns a CPU profile, compressed as `pprof` wants it.
pub fn cpu(duration: Duration, cancel: &Cancel) -> Result<Vec<u8>, CpuError> {
    let _turn = Turn::take()?;
    let (start, began) = (SystemTime::now(), Instant::now());
    let mut profiler = Profiler::new();
    profiler.find_threads().map_err(CpuError::Refused)?;
    while !cancel.0.load(Ordering::Relaxed) {
        let left = duration.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(ROUND));
        profiler.drain();
        // The thread has just ended, or the system has no room for one more: the others are still sampled.
        let _ = profiler.find_threads();
    }
    profiler.drain();
    Ok(encode(&Report {
        sample_types: vec![("samples", "count"), ("cpu", "nanoseconds")],
        default_sample_type: "cpu",
        period_type: ("cpu", "nanoseconds"),
        period: u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX),
        start,
        duration: began.elapsed(),
        lost: profiler.lost,
        hidden: &[],
        stacks: profiler.stacks(),
    }))
}

/// Its owner takes the one profile.
struct Turn;

impl Turn {
    fn take() -> Result<Turn, CpuError> {
        if RUNNING.swap(true, Ordering::Acquire) { Err(CpuError::Busy) } else { Ok(Turn) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::Release);
    }
}

struct Profiler {
    walker: Walker,
    threads: HashMap<i32, Thread>,
    counts: HashMap<(String, Vec<u64>), i64>,
    lost: u64,
}

struct Thread {
    name: String,
    sampler: Sampler,
}

impl Profiler {
    fn new() -> Self {
        Profiler { walker: Walker::new(), threads: HashMap::new(), counts: HashMap::new(), lost: 0 }
    }

    /// Looks for new threads, and lets go of those that have ended. An error only if there was none to be had.
    fn find_threads(&mut self) -> io::Result<()> {
        let present: Vec<i32> = fs::read_dir("/proc/self/task")?
            .flatten()
            .filter_map(|task| task.file_name().to_str()?.parse().ok())
            .collect();
        self.threads.retain(|id, _| present.contains(id));
        let mut refused = None;
        for id in present {
            if self.threads.contains_key(&id) {
                continue;
            }
            match open(id) {
                Ok(sampler) => {
                    let name = fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
                    self.threads.insert(id, Thread { name: name.trim().to_owned(), sampler });
                }
                Err(error) => refused = Some(error),
            }
        }
        refused.filter(|_| self.threads.is_empty()).map_or(Ok(()), Err)
    }

    /// Takes what the kernel has written down.
    fn drain(&mut self) {
        for thread in self.threads.values_mut() {
            while let Some(record) = thread.sampler.next_record() {
                match record.parse_record() {
                    Ok(data::Record::Sample(sample)) => {
                        let frames = self.walker.walk(&sample);
                        *self.counts.entry((thread.name.clone(), frames)).or_default() += 1;
                    }
                    Ok(data::Record::Lost(lost)) => self.lost += lost.lost,
                    _ => {}
                }
            }
        }
    }

    fn stacks(&self) -> Vec<Stack> {
        let period = i64::try_from(PERIOD.as_nanos()).unwrap_or(i64::MAX);
        let stack = |((thread, frames), count): (&(String, Vec<u64>), &i64)| Stack {
            thread: Some(thread.clone()),
            frames: frames.clone(),
            values: vec![*count, count.saturating_mul(period)],
        };
        self.counts.iter().map(stack).collect()
    }
}

/// Starts to sample a thread; with the time it spends in the kernel, unless that may not be seen.
fn open(thread: i32) -> io::Result<Sampler> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder
        .observe_pid(thread)
        .any_cpu()
        .sample_period(u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX))
        .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER)
        .sample_regs_user(registers::WANTED)
        .sample_stack_user(STACK)
        .include_kernel();
    let counter = builder.build().or_else(|_| builder.exclude_kernel(true).build())?;
    let mut sampler = counter.sampled(ROOM)?;
    sampler.enable()?;
    Ok(sampler)
}

/// Walks stacks.
struct Walker {
    unwinder: registers::NativeUnwinder,
    cache: registers::NativeCache,
}

impl Walker {
    fn new() -> Self {
        let mut unwinder = registers::NativeUnwinder::new();
        modules()
            .iter()
            .filter_map(|module| module.unwinding())
            .for_each(|module| unwinder.add_module(module));
        Walker { unwinder, cache: registers::NativeCache::new() }
    }

    /// The instructions that a thread was at, innermost first.
    fn walk(&mut self, sample: &data::Sample<'_>) -> Vec<u64> {
        let values = sample.regs_user().map(|registers| &*registers.regs).unwrap_or_default();
        let Some(registers) = registers::read(values) else { return Vec::new() };
        let stack = sample.stack_user().unwrap_or_default();
        let mut read = |address: u64| {
            let offset =
                address.checked_sub(registers.stack_pointer).and_then(|offset| usize::try_from(offset).ok());
            let bytes = offset.and_then(|offset| stack.get(offset..)?.first_chunk::<8>());
            bytes.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or(())
        };
        let mut frames = Vec::new();
        let mut iterator =
            self.unwinder.iter_frames(registers.instruction, registers.unwind, &mut self.cache, &mut read);
        while let Ok(Some(frame)) = iterator.next() {
            frames.push(frame.address_for_lookup());
            if frames.len() == DEPTH {
                break;
            }
        }
        frames
    }
}

/// The registers that a walk begins with, as the kernel numbers and orders them (`asm/perf_regs.h`).
#[cfg(target_arch = "x86_64")]
mod registers {
    use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};

    pub(super) type NativeUnwinder = UnwinderX86_64<Vec<u8>>;
    pub(super) type NativeCache = CacheX86_64;

    /// BP, SP and IP.
    pub(super) const WANTED: u64 = 1 << 6 | 1 << 7 | 1 << 8;

    pub(super) struct Registers {
        pub(super) instruction: u64,
        pub(super) stack_pointer: u64,
        pub(super) unwind: UnwindRegsX86_64,
    }

    pub(super) fn read(values: &[u64]) -> Option<Registers> {
        let [frame, stack_pointer, instruction] = *values else { return None };
        let unwind = UnwindRegsX86_64::new(instruction, stack_pointer, frame);
        Some(Registers { instruction, stack_pointer, unwind })
    }
}

/// The registers that a walk begins with, as the kernel numbers and orders them (`asm/perf_regs.h`).
#[cfg(target_arch = "aarch64")]
mod registers {
    use framehop::aarch64::{CacheAarch64, UnwindRegsAarch64, UnwinderAarch64};

    pub(super) type NativeUnwinder = UnwinderAarch64<Vec<u8>>;
    pub(super) type NativeCache = CacheAarch64;

    /// X29, LR, SP and PC.
    pub(super) const WANTED: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;

    pub(super) struct Registers {
        pub(super) instruction: u64,
        pub(super) stack_pointer: u64,
        pub(super) unwind: UnwindRegsAarch64,
    }

    pub(super) fn read(values: &[u64]) -> Option<Registers> {
        let [frame, link, stack_pointer, instruction] = *values else { return None };
        let unwind = UnwindRegsAarch64::new(link, stack_pointer, frame);
        Some(Registers { instruction, stack_pointer, unwind })
    }
}

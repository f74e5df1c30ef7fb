//! A slow clock for each worker: what may happen a few seconds late costs a connection no timer of its own, and short connections nothing at all.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The time from one tick to the next.
pub(crate) const PERIOD: Duration = Duration::from_secs(5);

/// While a worker dials, its runtime keeps a timer that ends before any of a dial. When a timer becomes the first to end, the runtime wakes itself
/// through the kernel, which would cost every dial a call.
const SHORTER_THAN_DIALS: Duration = Duration::from_millis(200);

thread_local! {
    static CLOCK: RefCell<Clock> = const { RefCell::new(Clock { ticks: 0, waiting: Vec::new(), free: Vec::new() }) };
    static DIALLED: Cell<bool> = const { Cell::new(false) };
    static FIRST_DIAL: Arc<Notify> = Arc::default();
}

/// The ticks of one worker, and the tasks that wait for the next one.
struct Clock {
    ticks: u32,
    waiting: Vec<Option<Waker>>,
    /// Places in `waiting` that no [`Tick`] has.
    free: Vec<usize>,
}

/// The next tick, awaited by one task. It belongs to the worker that made it.
#[derive(Debug)]
pub(crate) struct Tick {
    after: u32,
    place: usize,
}

impl Tick {
    /// Wakes a task at the next tick of this worker.
    pub(crate) fn next(waker: &Waker) -> Tick {
        CLOCK.with_borrow_mut(|clock| {
            let place = clock.free.pop().unwrap_or_else(|| {
                clock.waiting.push(None);
                clock.waiting.len() - 1
            });
            if let Some(free) = clock.waiting.get_mut(place) {
                *free = Some(waker.clone());
            }
            Tick { after: clock.ticks, place }
        })
    }

    /// Whether it has come.
    pub(crate) fn passed(&self) -> bool {
        CLOCK.with_borrow(|clock| clock.ticks != self.after)
    }
}

impl Drop for Tick {
    fn drop(&mut self) {
        // A thread that ends may have dropped its clock already.
        let _ = CLOCK.try_with(|clock| {
            let mut clock = clock.borrow_mut();
            let waker = clock.waiting.get_mut(self.place).and_then(Option::take);
            clock.free.push(self.place);
            drop(clock);
            drop(waker);
        });
    }
}

/// A dial starts on this worker.
pub(crate) fn dialling() {
    if !DIALLED.replace(true) {
        FIRST_DIAL.with(|first| first.notify_one());
    }
}

/// Runs the clock of this worker.
pub(crate) async fn run() {
    let first_dial = FIRST_DIAL.with(Arc::clone);
    let mut next = Instant::now() + PERIOD;
    loop {
        if DIALLED.take() {
            sleep_until(next.min(Instant::now() + SHORTER_THAN_DIALS)).await;
        } else {
            // Whichever comes first; it looks again.
            let _ = timeout_at(next, first_dial.notified()).await;
        }
        if Instant::now() >= next {
            next += PERIOD;
            tick();
        }
    }
}

fn tick() {
    let due: Vec<Waker> = CLOCK.with_borrow_mut(|clock| {
        clock.ticks = clock.ticks.wrapping_add(1);
        clock.waiting.iter_mut().filter_map(Option::take).collect()
    });
    due.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Lets the next tick come at once.
    pub(crate) fn advance() {
        tick();
    }

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_tick_wakes_those_that_wait_and_nobody_else() {
        let (early, gone, late) = <(Arc<Counted>, Arc<Counted>, Arc<Counted>)>::default();
        let first = Tick::next(&Arc::clone(&early).into());
        drop(Tick::next(&Arc::clone(&gone).into()));
        assert_eq!(Arc::strong_count(&gone), 1, "nothing holds a task that has ended");
        assert!(!first.passed());
        tick();
        assert!(first.passed());
        let second = Tick::next(&Arc::clone(&late).into());
        assert!(!second.passed() && first.passed());
        tick();
        drop((first, second));
        let woken = [early, gone, late].map(|one| one.0.load(Ordering::Relaxed));
        assert_eq!(woken, [1, 0, 1]);
        let places = CLOCK.with_borrow(|clock| (clock.waiting.len(), clock.free.len()));
        assert_eq!(places, (2, 2), "places are used again");
    }
}

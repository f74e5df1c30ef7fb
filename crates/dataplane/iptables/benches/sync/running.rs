//! Adds up the time in which a program was running. The crate has a span around each of them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// How long at least one program was running.
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    programs: usize,
    since: Option<Instant>,
    total: Duration,
}

impl Running {
    /// Listens from now on, for the whole process.
    pub(crate) fn install() -> anyhow::Result<&'static Running> {
        let running: &'static Running = Box::leak(Box::<Running>::default());
        tracing::subscriber::set_global_default(Listener(running))?;
        Ok(running)
    }

    /// The time so far.
    pub(crate) fn total(&self) -> Duration {
        self.with(|state| state.total)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Listener(&'static Running);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "program"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        self.0.with(|state| {
            state.programs += 1;
            state.since.get_or_insert_with(Instant::now);
        });
    }

    fn exit(&self, _: &Id) {
        self.0.with(|state| {
            state.programs -= 1;
            if state.programs == 0 {
                state.total += state.since.take().map(|since| since.elapsed()).unwrap_or_default();
            }
        });
    }
}

//! Decides when free memory goes back to the system.
//!
//! Returning it walks the whole heap, and every allocation in the process waits meanwhile, those of the servers too. So it happens after many
//! events, once they have stopped, and not after each change.

use std::time::{Duration, Instant};

use portwarden_source::Update;

use super::Message;

/// So many events may leave a considerable part of the heap free.
const MANY: usize = 1000;

/// No message for this time means that the events have stopped.
const QUIET: Duration = Duration::from_secs(1);

/// Counts events since memory was last returned.
#[derive(Debug)]
pub(super) struct MemoryReturn {
    events: usize,
    last: Option<Instant>,
}

impl Default for MemoryReturn {
    /// What a start leaves free is returned however small the cluster is.
    fn default() -> Self {
        MemoryReturn { events: MANY, last: None }
    }
}

impl MemoryReturn {
    /// The engine handles a message.
    pub(super) fn handled(&mut self, message: &Message, now: Instant) {
        self.last = Some(now);
        self.events += match message {
            Message::Update(Update::Events(batch)) => batch.len(),
            // New dataplanes, or everything resolved again.
            Message::Reconfigure(_) => MANY,
            Message::Update(_) | Message::Inspect(_) | Message::Stop => 0,
        };
    }

    /// When memory is to be returned, if nothing happens until then.
    pub(super) fn next(&self) -> Option<Instant> {
        self.last.filter(|_| self.events >= MANY).map(|last| last + QUIET)
    }

    /// Whether that time has come. If so, counting starts anew.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next().is_some_and(|at| at <= now);
        if due {
            self.events = 0;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use portwarden_model::{Event, Kind};
    use portwarden_source::Sink;
    use tokio::sync::mpsc;

    use super::*;

    /// A batch of this many events.
    fn batch(events: usize) -> Message {
        let (sender, mut updates) = mpsc::unbounded_channel();
        let sink = Sink::new(1000, move |update| sender.send(update).is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let events = vec![Event::ListStarted(Kind::Service); events];
        runtime.block_on(sink.events(events)).expect("there is room");
        Message::Update(updates.try_recv().expect("a batch"))
    }

    #[test]
    fn memory_is_returned_after_many_events_once_they_have_stopped() {
        let start = Instant::now();
        let mut memory = MemoryReturn::default();
        assert_eq!(memory.next(), None);
        memory.handled(&batch(1), start);
        assert_eq!(memory.next(), Some(start + QUIET), "after a start");
        memory.handled(&batch(1), start + QUIET / 2);
        assert!(!memory.is_due(start + QUIET), "not while events come");
        assert!(memory.is_due(start + QUIET * 2));
        let later = start + QUIET * 10;
        for _ in 0..MANY - 1 {
            memory.handled(&batch(1), later);
            assert_eq!(memory.next(), None, "single changes are no reason");
        }
        memory.handled(&batch(1), later);
        assert!(memory.is_due(later + QUIET));
        assert_eq!(memory.next(), None);
        memory.handled(&Message::Stop, later + QUIET);
        assert_eq!(memory.next(), None);
    }
}

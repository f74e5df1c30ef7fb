//! The output of a source: a queue with back-pressure.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, mpsc};

use portwarden_model::{Event, Problem};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A source at work. It is boxed so that its code is compiled in this crate, optimized as this crate is, and not in whichever awaits it.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a source reports.
#[derive(Debug)]
pub enum Update {
    /// Created, changed and deleted objects, in order.
    Events(Batch),
    /// Parts of objects that cannot be used; each is reported once.
    Problems(Vec<Problem>),
    /// The source's own state changed.
    Status(Status),
}

/// The state of one part of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// A kind of object (`Services`) or a path.
    pub part: String,
    /// Whether it works.
    pub health: Health,
}

/// Whether a part of a source works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Objects are read, and changes are watched.
    Following,
    /// Objects may be out of date or incomplete. The text says why and what to do; the source retries.
    Failing(String),
}

/// Events that are applied together. They occupy the queue until the batch is consumed or dropped.
#[derive(Debug)]
pub struct Batch {
    events: Vec<Event>,
    _room: OwnedSemaphorePermit,
}

impl Batch {
    /// The events, in order.
    pub fn into_events(self) -> Vec<Event> {
        self.events
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

/// The receiver is gone; the source must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of this source is gone")]
pub struct Closed;

/// Receives the updates of a source. Cheap to clone; all clones share one limit.
#[derive(Clone)]
pub struct Sink {
    room: Arc<Semaphore>,
    limit: u32,
    deliver: Arc<dyn Fn(Update) -> bool + Send + Sync>,
}

impl Sink {
    /// Passes every update to `deliver`, which must not block and returns whether there is still a receiver. A source waits while
    /// `limit` events are delivered but not yet consumed.
    pub fn new(limit: u32, deliver: impl Fn(Update) -> bool + Send + Sync + 'static) -> Self {
        let limit = limit.max(1);
        Sink { room: Arc::new(Semaphore::new(limit as usize)), limit, deliver: Arc::new(deliver) }
    }

    /// A sink whose updates come out of a receiver.
    pub fn channel(limit: u32) -> (Sink, mpsc::Receiver<Update>) {
        let (sender, receiver) = mpsc::channel();
        (Sink::new(limit, move |update| sender.send(update).is_ok()), receiver)
    }

    /// Sends events as one batch, once there is room. An empty batch is not sent.
    pub async fn events(&self, events: Vec<Event>) -> Result<(), Closed> {
        if events.is_empty() {
            return Ok(());
        }
        // A batch above the limit takes the whole queue.
        let weight = u32::try_from(events.len()).map_or(self.limit, |len| len.min(self.limit));
        let room = self.room.clone().acquire_many_owned(weight).await.map_err(|_| Closed)?;
        self.deliver(Update::Events(Batch { events, _room: room }))
    }

    /// Sends problems, if there are any.
    pub fn problems(&self, problems: Vec<Problem>) -> Result<(), Closed> {
        if problems.is_empty() { Ok(()) } else { self.deliver(Update::Problems(problems)) }
    }

    /// Sends the state of a part.
    pub fn status(&self, part: &str, health: Health) -> Result<(), Closed> {
        self.deliver(Update::Status(Status { part: part.to_owned(), health }))
    }

    fn deliver(&self, update: Update) -> Result<(), Closed> {
        if (self.deliver)(update) { Ok(()) } else { Err(Closed) }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_model::Kind;

    fn events(count: usize) -> Vec<Event> {
        vec![Event::ListDone(Kind::Node); count]
    }

    #[tokio::test]
    async fn a_full_queue_makes_the_source_wait_until_a_batch_is_consumed() {
        let (sink, updates) = Sink::channel(3);
        sink.events(events(2)).await.expect("there is room");
        let mut waiting = Box::pin(sink.events(events(2)));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        let Ok(Update::Events(batch)) = updates.try_recv() else { panic!("the first batch is delivered") };
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "taken, but not yet applied");
        assert_eq!(batch.into_events().len(), 2);
        waiting.await.expect("there is room again");
    }

    #[tokio::test]
    async fn a_batch_above_the_limit_passes_when_the_queue_is_empty() {
        let (sink, updates) = Sink::channel(3);
        sink.events(events(10)).await.expect("passes");
        assert!(matches!(updates.try_recv(), Ok(Update::Events(batch)) if batch.len() == 10));
    }

    #[tokio::test]
    async fn a_waiting_source_notices_that_the_receiver_is_gone() {
        let (sink, updates) = Sink::channel(1);
        sink.events(events(1)).await.expect("there is room");
        let mut waiting = Box::pin(sink.events(events(1)));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(updates);
        assert_eq!(waiting.await, Err(Closed));
    }
}

//! From decoded objects to the sink: settled, gathered into batches, problems told once.

use std::marker::PhantomData;

use portwarden_model::{Event, Interner, NamespacedName, Problem};

use crate::report::Reported;
use crate::settle::Manifest;
use crate::sink::{Closed, Sink};

/// While a list arrives, so many events go together.
const BATCH: usize = 500;

/// Takes in the objects of one kind.
#[derive(Debug)]
pub(crate) struct Intake<M> {
    sink: Sink,
    names: Interner,
    reported: Reported<NamespacedName>,
    events: Vec<Event>,
    problems: Vec<Problem>,
    object: PhantomData<M>,
}

impl<M: Manifest> Intake<M> {
    pub(crate) fn new(sink: Sink) -> Self {
        Intake {
            sink,
            names: Interner::default(),
            reported: Reported::default(),
            events: Vec::new(),
            problems: Vec::new(),
            object: PhantomData,
        }
    }

    /// A new list begins.
    pub(crate) fn list_started(&mut self) {
        self.reported.list_started();
        self.events.push(Event::ListStarted(M::KIND));
    }

    /// The list is complete.
    pub(crate) fn list_done(&mut self) {
        self.reported.list_done();
        self.names.prune();
        self.events.push(Event::ListDone(M::KIND));
    }

    /// The object is this now.
    pub(crate) fn applied(&mut self, object: &M) {
        let (event, problems) = object.applied(&mut self.names);
        self.events.push(event);
        self.report(object, problems);
    }

    /// The object is gone.
    pub(crate) fn deleted(&mut self, object: &M) {
        self.events.push(object.deleted());
        self.report(object, Vec::new());
    }

    /// An object cannot be decoded.
    pub(crate) fn undecodable(&mut self, reason: &str) {
        let key = NamespacedName::new("", "undecodable");
        let problem = Problem {
            object: format!("{} of unknown name", M::NAME),
            field: "the object".to_owned(),
            text: format!("{reason}; left out"),
        };
        let fresh = self.reported.fresh(|| key, vec![problem]);
        self.problems.extend(fresh);
    }

    /// Sends everything.
    pub(crate) async fn flush(&mut self) -> Result<(), Closed> {
        self.sink.problems(std::mem::take(&mut self.problems))?;
        self.sink.events(std::mem::take(&mut self.events)).await
    }

    /// Sends what there is once it makes up a batch.
    pub(crate) async fn flush_batch(&mut self) -> Result<(), Closed> {
        if self.events.len() >= BATCH { self.flush().await } else { Ok(()) }
    }

    fn report(&mut self, object: &M, problems: Vec<Problem>) {
        let metadata = object.metadata();
        let key = || NamespacedName::new(&metadata.namespace, &metadata.name);
        self.problems.extend(self.reported.fresh(key, problems));
    }
}

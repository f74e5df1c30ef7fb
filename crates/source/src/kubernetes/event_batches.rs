//! Turns decoded objects into batches of model events for the sink, and reports each problem once.

use std::marker::PhantomData;

use portwarden_model::{Event, Interner, NamespacedName, Problem};

use crate::manifest::Manifest;
use crate::reported_problems::ReportedProblems;
use crate::sink::{Closed, Sink};

/// Events in one batch while a list arrives.
const BATCH: usize = 500;

/// The events of one kind of object.
#[derive(Debug)]
pub(crate) struct EventBatches<M> {
    sink: Sink,
    names: Interner,
    reported: ReportedProblems<NamespacedName>,
    events: Vec<Event>,
    problems: Vec<Problem>,
    /// Objects since the last list began.
    applied: usize,
    object: PhantomData<M>,
}

impl<M: Manifest> EventBatches<M> {
    pub(crate) fn new(sink: Sink) -> Self {
        EventBatches {
            sink,
            names: Interner::default(),
            reported: ReportedProblems::default(),
            events: Vec::new(),
            problems: Vec::new(),
            applied: 0,
            object: PhantomData,
        }
    }

    /// A new list begins.
    pub(crate) fn list_started(&mut self) {
        self.reported.list_started();
        self.applied = 0;
        self.events.push(Event::ListStarted(M::KIND));
    }

    /// The list is complete.
    pub(crate) fn list_done(&mut self) {
        self.reported.list_done();
        self.names.prune();
        self.events.push(Event::ListDone(M::KIND));
    }

    /// The object was created or changed.
    pub(crate) fn applied(&mut self, object: &M) {
        let (event, problems) = object.applied(&mut self.names);
        self.events.push(event);
        self.applied += 1;
        self.report(object, problems);
    }

    /// The object was deleted.
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
            text: format!("{reason}; ignored"),
        };
        let fresh = self.reported.fresh(|| key, vec![problem]);
        self.problems.extend(fresh);
    }

    /// Whether no object has arrived since the last list began.
    pub(crate) fn is_list_empty(&self) -> bool {
        self.applied == 0
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

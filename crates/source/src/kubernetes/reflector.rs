//! Keeps one kind of object up to date: lists it, watches it, and starts over when it must.
//!
//! ```text
//!   nothing known ──> streaming list ──> watch ──> watch again from the last version ──> ...
//!                      │ unsupported          │ too old, or undecodable
//!                      v                      v
//!                     paged list ──> watch    list again
//! ```

use std::time::Duration;

use portwarden_model::{Event, Kind};
use tokio::time::Instant;

use super::backoff::random;
use super::client::Client;
use super::error::RequestError;
use super::event_batches::EventBatches;
use super::list::{Page, Start};
use super::missing_node;
use super::resource::Resource;
use super::retry_policy::RetryPolicy;
use super::watch::{Begin, Watch};
use crate::manifest::Manifest;
use crate::sink::{Closed, Health, Sink};
use crate::wire::{Item, WatchEvent};

/// A watch that ends sooner failed: reopening it at once could loop for ever.
const SHORTEST_WATCH: Duration = Duration::from_secs(5);
/// After so many refusals in a row to continue from a version, everything is listed again.
const RESUMPTIONS: u32 = 3;

/// Why a round ended early.
enum Stop {
    Failed(RequestError),
    Closed,
}

impl From<RequestError> for Stop {
    fn from(error: RequestError) -> Self {
        Stop::Failed(error)
    }
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Stop::Closed
    }
}

/// The version to continue from.
#[derive(Debug, Default)]
struct Position {
    /// Empty before the first list.
    version: String,
    /// Whether a watch can start there.
    can_resume: bool,
    /// Whether the version is too old: only the newest state is valid.
    expired: bool,
}

/// Lists and watches one kind of object.
#[derive(Debug)]
pub(crate) struct Reflector<M> {
    client: Client,
    node_name: String,
    resource: Resource,
    sink: Sink,
    batches: EventBatches<M>,
    position: Position,
    streaming: bool,
    most_pages: u32,
    listed: bool,
    retries: RetryPolicy,
    reported: Option<Health>,
}

impl<M: Manifest> Reflector<M> {
    pub(crate) fn new(client: Client, node_name: &str, sink: Sink, streaming: bool, most_pages: u32) -> Self {
        let resource = Resource::of(M::KIND, node_name);
        Reflector {
            client,
            node_name: node_name.to_owned(),
            batches: EventBatches::new(sink.clone()),
            sink,
            position: Position::default(),
            streaming,
            most_pages,
            listed: false,
            retries: RetryPolicy::new(resource.without.is_some()),
            resource,
            reported: None,
        }
    }

    /// Sends all objects and then every change, until the sink is closed.
    pub(crate) async fn run(mut self) {
        while self.step().await.is_ok() {}
    }

    async fn step(&mut self) -> Result<(), Closed> {
        match self.round().await {
            Ok(()) => Ok(()),
            Err(Stop::Closed) => Err(Closed),
            Err(Stop::Failed(error)) => {
                tracing::debug!(resource = self.resource.name, %error, "Request failed");
                self.recover(&error).await
            }
        }
    }

    /// One list if needed, and one watch until the server ends it.
    async fn round(&mut self) -> Result<(), Stop> {
        if self.position.can_resume {
            return self.follow(false).await;
        }
        if self.streaming {
            match self.follow(true).await {
                Err(Stop::Failed(error)) if !self.position.can_resume && error.suggests_ordinary_list() => {
                    tracing::debug!(resource = self.resource.name, %error, "The streaming list failed; using an ordinary one");
                    self.streaming = !error.is_unsupported();
                }
                result => return result,
            }
        }
        self.list().await?;
        self.follow(false).await
    }

    /// Lists page by page.
    async fn list(&mut self) -> Result<(), Stop> {
        let version = match &self.position {
            Position { expired: true, .. } => "",
            Position { version, .. } if version.is_empty() => "0",
            Position { version, .. } => version,
        };
        // With a limit, a server returns exactly this version, which it reads from its database and which may be old.
        let paged = matches!(version, "" | "0");
        let mut start = Start::First { version: version.to_owned(), paged };
        let mut started = false;
        let mut pages = 0;
        loop {
            pages += 1;
            match self.page(&start, &mut started).await {
                Ok(Some(_)) if pages >= self.most_pages => {
                    return Err(Stop::Failed(RequestError::EndlessList { pages }));
                }
                Ok(Some(next)) => start = Start::Next(next),
                Ok(None) => return Ok(()),
                // The list took so long that its later pages expired: request it in one piece.
                Err(Stop::Failed(RequestError::Expired { .. })) if matches!(start, Start::Next(_)) => {
                    start = Start::First { version: String::new(), paged: false };
                    started = false;
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Reads one page, and returns where the next one begins.
    async fn page(&mut self, start: &Start, started: &mut bool) -> Result<Option<String>, Stop> {
        let mut page = Page::<M>::open(&self.client, &self.resource, start).await?;
        if !std::mem::replace(started, true) {
            self.list_started();
        }
        while let Some(items) = page.next().await? {
            for item in items {
                match item {
                    Item::Object(object) => self.batches.applied(&object),
                    Item::Bad(error) => self.batches.undecodable(&error.to_string()),
                }
            }
            self.batches.flush_batch().await?;
        }
        let meta = page.finish()?;
        if !meta.r#continue.is_empty() {
            return Ok(Some(meta.r#continue));
        }
        self.list_done(meta.resource_version).await?;
        Ok(None)
    }

    fn list_started(&mut self) {
        self.batches.list_started();
        // From here on, sent objects may be newer than the version. If this list fails, a list of that version would undo them for a
        // moment.
        self.position.expired |= self.listed;
    }

    async fn list_done(&mut self, version: String) -> Result<(), Stop> {
        self.batches.list_done();
        self.batches.flush().await?;
        self.position = Position { version, can_resume: true, expired: false };
        if M::KIND == Kind::Node && self.batches.is_list_empty() && !self.listed {
            // On its own: nothing waits for the answer.
            tokio::spawn(missing_node::report(self.client.clone(), self.node_name.clone()));
        }
        self.listed = true;
        Ok(self.report(Health::Following)?)
    }

    /// Watches until the server ends it; a streaming list comes first if `with_list`.
    async fn follow(&mut self, with_list: bool) -> Result<(), Stop> {
        let version = if self.position.expired { "" } else { self.position.version.as_str() };
        let begin = if with_list { Begin::WithList(version) } else { Begin::After(version) };
        let mut watch = Watch::<M>::open(&self.client, &self.resource, begin).await?;
        let mut listing = with_list;
        if listing {
            self.list_started();
        } else {
            self.report(Health::Following)?;
        }
        while let Some(events) = watch.next().await? {
            for event in events {
                self.take(event, &mut listing, &mut watch).await?;
            }
            if listing {
                self.batches.flush_batch().await?;
            } else {
                self.batches.flush().await?;
            }
        }
        if listing || watch.age() < SHORTEST_WATCH {
            return Err(RequestError::EndedAtOnce.into());
        }
        Ok(())
    }

    async fn take(
        &mut self,
        event: WatchEvent<M>,
        listing: &mut bool,
        watch: &mut Watch<M>,
    ) -> Result<(), Stop> {
        let version = match event {
            WatchEvent::Applied(object) => {
                self.batches.applied(&object);
                object.metadata().resource_version.clone()
            }
            WatchEvent::Deleted(object) => {
                self.batches.deleted(&object);
                object.metadata().resource_version.clone()
            }
            WatchEvent::Bookmark { resource_version, initial_events_end: true } if *listing => {
                *listing = false;
                watch.initial_done();
                return self.list_done(resource_version).await;
            }
            // A server without streaming lists sends ordinary bookmarks only.
            WatchEvent::Bookmark { .. } if *listing => return Err(RequestError::NoInitialEvents.into()),
            WatchEvent::Bookmark { resource_version, .. } => resource_version,
            WatchEvent::Error(status) => {
                self.batches.flush().await?;
                return Err(RequestError::from_status(&status, self.resource.path, None).into());
            }
        };
        // During a list, versions are those of single objects, in no order.
        if !*listing && !version.is_empty() {
            self.position.version = version;
        }
        Ok(())
    }

    /// Reports a failure that needs action, and waits before the next attempt.
    async fn recover(&mut self, error: &RequestError) -> Result<(), Closed> {
        let now = Instant::now();
        let failures = self.retries.failures(now);
        match error {
            // A refused version is useless, whatever the reason: it may be from before a restored backup.
            RequestError::Expired { .. }
            | RequestError::Behind { .. }
            | RequestError::Refused { code: 400..=499, .. } => {
                self.position.can_resume = false;
                self.position.expired = true;
            }
            RequestError::Wire(_) => self.position.can_resume = false,
            RequestError::Refused { .. } if failures >= RESUMPTIONS => self.position.can_resume = false,
            _ => {}
        }
        let first = failures == 0;
        if !(first && error.is_transient()) {
            let without = self.resource.without.map(|without| format!("; until then {without}"));
            self.report(Health::Failing(format!("{error}{}", without.unwrap_or_default())))?;
        }
        if self.resource.without.is_some() && !self.listed {
            let kind = M::KIND;
            self.sink.events(vec![Event::ListStarted(kind), Event::ListDone(kind)]).await?;
            self.listed = true;
        }
        tokio::time::sleep(self.retries.after(error, now, random())).await;
        Ok(())
    }

    fn report(&mut self, health: Health) -> Result<(), Closed> {
        if self.reported.as_ref() != Some(&health) {
            self.sink.status(self.resource.name, health.clone())?;
            self.reported = Some(health);
        }
        Ok(())
    }
}

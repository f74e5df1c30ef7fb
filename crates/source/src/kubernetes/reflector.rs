//! Keeps one kind of object up to date: lists it, watches it, and starts over when it must.
//!
//! ```text
//!   nothing known ──> streaming list ──> watch ──> watch again from the last version ──> ...
//!                      │ not known            │ too old, or nonsense
//!                      v                      v
//!                     paged list ──> watch    list again
//! ```

use std::time::Duration;

use portwarden_model::Event;
use tokio::time::Instant;

use super::backoff::random;
use super::client::Client;
use super::error::RequestError;
use super::intake::Intake;
use super::list::{Page, Start};
use super::patience::Patience;
use super::resource::Resource;
use super::watch::{Begin, Watch};
use crate::settle::Manifest;
use crate::sink::{Closed, Health, Sink};
use crate::wire::{Item, WatchEvent};

/// A watch that ends sooner did not work: reopening it at once could go on for ever.
const WORTHWHILE: Duration = Duration::from_secs(5);
/// After so many refusals in a row to go on from a version, everything is listed again.
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

/// Up to which version everything is known.
#[derive(Debug, Default)]
struct Position {
    /// The last version; empty at first.
    version: String,
    /// Whether a watch can go on from there.
    can_resume: bool,
    /// Whether the version itself is of no use any more: only the newest state will do.
    expired: bool,
}

/// Follows one kind of object.
#[derive(Debug)]
pub(crate) struct Reflector<M> {
    client: Client,
    resource: Resource,
    sink: Sink,
    intake: Intake<M>,
    position: Position,
    streaming: bool,
    listed: bool,
    patience: Patience,
    told: Option<Health>,
}

impl<M: Manifest> Reflector<M> {
    pub(crate) fn new(client: Client, node_name: &str, sink: Sink, streaming: bool) -> Self {
        let resource = Resource::of(M::KIND, node_name);
        Reflector {
            client,
            intake: Intake::new(sink.clone()),
            sink,
            position: Position::default(),
            streaming,
            listed: false,
            patience: Patience::new(resource.without.is_some()),
            resource,
            told: None,
        }
    }

    /// Tells all objects and then every change, until nobody listens any more.
    pub(crate) async fn run(mut self) {
        while self.live().await.is_ok() {}
    }

    async fn live(&mut self) -> Result<(), Closed> {
        match self.round().await {
            Ok(()) => Ok(()),
            Err(Stop::Closed) => Err(Closed),
            Err(Stop::Failed(error)) => {
                tracing::debug!(resource = self.resource.name, %error, "request failed");
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
                    tracing::debug!(resource = self.resource.name, %error, "no streaming list, an ordinary one is used");
                    self.streaming = !error.is_unknown_feature();
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
        // With a limit, servers take a version to be meant exactly, which would take them to their database and us to the past.
        let paged = matches!(version, "" | "0");
        let mut start = Start::First { version: version.to_owned(), paged };
        let mut started = false;
        loop {
            match self.page(&start, &mut started).await {
                Ok(Some(next)) => start = Start::Next(next),
                Ok(None) => return Ok(()),
                // The list took so long that its later pages are gone: all at once, then.
                Err(Stop::Failed(RequestError::Expired { .. })) if matches!(start, Start::Next(_)) => {
                    start = Start::First { version: String::new(), paged: false };
                    started = false;
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Reads one page; says where the next one begins.
    async fn page(&mut self, start: &Start, started: &mut bool) -> Result<Option<String>, Stop> {
        let mut page = Page::<M>::open(&self.client, &self.resource, start).await?;
        if !std::mem::replace(started, true) {
            self.list_started();
        }
        while let Some(items) = page.next().await? {
            for item in items {
                match item {
                    Item::Object(object) => self.intake.applied(&object),
                    Item::Bad(error) => self.intake.undecodable(&error.to_string()),
                }
            }
            self.intake.flush_batch().await?;
        }
        let meta = page.finish()?;
        if !meta.r#continue.is_empty() {
            return Ok(Some(meta.r#continue));
        }
        self.list_done(meta.resource_version).await?;
        Ok(None)
    }

    fn list_started(&mut self) {
        self.intake.list_started();
        // From here on, objects may be told that are newer than the version. If this list fails, one of that version would
        // take them back for a moment.
        self.position.expired |= self.listed;
    }

    async fn list_done(&mut self, version: String) -> Result<(), Stop> {
        self.intake.list_done();
        self.intake.flush().await?;
        self.position = Position { version, can_resume: true, expired: false };
        self.listed = true;
        Ok(self.tell(Health::Following)?)
    }

    /// Watches until the server ends it; with the list in front if that is wanted.
    async fn follow(&mut self, with_list: bool) -> Result<(), Stop> {
        let version = if self.position.expired { "" } else { self.position.version.as_str() };
        let begin = if with_list { Begin::WithList(version) } else { Begin::After(version) };
        let mut watch = Watch::<M>::open(&self.client, &self.resource, begin).await?;
        let mut listing = with_list;
        if listing {
            self.list_started();
        } else {
            self.tell(Health::Following)?;
        }
        while let Some(events) = watch.next().await? {
            for event in events {
                self.take(event, &mut listing, &mut watch).await?;
            }
            if listing {
                self.intake.flush_batch().await?;
            } else {
                self.intake.flush().await?;
            }
        }
        if listing || watch.age() < WORTHWHILE {
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
                self.intake.applied(&object);
                object.metadata().resource_version.clone()
            }
            WatchEvent::Deleted(object) => {
                self.intake.deleted(&object);
                object.metadata().resource_version.clone()
            }
            WatchEvent::Bookmark { resource_version, initial_events_end: true } if *listing => {
                *listing = false;
                watch.initial_done();
                return self.list_done(resource_version).await;
            }
            // A server that knows nothing of streaming lists sends bookmarks of the ordinary kind only.
            WatchEvent::Bookmark { .. } if *listing => return Err(RequestError::NoInitialEvents.into()),
            WatchEvent::Bookmark { resource_version, .. } => resource_version,
            WatchEvent::Error(status) => {
                self.intake.flush().await?;
                return Err(RequestError::from_status(&status, self.resource.path, None).into());
            }
        };
        // While a list is under way, versions are those of single objects, in no order.
        if !*listing && !version.is_empty() {
            self.position.version = version;
        }
        Ok(())
    }

    /// Says what is wrong, if somebody can do something about it, and waits.
    async fn recover(&mut self, error: &RequestError) -> Result<(), Closed> {
        let now = Instant::now();
        let failures = self.patience.failures(now);
        match error {
            // A version that is refused for any reason is of no use: it may come from before a restored backup.
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
        if !(first && error.is_passing()) {
            let without = self.resource.without.map(|without| format!("; meanwhile {without}"));
            self.tell(Health::Failing(format!("{error}{}", without.unwrap_or_default())))?;
        }
        if self.resource.without.is_some() && !self.listed {
            let kind = M::KIND;
            self.sink.events(vec![Event::ListStarted(kind), Event::ListDone(kind)]).await?;
            self.listed = true;
        }
        tokio::time::sleep(self.patience.after(error, now, random())).await;
        Ok(())
    }

    fn tell(&mut self, health: Health) -> Result<(), Closed> {
        if self.told.as_ref() != Some(&health) {
            self.sink.status(self.resource.name, health.clone())?;
            self.told = Some(health);
        }
        Ok(())
    }
}

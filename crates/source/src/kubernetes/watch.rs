//! One watch: opened, read, and closed when it is silent for longer than the server allows.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::Instant;

use super::backoff::random;
use super::client::{Call, Client, media_of};
use super::error::{RequestError, chain};
use super::resource::Resource;
use crate::wire::{Manifest, WatchDecoder, WatchEvent};

/// The server ends a watch after a time that we request: a random one, so that the watches of many nodes do not end together.
const SHORTEST: Duration = Duration::from_secs(300);
/// A watch that the server should have ended this long ago is dead.
const GRACE: Duration = Duration::from_secs(30);
/// The initial objects of a streaming list follow each other closely. Silence means that the server does not support it.
const INITIAL_SILENCE: Duration = Duration::from_secs(10);

/// Where a watch begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Begin<'a> {
    /// After this version.
    After(&'a str),
    /// With all objects, from a state that is not older than this version; empty for the newest.
    WithList(&'a str),
}

/// An open watch.
#[derive(Debug)]
pub(crate) struct Watch<M> {
    body: Body,
    decoder: WatchDecoder<M>,
    opened: Instant,
    due: Instant,
    initial: bool,
    failed: Option<RequestError>,
}

impl<M: Manifest> Watch<M> {
    /// Opens a watch.
    pub(crate) async fn open(
        client: &Client,
        resource: &Resource,
        begin: Begin<'_>,
    ) -> Result<Self, RequestError> {
        let lifetime = SHORTEST.mul_f64(1.0 + random());
        let seconds = lifetime.as_secs().to_string();
        let (version, send_initial, version_match) = match begin {
            Begin::After(version) => (version, "", ""),
            Begin::WithList(version) => (version, "true", "NotOlderThan"),
        };
        let query = resource.query(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &seconds),
            ("resourceVersion", version),
            ("sendInitialEvents", send_initial),
            ("resourceVersionMatch", version_match),
        ]);
        let answer = client.send(Call::get(&query)).await?;
        let decoder = WatchDecoder::new(media_of(&answer)?);
        let opened = Instant::now();
        let initial = matches!(begin, Begin::WithList(_));
        Ok(Watch {
            body: answer.into_body(),
            decoder,
            opened,
            due: opened + lifetime + GRACE,
            initial,
            failed: None,
        })
    }

    /// How long it has been open.
    pub(crate) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// The initial objects are complete.
    pub(crate) fn initial_done(&mut self) {
        self.initial = false;
    }

    /// The next events; nothing when the server ends the watch.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<WatchEvent<M>>>, RequestError> {
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            let events = self.complete_events();
            if !events.is_empty() {
                return Ok(Some(events));
            }
            if self.failed.is_some() {
                continue;
            }
            match self.read().await? {
                Some(bytes) => self.decoder.push(&bytes),
                None if self.decoder.is_between_events() => return Ok(None),
                None => return Err(RequestError::Broken("it ended inside an event".to_owned())),
            }
        }
    }

    /// The decoded events. An error after good events is kept for the next call.
    fn complete_events(&mut self) -> Vec<WatchEvent<M>> {
        let mut events = Vec::new();
        loop {
            match self.decoder.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => return events,
                Err(error) => {
                    self.failed = Some(error.into());
                    return events;
                }
            }
        }
    }

    async fn read(&mut self) -> Result<Option<bytes::Bytes>, RequestError> {
        let limit = if self.initial { self.due.min(Instant::now() + INITIAL_SILENCE) } else { self.due };
        loop {
            match tokio::time::timeout_at(limit, self.body.frame()).await {
                Err(_) if self.initial => return Err(RequestError::NoInitialEvents),
                Err(_) => {
                    return Err(RequestError::Broken("silent for longer than the watch may last".to_owned()));
                }
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(RequestError::Broken(chain(&error))),
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

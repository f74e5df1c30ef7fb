//! One page of a list, read while it arrives.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::Instant;

use super::client::{Call, Client, media_of};
use super::error::{RequestError, chain};
use super::resource::Resource;
use crate::wire::{Item, ListDecoder, ListMeta, Manifest};

/// Objects on a page, unless the server prefers to send everything at once.
const PAGE: &str = "500";
/// The longest time without any bytes.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time for a page, however slowly it arrives.
const PAGE_TIMEOUT: Duration = Duration::from_secs(300);

/// Where a page begins.
#[derive(Debug, Clone)]
pub(crate) enum Start {
    /// At the beginning, in a state that is not older than this version.
    First {
        /// `0` for what the server has cached, empty for the newest.
        version: String,
        /// Whether the server may send the list in pages.
        paged: bool,
    },
    /// After the last page: its `continue` token.
    Next(String),
}

/// A page that is being read.
#[derive(Debug)]
pub(crate) struct Page<M> {
    body: Body,
    decoder: ListDecoder<M>,
    due: Instant,
}

impl<M: Manifest> Page<M> {
    /// Requests a page.
    pub(crate) async fn open(
        client: &Client,
        resource: &Resource,
        start: &Start,
    ) -> Result<Self, RequestError> {
        let query = match start {
            Start::First { version, paged: true } => {
                resource.query(&[("limit", PAGE), ("resourceVersion", version)])
            }
            Start::First { version, paged: false } => resource.query(&[("resourceVersion", version)]),
            Start::Next(page) => resource.query(&[("limit", PAGE), ("continue", page)]),
        };
        let answer = client.send(Call::get(&query)).await?;
        let decoder = ListDecoder::new(media_of(&answer)?);
        Ok(Page { body: answer.into_body(), decoder, due: Instant::now() + PAGE_TIMEOUT })
    }

    /// The next objects; nothing at the end of the page.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Item<M>>>, RequestError> {
        loop {
            let mut items = Vec::new();
            while let Some(item) = self.decoder.next_item()? {
                items.push(item);
            }
            if !items.is_empty() {
                return Ok(Some(items));
            }
            let limit = self.due.min(Instant::now() + SILENCE_TIMEOUT);
            match tokio::time::timeout_at(limit, self.body.frame()).await {
                Err(_) => return Err(RequestError::Broken("the list arrives too slowly".to_owned())),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(RequestError::Broken(chain(&error))),
                Ok(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.decoder.push(&bytes);
                    }
                }
            }
        }
    }

    /// The metadata of the page, after its end.
    pub(crate) fn finish(self) -> Result<ListMeta, RequestError> {
        Ok(self.decoder.finish()?)
    }
}

//! `/api/events`: the status, sent to viewers once a second (server-sent events).
//!
//! A frame is rendered once for all viewers, and only if there is one. A viewer that reads slowly misses frames and delays no one.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::watch;
use tokio::time::Instant;

use super::api::{Series, Status};
use super::server::to_json;
use crate::http::{self, Answer};

/// Viewers at the same time.
const VIEWERS: usize = 16;

/// A stream ends after this time, before its connection is too old; the browser opens another one.
const LENGTH: Duration = Duration::from_secs(240);

/// Sends frames to all viewers.
pub(super) struct Stream(watch::Sender<Bytes>);

impl Default for Stream {
    fn default() -> Self {
        Stream(watch::Sender::new(Bytes::new()))
    }
}

impl Stream {
    pub(super) fn has_viewers(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Sends the status and the newest points of the plots.
    pub(super) fn send(&self, status: &Status, news: &Series) {
        let frame =
            format!("event: status\ndata: {}\n\nevent: series\ndata: {}\n\n", to_json(status), to_json(news));
        self.0.send_replace(frame.into());
    }

    /// A response that shows the status now and every frame from now on; `None` if there are too many viewers.
    pub(super) fn open(&self, now: &Status) -> Option<Answer> {
        if self.0.receiver_count() >= VIEWERS {
            return None;
        }
        let first = format!("retry: 1000\n\nevent: status\ndata: {}\n\n", to_json(now));
        let viewer =
            Viewer { first: Some(first.into()), frames: self.0.subscribe(), end: Instant::now() + LENGTH };
        let frames = futures::stream::unfold(viewer, |mut viewer| async move {
            let bytes = viewer.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(bytes)), viewer))
        });
        Some(http::stream("text/event-stream", StreamBody::new(frames)))
    }
}

struct Viewer {
    first: Option<Bytes>,
    frames: watch::Receiver<Bytes>,
    end: Instant,
}

impl Viewer {
    /// Ends with the server, or when the stream has been open for long.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        tokio::time::timeout_at(self.end, self.frames.changed()).await.ok()?.ok()?;
        Some(self.frames.borrow_and_update().clone())
    }
}

//! Answers on their way out, whole or damaged.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::encode::Media;
use super::fault::{Fault, Garbage, When};
use super::switch::Switch;
use super::watch::Watch;

/// The body of an answer.
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// Bytes that are sent at once, if there are so many.
const CHUNK: usize = 128 << 10;
/// What was handed over before gets on its way within this time.
const FLUSH: Duration = Duration::from_millis(1);

/// Where the pieces of an answer come from.
#[derive(Debug)]
pub(super) enum Pieces {
    /// They are all there.
    All(Vec<Bytes>),
    /// They come when something happens.
    Watch(Box<Watch>),
}

impl Pieces {
    /// The next ones.
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        match self {
            Pieces::All(pieces) => Some(std::mem::take(pieces)).filter(|pieces| !pieces.is_empty()),
            Pieces::Watch(watch) => watch.next().await,
        }
    }
}

/// What pieces look like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) media: Media,
    pub(super) watch: bool,
}

/// The body that consists of pieces, with a fault.
pub(super) fn body(pieces: Pieces, shape: Shape, fault: Option<Fault>, switch: Switch) -> AnswerBody {
    let sending = Sending { pieces, shape, fault, switch, waiting: VecDeque::new(), sent: 0, ending: None };
    let stream = stream::unfold(sending, |mut sending| async move {
        let bytes = sending.next().await?;
        Some((bytes.map(Frame::data), sending))
    });
    StreamBody::new(stream).boxed_unsync()
}

#[derive(Debug)]
struct Sending {
    pieces: Pieces,
    shape: Shape,
    fault: Option<Fault>,
    switch: Switch,
    waiting: VecDeque<Bytes>,
    /// Pieces that were dealt with.
    sent: usize,
    ending: Option<Ending>,
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    /// As if all were said.
    Clean,
    /// In the middle.
    Broken,
}

impl Sending {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        match self.ending {
            Some(Ending::Clean) => return None,
            Some(Ending::Broken) => {
                tokio::time::sleep(FLUSH).await;
                self.ending = Some(Ending::Clean);
                return Some(Err(io::Error::other("the answer is cut off, as the schedule says")));
            }
            None => {}
        }
        while self.waiting.is_empty() {
            self.waiting.extend(self.pieces.next().await?);
        }
        match self.fault {
            None => Some(Ok(self.chunk())),
            Some(Fault::Drip { bytes, every }) => {
                tokio::time::sleep(every).await;
                let mut piece = self.waiting.pop_front().unwrap_or_default();
                let drop = piece.split_to(bytes.clamp(1, piece.len().max(1)).min(piece.len()));
                if !piece.is_empty() {
                    self.waiting.push_front(piece);
                }
                Some(Ok(drop))
            }
            Some(fault) => {
                let piece = self.waiting.pop_front().unwrap_or_default();
                self.sent += 1;
                self.damaged(piece, self.sent - 1, fault).await
            }
        }
    }

    /// As many pieces as go together.
    fn chunk(&mut self) -> Bytes {
        let mut chunk = BytesMut::from(self.waiting.pop_front().unwrap_or_default());
        while let Some(piece) = self.waiting.pop_front_if(|piece| chunk.len() + piece.len() <= CHUNK) {
            chunk.extend_from_slice(&piece);
        }
        chunk.freeze()
    }

    async fn damaged(&mut self, mut piece: Bytes, index: usize, fault: Fault) -> Option<io::Result<Bytes>> {
        match fault {
            Fault::Drop(When::Piece(at)) if at == index => {
                tokio::time::sleep(FLUSH).await;
                self.switch.close();
                pending().await
            }
            Fault::Reset(When::Piece(at)) if at == index => {
                tokio::time::sleep(FLUSH).await;
                self.switch.reset();
                pending().await
            }
            Fault::Freeze(When::Piece(at)) if at == index => {
                tokio::time::sleep(FLUSH).await;
                self.switch.freeze();
                pending().await
            }
            Fault::Silence(When::Piece(at)) if at == index => pending().await,
            Fault::Truncate(at) if at == index => {
                self.ending = Some(Ending::Broken);
                Some(Ok(piece.split_to(piece.len() / 2)))
            }
            Fault::End(at) if at == index => None,
            Fault::Garbage(at, garbage) if at == index => Some(Ok(self.garbage(&piece, garbage))),
            _ => Some(Ok(piece)),
        }
    }

    fn garbage(&self, piece: &Bytes, garbage: Garbage) -> Bytes {
        match (self.shape, garbage) {
            (Shape { media: Media::Protobuf, watch: true }, Garbage::Content) => {
                let noise = piece.iter().skip(4).map(|byte| byte ^ 0xa5);
                piece.iter().take(4).copied().chain(noise).collect()
            }
            (Shape { media: Media::Json, watch: true }, Garbage::Content) => {
                Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":7}\n")
            }
            (Shape { media: Media::Protobuf, .. }, _) => Bytes::from_static(&[0xff; 16]),
            (Shape { media: Media::Json, .. }, _) => Bytes::from_static(b"}}}}\n"),
        }
    }
}

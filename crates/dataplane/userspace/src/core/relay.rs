//! Copies bytes between a client and an endpoint until both directions have ended.
//!
//! Small messages go through one buffer that all connections of a worker share, so that an idle connection holds none. A stream that fills the
//! buffer moves through a pipe with `splice(2)` instead, without being copied to user space.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::counters::Number;
use super::pipe::Pipe;

/// The buffer of a worker. A read that fills it makes the stream a bulk transfer.
const BUFFER: usize = 64 << 10;

/// A bulk transfer that moves less than this at once goes back to the buffer: two calls and a pipe cost more than a small copy.
const BULK: usize = 16 << 10;

/// Steps of one direction before other connections of the worker have their turn.
const BURST: usize = 16;

/// A connection of which one direction has ended is closed after this long without a byte in the other.
pub(super) const HALF_CLOSED: Duration = Duration::from_secs(600);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into());
}

/// Copies in both directions. The end of one is passed on and the other goes on; a reset is passed on as a reset.
pub(crate) struct Relay<'a> {
    client: TcpStream,
    endpoint: TcpStream,
    up: Direction<'a>,
    down: Direction<'a>,
    half_closed: Option<Pin<Box<Sleep>>>,
}

/// One direction.
struct Direction<'a> {
    pending: Pending,
    bulk: bool,
    state: State,
    /// Something moved since the timer of half-closed connections was set.
    moved: bool,
    bytes: &'a Number,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum State {
    Open,
    /// The sender has ended; bytes may still be on their way.
    Ending,
    /// The receiver knows.
    Ended,
}

/// What was read and not yet written.
enum Pending {
    Nothing,
    Bytes { bytes: Box<[u8]>, written: usize },
    Piped { pipe: Pipe, count: usize },
}

impl<'a> Relay<'a> {
    pub(crate) fn new(
        client: TcpStream,
        endpoint: TcpStream,
        to_endpoint: &'a Number,
        to_client: &'a Number,
    ) -> Self {
        let direction = |bytes| Direction {
            pending: Pending::Nothing,
            bulk: false,
            state: State::Open,
            moved: false,
            bytes,
        };
        Relay { client, endpoint, up: direction(to_endpoint), down: direction(to_client), half_closed: None }
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Relay { client, endpoint, up, down, .. } = self;
        let up = up.poll(cx, client, endpoint, down.state)?;
        let down = down.poll(cx, endpoint, client, self.up.state)?;
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => self.poll_half_closed(cx),
        }
    }

    fn poll_half_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let timer = self.half_closed.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED)));
        while timer.as_mut().poll(cx).is_ready() {
            let moved = std::mem::take(&mut self.up.moved) | std::mem::take(&mut self.down.moved);
            if !moved {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(Instant::now() + HALF_CLOSED);
        }
        Poll::Pending
    }
}

impl Future for Relay<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(self.poll_both(cx));
        if outcome.is_err() {
            // Both peers see a reset, so that neither takes what it has for all there is. If that fails, they see an end.
            let _ = self.client.set_zero_linger();
            let _ = self.endpoint.set_zero_linger();
        }
        Poll::Ready(outcome)
    }
}

impl Direction<'_> {
    /// Ready when the receiver knows that the sender has ended, or is about to: closing says so, too, once the `other` direction has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        other: State,
    ) -> Poll<io::Result<()>> {
        for _ in 0..BURST {
            ready!(self.poll_flush(cx, to))?;
            match self.state {
                State::Ended => return Poll::Ready(Ok(())),
                State::Ending => {
                    self.state = State::Ended;
                    return Poll::Ready(if other == State::Ended { Ok(()) } else { end(to) });
                }
                State::Open => {}
            }
            match ready!(self.poll_transfer(cx, from, to))? {
                0 => self.state = State::Ending,
                count => {
                    self.moved = true;
                    self.bytes.add(count as u64);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what is pending.
    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            let written = match &self.pending {
                Pending::Nothing => return Poll::Ready(Ok(())),
                Pending::Bytes { bytes, written } => {
                    ready!(to.poll_write_ready(cx))?;
                    to.try_write(bytes.get(*written..).unwrap_or_default())
                }
                Pending::Piped { pipe, count } => {
                    ready!(to.poll_write_ready(cx))?;
                    to.try_io(Interest::WRITABLE, || pipe.drain(to, *count))
                }
            };
            match written {
                Ok(count) => self.flushed(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn flushed(&mut self, more: usize) {
        self.pending = match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Bytes { bytes, written } if written + more < bytes.len() => {
                Pending::Bytes { bytes, written: written + more }
            }
            Pending::Piped { pipe, count } if more < count => Pending::Piped { pipe, count: count - more },
            Pending::Piped { pipe, .. } => {
                pipe.put_back();
                Pending::Nothing
            }
            _ => Pending::Nothing,
        };
    }

    /// Reads once and writes what the receiver takes at once; the rest is pending. Nothing is pending before. 0 is the end.
    fn poll_transfer(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> Poll<io::Result<usize>> {
        if self.bulk
            && let Ok(mut pipe) = Pipe::take()
        {
            loop {
                if from.poll_read_ready(cx)?.is_pending() {
                    pipe.put_back();
                    return Poll::Pending;
                }
                match self.splice(from, pipe) {
                    Ok(count) => return Poll::Ready(Ok(count)),
                    // Not readable after all.
                    Err((error, empty)) if error.kind() == io::ErrorKind::WouldBlock => pipe = empty,
                    Err((error, _)) => return Poll::Ready(Err(error)),
                }
            }
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            // A read that does not fill the buffer has emptied the socket, which saves the call that would say so.
            ready!(Pin::new(from).poll_read(cx, &mut buffer))?;
            let bytes = buffer.filled();
            self.bulk = bytes.len() == BUFFER;
            if bytes.is_empty() {
                return Poll::Ready(Ok(0));
            }
            let written = match Pin::new(to).poll_write(cx, bytes) {
                Poll::Ready(written) => written?,
                Poll::Pending => 0,
            };
            if let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
                self.pending = Pending::Bytes { bytes: rest.into(), written: 0 };
            }
            Poll::Ready(Ok(bytes.len()))
        })
    }

    /// Fills an empty pipe; a failure gives it back.
    fn splice(&mut self, from: &TcpStream, pipe: Pipe) -> Result<usize, (io::Error, Pipe)> {
        match from.try_io(Interest::READABLE, || pipe.fill(from)) {
            Ok(0) => {
                pipe.put_back();
                Ok(0)
            }
            Ok(count) => {
                self.bulk = count >= BULK;
                self.pending = Pending::Piped { pipe, count };
                Ok(count)
            }
            Err(error) => Err((error, pipe)),
        }
    }
}

/// Passes an end on. A receiver that is gone already needs no notice; if it was reset, reading from it says so.
fn end(to: &TcpStream) -> io::Result<()> {
    match shutdown(to.as_raw_fd(), Shutdown::Write) {
        Ok(()) | Err(nix::errno::Errno::ENOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

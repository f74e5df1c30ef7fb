//! One direction of a connection.
//!
//! Small messages go through one buffer that all connections of a worker share, so that an idle connection holds none. A stream that fills the
//! buffer moves through a pipe with `splice(2)` instead, without being copied to user space.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::core::counters::Number;
use crate::core::pipe::Pipe;

/// The buffer of a worker. A read that fills it makes the stream a bulk transfer.
const BUFFER: usize = 64 << 10;

/// A bulk transfer that moves less than this at once goes back to the buffer: two calls and a pipe cost more than a small copy.
const BULK: usize = 16 << 10;

/// Steps of one direction before other connections of the worker have their turn.
const BURST: usize = 16;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into());
}

/// Copies from one stream to the other.
#[derive(Debug, Default)]
pub(super) struct Direction {
    pending: Pending,
    bulk: bool,
    state: State,
    moved: bool,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(super) enum State {
    #[default]
    Open,
    /// The sender has ended; bytes may still be on their way.
    Ending,
    /// The receiver knows.
    Ended,
}

/// What was read and not yet written.
#[derive(Debug, Default)]
enum Pending {
    #[default]
    Nothing,
    Bytes {
        bytes: Box<[u8]>,
        written: usize,
    },
    Piped {
        pipe: Pipe,
        count: usize,
    },
}

impl Direction {
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Whether bytes moved since this was last asked.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Ready when the receiver knows that the sender has ended, or is about to: closing says so, too, once the `other` direction has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
        other: State,
        bytes: &Number,
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
                    bytes.add(count as u64);
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

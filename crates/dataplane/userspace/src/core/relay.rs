//! Copies bytes between a client and an endpoint until both directions have ended.

mod direction;
#[cfg(test)]
mod tests;

use std::io;
use std::net::TcpStream as StdStream;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;

use super::clock::{PERIOD, Tick};
use super::counters::Counters;
use super::socket::{acknowledge_now, keep_alive};
use direction::{Direction, State};

/// A connection of which one direction has ended is closed after this long without a byte in the other.
const HALF_CLOSED: Duration = Duration::from_secs(600);

/// A connection that has moved bytes this often is expected to last.
const LASTING: u8 = 8;

/// Copies in both directions. The end of one is passed on and the other goes on; a reset is passed on as a reset.
#[derive(Debug)]
pub(crate) struct Relay {
    client: TcpStream,
    endpoint: TcpStream,
    up: Direction,
    down: Direction,
    /// Whether the endpoint has the last packet of the handshake. It goes out with the client's first bytes if there are any.
    acknowledged: bool,
    /// How often bytes moved, up to [`LASTING`].
    moves: u8,
    /// Whether the kernel checks that the endpoint is still there. Only a connection that lives to see a tick needs that.
    kept_alive: bool,
    tick: Option<Tick>,
    /// Ticks without a byte since one direction has ended.
    idle: u32,
}

/// What became of a connection.
#[derive(Debug)]
pub(crate) enum Step {
    /// It seems to last: now is the time to choose a worker for it. Reported once.
    Lasting,
    /// Both directions have ended, or one has failed.
    Ended(io::Result<()>),
}

/// A relay that no worker has.
#[derive(Debug)]
pub(crate) struct Parked {
    client: StdStream,
    endpoint: StdStream,
    up: Direction,
    down: Direction,
    kept_alive: bool,
}

impl Relay {
    /// Both are connected.
    pub(crate) fn new(client: TcpStream, endpoint: TcpStream) -> Self {
        Relay {
            client,
            endpoint,
            up: Direction::default(),
            down: Direction::default(),
            acknowledged: false,
            moves: 0,
            kept_alive: false,
            tick: None,
            idle: 0,
        }
    }

    /// Moves what can be moved now.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, counters: &Counters) -> Poll<Step> {
        let outcome = match self.poll_both(cx, counters) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                let moved = self.take_moved();
                if moved && self.moves < LASTING {
                    self.moves += 1;
                    if self.moves == LASTING {
                        return Poll::Ready(Step::Lasting);
                    }
                }
                match self.wait_for_tick(cx, moved) {
                    Ok(()) => return Poll::Pending,
                    Err(error) => Err(error),
                }
            }
        };
        if outcome.is_err() {
            // Both peers see a reset, so that neither takes what it has for all there is. If that fails, they see an end.
            let _ = self.client.set_zero_linger();
            let _ = self.endpoint.set_zero_linger();
        }
        Poll::Ready(Step::Ended(outcome))
    }

    /// Takes the relay from its worker, so that another one can go on with it.
    pub(crate) fn park(self) -> io::Result<Parked> {
        let Relay { client, endpoint, up, down, kept_alive, .. } = self;
        Ok(Parked { client: client.into_std()?, endpoint: endpoint.into_std()?, up, down, kept_alive })
    }

    fn poll_both(&mut self, cx: &mut Context<'_>, counters: &Counters) -> Poll<io::Result<()>> {
        let Relay { client, endpoint, up, down, .. } = self;
        let up = up.poll(cx, client, endpoint, down.state(), &counters.bytes_to_endpoints)?;
        let down = down.poll(cx, endpoint, client, self.up.state(), &counters.bytes_to_clients)?;
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// Whether bytes moved since this was last asked. The first time, it completes the handshake with the endpoint if they did not.
    fn take_moved(&mut self) -> bool {
        let up = self.up.take_moved();
        if !std::mem::replace(&mut self.acknowledged, true) && !up && self.up.state() == State::Open {
            // If that fails, the kernel does so a moment later.
            let _ = acknowledge_now(&self.endpoint);
        }
        up | self.down.take_moved()
    }

    /// Does what is due at a tick, and awaits the next one if that has something to do.
    fn wait_for_tick(&mut self, cx: &mut Context<'_>, moved: bool) -> io::Result<()> {
        let half_closed = self.up.state() == State::Ended || self.down.state() == State::Ended;
        if moved {
            self.idle = 0;
        }
        if self.tick.as_ref().is_some_and(|tick| !tick.passed()) {
            return Ok(());
        }
        if self.tick.take().is_some() {
            if !std::mem::replace(&mut self.kept_alive, true) {
                // If that fails, only an endpoint that vanishes without a word is missed.
                let _ = keep_alive(&self.endpoint);
            }
            if half_closed {
                self.idle += 1;
                if PERIOD * self.idle > HALF_CLOSED {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
        if !self.kept_alive || half_closed {
            self.tick = Some(Tick::next(cx.waker()));
        }
        Ok(())
    }
}

impl Parked {
    /// Goes on, on the worker that calls this.
    pub(crate) fn resume(self) -> io::Result<Relay> {
        let Parked { client, endpoint, up, down, kept_alive } = self;
        let (client, endpoint) = (TcpStream::from_std(client)?, TcpStream::from_std(endpoint)?);
        Ok(Relay { up, down, acknowledged: true, moves: LASTING, kept_alive, ..Relay::new(client, endpoint) })
    }
}

//! One question and its answer on one socket, as a state machine that never waits.
//!
//! A single probe drives one of them, a load generator hundreds at a time.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Transport;
use super::errors;
use super::outcome::{Answer, Outcome, Refusal};
use super::socket::{Socket, Source};
use super::wire;
use crate::netns::Namespace;

/// A socket with a question under way.
#[derive(Debug)]
pub(super) struct Dialogue {
    socket: Socket,
    stage: Stage,
    number: u32,
    received: Vec<u8>,
    deadline: Instant,
    /// An outcome that was known before anything could be waited for.
    early: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The handshake is not over; the question is still to be sent.
    Connecting,
    /// The question is sent.
    Asked,
}

impl Dialogue {
    /// Opens a socket and starts.
    pub(super) fn start(
        namespace: &Namespace,
        transport: Transport,
        source: Source,
        target: SocketAddr,
        deadline: Instant,
    ) -> Result<Dialogue> {
        let (socket, error) = Socket::connect(namespace, transport, source, target)?;
        let (number, received) = (0, Vec::new());
        let mut dialogue =
            Dialogue { socket, stage: Stage::Connecting, number, received, deadline, early: None };
        if let Some(error) = error {
            let name = namespace.name();
            dialogue.early = Some(
                dialogue.failure(error).with_context(|| format!("cannot speak to {target} from {name}"))?,
            );
        } else if transport == Transport::Udp {
            dialogue.early = dialogue.ask()?;
        }
        Ok(dialogue)
    }

    /// Asks once more on the same socket.
    pub(super) fn again(&mut self, deadline: Instant) -> Result<()> {
        self.deadline = deadline;
        self.number += 1;
        self.early = self.ask()?;
        Ok(())
    }

    /// The address it speaks from, if it has one.
    pub(super) fn client(&self) -> Option<SocketAddr> {
        self.socket.local_address().ok()
    }

    /// When it gives up.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What to wait for before the next [`advance`](Self::advance).
    pub(super) fn interest(&self) -> PollFd<'_> {
        let flags = match self.stage {
            Stage::Connecting => PollFlags::POLLOUT,
            Stage::Asked => PollFlags::POLLIN,
        };
        PollFd::new(self.socket.as_fd(), flags)
    }

    /// Advances as far as possible without waiting. Returns the outcome, once there is one.
    pub(super) fn advance(&mut self, now: Instant) -> Result<Option<Outcome>> {
        if let Some(outcome) = self.early.take() {
            return Ok(Some(outcome));
        }
        if let Some(outcome) = self.error()? {
            return Ok(Some(outcome));
        }
        let mut outcome = None;
        if self.stage == Stage::Connecting && self.is_connected() {
            outcome = self.ask()?;
        }
        if self.stage == Stage::Asked && outcome.is_none() {
            outcome = self.listen()?;
        }
        if outcome.is_some() {
            return Ok(outcome);
        }
        Ok((now >= self.deadline).then(|| self.silence()))
    }

    /// Advances until there is an outcome.
    pub(super) fn finish(&mut self) -> Result<Outcome> {
        loop {
            let now = Instant::now();
            if let Some(outcome) = self.advance(now)? {
                return Ok(outcome);
            }
            wait(&mut [self.interest()], self.deadline)?;
        }
    }

    /// Sends the question; an outcome if that already fails.
    fn ask(&mut self) -> Result<Option<Outcome>> {
        self.stage = Stage::Asked;
        match self.socket.send(&wire::question(self.number)) {
            Ok(()) => Ok(None),
            // A rule in this host's own output path discarded it; whether with an ICMP message is still to be seen.
            Err(Errno::EPERM) => Ok(None),
            Err(error) => self.failure(error).map(Some),
        }
    }

    /// Reads what has come; an outcome if it is the answer or the end.
    fn listen(&mut self) -> Result<Option<Outcome>> {
        loop {
            match self.socket.receive(&mut self.received) {
                Ok(0) if self.socket.transport().has_connections() => return Ok(Some(Outcome::Closed)),
                Ok(_) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(error) => return self.failure(error).map(Some),
            }
            while let Some(line) = wire::take_line(&mut self.received) {
                let read = wire::read(&line)?;
                if read.number == self.number {
                    return self.answered(read).map(Some);
                }
            }
        }
    }

    fn answered(&self, read: wire::Read) -> Result<Outcome> {
        let client = self.socket.local_address().context("cannot learn the client's own address")?;
        let wire::Read { host, endpoint, source, .. } = read;
        Ok(Outcome::Answered(Answer { host, endpoint, source, client }))
    }

    /// The outcome of an error that is waiting in the socket. ICMP goes first: it also leaves a plain error.
    fn error(&mut self) -> Result<Option<Outcome>> {
        match errors::next_icmp(&self.socket) {
            Some(Errno::ECONNREFUSED) => Ok(Some(Outcome::Refused(Refusal::PortUnreachable))),
            Some(error) => Ok(Some(Outcome::Unreachable(error))),
            None => self.socket.take_error().map(|error| self.failure(error)).transpose(),
        }
    }

    fn is_connected(&self) -> bool {
        match &self.socket {
            Socket::Stream(stream, _) => stream.peer_addr().is_ok(),
            Socket::Udp(_) => true,
        }
    }

    /// What it means that nothing has come.
    fn silence(&self) -> Outcome {
        match (self.stage, self.socket.transport()) {
            (Stage::Asked, transport) if transport.has_connections() => Outcome::Stalled,
            _ => Outcome::Dropped,
        }
    }

    /// What an error of the socket means; errors that say nothing about the network are errors of the test.
    fn failure(&self, error: Errno) -> Result<Outcome> {
        let transport = self.socket.transport();
        Ok(match (error, self.stage) {
            (Errno::ECONNREFUSED, _) if transport == Transport::Udp => {
                Outcome::Refused(Refusal::PortUnreachable)
            }
            (Errno::ECONNREFUSED, _) => Outcome::Refused(Refusal::Reset),
            (Errno::ECONNRESET | Errno::EPIPE, _) => Outcome::Reset,
            // This host ended the socket, as mode ebpf does when the endpoint of a connected UDP socket leaves: those who wait are woken, and
            // those who send find it without a peer.
            (Errno::ECONNABORTED | Errno::EDESTADDRREQ, _) => Outcome::Reset,
            (Errno::ETIMEDOUT, _) => self.silence(),
            (Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EPROTO, _) => {
                Outcome::Unreachable(error)
            }
            (error, stage) => {
                return Err(error).with_context(|| format!("a {transport:?} socket failed, {stage:?}"));
            }
        })
    }
}

/// Waits until one of them is ready or the deadline has come.
pub(super) fn wait(sockets: &mut [PollFd<'_>], deadline: Instant) -> Result<()> {
    // Rounded up: rounding down would spin through the last millisecond.
    let left = deadline.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(sockets, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for sockets"),
    }
}

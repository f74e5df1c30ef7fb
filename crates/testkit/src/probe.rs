//! Traffic: servers that say who they are, clients that say what became of a packet.
//!
//! A client sends one numbered line; a server answers with that number, its host's name, the address it was reached
//! at and the source it saw. Everything else a dataplane can do to a packet shows as a failure of some kind, and
//! [`Outcome`] keeps the kinds apart.

mod client;
mod connection;
mod dialogue;
mod errors;
mod load;
mod outcome;
mod server;
mod socket;
pub mod uniformity;
mod wire;

pub use client::Probe;
pub use connection::{Connection, Exchanging};
pub use load::{Ended, Load, Tally};
pub use outcome::{Answer, Outcome, Refusal};
pub use server::{Behaviour, Servers};

use nix::sys::socket::{SockProtocol, SockType};

/// What a probe speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP, one association at a time on a socket, as TCP has it. Only some kernels speak it.
    Sctp,
}

impl Transport {
    /// Whether there are connections, with a beginning and an end.
    pub(crate) fn has_connections(self) -> bool {
        matches!(self, Transport::Tcp | Transport::Sctp)
    }

    /// What the socket call needs: its type, and its protocol where the type does not say it.
    pub(crate) fn socket_type(self) -> (SockType, Option<SockProtocol>) {
        match self {
            Transport::Tcp => (SockType::Stream, None),
            Transport::Udp => (SockType::Datagram, None),
            Transport::Sctp => (SockType::Stream, Some(SockProtocol::Sctp)),
        }
    }
}

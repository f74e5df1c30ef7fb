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

/// What a probe speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

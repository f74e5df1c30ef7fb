//! The nftables dataplane: a constant number of rules, everything that varies in a few hash maps, straight over netlink.
//!
//! `docs/nftables.md` explains the layout and the measurements behind it. [`chains`] holds the rules, [`sets`] the maps, [`route`] the
//! values that lead from one to the other, [`lists`] the endpoints, [`installed`] what the kernel has acknowledged.

mod chains;
mod counted;
mod dataplane;
mod entries;
mod error;
mod installed;
mod kernel;
mod lists;
mod localhost;
mod numbers;
mod phrase;
mod plan;
mod ports;
mod probe;
mod route;
mod sets;

pub use dataplane::{Nftables, Options, cleanup};
pub use error::Error;
pub use kernel::Watch;
pub use localhost::localhost_rejected_packets;

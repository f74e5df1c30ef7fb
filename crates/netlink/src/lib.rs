//! The one door to the kernel: netlink sockets and codecs.
//!
//! [`Socket`] speaks to one netlink protocol. On top of it, [`nftables`] holds a ruleset as values and
//! commits [`nftables::Transaction`]s. Nothing here knows of Kubernetes.

pub mod error;
pub mod nftables;
pub mod socket;
mod sys;
pub mod wire;

pub use error::{Error, Result};
pub use nix::errno::Errno;
pub use socket::{Protocol, Socket};

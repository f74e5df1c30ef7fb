//! The one door to the kernel: netlink sockets and codecs.
//!
//! [`Socket`] speaks to one netlink protocol. On top of it, [`nftables`] holds a ruleset as values and commits
//! [`nftables::Transaction`]s, [`conntrack`] lists and deletes flows, [`route`] lists, watches and changes links and
//! addresses, [`nfacct`] keeps named counters, [`ipset`] keeps sets, [`ipvs`] virtual servers, and
//! [`sock_diag`] ends sockets of other processes. [`memory`]
//! returns free memory to the kernel. Nothing here knows of Kubernetes.

pub mod capabilities;
pub mod clock;
pub mod conntrack;
pub mod error;
mod family;
mod generic;
pub mod ipset;
pub mod ipvs;
pub mod memory;
pub mod nfacct;
pub mod nftables;
pub mod process;
pub mod route;
pub mod sock_diag;
pub mod socket;
mod sys;
pub mod wire;

pub use error::{Error, Result};
pub use family::IpFamily;
pub use nix::errno::Errno;
pub use socket::{Protocol, Socket};

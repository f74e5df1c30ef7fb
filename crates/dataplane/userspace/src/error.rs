//! What can go wrong, and what to do about it.

use std::io;

use portwarden_model::Family;

/// Why Services could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The threads that move bytes could not be started.
    #[error("cannot start the threads of the userspace proxy")]
    Start(#[source] io::Error),
    /// No connection to nf_tables.
    #[error("cannot reach nf_tables (it needs root or CAP_NET_ADMIN, and a kernel with CONFIG_NF_TABLES)")]
    Open(#[source] portwarden_netlink::Error),
    /// The rules could not be read.
    #[error("cannot read the redirection rules of {family}")]
    Read {
        /// The IP family of the rules.
        family: Family,
        /// The kernel's error.
        source: portwarden_netlink::Error,
    },
    /// The rules could not be written; they are as before.
    #[error(
        "the kernel refused the redirection rules of {family}; they are as before, and Portwarden tries again"
    )]
    Commit {
        /// The IP family of the rules.
        family: Family,
        /// The kernel's error.
        source: portwarden_netlink::Error,
    },
    /// The rules could not be removed.
    #[error("cannot remove the redirection rules of {family}")]
    Cleanup {
        /// The IP family of the rules.
        family: Family,
        /// The kernel's error.
        source: portwarden_netlink::Error,
    },
    /// Loopback addresses cannot be the target of redirected packets.
    #[error(
        "--bind-address {0} is a loopback address; mode userspace needs an address that other hosts reach, or 0.0.0.0 or ::"
    )]
    LoopbackBindAddress(std::net::IpAddr),
}

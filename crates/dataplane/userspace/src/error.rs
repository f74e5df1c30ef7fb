//! What can go wrong, and what to do about it.

use std::io;

use portwarden_model::Family;

use crate::redirect::RedirectError;

/// Why Services could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The threads that move bytes could not be started.
    #[error("cannot start the threads of the userspace proxy")]
    Start(#[source] io::Error),
    /// The means of redirection that was asked for does not work.
    #[error("connections cannot be redirected")]
    Open(#[source] RedirectError),
    /// Neither nf_tables nor iptables works.
    #[error(
        "connections can be redirected neither by nf_tables ({nftables}) nor by iptables ({iptables}); mode userspace needs root or CAP_NET_ADMIN, and a kernel with CONFIG_NF_TABLES, or the iptables programs and the modules iptable_nat and ip6table_nat"
    )]
    NoRedirection {
        /// Why nf_tables does not work.
        nftables: Box<RedirectError>,
        /// Why the iptables programs do not work.
        iptables: Box<RedirectError>,
    },
    /// The rules could not be read.
    #[error("cannot read the redirection rules of {family}")]
    Read {
        /// The IP family of the rules.
        family: Family,
        /// The error of the kernel or of a program.
        source: RedirectError,
    },
    /// The rules could not be written; they are as before.
    #[error(
        "the kernel refused the redirection rules of {family}; they are as before, and Portwarden tries again"
    )]
    Commit {
        /// The IP family of the rules.
        family: Family,
        /// The error of the kernel or of a program.
        source: RedirectError,
    },
    /// The rules could not be removed.
    #[error("cannot remove the redirection rules of {family}")]
    Cleanup {
        /// The IP family of the rules.
        family: Family,
        /// The error of the kernel or of a program.
        source: RedirectError,
    },
    /// Loopback addresses cannot be the target of redirected packets.
    #[error(
        "--bind-address {0} is a loopback address; mode userspace needs an address that other hosts reach, or 0.0.0.0 or ::"
    )]
    LoopbackBindAddress(std::net::IpAddr),
}

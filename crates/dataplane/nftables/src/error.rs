//! What can go wrong, and what to do about it.

use portwarden_model::Family;

/// Why the kernel could not be brought to the desired state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection to nf_tables.
    #[error(
        "cannot reach nf_tables for {family} (root or CAP_NET_ADMIN is needed, and a kernel with CONFIG_NF_TABLES)"
    )]
    Open {
        /// The family.
        family: Family,
        /// Why.
        source: portwarden_netlink::Error,
    },
    /// The kernel lacks something.
    #[error("the kernel cannot do {feature} for {family}: it needs {needs}, or use another --proxy-mode")]
    Unsupported {
        /// The family.
        family: Family,
        /// What was tried.
        feature: &'static str,
        /// What would help.
        needs: &'static str,
        /// What the kernel said.
        source: portwarden_netlink::Error,
    },
    /// The state of the table could not be read.
    #[error("cannot read the nftables table of {family}")]
    Read {
        /// The family.
        family: Family,
        /// Why.
        source: portwarden_netlink::Error,
    },
    /// A transaction was refused; the kernel is as before.
    #[error("the kernel refused the rules for {family}; they are as before and the change is tried again")]
    Commit {
        /// The family.
        family: Family,
        /// The object and the kernel's reason.
        source: portwarden_netlink::Error,
    },
    /// A Service cannot be expressed.
    #[error("cannot write a service for {family}: {text}")]
    Refused {
        /// The family.
        family: Family,
        /// The Service and the reason.
        text: String,
    },
    /// A table could not be removed.
    #[error("cannot remove the nftables table of {family}")]
    Cleanup {
        /// The family.
        family: Family,
        /// Why.
        source: portwarden_netlink::Error,
    },
}

/// Why a Service cannot be put into the kernel at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// A list is too long.
    #[error("port {port} has {count} endpoints; at most {limit} fit")]
    Endpoints {
        /// The port.
        port: String,
        /// How many it has.
        count: usize,
        /// How many it may have.
        limit: usize,
    },
    /// All numbers for lists are in use.
    #[error("no more than {limit} lists of endpoints fit")]
    Lists {
        /// How many there can be.
        limit: u32,
    },
    /// All numbers for sticky service ports are in use.
    #[error("no more than {limit} service ports with session affinity fit")]
    StickyPorts {
        /// How many there can be.
        limit: u32,
    },
    /// All classes for affinity are in use.
    #[error("too many different session affinity timeouts in the cluster; one of {timeout} s does not fit")]
    Timeouts {
        /// The timeout in seconds.
        timeout: u32,
    },
}

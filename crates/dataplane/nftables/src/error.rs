//! The errors of this crate. Each message says what was tried and what to do.

use portwarden_model::{Family, NamespacedName};

/// Why the kernel could not be brought to the desired state.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum Error {
    /// There is no connection to nf_tables.
    #[error(
        "cannot reach nf_tables for {family} (root or CAP_NET_ADMIN is needed, and a kernel with CONFIG_NF_TABLES)"
    )]
    Open { family: Family, source: portwarden_netlink::Error },
    /// Changes by other processes could not be detected.
    #[error("cannot subscribe to changes of nftables rules")]
    Subscribe { source: portwarden_netlink::Error },
    /// The kernel lacks a feature.
    #[error("the kernel cannot do {feature} for {family}: it needs {needs}, or use another --proxy-mode")]
    Unsupported {
        family: Family,
        feature: &'static str,
        needs: &'static str,
        source: portwarden_netlink::Error,
    },
    /// The state of the table is unknown.
    #[error("cannot read the nftables table of {family}")]
    Read { family: Family, source: portwarden_netlink::Error },
    /// The kernel refused a transaction, and has none of it.
    #[error("the kernel refused the rules for {family}; they are unchanged and the change is tried again")]
    Commit { family: Family, source: portwarden_netlink::Error },
    /// A Service exceeds a limit of the layout.
    #[error("cannot write {service} for {family}: {reason}")]
    Unfit { family: Family, service: NamespacedName, reason: String },
    /// The dataplane was built without this family.
    #[error("the nftables dataplane was not started for {family}")]
    Family { family: Family },
    /// A table could not be removed.
    #[error("cannot remove the nftables table of {family}")]
    Cleanup { family: Family, source: portwarden_netlink::Error },
}

/// Why a Service does not fit into the layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("port {port} has {count} endpoints; at most {limit} fit")]
    Endpoints { port: String, count: usize, limit: usize },
    #[error("no more than {limit} lists of endpoints fit")]
    Lists { limit: u32 },
    #[error("no more than {limit} service ports with session affinity fit")]
    StickyPorts { limit: u32 },
    #[error("too many different session affinity timeouts in the cluster; one of {timeout} s does not fit")]
    Timeouts { timeout: u32 },
}

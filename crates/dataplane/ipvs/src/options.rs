//! What the operator chooses.

use std::time::Duration;

use ipnet::IpNet;
use portwarden_xtables::Variant;

/// What the operator chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Name of the scheduler of every virtual server.
    pub scheduler: String,
    /// Virtual servers in these ranges are never deleted.
    pub exclude_cidrs: Vec<IpNet>,
    /// How often everything is compared with the kernel.
    pub sync_period: Duration,
    /// A real server that still has connections is removed after this time; `None` waits for ever.
    pub drain_limit: Option<Duration>,
    /// The packet mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// Which iptables programs to run.
    pub variant: Variant,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            scheduler: "rr".to_owned(),
            exclude_cidrs: Vec::new(),
            sync_period: Duration::from_secs(30),
            drain_limit: None,
            masquerade_mark: 1 << 14,
            variant: Variant::Installed,
        }
    }
}

impl Options {
    pub(crate) fn excludes(&self, ip: std::net::IpAddr) -> bool {
        self.exclude_cidrs.iter().any(|net| net.contains(&ip))
    }
}

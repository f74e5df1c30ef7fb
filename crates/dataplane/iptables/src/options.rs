//! Options of iptables mode alone.

use std::time::Duration;

use portwarden_xtables::Variant;

use crate::error::Error;
use crate::render::Mark;

/// Options of the iptables mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which bit of the packet mark asks for masquerading, 0 to 31.
    pub masquerade_bit: u32,
    /// Whether node ports answer on IPv4 loopback addresses, where node ports answer on loopback at all.
    pub loopback_node_ports: bool,
    /// How often we check whether another process flushed our tables.
    pub sync_period: Duration,
    /// How long a sync may keep its caller. After that it goes on in the background.
    pub sync_wait: Duration,
    /// Which implementation of iptables is used.
    pub variant: Variant,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            masquerade_bit: 14,
            loopback_node_ports: true,
            sync_period: Duration::from_secs(30),
            sync_wait: Duration::from_secs(1),
            variant: Variant::Installed,
        }
    }
}

impl Options {
    pub(crate) fn mark(&self) -> Result<Mark, Error> {
        1u32.checked_shl(self.masquerade_bit).map(Mark).ok_or(Error::MasqueradeBit(self.masquerade_bit))
    }
}

//! The proxy modes. One file per mode holds everything that differs between modes; nothing outside this folder branches on a mode.

mod ebpf;
mod iptables;
mod ipvs;
mod nftables;
mod userspace;

use std::fmt;

use crate::config::gates::Feature;
use crate::engine::ModeWords;

/// A way to program the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// Rules for `iptables-restore`.
    #[default]
    Iptables,
    /// Kernel virtual servers.
    Ipvs,
    /// An nftables table per family.
    Nftables,
    /// A proxy in user space, with redirecting rules.
    Userspace,
    /// eBPF programs, with nftables for what they leave out.
    Ebpf,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 5] = [Mode::Iptables, Mode::Ipvs, Mode::Nftables, Mode::Userspace, Mode::Ebpf];

    /// What is used when no mode was chosen, as in kube-proxy.
    pub const DEFAULT: Mode = Mode::Iptables;

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == name)
    }

    /// The name in the configuration, which `/proxyMode` shows.
    pub fn as_str(self) -> &'static str {
        self.entry().words.name
    }

    /// How the mode appears in logs and metrics.
    pub fn words(self) -> ModeWords {
        self.entry().words
    }

    /// Everything that is particular to the mode.
    pub(crate) fn entry(self) -> &'static Entry {
        match self {
            Mode::Iptables => &iptables::ENTRY,
            Mode::Ipvs => &ipvs::ENTRY,
            Mode::Nftables => &nftables::ENTRY,
            Mode::Userspace => &userspace::ENTRY,
            Mode::Ebpf => &ebpf::ENTRY,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is particular to one mode.
#[derive(Debug)]
pub(crate) struct Entry {
    /// How the mode appears in logs and metrics.
    pub(crate) words: ModeWords,
    /// Whether kube-proxy has the mode too, and lists it when it rejects an unknown name.
    pub(crate) known_to_kube_proxy: bool,
    /// The mode may only be chosen while this gate is on.
    pub(crate) gate: Option<Feature>,
    /// Why the operator should choose another mode.
    pub(crate) deprecation: Option<Deprecation>,
    /// Where the configuration file has the sync periods.
    pub(crate) periods: Section,
    /// Where the configuration file has the masquerade settings.
    pub(crate) masquerade: Section,
    /// `nodePortAddresses` when none are given; empty means all addresses.
    pub(crate) node_port_addresses: &'static [&'static str],
}

/// A section of the configuration file that several modes may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Iptables,
    Ipvs,
    Nftables,
}

/// A mode that will be removed.
#[derive(Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// The reason of the Event.
    pub reason: &'static str,
    /// What to do about it.
    pub message: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_modes_are_one_to_one() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_name(mode.as_str()), Some(mode));
        }
        for unknown in ["", "IPTables", "nftables ", "kernelspace"] {
            assert_eq!(Mode::from_name(unknown), None, "{unknown:?}");
        }
    }
}

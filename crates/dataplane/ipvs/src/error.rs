//! What can go wrong.

use portwarden_model::Family;

/// Why the kernel could not be brought to the desired state, or cannot serve this mode at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no IPVS.
    #[error(
        "this kernel has no IPVS: load it with `modprobe ip_vs`, install a kernel that is built with CONFIG_IP_VS, or choose \
         --proxy-mode=nftables"
    )]
    NoIpvs,
    /// The kernel lacks the scheduler.
    #[error(
        "this kernel has no IPVS scheduler {name:?}: load it with `modprobe ip_vs_{name}`, or choose another with --ipvs-scheduler (rr is always there)"
    )]
    NoScheduler {
        /// The scheduler that the configuration names.
        name: String,
        /// The kernel's answer.
        source: portwarden_netlink::Error,
    },
    /// The kernel lacks a type of ipset.
    #[error(
        "this kernel lacks ipset or one of its types: load ip_set, ip_set_hash_ip, ip_set_hash_ipport, ip_set_hash_ipportip, \
         ip_set_hash_ipportnet and ip_set_bitmap_port with modprobe, or choose --proxy-mode=nftables"
    )]
    NoSets {
        /// The kernel's answer.
        source: portwarden_netlink::Error,
    },
    /// The device of Service addresses could not be created.
    #[error(
        "cannot create the device kube-ipvs0: load the module with `modprobe dummy`, or choose --proxy-mode=nftables"
    )]
    Device {
        /// The kernel's answer.
        source: portwarden_netlink::Error,
    },
    /// A device of that name is something else.
    #[error(
        "the device kube-ipvs0 is of kind {kind:?} instead of dummy: another program created it; remove it with `ip link delete kube-ipvs0`"
    )]
    ForeignDevice {
        /// The kind of the existing device; ours is `dummy`.
        kind: String,
    },
    /// A kernel setting could not be written.
    #[error("cannot set {name} to {value}: write it on the host, as root, before Portwarden starts")]
    Sysctl {
        /// The setting, as a path below `/proc/sys`.
        name: &'static str,
        /// The value that this mode needs.
        value: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// An exchange with the kernel failed.
    #[error("{action} failed ({family})")]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// In which family.
        family: Family,
        /// The kernel's answer.
        source: portwarden_netlink::Error,
    },
    /// The static rules could not be read or written.
    #[error("the iptables rules of ipvs mode could not be written ({family})")]
    Rules {
        /// In which family.
        family: Family,
        /// What the programs said.
        source: portwarden_xtables::Error,
    },
}

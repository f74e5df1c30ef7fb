//! The dataplanes that are put to the test.

#![allow(dead_code, reason = "each test binary uses its part")]

mod ebpf;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use portwarden_iptables::{IptablesDataplane, Options as IptablesOptions};
use portwarden_ipvs::{Ipvs, Options as IpvsOptions};
use portwarden_model::{
    Changes, Dataplane, Desired, Family, Flow, NodePortRange, PerFamily, Protocol, StaleFlows,
};
use portwarden_netlink::IpFamily;
use portwarden_netlink::conntrack::{self, Conntrack};
use portwarden_nftables::{Nftables, Options as NftablesOptions};
use portwarden_testkit::oracle::Mode;
use portwarden_testkit::rig::{Candidate, Options};
use portwarden_testkit::scenario::Scenario;
use portwarden_userspace::{Drain, Options as UserspaceOptions, Redirection, Userspace};
use portwarden_xtables::{Programs, Variant};

/// All of them.
pub(crate) const ALL: [Candidate; 9] = [
    NFTABLES,
    IPTABLES_NFT,
    IPTABLES_LEGACY,
    IPVS,
    USERSPACE,
    USERSPACE_IPTABLES,
    EBPF,
    EBPF_UNTRACKED,
    NFTABLES_UNTRACKED,
];

/// Scenarios that mode userspace plays in user-mode Linux, too: without nf_tables, it has to redirect by iptables.
const USERSPACE_WITHOUT_NF_TABLES: [&str; 6] = [
    "cluster-ip-over-udp",
    "cluster-ip-without-endpoints-is-refused",
    "dead-endpoints-are-skipped",
    "node-port-by-localhost-in-both-families",
    "restart-with-other-services",
    "source-ranges-drop-even-without-endpoints",
];

/// Which kernel the tests run on. Not every dataplane works on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// The machine's own.
    Machine,
    /// User-mode Linux, as `scripts/uml` starts it: with IPVS and SCTP, without most of nf_tables.
    UserMode,
}

impl Kernel {
    /// The kernel that this process runs on.
    pub(crate) fn present() -> Kernel {
        if std::env::var_os("PORTWARDEN_UML").is_some() { Kernel::UserMode } else { Kernel::Machine }
    }

    /// Why a scenario runs on the other kernel, if it does.
    pub(crate) fn reason_against(self, candidate: &Candidate, scenario: &Scenario) -> Option<&'static str> {
        match (self, candidate.name, scenario.uses_sctp()) {
            (Kernel::UserMode, "ipvs", _) | (Kernel::UserMode, "iptables-legacy", true) => None,
            (Kernel::UserMode, "userspace", _)
                if USERSPACE_WITHOUT_NF_TABLES.contains(&scenario.name.as_str()) =>
            {
                None
            }
            (Kernel::UserMode, ..) => Some("runs on the machine's own kernel"),
            (Kernel::Machine, "ipvs", _) => Some("needs IPVS; scripts/test-uml runs it in user-mode Linux"),
            (Kernel::Machine, _, true) => {
                Some("needs SCTP; scripts/test-uml runs it in user-mode Linux where nf_tables is not needed")
            }
            (Kernel::Machine, ..) => None,
        }
    }
}

pub(crate) const NFTABLES: Candidate = Candidate {
    name: "nftables",
    mode: Mode {
        guards_cluster_ips: true,
        remote_hairpin: false,
        ranges_without_endpoints: true,
        refuses_own_host: true,
        localhost_node_ports: false,
        contested_frontends: false,
        dead_node_ports_everywhere: false,
        proxies: false,
        virtual_servers: false,
        at_sockets: false,
        untracked_pods: false,
    },
    node_port_addresses: &[NodePortRange::Primary],
    start: start_nftables,
    clean_flows,
    stop: |_| (),
};

pub(crate) const IPTABLES_NFT: Candidate = Candidate {
    name: "iptables-nft",
    mode: Mode {
        guards_cluster_ips: false,
        remote_hairpin: true,
        ranges_without_endpoints: false,
        refuses_own_host: false,
        localhost_node_ports: true,
        contested_frontends: true,
        dead_node_ports_everywhere: true,
        proxies: false,
        virtual_servers: false,
        at_sockets: false,
        untracked_pods: false,
    },
    node_port_addresses: &[],
    start: |options| start_iptables(options, Variant::Nft),
    clean_flows,
    stop: |_| (),
};

pub(crate) const IPTABLES_LEGACY: Candidate = Candidate {
    name: "iptables-legacy",
    start: |options| start_iptables(options, Variant::Legacy),
    ..IPTABLES_NFT
};

pub(crate) const USERSPACE: Candidate = Candidate {
    name: "userspace",
    mode: Mode { localhost_node_ports: true, proxies: true, ..NFTABLES.mode },
    node_port_addresses: &[],
    start: start_userspace,
    // The dataplane does it itself: flows lead to its sockets, not to endpoints.
    clean_flows: |_, _, _| Ok(()),
    stop: |_| (),
};

pub(crate) const EBPF: Candidate = Candidate {
    name: "ebpf",
    mode: Mode { localhost_node_ports: true, at_sockets: true, ..NFTABLES.mode },
    start: ebpf::start,
    stop: ebpf::stop,
    ..NFTABLES
};

/// Packets from pod to pod are not tracked.
pub(crate) const EBPF_UNTRACKED: Candidate = Candidate {
    name: "ebpf-untracked",
    mode: Mode { untracked_pods: true, ..EBPF.mode },
    start: ebpf::start_untracked,
    ..EBPF
};

/// The same where no program serves a socket, as for sandboxed pods: everything is left to nftables.
pub(crate) const NFTABLES_UNTRACKED: Candidate = Candidate {
    name: "nftables-untracked",
    mode: Mode { untracked_pods: true, ..NFTABLES.mode },
    start: start_nftables_untracked,
    ..NFTABLES
};

/// Redirects by iptables, as it does by itself where the kernel has no nf_tables.
pub(crate) const USERSPACE_IPTABLES: Candidate =
    Candidate { name: "userspace-iptables", start: start_userspace_iptables, ..USERSPACE };

fn start_userspace(options: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    start_redirecting(options, Redirection::Detect)
}

fn start_userspace_iptables(options: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    let lock = options.folder.join("xtables.lock");
    let programs = |family| Programs::new(family, Variant::Legacy).env("XTABLES_LOCKFILE", &lock);
    start_redirecting(options, Redirection::Iptables(Box::new(PerFamily::from_fn(programs))))
}

fn start_redirecting(options: &Options, redirection: Redirection) -> Result<Vec<Box<dyn Dataplane>>> {
    // Steps of scenarios take longer than kube-proxy's idle limit of 250 ms, and other modes remember a flow for 30 s at least.
    // On a busy machine a test with restarts takes minutes, and its connections must outlive them.
    let (udp_timeout, drain) = (Duration::from_secs(30), Duration::from_secs(900));
    let loopback_node_ports = options.localhost_node_ports;
    let own = UserspaceOptions {
        udp_timeout,
        drain,
        loopback_node_ports,
        redirection,
        ..UserspaceOptions::new(&Family::BOTH)
    };
    Ok(vec![Box::new(Userspace::new(own, Arc::default(), &Drain::default())?)])
}

/// Only on a kernel with IPVS: `scripts/uml`.
pub(crate) const IPVS: Candidate = Candidate {
    name: "ipvs",
    mode: Mode {
        guards_cluster_ips: false,
        remote_hairpin: false,
        ranges_without_endpoints: true,
        refuses_own_host: true,
        localhost_node_ports: false,
        contested_frontends: false,
        dead_node_ports_everywhere: false,
        proxies: false,
        virtual_servers: true,
        at_sockets: false,
        untracked_pods: false,
    },
    node_port_addresses: &[],
    start: start_ipvs,
    clean_flows,
    stop: |_| (),
};

fn start_ipvs(options: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    portwarden_ipvs::apply_sysctls(std::path::Path::new("/proc"), false)?;
    let own = IpvsOptions { variant: Variant::Legacy, ..IpvsOptions::default() };
    let lock = options.folder.join("xtables.lock");
    let programs = |family| Programs::new(family, Variant::Legacy).env("XTABLES_LOCKFILE", &lock);
    Ok(vec![Box::new(Ipvs::with_programs(&Family::BOTH, own, programs)?)])
}

fn start_nftables(_: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    Ok(vec![Box::new(Nftables::new(&Family::BOTH, NftablesOptions::default())?)])
}

fn start_nftables_untracked(_: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    let own = NftablesOptions { untracked_pods: true, ..NftablesOptions::default() };
    Ok(vec![Box::new(Nftables::new(&Family::BOTH, own)?)])
}

fn start_iptables(options: &Options, variant: Variant) -> Result<Vec<Box<dyn Dataplane>>> {
    // A lock of its own: tests in other namespaces must not wait for this one.
    let lock = options.folder.join("xtables.lock");
    let programs = Family::BOTH.map(|family| Programs::new(family, variant).env("XTABLES_LOCKFILE", &lock));
    let own = IptablesOptions {
        loopback_node_ports: options.localhost_node_ports,
        variant,
        ..IptablesOptions::default()
    };
    Ok(vec![Box::new(IptablesDataplane::with_programs(programs.into(), &own)?)])
}

/// As the engine does after a sync.
fn clean_flows(desired: &Desired, changes: &Changes, host: &[IpAddr]) -> Result<()> {
    let Some(stale) = StaleFlows::after(changes, desired, host) else { return Ok(()) };
    let family = match desired.family {
        Family::V4 => IpFamily::Ipv4,
        Family::V6 => IpFamily::Ipv6,
    };
    let unwanted = |flow: &conntrack::Flow| {
        let Some(protocol) = Protocol::from_number(flow.original.protocol) else { return false };
        stale.is_stale(&Flow {
            protocol,
            source: flow.original.source,
            destination: SocketAddr::new(flow.original.destination, flow.original.destination_port),
            reply_source: SocketAddr::new(flow.reply.source, flow.reply.source_port),
            answered: flow.is_answered(),
        })
    };
    match Conntrack::open()?.delete(family, unwanted)?.errors.into_iter().next() {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}

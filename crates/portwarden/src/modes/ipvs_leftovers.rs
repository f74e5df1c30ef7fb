//! What kube-proxy leaves behind in ipvs mode: chains, sets, a device with all Service addresses, and virtual servers.

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use ipnet::IpNet;
use portwarden_model::Family;
use portwarden_netlink::ipset::Sets;
use portwarden_netlink::ipvs::{Ipvs, ServerKey};
use portwarden_netlink::route::Route;
use portwarden_xtables::{Programs, RestoreError, Table, Transaction, Variant};
use tracing::{debug, info};

use crate::config::ExcludedRanges;

/// The device that holds the addresses of all Services.
const DEVICE: &str = "kube-ipvs0";

/// The jumps that iptables mode does not have: from, to, comment. All are in the filter table.
const JUMPS: [(&str, &str, &str); 5] = [
    ("INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    ("INPUT", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    ("FORWARD", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    ("INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter"),
    ("OUTPUT", "KUBE-IPVS-OUT-FILTER", "kubernetes ipvs access filter"),
];

/// The chains that iptables mode does not have; a chain comes before those that it leads to.
const CHAINS: [(Table, &str); 6] = [
    (Table::Nat, "KUBE-NODE-PORT"),
    (Table::Nat, "KUBE-LOAD-BALANCER"),
    (Table::Filter, "KUBE-NODE-PORT"),
    (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL"),
    (Table::Filter, "KUBE-IPVS-FILTER"),
    (Table::Filter, "KUBE-IPVS-OUT-FILTER"),
];

/// The sets, without their prefix.
const SETS: [&str; 17] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];

/// The longest name of a set; kube-proxy cuts off the rest.
const LONGEST: usize = 31;

/// Removes the jumps that only ipvs mode has. Comes before the removal of iptables mode's chains, to which some of them lead.
pub(super) fn remove_jumps(family: Family, variant: Variant) -> anyhow::Result<()> {
    let programs = Programs::new(family, variant);
    // Without the programs, or the table, there cannot be rules.
    if programs.check().is_err() {
        return Ok(());
    }
    for (from, to, comment) in JUMPS {
        let rule = ["-m", "comment", "--comment", comment, "-j", to];
        // Also an error if the chain that it leads to does not exist, and then there is no such rule.
        if programs.has_rule(Table::Filter, from, &rule).unwrap_or(false) {
            programs.delete_rule(Table::Filter, from, &rule).with_context(|| format!("the jump to {to}"))?;
        }
    }
    Ok(())
}

/// Empties the chains that only ipvs mode has, so that none of them leads to a chain of iptables mode any more.
pub(super) fn empty_chains(family: Family, variant: Variant) -> anyhow::Result<()> {
    let programs = Programs::new(family, variant);
    if programs.check().is_err() {
        return Ok(());
    }
    for (table, chain) in CHAINS {
        if programs.save(table, |_| false)?.has_chain(chain) {
            let mut transaction = Transaction::new();
            transaction.section(table).make_chain(chain);
            programs
                .restore(&transaction)
                .map_err(|error| anyhow!("the chain {chain} cannot be emptied: {error:?}"))?;
        }
    }
    Ok(())
}

/// Removes the chains that only ipvs mode has. Comes after the removal of iptables mode's chains, some of which lead here.
pub(super) fn remove_chains(family: Family, variant: Variant) -> anyhow::Result<()> {
    let programs = Programs::new(family, variant);
    if programs.check().is_err() {
        return Ok(());
    }
    for (table, chain) in CHAINS {
        if programs.save(table, |_| false)?.has_chain(chain) {
            let mut transaction = Transaction::new();
            transaction.section(table).delete_chain(chain);
            match programs.restore(&transaction) {
                Ok(()) => {}
                Err(RestoreError::Other(error)) => {
                    return Err(error).with_context(|| format!("the chain {chain}"));
                }
                Err(RestoreError::Lines(_)) => {
                    bail!("the chain {chain} cannot be removed; a rule still leads to it")
                }
            }
        }
    }
    Ok(())
}

/// Removes the sets that rules referred to. Comes after the rules.
pub(super) fn remove_sets() -> anyhow::Result<()> {
    let mut sets = Sets::open()?;
    let ours: Vec<String> = sets.names()?.into_iter().filter(|name| is_ours(name)).collect();
    debug!(found = ours.len(), "Looked for ipsets");
    let failures: Vec<String> = ours
        .iter()
        .filter_map(|name| sets.destroy(name).err())
        .map(|error| crate::logging::chain(&error))
        .collect();
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("; ")) }
}

/// Removes the virtual servers and then the device with the addresses of all Services. The device identifies ipvs mode: without it, virtual servers
/// belong to another program. With it they are kube-proxy's, which removes all others except those in excluded ranges.
pub(super) fn remove_device(proc: &Path, excluded: &ExcludedRanges) -> anyhow::Result<()> {
    let mut route = Route::open()?;
    let found = route.links()?.iter().any(|link| link.name == DEVICE);
    debug!(found, "Looked for {DEVICE}");
    let servers = count_virtual_servers(proc);
    if !found {
        if servers > 0 {
            info!(
                servers,
                "There are ipvs virtual servers; without {DEVICE} they are not kube-proxy's, and stay"
            );
        }
        return Ok(());
    }
    if !excluded.invalid.is_empty() {
        bail!(
            "ipvs.excludeCIDRs has entries that are not CIDRs ({}), so the virtual servers that they exclude are unknown: {DEVICE} and all \
             virtual servers stay; correct the entries and clean up again",
            excluded.invalid.join(", ")
        );
    }
    if servers > 0 {
        // First, and a failure ends it: without the device they could not be identified as kube-proxy's again.
        remove_virtual_servers(&excluded.cidrs).context("virtual servers of ipvs mode")?;
    }
    route.delete_link(DEVICE).with_context(|| format!("the device {DEVICE}"))?;
    Ok(())
}

/// How many there are. To ask by netlink would load the module where it is not in use.
fn count_virtual_servers(proc: &Path) -> usize {
    // Destinations are indented, and so is the third line of the heading; without ipvs there is no such file.
    let servers = |text: String| text.lines().skip(2).filter(|line| !line.starts_with(' ')).count();
    fs::read_to_string(proc.join("net/ip_vs")).map_or(0, servers)
}

fn remove_virtual_servers(excluded: &[IpNet]) -> anyhow::Result<()> {
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(()) };
    let (removing, staying) = split(ipvs.servers()?.into_iter().map(|server| server.key).collect(), excluded);
    debug!(removing = removing.len(), staying = staying.len(), "Looked for virtual servers of ipvs mode");
    let failures: Vec<String> = removing
        .iter()
        .filter_map(|server| ipvs.delete(server).err())
        .map(|error| crate::logging::chain(&error))
        .collect();
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("; ")) }
}

/// Which ones go, and which ones are in ranges that kube-proxy was to leave alone.
fn split(servers: Vec<ServerKey>, excluded: &[IpNet]) -> (Vec<ServerKey>, Vec<ServerKey>) {
    servers.into_iter().partition(|server| !excluded.iter().any(|net| net.contains(&server.address.ip())))
}

fn is_ours(name: &str) -> bool {
    SETS.iter().any(|set| {
        ["KUBE-", "KUBE-6-"].iter().any(|prefix| {
            let full = format!("{prefix}{set}");
            full.get(..LONGEST).unwrap_or(&full) == name
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_known_by_their_whole_names() {
        for name in [
            "KUBE-CLUSTER-IP",
            "KUBE-6-LOOP-BACK",
            "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
        ] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["KUBE-SOMETHING", "KUBE-CLUSTER-IP-2", "cluster-ip", "KUBE-6-LOAD-BALANCER-SOURCE-CIDR"]
        {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn virtual_servers_are_counted_without_asking_for_them() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(count_virtual_servers(folder.path()), 0, "no ipvs in the kernel");
        fs::create_dir(folder.path().join("net")).expect("a folder");
        let heading = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        for (servers, expected) in [
            ("", 0),
            (
                "TCP  0A60000A:0050 rr  \n  -> 0AF40005:1F90      Masq    1      0          0\nFWM  00000007 rr\n",
                2,
            ),
        ] {
            fs::write(folder.path().join("net/ip_vs"), format!("{heading}{servers}")).expect("writes");
            assert_eq!(count_virtual_servers(folder.path()), expected);
        }
    }

    #[test]
    fn ranges_to_leave_alone_are_left_alone() {
        let server = |text: &str| ServerKey { protocol: 6, address: text.parse().expect("an address") };
        let all = ["10.96.0.10:80", "192.168.0.2:30080", "172.16.0.1:443", "[fd00::1]:80"].map(server);
        let excluded = ["172.16.0.0/12", "fd00::/8"].map(|net| net.parse().expect("a range"));
        assert_eq!(split(all.to_vec(), &excluded), (all[..2].to_vec(), all[2..].to_vec()));
        assert_eq!(split(all.to_vec(), &[]), (all.to_vec(), vec![]));
    }
}

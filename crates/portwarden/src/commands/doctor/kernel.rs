//! Checks of the kernel: features, settings, what other programs left in it.

use std::fs;

use portwarden_model::Family;

use super::{Finding, Node};
use crate::host::{check_privileges, has_ipv6};
use crate::modes::Mode;

/// Shares of the conntrack table in percent.
const CROWDED: u64 = 75;
const FULL: u64 = 95;

pub(super) fn privileges(node: &Node) -> Vec<Finding> {
    vec![match check_privileges(&node.proc) {
        Ok(()) => Finding::ok("this process may change network rules"),
        Err(error) => Finding::failure("this process lacks CAP_NET_ADMIN", format!("{error}")),
    }]
}

/// The families that the host has.
fn families(node: &Node) -> Vec<Family> {
    let mut families = vec![Family::V4];
    families.extend(has_ipv6(&node.proc).then_some(Family::V6));
    families
}

pub(super) fn mode(node: &Node) -> Vec<Finding> {
    let mode = node.config.mode;
    let check = |family| match mode.check(&node.config, family) {
        Ok(()) => Finding::ok(format!("mode {mode} works for {family}")),
        Err(error) => Finding::failure(
            format!("mode {mode} does not work for {family}: {error:#}"),
            "install or load what the message names, or choose another --proxy-mode",
        ),
    };
    families(node).into_iter().map(check).collect()
}

pub(super) fn other_modes(node: &Node) -> Vec<Finding> {
    let others = Mode::ALL.into_iter().filter(|mode| *mode != node.config.mode);
    let words = others.map(|mode| {
        let failed = families(node).into_iter().find_map(|family| mode.check(&node.config, family).err());
        match failed {
            None => format!("{mode} would work"),
            Some(error) => format!("{mode} would not ({})", first_clause(&format!("{error:#}"))),
        }
    });
    vec![Finding::ok(words.collect::<Vec<_>>().join("; "))]
}

/// Messages end with advice that does not matter here.
fn first_clause(text: &str) -> &str {
    text.split(['\n', ';']).next().unwrap_or(text)
}

const LEFTOVERS_CURE: &str = "nothing, if Portwarden is about to take over: it removes them after its first sync. Otherwise stop the other \
                              proxy and run `portwarden --cleanup`";

pub(super) fn leftovers(node: &Node) -> Vec<Finding> {
    let in_force = node.config.mode;
    let mut found = Vec::new();
    let others = |mode: &Mode| !mode.shares_rules_with(in_force) && !mode.uses_rules_of_another();
    for mode in Mode::ALL.into_iter().filter(others) {
        for family in families(node) {
            let Ok(Some(mut kernel)) = mode.read_back(family) else { continue };
            if let Some(what) = kernel.unreadable() {
                found.push(Finding::warning(
                    format!("the kernel has {what} of another program, presumably kube-proxy in mode {mode} ({family})"),
                    LEFTOVERS_CURE,
                ));
            }
            match kernel.frontends() {
                Ok(frontends) if !frontends.is_empty() => found.push(Finding::warning(
                    format!(
                        "the kernel has rules of mode {mode} for {} addresses of Services ({family})",
                        frontends.len()
                    ),
                    LEFTOVERS_CURE,
                )),
                _ => {}
            }
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("no rules of other modes"));
    }
    found
}

pub(super) fn iptables_variants(node: &Node) -> Vec<Finding> {
    let legacy: Vec<&str> = [("net/ip_tables_names", "IPv4"), ("net/ip6_tables_names", "IPv6")]
        .into_iter()
        .filter(|(file, _)| {
            fs::read_to_string(node.proc.join(file)).is_ok_and(|names| !names.trim().is_empty())
        })
        .map(|(_, family)| family)
        .collect();
    let mut programs = portwarden_xtables::Programs::new(Family::V4, portwarden_xtables::Variant::Installed);
    let installed = programs.detect_variant();
    vec![match (installed, legacy.as_slice()) {
        (Err(_), []) => Finding::ok("no iptables is installed, and there are no legacy tables"),
        (Err(_), _) => Finding::ok("no iptables is installed; the kernel has legacy tables"),
        (Ok(portwarden_xtables::Variant::Nft), [_, ..]) => Finding::warning(
            format!(
                "iptables is the nft variant, but the kernel also has legacy tables ({})",
                legacy.join(", ")
            ),
            "find who writes them (`iptables-legacy-save`), and let all programs of the node use the same variant \
             (`update-alternatives --config iptables`)",
        ),
        (Ok(variant), _) => Finding::ok(format!("{variant} is in use, and no other variant")),
    }]
}

pub(super) fn conntrack(node: &Node) -> Vec<Finding> {
    let (Some(entries), Some(limit)) =
        (number(node, "net/netfilter/nf_conntrack_count"), number(node, "net/netfilter/nf_conntrack_max"))
    else {
        return vec![Finding::warning(
            "the kernel does not show its table of connections: nf_conntrack is not loaded yet",
            "nothing: the first rules load it",
        )];
    };
    let share = entries * 100 / limit.max(1);
    let text = format!("{entries} of {limit} connections are in the table ({share} %)");
    let cure = "raise conntrack.maxPerCore and conntrack.min in the configuration, or shorten conntrack.tcpEstablishedTimeout";
    vec![match share {
        FULL.. => Finding::failure(format!("{text}; new connections are dropped when it is full"), cure),
        CROWDED.. => Finding::warning(text, cure),
        _ => Finding::ok(text),
    }]
}

pub(super) fn rp_filter(node: &Node) -> Vec<Finding> {
    let all = number(node, "net/ipv4/conf/all/rp_filter").unwrap_or(0);
    let strict: Vec<String> = interfaces(node)
        .into_iter()
        .filter(|name| {
            let own = number(node, &format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
            own.max(all) == 1
        })
        .collect();
    vec![match strict.as_slice() {
        [] => Finding::ok("no interface drops packets by their way back"),
        some => Finding::warning(
            format!("rp_filter is strict on {}", some.join(", ")),
            "set net.ipv4.conf.all.rp_filter to 2 (loose) if packets of Services arrive on another interface than answers leave: with several \
             uplinks, tunnels or policy routing",
        ),
    }]
}

fn interfaces(node: &Node) -> Vec<String> {
    let Ok(folder) = fs::read_dir(node.proc.join("sys/net/ipv4/conf")) else { return Vec::new() };
    let names = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| !matches!(name.as_str(), "all" | "default" | "lo")).collect();
    names.sort_unstable();
    names
}

pub(super) fn bridge_nf(node: &Node) -> Vec<Finding> {
    let off: Vec<&str> = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"]
        .into_iter()
        .filter(|name| number(node, &format!("net/bridge/{name}")) == Some(0))
        .collect();
    vec![match off.as_slice() {
        [] => Finding::ok("bridged packets pass the rules, or no bridge is filtered"),
        some => Finding::warning(
            format!("{} is 0: packets between pods on one bridge do not pass the rules", some.join(" and ")),
            "set it to 1 if pods of this node are attached to a Linux bridge: answers of a pod to its neighbour would bypass the translation back",
        ),
    }]
}

pub(super) fn forwarding(node: &Node) -> Vec<Finding> {
    let mut found = Vec::new();
    if number(node, "net/ipv4/ip_forward") == Some(0) {
        found.push(Finding::failure(
            "net.ipv4.ip_forward is 0: this node forwards no packet to a pod or to another node",
            "sysctl -w net.ipv4.ip_forward=1, and the same in /etc/sysctl.d",
        ));
    }
    if has_ipv6(&node.proc) && number(node, "net/ipv6/conf/all/forwarding") == Some(0) {
        found.push(Finding::warning(
            "net.ipv6.conf.all.forwarding is 0: no IPv6 packet is forwarded",
            "sysctl -w net.ipv6.conf.all.forwarding=1, if the cluster uses IPv6",
        ));
    }
    if found.is_empty() {
        found.push(Finding::ok("packets are forwarded"));
    }
    found
}

pub(super) fn clock(_: &Node) -> Vec<Finding> {
    let built = std::env::current_exe().and_then(fs::metadata).and_then(|file| file.modified());
    if built.is_ok_and(|built| std::time::SystemTime::now() < built) {
        return vec![Finding::failure(
            "the clock is behind the date of this program, so certificates and tokens seem not to be valid yet",
            "set the clock: start chrony or systemd-timesyncd",
        )];
    }
    vec![match portwarden_netlink::clock::is_synchronised() {
        Ok(true) => Finding::ok("the clock is synchronised"),
        Ok(false) => Finding::warning(
            "the kernel says that the clock is not synchronised",
            "start chrony or systemd-timesyncd: certificates, tokens and trigger times depend on the clock",
        ),
        Err(_) => Finding::ok("the kernel does not say whether the clock is synchronised"),
    }]
}

fn number(node: &Node, name: &str) -> Option<u64> {
    fs::read_to_string(node.proc.join("sys").join(name)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::config;
    use crate::flags::{Flags, Program};

    fn node(settings: &[(&str, &str)]) -> (Node, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, value) in settings {
            let path = folder.path().join("sys").join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, value).expect("a file");
        }
        let loaded =
            config::load(Program::Portwarden, &Flags::default(), |_| Ok(Vec::new())).expect("defaults");
        (Node { proc: folder.path().to_owned(), ..super::super::node(loaded, None) }, folder)
    }

    fn level(check: fn(&Node) -> Vec<Finding>, settings: &[(&str, &str)]) -> Level {
        let (node, _folder) = node(settings);
        let found = check(&node);
        let worst = found.iter().map(|finding| finding.level).max().expect("a finding");
        assert!(found.iter().all(|one| one.level == Level::Ok || !one.cure.is_empty()), "{found:?}");
        worst
    }

    #[test]
    fn room_for_connections_has_two_limits() {
        let with = |count| {
            level(
                conntrack,
                &[("net/netfilter/nf_conntrack_count", count), ("net/netfilter/nf_conntrack_max", "1000")],
            )
        };
        assert_eq!([with("10"), with("800"), with("990")], [Level::Ok, Level::Warning, Level::Failure]);
        assert_eq!(level(conntrack, &[]), Level::Warning);
    }

    #[test]
    fn settings_that_break_services_are_found() {
        assert_eq!(level(forwarding, &[("net/ipv4/ip_forward", "0\n")]), Level::Failure);
        assert_eq!(level(forwarding, &[("net/ipv4/ip_forward", "1\n")]), Level::Ok);
        let strict = [("net/ipv4/conf/all/rp_filter", "0"), ("net/ipv4/conf/eth0/rp_filter", "1")];
        assert_eq!(level(rp_filter, &strict), Level::Warning);
        let loose = [("net/ipv4/conf/all/rp_filter", "2"), ("net/ipv4/conf/eth0/rp_filter", "1")];
        assert_eq!(level(rp_filter, &loose), Level::Ok, "the larger of the two counts");
        assert_eq!(level(bridge_nf, &[("net/bridge/bridge-nf-call-iptables", "0")]), Level::Warning);
        assert_eq!(level(bridge_nf, &[]), Level::Ok);
    }
}

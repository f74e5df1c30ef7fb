//! Checks of programs: the configuration of ours, and others that run on the node.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use super::{Finding, Node};
use crate::config::Notice;
use crate::host::Instance;

/// Programs that change the same rules, by the names of their processes.
const PROXIES: [(&str, &str); 4] = [
    ("kube-proxy", "it does the same work"),
    ("cilium-agent", "it replaces kube-proxy if kubeProxyReplacement is on"),
    ("kube-router", "it replaces kube-proxy if --run-service-proxy is on"),
    ("calico-node", "its eBPF mode replaces kube-proxy"),
];

/// Programs that flush rules of others.
const FIREWALLS: [&str; 2] = ["firewalld", "ufw"];

pub(super) fn configuration(node: &Node) -> Vec<Finding> {
    let notices = node
        .notices
        .iter()
        .filter(|notice| !matches!(notice, Notice::ModeDefaulted | Notice::ModeDeprecated(_)));
    let mut found: Vec<Finding> = notices
        .map(|notice| {
            Finding::warning(
                notice.to_string(),
                "correct the configuration; docs/configuration.md lists all fields and flags",
            )
        })
        .collect();
    if found.is_empty() {
        let whose = match node.configured_by {
            Some(process) => format!("the configuration of the running process ({process})"),
            None => "the configuration".to_owned(),
        };
        found.push(Finding::ok(format!("{whose} is valid; mode {}", node.config.mode)));
    }
    found
}

pub(super) fn kubernetes_changes(node: &Node) -> Vec<Finding> {
    let mut found = Vec::new();
    for notice in &node.notices {
        match notice {
            Notice::ModeDefaulted => found.push(Finding::warning(
                "no mode is chosen, so iptables is used; from Kubernetes 1.40 the default is nftables",
                "choose one now: `mode: nftables` (or --proxy-mode=nftables), or `mode: iptables` to keep today's",
            )),
            Notice::ModeDeprecated(deprecation) => {
                found.push(Finding::warning(deprecation.message, "change to `mode: nftables`; `portwarden diff --proxy-mode=nftables` shows what that changes"));
            }
            _ => {}
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("Kubernetes 1.40 changes nothing for this node"));
    }
    found
}

pub(super) fn other_proxies(node: &Node) -> Vec<Finding> {
    let names = processes(node);
    let mut found = Vec::new();
    for (name, does) in PROXIES {
        if let Some((id, _)) = names.iter().find(|(_, other)| other == name) {
            found.push(Finding::warning(
                format!("{name} runs on this node (process {id}); {does}"),
                format!("run one of them: two proxies undo each other's rules. Remove the DaemonSet of {name} from this node, or its proxy function"),
            ));
        }
    }
    for name in FIREWALLS {
        if let Some((id, _)) = names.iter().find(|(_, other)| other == name) {
            found.push(Finding::warning(
                format!("{name} runs on this node (process {id}); it may drop forwarded packets, and a reload may flush rules"),
                "allow forwarding between the pods' and the nodes' networks in it; flushed rules are repaired within a second",
            ));
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("no other proxy or firewall runs on this node"));
    }
    found
}

/// The number and name of each process. kube-proxy's own name may be that of a link to Portwarden.
fn processes(node: &Node) -> Vec<(u32, String)> {
    let Ok(folder) = fs::read_dir(&node.proc) else { return Vec::new() };
    let ours = Instance::other().and_then(|other| other.process);
    let process = |entry: fs::DirEntry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        (Some(id) != ours).then(|| (id, name.trim().to_owned()))
    };
    folder.filter_map(|entry| process(entry.ok()?)).collect()
}

pub(super) fn ports(node: &Node) -> Vec<Finding> {
    let servers = &node.config.servers;
    let runs = Instance::other();
    let wanted = [
        ("health server", servers.healthz, "--healthz-bind-address"),
        ("metrics server", Some(servers.metrics), "--metrics-bind-address"),
        ("live page", servers.page, "--page-bind-address"),
    ];
    let taken: Vec<Finding> = wanted
        .into_iter()
        .filter_map(|(what, address, flag)| Some((what, address?, flag)))
        .filter(|(_, address, _)| is_taken(*address))
        .map(|(what, address, flag)| match runs {
            Some(ours) => Finding::ok(format!("{address} of the {what} is taken, presumably by Portwarden ({ours})")),
            None => Finding::warning(
                format!("{address} of the {what} is taken by another process"),
                format!("`ss -ltnp | grep {}` shows which; if it is kube-proxy, stop it, or choose another address with {flag}", address.port()),
            ),
        })
        .collect();
    if taken.is_empty() { vec![Finding::ok("the addresses of all servers are free")] } else { taken }
}

fn is_taken(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

//! What the kernel holds about a request that went wrong, at the moment when that is noticed.

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;

use anyhow::{Context, Result};
use portwarden_testkit::{Host, Topology};

use crate::ledger::{Request, Target};

/// Counters that say why a packet was not answered. Those that are zero are not shown.
const COUNTERS: [&str; 14] = [
    "ListenOverflows",
    "ListenDrops",
    "TCPReqQFullDrop",
    "TCPReqQFullDoCookies",
    "TCPSynRetrans",
    "TCPTimeouts",
    "TCPChallengeACK",
    "TCPSYNChallenge",
    "TCPTimeWaitOverflow",
    "TCPBacklogDrop",
    "PAWSActive",
    "PAWSEstab",
    "TWRecycled",
    "InNoRoutes",
];

/// Conntrack entries of the client's port, the rules of the Service, and counters of all hosts. What cannot be read is said.
pub(crate) fn gather(topology: &Topology, target: &Target, request: &Request) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: Result<Vec<String>>| {
        let lines = lines.unwrap_or_else(|error| vec![format!("{error:#}")]);
        let _ = write!(text, "\n    {title}:{}", if lines.is_empty() { " none" } else { "" });
        for line in lines {
            let _ = write!(text, "\n      {line}");
        }
    };
    let node = topology.node();
    if let Some(client) = request.client {
        section(&format!("conntrack entries of {client}"), flows(node, client.is_ipv6(), client.port()));
    }
    section("iptables rules of the Service", rules(node, target));
    section("virtual servers", virtual_servers(node, target));
    for host in topology.hosts() {
        section(&format!("counters of {}", host.name()), counters(host));
    }
    text
}

/// Entries in which the port is one of the four, so that those that clash with it are shown, too.
fn flows(node: &Host, v6: bool, port: u16) -> Result<Vec<String>> {
    let family = if v6 { "ipv6" } else { "ipv4" };
    let listing = node.command("conntrack").args(["-L", "-o", "extended,id", "-f", family]).run()?;
    let port = format!("port={port} ");
    Ok(listing.lines().filter(|line| line.contains(&port)).map(str::to_owned).collect())
}

/// Rules whose comment names the Service, and how many packets met them.
fn rules(node: &Host, target: &Target) -> Result<Vec<String>> {
    let program = if target.address.is_ipv6() { "ip6tables-save" } else { "iptables-save" };
    let listing = node.command(program).arg("-c").run()?;
    let name = format!("/service-{}:", target.service);
    Ok(listing.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect())
}

/// The virtual server of mode ipvs.
fn virtual_servers(node: &Host, target: &Target) -> Result<Vec<String>> {
    let path = "/proc/thread-self/net/ip_vs";
    node.namespace().run(|| {
        // Absent in other modes, and on kernels without IPVS.
        let Ok(listing) = fs::read_to_string(path) else { return Ok(Vec::new()) };
        let ip = match target.address.ip() {
            IpAddr::V4(ip) => format!("{:08X}", u32::from(ip)),
            IpAddr::V6(ip) => {
                let parts = ip.segments().map(|part| format!("{part:04x}"));
                format!("[{}]", parts.join(":"))
            }
        };
        let wanted = format!(" {ip}:{:04X} ", target.address.port());
        let is_server = |line: &str| line.starts_with(['T', 'U']) && line.contains(&wanted);
        let mut lines = listing.lines().skip_while(|line| !is_server(line));
        let first = lines.next().map(str::to_owned);
        let servers = lines.take_while(|line| line.trim_start().starts_with("->")).map(str::to_owned);
        Ok(first.into_iter().chain(servers).collect())
    })
}

/// Counters that are not zero. A namespace begins with zeros.
fn counters(host: &Host) -> Result<Vec<String>> {
    let read = |path: &'static str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    host.namespace().run(|| {
        let mut shown = Vec::new();
        let tcp = read("/proc/thread-self/net/netstat")?;
        let lines: Vec<&str> = tcp.lines().collect();
        for pair in lines.chunks_exact(2) {
            let counters = pair[0].split_whitespace().zip(pair[1].split_whitespace());
            let wanted = counters.filter(|(name, value)| COUNTERS.contains(name) && *value != "0");
            shown.extend(wanted.map(|(name, value)| format!("{name} {value}")));
        }
        // One line for each processor, in hexadecimal.
        if let Ok(conntrack) = read("/proc/thread-self/net/stat/nf_conntrack") {
            let mut lines = conntrack.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let names = lines.next().unwrap_or_default();
            let rows: Vec<Vec<&str>> = lines.collect();
            for (index, name) in names.iter().enumerate().skip(1) {
                let value =
                    |row: &Vec<&str>| row.get(index).and_then(|text| u64::from_str_radix(text, 16).ok());
                let total: u64 = rows.iter().filter_map(value).sum();
                if total > 0 {
                    shown.push(format!("conntrack {name} {total}"));
                }
            }
        }
        Ok(if shown.is_empty() { Vec::new() } else { vec![shown.join(", ")] })
    })
}

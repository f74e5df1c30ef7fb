//! Reads back what the kernel's rules do with connections to a frontend, by following the same chains as a packet. kube-proxy's rules
//! have the same form.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portwarden_model::{FrontendKey, ObservedFrontend, Protocol, Treatment};
use portwarden_xtables::{Error, Programs, SavedTable, Table};

use crate::names::{EXTERNAL_SERVICES, NODE_PORTS, Role, SERVICES};

/// A chain leads to an endpoint within this many jumps.
const MOST_JUMPS: usize = 4;

/// The tables of one family, as they were when they were read.
#[derive(Debug)]
pub struct ReadBack {
    nat: SavedTable,
    filter: SavedTable,
}

impl ReadBack {
    /// Runs `iptables-save`. Nothing is changed.
    pub fn read(programs: &Programs) -> Result<Self, Error> {
        let save = |table| programs.save(table, |name| name.starts_with("KUBE-"));
        Ok(ReadBack { nat: save(Table::Nat)?, filter: save(Table::Filter)? })
    }

    /// What the rules do with connections to a frontend.
    pub fn frontend(&self, key: &FrontendKey) -> ObservedFrontend {
        let mut observed = ObservedFrontend::not_served();
        let dispatcher = if key.ip.is_some() { SERVICES } else { NODE_PORTS };
        let rule = self.nat.rules(dispatcher).lines().find(|line| frontend_of(line).as_ref() == Some(key));
        if let Some((line, chain)) = rule.and_then(|line| Some((line, jump(line)?))) {
            observed.evidence.push(line.to_owned());
            let (from_node, from_elsewhere) = self.choose(chain, &mut observed.evidence);
            observed.from_node = self.endpoints(from_node, &mut observed.evidence);
            observed.from_elsewhere = if from_node == from_elsewhere {
                observed.from_node.clone()
            } else {
                self.endpoints(from_elsewhere, &mut observed.evidence)
            };
        }
        self.refusals(key, &mut observed);
        if observed.evidence.is_empty() {
            observed.evidence.push(format!("no rule of {dispatcher} is about {key}"));
        }
        observed
    }

    /// Every frontend in the rules.
    pub fn frontends(&self) -> BTreeSet<FrontendKey> {
        let dispatchers = [
            (&self.nat, SERVICES),
            (&self.nat, NODE_PORTS),
            (&self.filter, SERVICES),
            (&self.filter, EXTERNAL_SERVICES),
        ];
        let lines = dispatchers.into_iter().flat_map(|(table, chain)| table.rules(chain).lines());
        lines
            .filter(|line| jump(line).is_some_and(|chain| chain != NODE_PORTS))
            .filter_map(frontend_of)
            .collect()
    }

    /// The chains that connections from this node and from elsewhere take.
    fn choose<'a>(&'a self, mut chain: &'a str, evidence: &mut Vec<String>) -> (&'a str, &'a str) {
        let is = |name: &str, role: Role| name.starts_with(role.prefix());
        if is(chain, Role::Firewall) {
            let rules = self.nat.rules(chain);
            chain = rules.lines().filter_map(jump).find(|to| is(to, Role::External)).unwrap_or(chain);
        }
        if !is(chain, Role::External) {
            return (chain, chain);
        }
        // Without a jump for all, connections from elsewhere are refused by the filter table.
        let (mut from_node, mut from_elsewhere) = (None, "");
        for line in self.nat.rules(chain).lines() {
            evidence.push(line.to_owned());
            let Some(to) = jump(line).filter(|to| is(to, Role::Cluster) || is(to, Role::Local)) else {
                continue;
            };
            if line.contains("--src-type LOCAL") {
                from_node = Some(to);
            } else if !line.contains(" -s ") && !line.contains(" -i ") {
                from_elsewhere = to;
            }
        }
        (from_node.unwrap_or(from_elsewhere), from_elsewhere)
    }

    fn endpoints(&self, chain: &str, evidence: &mut Vec<String>) -> Treatment {
        let mut found = BTreeSet::new();
        self.collect(chain, MOST_JUMPS, &mut found, evidence);
        if found.is_empty() { Treatment::NotServed } else { Treatment::Forwarded(found) }
    }

    fn collect(
        &self,
        chain: &str,
        jumps: usize,
        found: &mut BTreeSet<SocketAddr>,
        evidence: &mut Vec<String>,
    ) {
        for line in self.nat.rules(chain).lines() {
            if let Some(endpoint) = option(line, "--to-destination").and_then(|text| text.parse().ok()) {
                found.insert(endpoint);
                evidence.push(line.to_owned());
            } else if let Some(to) = jump(line).filter(|to| jumps > 0 && *to != chain) {
                self.collect(to, jumps - 1, found, evidence);
            }
        }
    }

    fn refusals(&self, key: &FrontendKey, observed: &mut ObservedFrontend) {
        for chain in [SERVICES, EXTERNAL_SERVICES] {
            for line in
                self.filter.rules(chain).lines().filter(|line| frontend_of(line).as_ref() == Some(key))
            {
                let treatment = match jump(line) {
                    Some("REJECT") => Treatment::Rejected,
                    Some("DROP") => Treatment::Dropped,
                    _ => continue,
                };
                observed.evidence.push(line.to_owned());
                for side in [&mut observed.from_node, &mut observed.from_elsewhere] {
                    if *side == Treatment::NotServed {
                        *side = treatment.clone();
                    }
                }
            }
        }
    }
}

/// The frontend that a rule matches.
fn frontend_of(line: &str) -> Option<FrontendKey> {
    let ip = match option(line, "-d") {
        Some(text) => {
            let (ip, length) =
                text.split_once('/').unwrap_or((text, if text.contains(':') { "128" } else { "32" }));
            // A range, such as that of loopback addresses, is no frontend.
            Some(ip.parse::<IpAddr>().ok().filter(|ip| length == if ip.is_ipv4() { "32" } else { "128" })?)
        }
        None => None,
    };
    let protocol = Protocol::parse(&option(line, "-p")?.to_uppercase())?;
    Some(FrontendKey { ip, port: option(line, "--dport")?.parse().ok()?, protocol })
}

fn jump(line: &str) -> Option<&str> {
    option(line, "-j").or_else(|| option(line, "-g"))
}

/// The word after an option. Comments are quoted, so an option is searched outside of quotes.
fn option<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut outside = line.split('"').step_by(2);
    outside.find_map(|part| {
        let mut words = part.split_ascii_whitespace().skip_while(|word| *word != name);
        words.next()?;
        words.next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAT: &str = "\
*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment \"demo/web:p cluster IP -d 1.2.3.4\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment \"demo/web:p external IP\" -m tcp --dport 80 -j KUBE-EXT-A
-A KUBE-SERVICES -m comment --comment \"last\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p udp -m comment --comment \"demo/web:u\" -m udp --dport 30080 -j KUBE-EXT-A
-A KUBE-EXT-A -s 10.244.0.0/16 -m comment --comment \"pod traffic\" -j KUBE-SVC-A
-A KUBE-EXT-A -m comment --comment \"masquerade LOCAL traffic\" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-EXT-A -m comment --comment \"route LOCAL traffic\" -m addrtype --src-type LOCAL -j KUBE-SVC-A
-A KUBE-EXT-A -j KUBE-SVL-A
-A KUBE-SVC-A -m comment --comment \"x\" -m statistic --mode random --probability 0.5 -j KUBE-SEP-1
-A KUBE-SVC-A -m comment --comment \"x\" -j KUBE-SEP-2
-A KUBE-SVL-A -m comment --comment \"x\" -j KUBE-SEP-1
-A KUBE-SEP-1 -p tcp -m tcp -j DNAT --to-destination 10.244.0.2:8080
-A KUBE-SEP-2 -p tcp -m tcp -j DNAT --to-destination 10.244.1.2:8080
COMMIT
";
    const FILTER: &str = "\
*filter
-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp -m comment --comment \"demo/none has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
";

    fn tables() -> ReadBack {
        ReadBack { nat: SavedTable::parse(NAT), filter: SavedTable::parse(FILTER) }
    }

    fn key(ip: &str) -> FrontendKey {
        FrontendKey { ip: Some(ip.parse().expect("an address")), port: 80, protocol: Protocol::Tcp }
    }

    fn forwarded(endpoints: &[&str]) -> Treatment {
        Treatment::Forwarded(endpoints.iter().map(|one| one.parse().expect("an endpoint")).collect())
    }

    #[test]
    fn chains_are_followed_to_the_endpoints() {
        let both = forwarded(&["10.244.0.2:8080", "10.244.1.2:8080"]);
        let cluster = tables().frontend(&key("10.96.0.10"));
        assert_eq!((&cluster.from_node, &cluster.from_elsewhere), (&both, &both));
        let external = tables().frontend(&key("192.0.2.1"));
        assert_eq!((external.from_node, external.from_elsewhere), (both, forwarded(&["10.244.0.2:8080"])));
        assert!(external.evidence[0].contains("KUBE-EXT-A"));
        let node_port = FrontendKey { ip: None, port: 30080, protocol: Protocol::Udp };
        assert_eq!(tables().frontend(&node_port).from_elsewhere, forwarded(&["10.244.0.2:8080"]));
        assert_eq!(tables().frontend(&key("10.96.0.12")).from_node, Treatment::Rejected);
        assert_eq!(tables().frontend(&key("10.96.0.99")).from_node, Treatment::NotServed);
    }

    #[test]
    fn all_frontends_are_found_once() {
        let keys: Vec<String> = tables().frontends().iter().map(ToString::to_string).collect();
        assert_eq!(
            keys,
            ["node port 30080/UDP", "10.96.0.10:80/TCP", "10.96.0.12:80/TCP", "192.0.2.1:80/TCP"]
        );
    }
}

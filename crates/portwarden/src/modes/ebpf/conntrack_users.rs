//! Whether rules of others, such as a network plugin's, need connection tracking for packets from pod to pod.
//!
//! Such packets pass the hooks prerouting, forward and postrouting. What is only reached from input or output does not see them. Rules of kube-proxy,
//! whichever mode made them, do not count: they are replaced or removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use anyhow::{Context, bail};
use portwarden_model::Family;
use portwarden_netlink::nftables::expr::NatKind;
use portwarden_netlink::nftables::{Client, Expr, Hook, Name, Rule, TableId, Verdict};
use portwarden_xtables::{Table, Variant};
use tracing::warn;

use super::super::leftovers::programs;

/// At most so many are listed in a message.
const MOST_SHOWN: usize = 10;

/// Extensions of iptables that match on a connection or change it. Source translation is not among them: what leaves the pods' range stays tracked.
const MATCHES: [&str; 6] = ["conntrack", "state", "connmark", "connbytes", "connlimit", "helper"];
const TARGETS: [&str; 4] = ["DNAT", "REDIRECT", "NETMAP", "CONNMARK"];

/// A chain with a rule that needs connection tracking.
#[derive(Debug, PartialEq, Eq)]
struct User {
    table: String,
    chain: String,
    what: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}, chain {} ({})", self.table, self.chain, self.what)
    }
}

/// Fails if rules of others need connection tracking for packets from pod to pod. With `force`, they are only logged.
pub(super) fn check(force: bool) -> anyhow::Result<()> {
    let users = find().context("cannot find out which rules on this node use connection tracking")?;
    if users.is_empty() {
        return Ok(());
    }
    let mut shown: Vec<String> = users.iter().take(MOST_SHOWN).map(ToString::to_string).collect();
    let more = users.len().saturating_sub(MOST_SHOWN);
    shown.extend((more > 0).then(|| format!("{more} more")));
    let shown = shown.join("; ");
    if !force {
        bail!(
            "--ebpf-notrack=enabled: rules of others use connection tracking for packets from pod to pod, which would no longer be tracked: {shown}. \
             If they work without it, give --ebpf-notrack=force"
        );
    }
    warn!(
        rules = shown,
        "Rules of others use connection tracking, but packets from pod to pod are no longer tracked"
    );
    Ok(())
}

fn find() -> anyhow::Result<Vec<User>> {
    let mut users = Vec::new();
    let mut client = Client::open()?;
    for table in client.tables(None)? {
        let table = table.object.id;
        if &*table.name != "kube-proxy" {
            users.extend(in_nftables(&mut client, &table)?);
        }
    }
    for family in Family::BOTH {
        users.extend(in_legacy_iptables(family));
    }
    Ok(users)
}

fn in_nftables(client: &mut Client, table: &TableId) -> anyhow::Result<Vec<User>> {
    let mut chains = Chains::default();
    for chain in client.chains(table)? {
        let hook = chain.object.base.map(|base| base.hook);
        chains.add(&chain.object.name, hook.map(sees_pod_to_pod));
    }
    for rule in client.rules(table, None)? {
        let Rule { chain, expressions, .. } = rule.object;
        let targets = expressions.iter().filter_map(jump_target);
        let use_of_it = expressions.iter().find_map(use_in_expression);
        chains.add_rule(&chain, targets.map(|target| target.to_string()), use_of_it);
    }
    Ok(chains.users(&format!("{} {}", table.family, table.name)))
}

fn sees_pod_to_pod(hook: Hook) -> bool {
    !matches!(hook, Hook::Input | Hook::Output)
}

fn jump_target(expression: &Expr) -> Option<&Name> {
    match expression {
        Expr::Verdict(Verdict::Jump(target) | Verdict::Goto(target)) => Some(target),
        _ => None,
    }
}

fn use_in_expression(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Ct { key, .. } | Expr::SetCt { key, .. } => Some(format!("ct {key}")),
        Expr::Nat { kind: NatKind::Destination, .. } => Some("dnat".to_owned()),
        Expr::Unknown { name, .. } => match (name.as_str(), expression.extension()) {
            ("ct" | "connlimit", _) => Some(name.clone()),
            ("redir", _) => Some("redirect".to_owned()),
            ("match", Some(own)) if MATCHES.contains(&own.as_str()) => Some(format!("-m {own}")),
            ("target", Some(own)) if TARGETS.contains(&own.as_str()) => Some(format!("-j {own}")),
            _ => None,
        },
        _ => None,
    }
}

/// Rules of the older implementation, which only its own programs can list.
fn in_legacy_iptables(family: Family) -> Vec<User> {
    let list = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // Missing if the kernel does not have it.
    let loaded = fs::read_to_string(list).unwrap_or_default();
    let mut users = Vec::new();
    for table in [Table::Filter, Table::Nat, Table::Mangle] {
        if !loaded.lines().any(|line| line == table.as_str()) {
            continue;
        }
        let shown = format!("{table} of iptables-legacy for {family}");
        match programs(family, Variant::Legacy).save(table, |_| true) {
            Ok(saved) => {
                let mut chains = Chains::default();
                for chain in saved.chains() {
                    let base = matches!(chain, "PREROUTING" | "FORWARD" | "POSTROUTING" | "INPUT" | "OUTPUT");
                    chains.add(chain, base.then_some(!matches!(chain, "INPUT" | "OUTPUT")));
                    for line in saved.rules(chain).lines() {
                        let (target, use_of_it) = parse_rule(line);
                        chains.add_rule(chain, target.map(str::to_owned).into_iter(), use_of_it);
                    }
                }
                users.extend(chains.users(&shown));
            }
            Err(error) => users.push(User {
                table: shown,
                chain: "unknown".to_owned(),
                what: format!("it cannot be listed: {error}"),
            }),
        }
    }
    users
}

/// The target of a rule as `iptables-save` prints it, and how the rule uses connection tracking.
fn parse_rule(line: &str) -> (Option<&str>, Option<String>) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut target = None;
    let mut found = None;
    for pair in words.windows(2) {
        let [option, value] = pair else { continue };
        if matches!(*option, "-j" | "-g") {
            target = Some(*value);
        }
        let used =
            (*option == "-m" && MATCHES.contains(value)) || (*option == "-j" && TARGETS.contains(value));
        if used && found.is_none() {
            found = Some(format!("{option} {value}"));
        }
    }
    (target, found)
}

/// The chains of a table, and how they lead to each other.
#[derive(Debug, Default)]
struct Chains(BTreeMap<String, Links>);

#[derive(Debug, Default)]
struct Links {
    /// For a base chain, whether packets from pod to pod enter there.
    base: Option<bool>,
    targets: BTreeSet<String>,
    /// How the first rule that needs connection tracking uses it.
    use_of_it: Option<String>,
}

impl Chains {
    fn add(&mut self, name: &str, base: Option<bool>) {
        self.0.entry(name.to_owned()).or_default().base = base;
    }

    fn add_rule(&mut self, chain: &str, targets: impl Iterator<Item = String>, use_of_it: Option<String>) {
        let targets: Vec<String> = targets.collect();
        let ours = |name: &str| name.starts_with("KUBE-");
        if ours(chain) || targets.iter().any(|target| ours(target)) {
            return;
        }
        let links = self.0.entry(chain.to_owned()).or_default();
        links.targets.extend(targets);
        links.use_of_it = links.use_of_it.take().or(use_of_it);
    }

    /// The chains that packets from pod to pod may pass. A chain that nothing jumps to may be reached through a map.
    fn users(self, table: &str) -> Vec<User> {
        let passed = self.reachable(true);
        let others = self.reachable(false);
        let concerned = |name: &String| passed.contains(name) || !others.contains(name);
        let all = self.0.into_iter().filter(|(name, _)| concerned(name));
        all.filter_map(|(chain, links)| Some(User { table: table.to_owned(), chain, what: links.use_of_it? }))
            .collect()
    }

    /// Base chains of one kind, and all that they lead to.
    fn reachable(&self, base: bool) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut next: Vec<&String> =
            self.0.iter().filter(|(_, links)| links.base == Some(base)).map(|(name, _)| name).collect();
        while let Some(name) = next.pop() {
            if found.insert(name.clone()) {
                next.extend(self.0.get(name).into_iter().flat_map(|links| &links.targets));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;

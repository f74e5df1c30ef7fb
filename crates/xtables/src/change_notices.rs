//! What other processes do to our chains, as the kernel reports it. Only the nft variant has such notifications.

use std::os::fd::{AsFd, BorrowedFd};

use portwarden_model::Family;
use portwarden_netlink::nftables::{self, Event, Expr, Notice, Subject, TableId, Verdict};

use crate::programs::Programs;
use crate::table::Table;

pub use portwarden_netlink::nftables::Change;

/// A subscription to changes of tables of one family. Changes by our own [`Programs`] are recognised by their process numbers and
/// left out.
#[derive(Debug)]
pub struct ChangeNotices {
    monitor: nftables::Monitor,
    tables: Vec<TableId>,
}

impl ChangeNotices {
    /// Subscribes in the network namespace of the calling thread.
    pub fn open(family: Family, tables: &[Table]) -> Result<Self, portwarden_netlink::Error> {
        let family = match family {
            Family::V4 => nftables::Family::Ip,
            Family::V6 => nftables::Family::Ip6,
        };
        let tables = tables.iter().map(|table| TableId::new(family, table.as_str())).collect();
        Ok(ChangeNotices { monitor: nftables::Monitor::open()?, tables })
    }

    /// Readable when there are notifications, of our chains or others.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    /// Reads all notifications. Returns the first change of a chain of ours that none of `programs` made. `is_ours` decides by
    /// the chain's name and by what happened to it or to one of its rules; a rule elsewhere that leads to a chain of ours must not be
    /// removed either.
    pub fn read(&mut self, programs: &Programs, is_ours: impl Fn(&str, Change) -> bool) -> Option<String> {
        let mut found = None;
        let tables = &self.tables;
        let children = programs.children();
        let ended = children.ended();
        let read = self.monitor.read(|notice| {
            let change = match &notice {
                Notice::Event(event) if children.contains(event.port) => None,
                Notice::Event(event) => foreign_change(event, tables, &is_ours),
                Notice::Missed => Some("more changes than could be followed".to_owned()),
            };
            // Of a table that is removed, the kernel reports every chain and rule first.
            if found.is_none() || change.as_deref().is_some_and(|text| text.starts_with(FLUSHED)) {
                found = change.or_else(|| found.take());
            }
        });
        children.forget_ended(&ended);
        if let Err(error) = read {
            tracing::warn!(%error, "cannot follow changes of the packet filter");
        }
        found
    }

    /// Runs `work` without notifications. Others may change something meanwhile, and that is missed.
    pub fn with_notifications_paused<T>(&self, work: impl FnOnce() -> T) -> T {
        if let Err(error) = self.monitor.pause() {
            tracing::debug!(%error, "cannot pause notifications of the packet filter");
        }
        let result = work();
        if let Err(error) = self.monitor.resume() {
            tracing::warn!(%error, "cannot resume notifications of the packet filter");
        }
        result
    }
}

/// How the description of a removed table begins.
const FLUSHED: &str = "all rules were flushed";

/// What an event changes, if that is ours.
fn foreign_change(
    event: &Event,
    tables: &[TableId],
    is_ours: &impl Fn(&str, Change) -> bool,
) -> Option<String> {
    let gone = event.change == Change::Gone;
    let verb = if gone { "removed" } else { "added" };
    let is_our_chain = |chain: &str| is_ours(chain, event.change);
    match &event.subject {
        Subject::Table(table) if gone && tables.contains(&table.object.id) => {
            Some(format!("{FLUSHED}: table {} was removed", table.object.id.name))
        }
        Subject::Chain(chain) if tables.contains(&chain.object.table) && is_our_chain(&chain.object.name) => {
            Some(format!("chain {} was {verb}", chain.object.name))
        }
        Subject::Rule(rule) if tables.contains(&rule.object.table) => {
            let rule = &rule.object;
            if is_our_chain(&rule.chain) {
                return Some(format!("a rule of chain {} was {verb}", rule.chain));
            }
            let to = rule.expressions.iter().find_map(target).filter(|to| gone && is_our_chain(to))?;
            Some(format!("the rule of chain {} that leads to {to} was removed", rule.chain))
        }
        _ => None,
    }
}

fn target(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Verdict(Verdict::Jump(chain)) => Some(chain),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::{Chain, Listed, Rule};

    fn tables() -> [TableId; 2] {
        ["filter", "nat"].map(|table| TableId::new(nftables::Family::Ip, table))
    }

    fn is_ours(chain: &str, change: Change) -> bool {
        chain.starts_with("KUBE-") && (change == Change::Gone || chain != "KUBE-FIREWALL")
    }

    fn chain(change: Change, table: &str, name: &str) -> Option<String> {
        let table = TableId::new(nftables::Family::Ip, table);
        let subject = Subject::Chain(Listed { object: Chain::new(&table, name), handle: 0 });
        foreign_change(&Event { change, subject, port: 0 }, &tables(), &is_ours)
    }

    fn rule(change: Change, chain: &str, to: &str) -> Option<String> {
        let table = TableId::new(nftables::Family::Ip, "nat");
        let jump = Expr::Verdict(Verdict::Jump(to.into()));
        let subject = Subject::Rule(Listed { object: Rule::new(&table, chain, vec![jump]), handle: 0 });
        foreign_change(&Event { change, subject, port: 0 }, &tables(), &is_ours)
    }

    #[test]
    fn our_chains_and_rules_count_and_nothing_else() {
        assert!(chain(Change::Gone, "nat", "KUBE-SVC-X").is_some());
        assert!(chain(Change::Gone, "filter", "KUBE-FORWARD").is_some());
        assert!(rule(Change::Present, "KUBE-SERVICES", "X").is_some());
        assert!(rule(Change::Gone, "KUBE-SEP-X", "X").is_some());
        assert_eq!(chain(Change::Gone, "nat", "CNI-X"), None);
        assert_eq!(chain(Change::Gone, "mangle", "KUBE-KUBELET-CANARY"), None);
        assert_eq!(rule(Change::Gone, "OUTPUT", "DOCKER"), None);
    }

    #[test]
    fn jumps_to_our_chains_must_not_be_removed() {
        assert!(rule(Change::Gone, "OUTPUT", "KUBE-SERVICES").is_some());
        assert_eq!(rule(Change::Present, "OUTPUT", "KUBE-SERVICES"), None);
    }

    #[test]
    fn the_caller_decides_what_may_be_added() {
        assert_eq!(chain(Change::Present, "filter", "KUBE-FIREWALL"), None);
        assert_eq!(rule(Change::Present, "KUBE-FIREWALL", "X"), None);
        assert!(chain(Change::Gone, "filter", "KUBE-FIREWALL").is_some());
    }
}

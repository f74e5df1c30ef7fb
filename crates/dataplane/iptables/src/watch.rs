//! Listens to what others do to our rules. Only the nf_tables variant has a kernel that tells.

use std::os::fd::{AsFd, BorrowedFd};

use portwarden_model::Family;
use portwarden_netlink::nftables::{self, Change, Event, Expr, Notice, Subject, TableId, Verdict};

use crate::command::was_started_here;
use crate::names::{
    CANARY, EXTERNAL_SERVICES, FIREWALL, FORWARD, MARK_MASQ, NODE_PORTS, POSTROUTING, PROXY_FIREWALL,
    SERVICES, is_service_chain,
};
use crate::table::Table;

/// A subscription to changes of the packet filter. Our own changes are known by the number of the program that makes them; around
/// large ones it is paused.
#[derive(Debug)]
pub(crate) struct Watch {
    monitor: nftables::Monitor,
    tables: [TableId; 2],
}

impl Watch {
    /// Subscribes, from now on.
    pub(crate) fn open(family: Family) -> Result<Self, portwarden_netlink::Error> {
        let family = match family {
            Family::V4 => nftables::Family::Ip,
            Family::V6 => nftables::Family::Ip6,
        };
        let tables = [Table::Filter, Table::Nat].map(|table| TableId::new(family, table.as_str()));
        Ok(Watch { monitor: nftables::Monitor::open()?, tables })
    }

    /// Readable when somebody changed something, ours or not.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    /// Reads what was told. `Some` names something of ours that others changed.
    pub(crate) fn read(&mut self) -> Option<String> {
        let mut found = None;
        let tables = &self.tables;
        let read = self.monitor.read(|notice| {
            let touched = match &notice {
                Notice::Event(event) if was_started_here(event.port) => None,
                Notice::Event(event) => touched(event, tables),
                Notice::Missed => Some("more changes than could be followed".to_owned()),
            };
            if found.is_none() {
                found = touched;
            }
        });
        if let Err(error) = read {
            tracing::warn!(%error, "cannot follow changes of the packet filter");
        }
        found
    }

    /// Does not listen while `work` is done.
    pub(crate) fn pause(&self) {
        if let Err(error) = self.monitor.pause() {
            tracing::debug!(%error, "cannot stop listening to changes of the packet filter");
        }
    }

    /// Listens again.
    pub(crate) fn resume(&self) {
        if let Err(error) = self.monitor.resume() {
            tracing::warn!(%error, "cannot listen to changes of the packet filter any more");
        }
    }
}

/// What an event is about, if it is ours.
fn touched(event: &Event, tables: &[TableId; 2]) -> Option<String> {
    let gone = event.change == Change::Gone;
    let verb = if gone { "removed" } else { "added" };
    match &event.subject {
        Subject::Table(table) if gone && tables.contains(&table.object.id) => {
            Some(format!("table {} was removed", table.object.id.name))
        }
        Subject::Chain(chain)
            if tables.contains(&chain.object.table) && is_our_chain(&chain.object.name, gone) =>
        {
            Some(format!("chain {} was {verb}", chain.object.name))
        }
        Subject::Rule(rule) if tables.contains(&rule.object.table) => {
            let rule = &rule.object;
            if is_our_chain(&rule.chain, gone) {
                return Some(format!("a rule of chain {} was {verb}", rule.chain));
            }
            let to = rule.expressions.iter().find_map(target).filter(|to| gone && is_our_chain(to, gone))?;
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

/// The kubelet fills one of our chains too, so only what is taken from it matters.
fn is_our_chain(chain: &str, gone: bool) -> bool {
    const FIXED: [&str; 8] =
        [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL, POSTROUTING, MARK_MASQ, CANARY];
    FIXED.contains(&chain) || is_service_chain(chain) || (gone && chain == FIREWALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::{Chain, Listed, Rule};

    fn tables() -> [TableId; 2] {
        ["filter", "nat"].map(|table| TableId::new(nftables::Family::Ip, table))
    }

    fn chain(change: Change, table: &str, name: &str) -> Option<String> {
        let table = TableId::new(nftables::Family::Ip, table);
        let subject = Subject::Chain(Listed { object: Chain::new(&table, name), handle: 0 });
        touched(&Event { change, subject, port: 0 }, &tables())
    }

    fn rule(change: Change, chain: &str, to: &str) -> Option<String> {
        let table = TableId::new(nftables::Family::Ip, "nat");
        let jump = Expr::Verdict(Verdict::Jump(to.into()));
        let subject = Subject::Rule(Listed { object: Rule::new(&table, chain, vec![jump]), handle: 0 });
        touched(&Event { change, subject, port: 0 }, &tables())
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
    fn the_kubelet_may_fill_its_chain() {
        assert_eq!(chain(Change::Present, "filter", "KUBE-FIREWALL"), None);
        assert_eq!(rule(Change::Present, "KUBE-FIREWALL", "X"), None);
        assert!(chain(Change::Gone, "filter", "KUBE-FIREWALL").is_some());
    }
}

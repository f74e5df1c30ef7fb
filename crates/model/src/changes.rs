//! What differs between two states of the desired, for one family.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::name::{NamespacedName, Protocol};
use crate::timestamp::Timestamp;

/// What a sync has to look at. Changes of failed syncs are merged into the next ones, so nothing is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Everything may differ, the kernel's side included: compare or write all of it.
    pub full: bool,
    /// What holds for the node differs ([`crate::NodeView`]).
    pub node: bool,
    /// Services that appeared, changed or went.
    pub services: BTreeSet<NamespacedName>,
    /// When the changes behind this happened, as far as their objects tell. Times alone need no sync: nothing had to be programmed for them.
    pub trigger_times: Vec<Timestamp>,
    /// Something about UDP differs: flows may go to endpoints that no longer answer.
    pub udp: bool,
    /// UDP frontends that no longer exist: their flows go nowhere good.
    pub gone: BTreeSet<GoneFrontend>,
}

/// A frontend that is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoneFrontend {
    /// Its address; `None` for a node port.
    pub ip: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl Changes {
    /// Everything may differ.
    pub fn everything() -> Self {
        Changes { full: true, ..Changes::default() }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.full && !self.node && !self.udp && self.services.is_empty() && self.gone.is_empty()
    }

    /// Adds what came later.
    pub fn merge(&mut self, later: Changes) {
        self.full |= later.full;
        self.node |= later.node;
        self.udp |= later.udp;
        self.services.extend(later.services);
        self.trigger_times.extend(later.trigger_times);
        self.gone.extend(later.gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trigger_times_alone_need_no_sync() {
        let timed = Changes { trigger_times: vec![Timestamp::from_nanos(1)], ..Changes::default() };
        assert!(timed.is_empty());
        assert!(Changes::default().is_empty());
    }

    #[test]
    fn each_kind_of_change_needs_a_sync() {
        let gone = GoneFrontend { ip: None, port: 30053, protocol: Protocol::Udp };
        let all = [
            Changes::everything(),
            Changes { node: true, ..Changes::default() },
            Changes { udp: true, ..Changes::default() },
            Changes { services: [NamespacedName::new("demo", "web")].into(), ..Changes::default() },
            Changes { gone: [gone].into(), ..Changes::default() },
        ];
        for changes in all {
            assert!(!changes.is_empty(), "{changes:?}");
            let mut merged = Changes::default();
            merged.merge(changes.clone());
            assert_eq!(merged, changes);
        }
    }
}

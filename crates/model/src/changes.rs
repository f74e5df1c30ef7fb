//! What differs between two desired states of one family.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::name::{NamespacedName, Protocol};
use crate::timestamp::Timestamp;

/// What a sync has to look at. Changes of a failed sync are merged into those of the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Everything may differ, including the kernel's state: compare or write all of it.
    pub full: bool,
    /// [`crate::NodeView`] differs.
    pub node: bool,
    /// Services that were added, changed or deleted.
    pub services: BTreeSet<NamespacedName>,
    /// When the underlying changes happened, as far as the objects say. Times alone need no sync: they did not lead to a write.
    pub trigger_times: Vec<Timestamp>,
    /// A UDP port differs: flows may lead to endpoints that no longer serve.
    pub udp: bool,
    /// UDP frontends that no longer exist: their redirected flows are stale.
    pub gone: BTreeSet<GoneFrontend>,
}

/// A frontend that no Service has any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoneFrontend {
    /// `None` for a node port.
    pub ip: Option<IpAddr>,
    /// The Service's port, or the node port.
    pub port: u16,
    /// UDP so far: only its flows are cleaned up.
    pub protocol: Protocol,
}

impl Changes {
    /// A full sync: everything may differ.
    pub fn everything() -> Self {
        Changes { full: true, ..Changes::default() }
    }

    /// Whether no sync is needed.
    pub fn is_empty(&self) -> bool {
        !self.full && !self.node && !self.udp && self.services.is_empty() && self.gone.is_empty()
    }

    /// Adds later changes.
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

//! The sets and maps that hold everything that varies.

use std::sync::Arc;
use std::time::Duration;

use portwarden_model::Family;
use portwarden_netlink::nftables::{DataType, Set, SetFlags, TableId};

/// The capacity of the map of clients with session affinity, per family.
const AFFINITY_SIZE: u32 = 1 << 20;
/// The smallest capacity of a set.
const SMALLEST_SIZE: usize = 1024;
/// The default timeout of an affinity entry; rules always give one.
const AFFINITY_TIMEOUT: Duration = Duration::from_secs(10_800);

/// The sets and maps of one family. Names and types differ from all of kube-proxy's, so that it can take the table over.
#[derive(Debug, Clone)]
pub(crate) struct Sets {
    all: Vec<Arc<Set>>,
}

/// One of our sets or maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetId {
    /// Address, protocol, port: route.
    Frontends,
    /// Protocol, port: route; on the node's own addresses.
    NodePorts,
    /// List, slot: address and port.
    Endpoints,
    /// List of local endpoints: route to all endpoints, for traffic that starts on this node.
    NodeRoutes,
    /// Sticky list, slot: entry.
    StickySlots,
    /// Entry: address and port.
    StickyEndpoints,
    /// Hash of a service port's name: sticky list. Read at start, so that clients keep their endpoints over a restart.
    StickyNames,
    /// Frontends without endpoints. They reject, unless they are in `Dropped` too.
    Unserved,
    /// Node ports without endpoints.
    UnservedNodePorts,
    /// Frontends without endpoints on this node, but with endpoints on others.
    Dropped,
    /// Node ports without endpoints on this node, but with endpoints on others.
    DroppedNodePorts,
    /// Frontends with source ranges.
    Restricted,
    /// Frontend and range of addresses: the clients that may use a restricted frontend.
    AllowedSources,
    /// All cluster addresses.
    ClusterAddresses,
    /// Endpoints on this node, with their address twice: connections to themselves.
    Hairpin,
    /// Addresses on which node ports answer.
    NodeAddresses,
    /// Client, sticky list: entry. Only the rules write it.
    Affinity,
    /// Class: chain. Changes only when a new affinity timeout appears.
    Classes,
    /// Class: chain that draws again. Never changes.
    Redraws,
}

impl SetId {
    /// All, in the order of the enum.
    pub(crate) const ALL: [SetId; 19] = [
        SetId::Frontends,
        SetId::NodePorts,
        SetId::Endpoints,
        SetId::NodeRoutes,
        SetId::StickySlots,
        SetId::StickyEndpoints,
        SetId::StickyNames,
        SetId::Unserved,
        SetId::UnservedNodePorts,
        SetId::Dropped,
        SetId::DroppedNodePorts,
        SetId::Restricted,
        SetId::AllowedSources,
        SetId::ClusterAddresses,
        SetId::Hairpin,
        SetId::NodeAddresses,
        SetId::Affinity,
        SetId::Classes,
        SetId::Redraws,
    ];

    /// The name in the kernel.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SetId::Frontends => "frontends",
            SetId::NodePorts => "node-ports",
            SetId::Endpoints => "endpoints",
            SetId::NodeRoutes => "node-routes",
            SetId::StickySlots => "sticky-slots",
            SetId::StickyEndpoints => "sticky-endpoints",
            SetId::StickyNames => "sticky-names",
            SetId::Unserved => "unserved",
            SetId::UnservedNodePorts => "unserved-node-ports",
            SetId::Dropped => "dropped",
            SetId::DroppedNodePorts => "dropped-node-ports",
            SetId::Restricted => "restricted",
            SetId::AllowedSources => "allowed-sources",
            SetId::ClusterAddresses => "cluster-addresses",
            SetId::Hairpin => "hairpin",
            SetId::NodeAddresses => "node-addresses",
            SetId::Affinity => "client-affinity",
            SetId::Classes => "classes",
            SetId::Redraws => "redraws",
        }
    }

    /// Whether it is a hash table that no rule writes.
    fn is_plain(self) -> bool {
        !matches!(self, SetId::AllowedSources | SetId::Affinity | SetId::Classes | SetId::Redraws)
    }

    fn comment(self) -> &'static str {
        match self {
            SetId::Frontends => "service addresses: route",
            SetId::NodePorts => "node ports: route",
            SetId::Endpoints => "list and slot: endpoint",
            SetId::NodeRoutes => "policy Local: route for traffic that starts on this node",
            SetId::StickySlots => "list and slot of sticky services: entry",
            SetId::StickyEndpoints => "entry of sticky services: endpoint",
            SetId::StickyNames => "hash of a sticky service port: list",
            SetId::Unserved => "service addresses without endpoints",
            SetId::UnservedNodePorts => "node ports without endpoints",
            SetId::Dropped => "those of them to drop, not to reject",
            SetId::DroppedNodePorts => "those of them to drop, not to reject",
            SetId::Restricted => "service addresses with source ranges",
            SetId::AllowedSources => "who may use restricted addresses",
            SetId::ClusterAddresses => "all cluster addresses",
            SetId::Hairpin => "local endpoints that may connect to themselves",
            SetId::NodeAddresses => "addresses with node ports",
            SetId::Affinity => "clients of sticky services: entry",
            SetId::Classes => "class of a route: chain",
            SetId::Redraws => "class of a route: chain that draws again",
        }
    }

    fn define(self, table: &TableId, family: Family) -> Set {
        use DataType::{ClassId, Integer, Protocol, Service};
        let address = match family {
            Family::V4 => DataType::Ipv4Address,
            Family::V6 => DataType::Ipv6Address,
        };
        let set = |key: Vec<DataType>| Set::new(table, self.name(), key);
        let map = |key: Vec<DataType>, data: Vec<DataType>| Set::map(table, self.name(), key, data);
        let set = match self {
            SetId::Frontends => map(vec![address, Protocol, Service], vec![ClassId]),
            SetId::NodePorts => map(vec![Protocol, Service], vec![ClassId]),
            SetId::Endpoints => map(vec![ClassId, Integer], vec![address, Service]),
            SetId::NodeRoutes => map(vec![ClassId], vec![ClassId]),
            SetId::StickySlots => map(vec![ClassId, Integer], vec![ClassId]),
            SetId::StickyEndpoints => map(vec![ClassId], vec![address, Service]),
            SetId::StickyNames => map(vec![Integer, Integer], vec![ClassId]),
            SetId::Unserved | SetId::Dropped | SetId::Restricted => set(vec![address, Protocol, Service]),
            SetId::UnservedNodePorts | SetId::DroppedNodePorts => set(vec![Protocol, Service]),
            SetId::AllowedSources => set(vec![address, Protocol, Service, address]).flags(SetFlags::INTERVAL),
            SetId::ClusterAddresses | SetId::NodeAddresses => set(vec![address]),
            SetId::Hairpin => set(vec![address, address, Protocol, Service]),
            SetId::Affinity => map(vec![address, ClassId], vec![ClassId])
                .flags(SetFlags::DYNAMIC)
                .size(AFFINITY_SIZE)
                .timeout(AFFINITY_TIMEOUT),
            SetId::Classes | SetId::Redraws => Set::verdict_map(table, self.name(), vec![ClassId]),
        };
        set.comment(self.comment())
    }
}

impl Sets {
    pub(crate) fn new(table: &TableId, family: Family) -> Self {
        Sets { all: SetId::ALL.iter().map(|id| Arc::new(id.define(table, family))).collect() }
    }

    /// The same sets with a capacity of twice the elements that they start with. A set with a capacity is a plain hash table, which loads
    /// in half the time. When it is full, the kernel refuses the next element, and a full write gives it more capacity.
    pub(crate) fn sized(&self, count: impl Fn(SetId) -> usize) -> Sets {
        let resize = |(id, set): (&SetId, &Arc<Set>)| {
            let room = count(*id).saturating_mul(2).max(SMALLEST_SIZE).next_power_of_two();
            match u32::try_from(room) {
                Ok(room) if id.is_plain() => Arc::new(Set { size: Some(room), ..Set::clone(set) }),
                _ => Arc::clone(set),
            }
        };
        Sets { all: SetId::ALL.iter().zip(&self.all).map(resize).collect() }
    }

    pub(crate) fn get(&self, id: SetId) -> &Arc<Set> {
        &self.all[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::Family as KernelFamily;

    fn sets() -> Sets {
        Sets::new(&TableId::new(KernelFamily::Ip, "kube-proxy"), Family::V4)
    }

    /// `SetId as usize` is the index of a set.
    #[test]
    fn the_list_of_sets_is_in_the_order_of_the_enum() {
        for (index, id) in SetId::ALL.into_iter().enumerate() {
            assert_eq!(id as usize, index);
            assert_eq!(sets().get(id).name.as_ref(), id.name());
        }
    }

    #[test]
    fn only_sets_that_we_alone_write_get_a_capacity() {
        let sized = sets().sized(|id| if id == SetId::Endpoints { 1000 } else { 0 });
        assert_eq!(sized.get(SetId::Endpoints).size, Some(2048));
        assert_eq!(sized.get(SetId::Frontends).size, Some(1024));
        assert_eq!(sized.get(SetId::Affinity).size, Some(AFFINITY_SIZE));
        for id in [SetId::AllowedSources, SetId::Classes, SetId::Redraws] {
            assert_eq!(sized.get(id).size, None);
        }
    }
}

//! The sets and maps that hold everything that varies.

use std::sync::Arc;
use std::time::Duration;

use portwarden_model::Family;
use portwarden_netlink::nftables::{DataType, Set, SetFlags, TableId};

/// How many clients of sticky Services are remembered, per family.
const AFFINITY_SIZE: u32 = 1 << 20;
/// The least number of elements that a set has room for.
const SMALLEST_SIZE: usize = 1024;
/// The timeout of an affinity entry that does not say otherwise; rules always say.
const AFFINITY_TIMEOUT: Duration = Duration::from_secs(10_800);

/// The sets and maps of one family. Names and types differ from all of kube-proxy's, so that it can take the table over.
#[derive(Debug, Clone)]
pub(crate) struct Sets {
    all: Vec<Arc<Set>>,
}

/// One of the sets or maps whose elements follow from Services.
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
    /// Hash of a service port's name: sticky list. Read at start, so that clients stay with their endpoints over a restart.
    StickyNames,
    /// Frontends with nothing to send to. They are refused, unless they are dropped.
    Unserved,
    /// The same for node ports.
    UnservedNodePorts,
    /// Those of them that are dropped: endpoints only elsewhere.
    Dropped,
    /// The same for node ports.
    DroppedNodePorts,
    /// Frontends with source ranges.
    Restricted,
    /// Frontend and range: who may use a restricted frontend.
    AllowedSources,
    /// All cluster addresses.
    ClusterAddresses,
    /// Endpoints on this node, twice the address: what connects to itself.
    Hairpin,
    /// Addresses on which node ports answer.
    NodeAddresses,
    /// Client, sticky list: entry. Written by the packet path alone.
    Affinity,
    /// Class: chain. Changes only when a new affinity timeout appears.
    Classes,
    /// Class: chain that draws again. Fixed.
    Redraws,
}

impl SetId {
    /// All of them, in the order of their numbers.
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

    /// Its name in the kernel.
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

    /// Whether it is a hash table that only we write.
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

    /// The same sets with room for twice the elements that they start with. A set with a size is a plain hash table, which loads in half the
    /// time; when it is full, the kernel says so, and everything is written anew with more room.
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

    /// The definition of a set.
    pub(crate) fn get(&self, id: SetId) -> &Arc<Set> {
        &self.all[id as usize]
    }
}

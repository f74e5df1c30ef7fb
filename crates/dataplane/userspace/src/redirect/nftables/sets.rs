//! The sets and maps that hold everything that varies, and what a Service puts into them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portwarden_model::{Family, NodePortAddresses, NodeView, Protocol};
use portwarden_netlink::nftables::{DataType, Image, Set, SetFlags, TableId};

use crate::redirect::{Action, Origin, Place, ServiceRules};

/// One of the sets or maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetId {
    /// Address, protocol, port: our socket for connections that start on this node.
    FromNode,
    /// The same for connections from elsewhere.
    FromElsewhere,
    /// Protocol, node port: our socket for connections that start on this node.
    NodePortsFromNode,
    /// The same for connections from elsewhere.
    NodePortsFromElsewhere,
    /// Places whose remaining connections are refused.
    Rejected,
    RejectedNodePorts,
    /// Places whose remaining connections are dropped.
    Dropped,
    DroppedNodePorts,
    /// Places with source ranges.
    Restricted,
    /// Place and range: who may use a restricted place.
    AllowedSources,
    ClusterAddresses,
    /// Addresses on which node ports answer, unless all do.
    NodeAddresses,
    /// Our sockets.
    Sockets,
}

impl SetId {
    pub(crate) const ALL: [SetId; 13] = [
        SetId::FromNode,
        SetId::FromElsewhere,
        SetId::NodePortsFromNode,
        SetId::NodePortsFromElsewhere,
        SetId::Rejected,
        SetId::RejectedNodePorts,
        SetId::Dropped,
        SetId::DroppedNodePorts,
        SetId::Restricted,
        SetId::AllowedSources,
        SetId::ClusterAddresses,
        SetId::NodeAddresses,
        SetId::Sockets,
    ];

    /// Its name in the kernel.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SetId::FromNode => "from-node",
            SetId::FromElsewhere => "from-elsewhere",
            SetId::NodePortsFromNode => "node-ports-from-node",
            SetId::NodePortsFromElsewhere => "node-ports-from-elsewhere",
            SetId::Rejected => "rejected",
            SetId::RejectedNodePorts => "rejected-node-ports",
            SetId::Dropped => "dropped",
            SetId::DroppedNodePorts => "dropped-node-ports",
            SetId::Restricted => "restricted",
            SetId::AllowedSources => "allowed-sources",
            SetId::ClusterAddresses => "cluster-addresses",
            SetId::NodeAddresses => "node-addresses",
            SetId::Sockets => "sockets",
        }
    }

    /// The map of redirections for an origin.
    pub(crate) fn redirections(origin: Origin, node_port: bool) -> SetId {
        match (origin, node_port) {
            (Origin::Node, false) => SetId::FromNode,
            (Origin::Node, true) => SetId::NodePortsFromNode,
            (Origin::Elsewhere, false) => SetId::FromElsewhere,
            (Origin::Elsewhere, true) => SetId::NodePortsFromElsewhere,
        }
    }

    fn define(self, table: &TableId, family: Family) -> Set {
        use DataType::{Protocol, Service};
        let address = match family {
            Family::V4 => DataType::Ipv4Address,
            Family::V6 => DataType::Ipv6Address,
        };
        let place = vec![address, Protocol, Service];
        let set = |key: Vec<DataType>| Set::new(table, self.name(), key);
        match self {
            SetId::FromNode | SetId::FromElsewhere => {
                Set::map(table, self.name(), place, vec![address, Service])
            }
            SetId::NodePortsFromNode | SetId::NodePortsFromElsewhere => {
                Set::map(table, self.name(), vec![Protocol, Service], vec![address, Service])
            }
            SetId::Rejected | SetId::Dropped | SetId::Restricted | SetId::Sockets => set(place),
            SetId::RejectedNodePorts | SetId::DroppedNodePorts => set(vec![Protocol, Service]),
            SetId::AllowedSources => set([place, vec![address]].concat()).flags(SetFlags::INTERVAL),
            SetId::ClusterAddresses | SetId::NodeAddresses => set(vec![address]),
        }
    }
}

/// All of them, in the order of [`SetId::ALL`].
pub(crate) fn define(table: &TableId, family: Family) -> Vec<Arc<Set>> {
    SetId::ALL.iter().map(|id| Arc::new(id.define(table, family))).collect()
}

/// One element, ordered by its place in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Element {
    pub(crate) set: SetId,
    pub(crate) key: Vec<u8>,
    /// The last key of a range.
    pub(crate) end: Option<Vec<u8>>,
    pub(crate) value: Vec<u8>,
}

impl Element {
    fn key(set: SetId, key: Image) -> Self {
        Element { set, key: key.into(), end: None, value: Vec::new() }
    }
}

/// The elements of a Service, sorted, each once.
pub(crate) fn elements(rules: &ServiceRules) -> Vec<Element> {
    let mut all = Vec::new();
    for portal in &rules.portals {
        let (key, node_port) = (place_key(portal.place), portal.place.ip.is_none());
        let choose = |of_address, of_node_port| if node_port { of_node_port } else { of_address };
        for origin in Origin::BOTH {
            match portal.action(origin) {
                Action::Redirect(to) => all.push(Element {
                    value: Image::new().address(to.ip()).port(to.port()).into(),
                    ..Element::key(SetId::redirections(origin, node_port), key)
                }),
                Action::Reject => {
                    all.push(Element::key(choose(SetId::Rejected, SetId::RejectedNodePorts), key));
                }
                Action::Drop => all.push(Element::key(choose(SetId::Dropped, SetId::DroppedNodePorts), key)),
            }
        }
        if let Some(sources) = &portal.sources {
            all.push(Element::key(SetId::Restricted, key));
            all.extend(sources.iter().map(|range| Element {
                end: Some(key.address(range.broadcast()).into()),
                ..Element::key(SetId::AllowedSources, key.address(range.network()))
            }));
        }
    }
    all.extend(
        rules.cluster_ips.iter().map(|ip| Element::key(SetId::ClusterAddresses, Image::new().address(*ip))),
    );
    for (protocol, socket) in &rules.sockets {
        let place = Place { ip: Some(socket.ip()), port: socket.port(), protocol: *protocol };
        all.push(Element::key(SetId::Sockets, place_key(place)));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// The addresses with node ports.
pub(crate) fn node_addresses(node: &NodeView) -> impl Iterator<Item = Element> + '_ {
    let ips: &[IpAddr] = match &node.node_ports {
        NodePortAddresses::All => &[],
        NodePortAddresses::Only(ips) => ips,
    };
    ips.iter().map(|ip| Element::key(SetId::NodeAddresses, Image::new().address(*ip)))
}

/// Address (unless it is a node port), protocol and port as they stand in registers.
pub(crate) fn place_key(place: Place) -> Image {
    let key = place.ip.map_or(Image::new(), |ip| Image::new().address(ip));
    key.protocol(place.protocol.number()).port(place.port)
}

/// The place that the key of a redirection stands for.
pub(crate) fn place_of(key: &[u8]) -> Option<Place> {
    let (rest, port) = key.split_last_chunk::<4>()?;
    let (address, protocol) = rest.split_last_chunk::<4>()?;
    let ip = match address.len() {
        0 => None,
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(address).ok()?)),
        _ => Some(IpAddr::from(<[u8; 16]>::try_from(address).ok()?)),
    };
    let [high, low, ..] = *port;
    Some(Place { ip, port: u16::from_be_bytes([high, low]), protocol: Protocol::from_number(protocol[0])? })
}

/// The socket that the value of a redirection stands for.
pub(crate) fn socket_of(value: &[u8]) -> Option<SocketAddr> {
    let port = port_of(value)?;
    let ip = match value.len() {
        8 => IpAddr::from(<[u8; 4]>::try_from(value.get(..4)?).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(value.get(..16)?).ok()?),
    };
    Some(SocketAddr::new(ip, port))
}

/// The port at the end of the value of a redirection.
pub(crate) fn port_of(value: &[u8]) -> Option<u16> {
    let at = value.len().checked_sub(4)?;
    Some(u16::from_be_bytes([*value.get(at)?, *value.get(at + 1)?]))
}

//! One service port in the kernel: its lists, and the elements that lead to them.

use std::net::IpAddr;

use ipnet::IpNet;
use portwarden_model::{Exposure, Frontend, Masquerade, PoolKind, ProxiedPort, TrafficPolicy, Verdict};
use portwarden_netlink::nftables::Image;

use crate::chains::StickyClass;
use crate::lists::ListState;
use crate::route::{Draw, Kind};
use crate::sets::SetId;

/// The lists of a service port. One that is not needed is not there.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PortState {
    pub(crate) cluster: Option<ListState>,
    /// Seldom there.
    pub(crate) local: Option<Box<ListState>>,
}

impl PortState {
    pub(crate) fn list(&self, kind: PoolKind) -> Option<&ListState> {
        match kind {
            PoolKind::Cluster => self.cluster.as_ref(),
            PoolKind::Local => self.local.as_deref(),
        }
    }

    pub(crate) fn lists(&self) -> impl Iterator<Item = &ListState> {
        self.cluster.iter().chain(self.local.as_deref())
    }

    /// Whether the lists have session affinity.
    pub(crate) fn is_sticky(&self) -> bool {
        self.lists().any(|list| list.list.is_sticky())
    }

    /// Whether clients may be remembered in one list that come by the other.
    pub(crate) fn is_linked(&self) -> bool {
        self.is_sticky() && self.cluster.is_some() && self.local.is_some()
    }
}

/// Whether the port needs a list in the kernel. That of local endpoints is needed even while empty, as the name under which traffic that
/// starts on this node finds its way.
pub(crate) fn needs_list(port: &ProxiedPort, kind: PoolKind) -> bool {
    let forwards = |frontend: &Frontend| {
        frontend.from_elsewhere == Verdict::Forward(kind) || frontend.from_node == Verdict::Forward(kind)
    };
    let by_name = |frontend: &Frontend| kind == PoolKind::Local && is_split(frontend);
    port.frontends.iter().filter(|f| f.is_allowed()).any(|frontend| forwards(frontend) || by_name(frontend))
}

/// Policy Local: traffic that starts on this node goes elsewhere than other traffic.
fn is_split(frontend: &Frontend) -> bool {
    frontend.exposure != Exposure::ClusterIp
        && frontend.policy == TrafficPolicy::Local
        && matches!(frontend.from_node, Verdict::Forward(_))
}

/// One element of a set or map, apart from those of lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) set: SetId,
    pub(crate) key: Image,
    /// The last key of a range.
    pub(crate) end: Option<Image>,
    /// Empty for sets.
    pub(crate) value: Image,
}

impl Item {
    fn new(set: SetId, key: Image, value: Image) -> Self {
        Item { set, key, end: None, value }
    }

    /// What makes it the same element.
    pub(crate) fn identity(&self) -> (SetId, &[u8], &[u8]) {
        (self.set, self.key.as_bytes(), self.end.as_ref().map_or(&[], |end| end.as_bytes()))
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity() && self.value.as_bytes() == other.value.as_bytes()
    }
}

/// All elements of a service port but those of its lists. `class` gives the class of a way to draw with affinity.
pub(crate) fn items(port: &ProxiedPort, state: &PortState, class: &dyn Fn(StickyClass) -> u8) -> Vec<Item> {
    let mut items = Vec::with_capacity(port.frontends.len() + 2);
    let linked = state.is_linked();
    let route = |list: &ListState, kind: Kind| {
        Image::new().number(list.list.route(class_of(port, list, linked, class), kind))
    };
    for frontend in port.active_frontends() {
        items.extend(frontend_item(port, frontend, state, &route));
        items.extend(refusal(port, frontend));
        items.extend(firewall(port, frontend));
    }
    if let (Some(local), Some(cluster)) = (&state.local, &state.cluster)
        && port.frontends.iter().any(is_split)
    {
        items.push(Item::new(
            SetId::NodeRoutes,
            Image::new().number(local.list.key()),
            route(cluster, Kind::Internal),
        ));
    }
    for kind in [PoolKind::Cluster, PoolKind::Local] {
        if let Some(list) = state.list(kind).filter(|list| list.list.is_sticky()) {
            items.push(Item::new(
                SetId::StickyNames,
                name_key(port, kind),
                Image::new().number(list.list.key()),
            ));
        }
    }
    items
}

/// How the list is drawn from: 0 for an empty one, which no chain serves.
fn class_of(port: &ProxiedPort, list: &ListState, linked: bool, class: &dyn Fn(StickyClass) -> u8) -> u8 {
    match port.affinity {
        Some(timeout) => Draw::sticky(list.pool.len())
            .map_or(0, |draw| class(StickyClass { timeout: timeout.get(), draw, linked })),
        None => Draw::of(list.pool.len()).map_or(0, Draw::class),
    }
}

fn frontend_item(
    port: &ProxiedPort,
    frontend: &Frontend,
    state: &PortState,
    route: &impl Fn(&ListState, Kind) -> Image,
) -> Option<Item> {
    let (kind, pool) = match (frontend.from_elsewhere, frontend.masquerade) {
        _ if is_split(frontend) => (Kind::ExternalLocal, PoolKind::Local),
        (Verdict::Forward(pool), Masquerade::Always) => (Kind::External, pool),
        (Verdict::Forward(pool), _) => (Kind::Internal, pool),
        (Verdict::Reject | Verdict::Drop, _) => return None,
    };
    let list = state.list(pool)?;
    let set = if frontend.ip.is_some() { SetId::Frontends } else { SetId::NodePorts };
    Some(Item::new(set, frontend_key(port, frontend), route(list, kind)))
}

/// What is refused or dropped after translation, for lack of endpoints.
fn refusal(port: &ProxiedPort, frontend: &Frontend) -> impl Iterator<Item = Item> {
    let [unserved, dropped] = match frontend.ip {
        Some(_) => [SetId::Unserved, SetId::Dropped],
        None => [SetId::UnservedNodePorts, SetId::DroppedNodePorts],
    };
    let sets = match frontend.from_elsewhere {
        Verdict::Forward(_) => [None, None],
        Verdict::Reject => [Some(unserved), None],
        Verdict::Drop => [Some(unserved), Some(dropped)],
    };
    let key = frontend_key(port, frontend);
    sets.into_iter().flatten().map(move |set| Item::new(set, key, Image::new()))
}

/// Source ranges of a load-balancer address. Ranges that touch or overlap are joined: the kernel refuses overlaps.
fn firewall(port: &ProxiedPort, frontend: &Frontend) -> Vec<Item> {
    let (Exposure::LoadBalancerIp, Some(allowed)) = (frontend.exposure, &port.source_ranges) else {
        return Vec::new();
    };
    let mut ranges: Vec<IpNet> = allowed.ranges.to_vec();
    if allowed.frontends_too {
        let addresses =
            port.frontends.iter().filter(|f| f.exposure == Exposure::LoadBalancerIp).filter_map(|f| f.ip);
        ranges.extend(addresses.map(IpNet::from));
    }
    let key = frontend_key(port, frontend);
    let mut items = vec![Item::new(SetId::Restricted, key, Image::new())];
    items.extend(IpNet::aggregate(&ranges).into_iter().map(|range| Item {
        end: Some(key.address(range.broadcast())),
        ..Item::new(SetId::AllowedSources, key.address(range.network()), Image::new())
    }));
    items
}

fn frontend_key(port: &ProxiedPort, frontend: &Frontend) -> Image {
    let key = frontend.ip.map_or(Image::new(), |ip| Image::new().address(ip));
    key.protocol(port.protocol().number()).port(frontend.port)
}

/// A hash of the port's name: over a restart it tells which list was whose.
pub(crate) fn name_key(port: &ProxiedPort, kind: PoolKind) -> Image {
    let text = format!("{}\0{}\0{}\0{kind:?}", port.name.service, port.name.port, port.name.protocol);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    Image::new().bytes(&[a, b, c, d]).bytes(&[e, f, g, h])
}

/// The cluster address of a port.
pub(crate) fn cluster_address(port: &ProxiedPort) -> Option<IpAddr> {
    port.frontends
        .iter()
        .find(|frontend| frontend.exposure == Exposure::ClusterIp)
        .and_then(|frontend| frontend.ip)
}

/// The endpoints of a port that run on this node and could connect to themselves.
pub(crate) fn local_endpoints(port: &ProxiedPort) -> impl Iterator<Item = (IpAddr, u8, u16)> + '_ {
    let protocol = port.protocol().number();
    let more = port.local.iter().filter(|backend| !port.cluster.contains(backend.address()));
    let all = port.cluster.iter().filter(|backend| backend.local).chain(more);
    all.map(move |backend| (backend.ip, protocol, backend.port))
}

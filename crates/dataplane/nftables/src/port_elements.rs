//! All elements of one service port, except for those of its endpoint lists.

use std::net::IpAddr;

use portwarden_model::{Exposure, Frontend, PoolKind, ProxiedPort};
use portwarden_netlink::nftables::Image;

use crate::endpoint_list::EndpointList;
use crate::port_lists::PortLists;
use crate::route::{Draw, Kind};
use crate::session_affinity::StickyClass;
use crate::sets::SetId;
use crate::{no_endpoints, service_addresses, source_ranges};

/// One element of a set or map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortElement {
    pub(crate) set: SetId,
    pub(crate) key: Image,
    /// The last key of a range.
    pub(crate) end: Option<Image>,
    /// Empty for sets.
    pub(crate) value: Image,
}

impl PortElement {
    pub(crate) fn new(set: SetId, key: Image, value: Image) -> Self {
        PortElement { set, key, end: None, value }
    }

    /// Without a value.
    pub(crate) fn of_set(set: SetId, key: Image) -> Self {
        PortElement::new(set, key, Image::new())
    }

    fn end_bytes(&self) -> &[u8] {
        self.end.as_ref().map_or(&[], |end| end.as_bytes())
    }
}

impl PartialEq for PortElement {
    fn eq(&self, other: &Self) -> bool {
        self.set == other.set
            && self.key.as_bytes() == other.key.as_bytes()
            && self.end_bytes() == other.end_bytes()
            && self.value.as_bytes() == other.value.as_bytes()
    }
}

/// The elements of a port with these lists. `class` gives the number of a way to draw with session affinity.
pub(crate) fn elements(
    port: &ProxiedPort,
    lists: &PortLists,
    class: &dyn Fn(StickyClass) -> u8,
) -> Vec<PortElement> {
    let mut elements = Vec::with_capacity(port.frontends.len() + 2);
    let linked = lists.is_linked();
    let route = |list: &EndpointList, kind: Kind| {
        Image::new().number(list.id.route(class_of(port, list, linked, class), kind))
    };
    for frontend in port.active_frontends() {
        elements.extend(service_addresses::element(port, frontend, lists, &route));
        elements.extend(no_endpoints::elements(port, frontend));
        elements.extend(source_ranges::elements(port, frontend));
    }
    elements.extend(service_addresses::node_route(port, lists, &route));
    for kind in [PoolKind::Cluster, PoolKind::Local] {
        if let Some(list) = lists.get(kind).filter(|list| list.id.is_sticky()) {
            let key = Image::new().number(list.id.key());
            elements.push(PortElement::new(SetId::StickyNames, name_key(port, kind), key));
        }
    }
    elements
}

/// The class of a list; 0 for an empty one, which no chain serves.
fn class_of(port: &ProxiedPort, list: &EndpointList, linked: bool, class: &dyn Fn(StickyClass) -> u8) -> u8 {
    match port.affinity {
        Some(timeout) => Draw::sticky(list.pool.len())
            .map_or(0, |draw| class(StickyClass { timeout: timeout.get(), draw, linked })),
        None => Draw::of(list.pool.len()).map_or(0, Draw::class),
    }
}

/// Address (unless it is a node port), protocol and port.
pub(crate) fn frontend_key(port: &ProxiedPort, frontend: &Frontend) -> Image {
    let key = frontend.ip.map_or(Image::new(), |ip| Image::new().address(ip));
    key.protocol(port.protocol().number()).port(frontend.port)
}

/// A hash of the port's name, which identifies the list of a port after a restart.
pub(crate) fn name_key(port: &ProxiedPort, kind: PoolKind) -> Image {
    let text = format!("{}\0{}\0{}\0{kind:?}", port.name.service, port.name.port, port.name.protocol);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    Image::new().bytes(&[a, b, c, d]).bytes(&[e, f, g, h])
}

pub(crate) fn cluster_address(port: &ProxiedPort) -> Option<IpAddr> {
    port.frontends
        .iter()
        .find(|frontend| frontend.exposure == Exposure::ClusterIp)
        .and_then(|frontend| frontend.ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{Family, NamespacedName};
    use portwarden_testkit::build::port;

    /// A frontend that another Service has too gets no element: the kernel would refuse the second one.
    #[test]
    fn shadowed_frontends_have_no_elements() {
        let service =
            |name, number| samples::dual_stack(name, number).external_ip("203.0.113.1").port(port(80)).into();
        let cluster = samples::cluster(samples::settings(), vec![service("first", 1), service("second", 2)]);
        let desired = cluster.desired(Family::V4);
        let count = |name| {
            let port = &desired.service(&NamespacedName::new("demo", name)).unwrap().ports[0];
            elements(port, &PortLists::default(), &|_| 0).len()
        };
        assert_eq!((count("first"), count("second")), (2, 1));
    }

    /// Affinity over a restart depends on it: another hash would lose every client once.
    #[test]
    fn the_hash_of_a_name_never_changes() {
        let cluster =
            samples::cluster(samples::settings(), vec![samples::dual_stack("web", 1).port(port(80)).into()]);
        let desired = cluster.desired(Family::V4);
        let port = &desired.service(&NamespacedName::new("demo", "web")).unwrap().ports[0];
        let key = |kind| name_key(port, kind).as_bytes().to_vec();
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        let pair = |bytes: Vec<u8>| (number(&bytes[..4]), number(&bytes[4..]));
        assert_eq!(pair(key(PoolKind::Cluster)), (2_539_969_997, 482_893_619));
        assert_eq!(pair(key(PoolKind::Local)), (327_686_628, 3_517_142_542));
    }
}

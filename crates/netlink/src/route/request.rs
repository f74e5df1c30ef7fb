//! The bytes of requests. Numbers are in host byte order.

use super::decode::kind;
use crate::family::{IpFamily, octets};
use crate::wire::{Writer, flags};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Attributes of a link.
mod link {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const NAME: u16 = 3;
    pub(super) const MASTER: u16 = 10;
    pub(super) const INFO: u16 = 18;
    pub(super) const NAMESPACE: u16 = 28;
    pub(super) const INFO_KIND: u16 = 1;
    pub(super) const INFO_DATA: u16 = 2;
    pub(super) const INFO_PORT_KIND: u16 = 4;
    pub(super) const INFO_PORT_DATA: u16 = 5;
    /// Inside the data of a veth: its other end.
    pub(super) const VETH_PEER: u16 = 1;
    /// Inside the data of a bridge's port: whether it sends back what came in by it.
    pub(super) const PORT_HAIRPIN: u16 = 4;
    pub(super) const UP: u32 = 1;
}

/// Attributes and flags of an address.
mod address {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const LOCAL: u16 = 2;
    pub(super) const LIFETIMES: u16 = 6;
    pub(super) const FLAGS: u16 = 8;
    /// Usable at once, without a search for duplicates.
    pub(super) const NO_DUPLICATE_CHECK: u32 = 0x2;
    /// Brings no route to its network.
    pub(super) const NO_PREFIX_ROUTE: u32 = 0x200;
}

/// Attributes and values of a route.
mod route {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const DEVICE: u16 = 4;
    pub(super) const GATEWAY: u16 = 5;
    pub(super) const SOURCE: u16 = 7;
    pub(super) const TABLE_MAIN: u8 = 254;
    pub(super) const PROTOCOL_STATIC: u8 = 4;
    pub(super) const UNICAST: u8 = 1;
    /// The gateway is a neighbour even if no network on the link contains it.
    pub(super) const ON_LINK: u32 = 4;
}

/// Attributes and values of a neighbour.
mod neighbour {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const LINK_ADDRESS: u16 = 2;
    pub(super) const PERMANENT: u16 = 0x80;
}

/// An Ethernet address.
pub type Mac = [u8; 6];

/// One end of a veth pair. Its number is chosen by the caller, so that later requests of a batch can name it.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// The namespace that it is in; `None` means that of the socket.
    pub namespace: Option<BorrowedFd<'a>>,
    /// The interface name of this end.
    pub name: &'a str,
    /// The interface index that it gets.
    pub index: u32,
    /// Its Ethernet address.
    pub mac: Mac,
}

/// A request without its header. Requests are values, so that many of them can be sent at once.
#[derive(Debug)]
pub struct Request {
    kind: u16,
    flags: u16,
    body: Writer,
}

impl Request {
    /// Creates a dummy interface.
    pub fn dummy(name: &str) -> Self {
        Self::new_link(name, 0, None, "dummy", |_| {})
    }

    /// Creates a bridge.
    pub fn bridge(name: &str, index: u32, mac: Mac) -> Self {
        Self::new_link(name, index, Some(mac), "bridge", |_| {})
    }

    /// Creates a veth pair whose first end is in the socket's namespace.
    pub fn veth(here: &VethEnd<'_>, there: &VethEnd<'_>) -> Self {
        Self::new_link(here.name, here.index, Some(here.mac), "veth", |body| {
            body.nest(link::VETH_PEER, |body| {
                link_header(body, there.index, 0);
                body.string(link::NAME, there.name);
                body.attribute(link::ADDRESS, &there.mac);
                if let Some(namespace) = there.namespace {
                    body.attribute(link::NAMESPACE, &namespace.as_raw_fd().to_ne_bytes());
                }
            });
        })
    }

    /// Sets an interface up.
    pub fn set_up(index: u32) -> Self {
        Self::link(kind::NEW_LINK, 0, index, link::UP)
    }

    /// Makes an interface a port of a bridge.
    pub fn set_bridge(index: u32, bridge: u32) -> Self {
        let mut request = Self::link(kind::NEW_LINK, 0, index, 0);
        request.body.u32_host(link::MASTER, bridge);
        request
    }

    /// Lets a bridge send back through this port what came in by it.
    pub fn set_hairpin(index: u32) -> Self {
        let mut request = Self::link(kind::NEW_LINK, 0, index, 0);
        request.body.nest(link::INFO, |body| {
            body.attribute(link::INFO_PORT_KIND, b"bridge");
            body.nest(link::INFO_PORT_DATA, |body| body.u8(link::PORT_HAIRPIN, 1));
        });
        request
    }

    /// Removes an interface by name.
    pub fn delete_link(name: &str) -> Self {
        let mut request = Self::link(kind::DELETE_LINK, 0, 0, 0);
        request.body.string(link::NAME, name);
        request
    }

    /// Adds an address to an interface. It is usable at once and brings no route to its network.
    pub fn add_address(index: u32, ip: IpAddr, prefix_length: u8) -> Self {
        let mut request =
            Self::address(kind::NEW_ADDRESS, flags::CREATE | flags::EXCLUSIVE, index, ip, prefix_length);
        let flags = address::NO_DUPLICATE_CHECK | address::NO_PREFIX_ROUTE;
        request.body.u32_host(address::FLAGS, flags);
        request
    }

    /// The same address, deprecated: it is local, but the kernel does not choose it as the source of packets. Only IPv6 knows that.
    pub fn add_deprecated_address(index: u32, ip: IpAddr, prefix_length: u8) -> Self {
        let mut request = Self::add_address(index, ip, prefix_length);
        if ip.is_ipv6() {
            // Preferred for no time, valid for ever, and two stamps that the kernel sets.
            let lifetimes: Vec<u8> = [0, u32::MAX, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
            request.body.attribute(address::LIFETIMES, &lifetimes);
        }
        request
    }

    /// Removes an address from an interface.
    pub fn delete_address(index: u32, ip: IpAddr, prefix_length: u8) -> Self {
        Self::address(kind::DELETE_ADDRESS, 0, index, ip, prefix_length)
    }

    /// Adds a route to `network`; without a gateway the destination is on the link.
    pub fn add_route(
        network: (IpAddr, u8),
        index: u32,
        gateway: Option<IpAddr>,
        source: Option<IpAddr>,
    ) -> Self {
        let (destination, prefix_length) = network;
        let scope = if gateway.is_some() { super::scope::UNIVERSE } else { super::scope::LINK };
        let mut body = Writer::new();
        body.raw(&[family(destination), prefix_length, 0, 0]);
        body.raw(&[route::TABLE_MAIN, route::PROTOCOL_STATIC, scope, route::UNICAST]);
        let on_link = if gateway.is_some() { route::ON_LINK } else { 0 };
        body.raw(&on_link.to_ne_bytes());
        body.attribute(route::DESTINATION, octets(destination).as_ref());
        body.u32_host(route::DEVICE, index);
        if let Some(gateway) = gateway {
            body.attribute(route::GATEWAY, octets(gateway).as_ref());
        }
        if let Some(source) = source {
            body.attribute(route::SOURCE, octets(source).as_ref());
        }
        Self { kind: kind::NEW_ROUTE, flags: flags::CREATE | flags::EXCLUSIVE, body }
    }

    /// Sets a neighbour's Ethernet address for good, so that nothing has to be resolved.
    pub fn set_neighbour(index: u32, ip: IpAddr, mac: Mac) -> Self {
        let mut body = Writer::new();
        body.raw(&[family(ip), 0, 0, 0]);
        body.raw(&index.to_ne_bytes());
        body.raw(&neighbour::PERMANENT.to_ne_bytes());
        body.raw(&[0, 0]);
        body.attribute(neighbour::DESTINATION, octets(ip).as_ref());
        body.attribute(neighbour::LINK_ADDRESS, &mac);
        Self { kind: kind::NEW_NEIGHBOUR, flags: flags::CREATE | flags::REPLACE, body }
    }

    pub(super) fn get_link(index: u32) -> Self {
        Self::link(kind::GET_LINK, 0, index, 0)
    }

    pub(super) fn get_link_by_name(name: &str) -> Self {
        let mut request = Self::link(kind::GET_LINK, 0, 0, 0);
        request.body.string(link::NAME, name);
        request
    }

    pub(super) fn get_route(ip: IpAddr) -> Self {
        let whole = if ip.is_ipv4() { 32 } else { 128 };
        let mut body = Writer::new();
        body.raw(&[family(ip), whole, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        body.attribute(route::DESTINATION, octets(ip).as_ref());
        Self { kind: kind::GET_ROUTE, flags: 0, body }
    }

    /// Appends the request with its header.
    pub(super) fn encode(&self, writer: &mut Writer, flags: u16, sequence: u32) {
        let mark = writer.begin_message(self.kind, flags | self.flags, sequence);
        writer.raw(self.body.bytes());
        writer.end_message(mark);
    }

    fn new_link(
        name: &str,
        index: u32,
        mac: Option<Mac>,
        kind: &str,
        data: impl FnOnce(&mut Writer),
    ) -> Self {
        let mut request = Self::link(kind::NEW_LINK, flags::CREATE | flags::EXCLUSIVE, index, 0);
        request.body.string(link::NAME, name);
        if let Some(mac) = mac {
            request.body.attribute(link::ADDRESS, &mac);
        }
        request.body.nest(link::INFO, |body| {
            body.attribute(link::INFO_KIND, kind.as_bytes());
            body.nest(link::INFO_DATA, data);
        });
        request
    }

    fn link(kind: u16, flags: u16, index: u32, link_flags: u32) -> Self {
        let mut body = Writer::new();
        link_header(&mut body, index, link_flags);
        Self { kind, flags, body }
    }

    fn address(kind: u16, flags: u16, index: u32, ip: IpAddr, prefix_length: u8) -> Self {
        let mut body = Writer::new();
        body.raw(&[family(ip), prefix_length, 0, super::scope::UNIVERSE]);
        body.raw(&index.to_ne_bytes());
        body.attribute(address::LOCAL, octets(ip).as_ref());
        body.attribute(address::ADDRESS, octets(ip).as_ref());
        Self { kind, flags, body }
    }
}

/// `struct ifinfomsg`: family, padding, type, number, flags, mask of flags to change.
fn link_header(body: &mut Writer, index: u32, flags: u32) {
    body.raw(&[0; 4]);
    body.raw(&index.to_ne_bytes());
    body.raw(&flags.to_ne_bytes());
    body.raw(&flags.to_ne_bytes());
}

fn family(ip: IpAddr) -> u8 {
    IpFamily::of(ip).byte()
}

#[cfg(test)]
mod tests {
    use super::super::{RouteChange, scope};
    use super::*;
    use crate::wire::Messages;
    use proptest::prelude::*;

    fn decode(request: &Request) -> Option<RouteChange> {
        let mut writer = Writer::new();
        request.encode(&mut writer, 0, 1);
        let message = Messages::new(writer.bytes()).next().expect("one").expect("a message");
        RouteChange::decode(&message).expect("complete")
    }

    proptest! {
        #[test]
        fn addresses_decode_back(index in any::<u32>(), ip in any::<IpAddr>(), prefix_length in any::<u8>()) {
            let Some(RouteChange::AddressPresent(found)) =
                decode(&Request::add_address(index, ip, prefix_length))
            else {
                panic!("an address");
            };
            prop_assert_eq!((found.index, found.address, found.prefix_length), (index, ip, prefix_length));
            prop_assert_eq!(found.scope, scope::UNIVERSE);
            let gone = decode(&Request::delete_address(index, ip, prefix_length));
            prop_assert!(matches!(gone, Some(RouteChange::AddressGone(gone)) if gone.address == ip));
        }
    }

    #[test]
    fn links_decode_back() {
        let Some(RouteChange::LinkPresent(link)) = decode(&Request::dummy("kube-ipvs0")) else {
            panic!("a link");
        };
        assert_eq!((link.name.as_str(), link.kind.as_deref()), ("kube-ipvs0", Some("dummy")));
        let end = |name, index| VethEnd { namespace: None, name, index, mac: [2; 6] };
        let Some(RouteChange::LinkPresent(link)) = decode(&Request::veth(&end("front", 4), &end("back", 5)))
        else {
            panic!("a link");
        };
        assert_eq!((link.index, link.kind.as_deref()), (4, Some("veth")));
    }
}

//! The bytes of rtnetlink requests and replies, all in the byte order of this machine.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::errno::Errno;

use super::{Mac, VethEnd};

/// Missing in libc: the attribute with the other end of a veth pair (linux/veth.h).
const VETH_INFO_PEER: u16 = 1;
/// Missing in libc: take the gateway for a neighbour (linux/rtnetlink.h).
const RTNH_F_ONLINK: u32 = 4;
/// Missing in libc: whether a bridge sends back through the port of arrival (linux/if_link.h).
const IFLA_BRPORT_MODE: u16 = 4;
const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const IFINFOMSG: usize = 16;

/// A request without its header.
pub(super) struct Message {
    kind: u16,
    flags: i32,
    body: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: i32, fixed: Vec<u8>) -> Message {
        Message { kind, flags, body: fixed }
    }

    /// Appends the request, with its header, to `bytes`. Bodies are padded by construction.
    pub(super) fn write(&self, sequence: u32, bytes: &mut Vec<u8>) {
        let length = u32::try_from(HEADER + self.body.len()).expect("requests are short");
        let flags =
            u16::try_from(self.flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK).expect("flags are 16 bits");
        bytes.extend(length.to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(&self.body);
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Message {
        attribute(&mut self.body, kind, value);
        self
    }
}

pub(super) fn veth(here: &VethEnd<'_>, there: &VethEnd<'_>) -> Message {
    let mut peer = link_header(there.index, 0);
    attribute(&mut peer, libc::IFLA_IFNAME, there.name.as_bytes());
    attribute(&mut peer, libc::IFLA_ADDRESS, &there.mac);
    attribute(&mut peer, libc::IFLA_NET_NS_FD, &there.namespace.raw().to_ne_bytes());
    let mut data = Vec::new();
    attribute(&mut data, VETH_INFO_PEER, &peer);
    new_link(here.name, here.index, here.mac, "veth", &data)
}

pub(super) fn bridge(name: &str, index: u32, mac: Mac) -> Message {
    new_link(name, index, mac, "bridge", &[])
}

pub(super) fn up(index: u32) -> Message {
    let up = u32::try_from(libc::IFF_UP).expect("a flag is positive");
    Message::new(libc::RTM_NEWLINK, 0, link_header(index, up))
}

pub(super) fn port(index: u32, bridge: u32) -> Message {
    Message::new(libc::RTM_NEWLINK, 0, link_header(index, 0))
        .attribute(libc::IFLA_MASTER, &bridge.to_ne_bytes())
}

pub(super) fn hairpin(index: u32) -> Message {
    let mut mode = Vec::new();
    attribute(&mut mode, IFLA_BRPORT_MODE, &[1]);
    let mut info = Vec::new();
    attribute(&mut info, libc::IFLA_INFO_SLAVE_KIND, b"bridge");
    attribute(&mut info, libc::IFLA_INFO_SLAVE_DATA, &mode);
    Message::new(libc::RTM_NEWLINK, 0, link_header(index, 0)).attribute(libc::IFLA_LINKINFO, &info)
}

pub(super) fn get_link(index: u32) -> Message {
    Message::new(libc::RTM_GETLINK, 0, link_header(index, 0))
}

pub(super) fn address(index: u32, address: IpNet) -> Message {
    let mut fixed = vec![family(address.addr()), address.prefix_len(), 0, libc::RT_SCOPE_UNIVERSE];
    fixed.extend(index.to_ne_bytes());
    let ip = octets(address.addr());
    let flags = libc::IFA_F_NODAD | libc::IFA_F_NOPREFIXROUTE;
    Message::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, fixed)
        .attribute(libc::IFA_LOCAL, &ip)
        .attribute(libc::IFA_ADDRESS, &ip)
        .attribute(libc::IFA_FLAGS, &flags.to_ne_bytes())
}

pub(super) fn route(to: IpNet, index: u32, via: Option<IpAddr>, source: Option<IpAddr>) -> Message {
    let scope = if via.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RTN_UNICAST);
    let mut fixed = vec![family(to.addr()), to.prefix_len(), 0, 0, table, protocol, scope, kind];
    // Gateways are link addresses outside of every network, which the kernel takes only if told so.
    let flags = if via.is_some() { RTNH_F_ONLINK } else { 0 };
    fixed.extend(flags.to_ne_bytes());
    let mut message = Message::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, fixed)
        .attribute(libc::RTA_DST, &octets(to.network()))
        .attribute(libc::RTA_OIF, &index.to_ne_bytes());
    if let Some(via) = via {
        message = message.attribute(libc::RTA_GATEWAY, &octets(via));
    }
    if let Some(source) = source {
        message = message.attribute(libc::RTA_PREFSRC, &octets(source));
    }
    message
}

/// Asks for the route that packets to `ip` take.
pub(super) fn get_route(ip: IpAddr) -> Message {
    let whole = if ip.is_ipv4() { 32 } else { 128 };
    let fixed = vec![family(ip), whole, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Message::new(libc::RTM_GETROUTE, 0, fixed).attribute(libc::RTA_DST, &octets(ip))
}

pub(super) fn neighbour(index: u32, ip: IpAddr, mac: Mac) -> Message {
    let mut fixed = vec![family(ip), 0, 0, 0];
    fixed.extend(index.to_ne_bytes());
    fixed.extend(libc::NUD_PERMANENT.to_ne_bytes());
    fixed.extend([0, 0]);
    Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, fixed)
        .attribute(libc::NDA_DST, &octets(ip))
        .attribute(libc::NDA_LLADDR, &mac)
}

fn new_link(name: &str, index: u32, mac: Mac, kind: &str, data: &[u8]) -> Message {
    let mut info = Vec::new();
    attribute(&mut info, libc::IFLA_INFO_KIND, kind.as_bytes());
    attribute(&mut info, libc::IFLA_INFO_DATA, data);
    Message::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, link_header(index, 0))
        .attribute(libc::IFLA_IFNAME, name.as_bytes())
        .attribute(libc::IFLA_ADDRESS, &mac)
        .attribute(libc::IFLA_LINKINFO, &info)
}

/// `struct ifinfomsg`: family, padding, type, index, flags, mask of flags to change.
fn link_header(index: u32, flags: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(index.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("attributes are short");
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn family(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).expect("address families are small numbers")
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// What the kernel answers.
#[derive(PartialEq, Eq)]
pub(super) enum Reply {
    /// The end of a request.
    Acknowledged(Result<(), Errno>),
    /// A device, and whether it passes packets.
    Link { operational: bool },
    /// A route, and whether it leads to this host itself.
    Route { local: bool },
}

impl Reply {
    /// Reads one message, header included.
    pub(super) fn read(message: &[u8]) -> Result<Reply> {
        let kind = message.get(4..6).and_then(<[u8]>::first_chunk).map(|bytes| u16::from_ne_bytes(*bytes));
        let body = message.get(HEADER..).context("a route netlink message without header")?;
        match kind {
            Some(NLMSG_ERROR) => {
                let code =
                    body.first_chunk().context("a route netlink acknowledgement without error code")?;
                let code = i32::from_ne_bytes(*code);
                Ok(Reply::Acknowledged(if code == 0 { Ok(()) } else { Err(Errno::from_raw(-code)) }))
            }
            Some(libc::RTM_NEWLINK) => {
                let up = u8::try_from(libc::IF_OPER_UP).expect("a small number");
                let attributes = body.get(IFINFOMSG..).context("a link message without content")?;
                Ok(Reply::Link {
                    operational: attribute_value(attributes, libc::IFLA_OPERSTATE) == Some(&[up]),
                })
            }
            // The type of a route is the eighth byte of `struct rtmsg`.
            Some(libc::RTM_NEWROUTE) => Ok(Reply::Route { local: body.get(7) == Some(&libc::RTN_LOCAL) }),
            _ => bail!("a route netlink message of unknown kind {kind:?}"),
        }
    }
}

/// Cuts a datagram into its messages.
pub(super) fn split(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let message = rest.get(..length).filter(|message| message.len() >= HEADER)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn attribute_value(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        if kind == wanted {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

//! The bytes of IPVS requests and replies.

use super::{Connections, Info, RealServer, ServerKey, Timeouts, VirtualServer};
use crate::family::{address, octets};
use crate::generic::split;
use crate::wire::{Attribute, Attributes, Malformed, Message, Writer};
use std::net::{IpAddr, SocketAddr};

/// Commands, named as linux/ip_vs.h names them.
pub(super) mod command {
    pub(in crate::ipvs) const NEW_SERVICE: u8 = 1;
    pub(in crate::ipvs) const SET_SERVICE: u8 = 2;
    pub(in crate::ipvs) const DEL_SERVICE: u8 = 3;
    pub(in crate::ipvs) const GET_SERVICE: u8 = 4;
    pub(in crate::ipvs) const NEW_DEST: u8 = 5;
    pub(in crate::ipvs) const SET_DEST: u8 = 6;
    pub(in crate::ipvs) const DEL_DEST: u8 = 7;
    pub(in crate::ipvs) const GET_DEST: u8 = 8;
    pub(in crate::ipvs) const SET_CONFIG: u8 = 12;
    pub(in crate::ipvs) const GET_CONFIG: u8 = 13;
    pub(in crate::ipvs) const SET_INFO: u8 = 14;
    pub(in crate::ipvs) const GET_INFO: u8 = 15;
}

/// Attributes of a message.
const SERVICE: u16 = 1;
const DEST: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

/// Attributes of a reply to `GET_INFO`.
const INFO_VERSION: u16 = 1;
const INFO_CONNECTION_TABLE: u16 = 2;

/// Attributes of a virtual server.
mod service {
    pub(super) const ADDRESS_FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const SCHEDULER: u16 = 6;
    pub(super) const FLAGS: u16 = 7;
    pub(super) const TIMEOUT: u16 = 8;
    pub(super) const NETMASK: u16 = 9;
}

/// Attributes of a real server.
mod dest {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const PORT: u16 = 2;
    pub(super) const METHOD: u16 = 3;
    pub(super) const WEIGHT: u16 = 4;
    pub(super) const UPPER_THRESHOLD: u16 = 5;
    pub(super) const LOWER_THRESHOLD: u16 = 6;
    pub(super) const ACTIVE: u16 = 7;
    pub(super) const INACTIVE: u16 = 8;
    pub(super) const PERSISTENT: u16 = 9;
    pub(super) const ADDRESS_FAMILY: u16 = 11;
}

/// What the kernel replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A virtual server.
    Virtual(VirtualServer),
    /// A real server.
    Real(RealServer),
    /// The timeouts of all virtual servers.
    Timeouts(Timeouts),
    /// Version and table size.
    Info(Info),
}

/// Reads a message of the IPVS family; `None` if it holds none of the replies, or a virtual server without an address.
pub fn decode(message: &Message<'_>) -> Result<Option<Reply>, Malformed> {
    let (command, attributes) = split(message)?;
    match command {
        command::NEW_SERVICE => {
            let server = nested(attributes, SERVICE)?.map(decode_virtual).transpose()?.flatten();
            Ok(server.map(Reply::Virtual))
        }
        command::NEW_DEST => {
            let real = nested(attributes, DEST)?.map(decode_real).transpose()?.flatten();
            Ok(real.map(Reply::Real))
        }
        command::SET_CONFIG => decode_timeouts(attributes).map(Reply::Timeouts).map(Some),
        command::SET_INFO => decode_info(attributes).map(Reply::Info).map(Some),
        _ => Ok(None),
    }
}

pub(super) fn encode_key(writer: &mut Writer, key: &ServerKey) {
    writer.nest(SERVICE, |writer| encode_key_attributes(writer, key));
}

pub(super) fn encode_virtual(writer: &mut Writer, server: &VirtualServer) {
    writer.nest(SERVICE, |writer| {
        encode_key_attributes(writer, &server.key);
        writer.string(service::SCHEDULER, &server.scheduler);
        let mut flags = [0; 8];
        flags[..4].copy_from_slice(&server.flags.to_ne_bytes());
        flags[4..].copy_from_slice(&u32::MAX.to_ne_bytes());
        writer.attribute(service::FLAGS, &flags);
        writer.u32_host(service::TIMEOUT, server.timeout);
        match server.key.address {
            SocketAddr::V4(_) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(server.mask_length.min(32))).unwrap_or(0);
                writer.u32(service::NETMASK, mask);
            }
            SocketAddr::V6(_) => writer.u32_host(service::NETMASK, u32::from(server.mask_length)),
        }
    });
}

pub(super) fn encode_real_key(writer: &mut Writer, address: SocketAddr) {
    writer.nest(DEST, |writer| encode_real_key_attributes(writer, address));
}

pub(super) fn encode_real(writer: &mut Writer, real: &RealServer) {
    writer.nest(DEST, |writer| {
        encode_real_key_attributes(writer, real.address);
        writer.u32_host(dest::METHOD, real.method);
        writer.u32_host(dest::WEIGHT, real.weight);
        writer.u32_host(dest::UPPER_THRESHOLD, real.upper_threshold);
        writer.u32_host(dest::LOWER_THRESHOLD, real.lower_threshold);
    });
}

pub(super) fn encode_timeouts(writer: &mut Writer, timeouts: Timeouts) {
    writer.u32_host(TIMEOUT_TCP, timeouts.tcp);
    writer.u32_host(TIMEOUT_TCP_FIN, timeouts.tcp_fin);
    writer.u32_host(TIMEOUT_UDP, timeouts.udp);
}

fn encode_key_attributes(writer: &mut Writer, key: &ServerKey) {
    writer.u16_host(service::ADDRESS_FAMILY, u16::from(key.family().byte()));
    writer.u16_host(service::PROTOCOL, key.protocol);
    encode_address(writer, service::ADDRESS, key.address.ip());
    writer.u16(service::PORT, key.address.port());
}

fn encode_real_key_attributes(writer: &mut Writer, address: SocketAddr) {
    encode_address(writer, dest::ADDRESS, address.ip());
    writer.u16(dest::PORT, address.port());
}

/// Sixteen bytes in either family: older kernels accept nothing shorter.
fn encode_address(writer: &mut Writer, kind: u16, ip: IpAddr) {
    let mut bytes = [0; 16];
    let octets = octets(ip);
    let octets = octets.as_ref();
    if let Some(start) = bytes.get_mut(..octets.len()) {
        start.copy_from_slice(octets);
    }
    writer.attribute(kind, &bytes);
}

fn nested(attributes: Attributes<'_>, kind: u16) -> Result<Option<Attributes<'_>>, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute.nested()));
        }
    }
    Ok(None)
}

fn decode_virtual(attributes: Attributes<'_>) -> Result<Option<VirtualServer>, Malformed> {
    let (mut family, mut protocol, mut bytes, mut port) = (0, 0, None, None);
    let (mut scheduler, mut flags, mut timeout, mut mask) = (String::new(), 0, 0, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            service::ADDRESS_FAMILY => family = attribute.u16_host()?,
            service::PROTOCOL => protocol = attribute.u16_host()?,
            service::ADDRESS => bytes = Some(attribute.payload),
            service::PORT => port = Some(attribute.u16()?),
            service::SCHEDULER => scheduler = attribute.text().into_owned(),
            // The mask behind the flags matters in requests only.
            service::FLAGS => flags = attribute.u32_host()?,
            service::TIMEOUT => timeout = attribute.u32_host()?,
            service::NETMASK => mask = Some(attribute),
            _ => {}
        }
    }
    let Some((ip, port)) = bytes.and_then(|bytes| address_of(family, bytes)).zip(port) else {
        return Ok(None);
    };
    let key = ServerKey { address: SocketAddr::new(ip, port), protocol };
    let mask_length = mask.map(|mask| mask_length(ip, &mask)).transpose()?.unwrap_or_else(|| key.full_mask());
    Ok(Some(VirtualServer { key, scheduler, flags, timeout, mask_length }))
}

fn decode_real(attributes: Attributes<'_>) -> Result<Option<RealServer>, Malformed> {
    let (mut family, mut bytes, mut port) = (None, None, None);
    let (mut method, mut weight, mut upper, mut lower) = (0, 0, 0, 0);
    let mut connections = Connections::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            dest::ADDRESS_FAMILY => family = Some(attribute.u16_host()?),
            dest::ADDRESS => bytes = Some(attribute.payload),
            dest::PORT => port = Some(attribute.u16()?),
            dest::METHOD => method = attribute.u32_host()? & METHOD_MASK,
            dest::WEIGHT => weight = attribute.u32_host()?,
            dest::UPPER_THRESHOLD => upper = attribute.u32_host()?,
            dest::LOWER_THRESHOLD => lower = attribute.u32_host()?,
            dest::ACTIVE => connections.active = attribute.u32_host()?,
            dest::INACTIVE => connections.inactive = attribute.u32_host()?,
            dest::PERSISTENT => connections.persistent = attribute.u32_host()?,
            _ => {}
        }
    }
    // Kernels before 3.18 send no family; an IPv4 address then has zeros behind its four bytes.
    let guess = |bytes: &[u8]| if bytes.iter().skip(4).all(|byte| *byte == 0) { 2 } else { 10 };
    let ip = bytes.and_then(|bytes| address_of(family.unwrap_or_else(|| guess(bytes)), bytes));
    Ok(ip.zip(port).map(|(ip, port)| RealServer {
        address: SocketAddr::new(ip, port),
        method,
        weight,
        upper_threshold: upper,
        lower_threshold: lower,
        connections,
    }))
}

/// The bits of the forwarding method that hold the method itself.
const METHOD_MASK: u32 = 7;

fn decode_timeouts(attributes: Attributes<'_>) -> Result<Timeouts, Malformed> {
    let mut timeouts = Timeouts::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            TIMEOUT_TCP => timeouts.tcp = attribute.u32_host()?,
            TIMEOUT_TCP_FIN => timeouts.tcp_fin = attribute.u32_host()?,
            TIMEOUT_UDP => timeouts.udp = attribute.u32_host()?,
            _ => {}
        }
    }
    Ok(timeouts)
}

fn decode_info(attributes: Attributes<'_>) -> Result<Info, Malformed> {
    let mut info = Info::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            INFO_VERSION => info.version = attribute.u32_host()?,
            INFO_CONNECTION_TABLE => info.connection_table = attribute.u32_host()?,
            _ => {}
        }
    }
    Ok(info)
}

/// Reads an address, which takes sixteen bytes in either family.
fn address_of(family: u16, bytes: &[u8]) -> Option<IpAddr> {
    if family == 2 { bytes.get(..4).and_then(address) } else { address(bytes) }
}

fn mask_length(ip: IpAddr, mask: &Attribute<'_>) -> Result<u8, Malformed> {
    let length = match ip {
        IpAddr::V4(_) => mask.u32()?.leading_ones(),
        IpAddr::V6(_) => mask.u32_host()?,
    };
    Ok(u8::try_from(length).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::begin;
    use crate::wire::Messages;
    use proptest::prelude::*;

    fn round_trip(command: u8, body: impl FnOnce(&mut Writer)) -> Option<Reply> {
        let mut writer = Writer::new();
        let mark = begin(&mut writer, 35, 0, 1, command);
        body(&mut writer);
        writer.end_message(mark);
        let message = Messages::new(writer.bytes()).next().expect("one").expect("a message");
        decode(&message).expect("complete")
    }

    fn socket_address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    proptest! {
        #[test]
        fn a_virtual_server_decodes_back(
            address in socket_address(),
            protocol in any::<u16>(),
            scheduler in "[a-z]{1,15}",
            flags in any::<u32>(),
            timeout in any::<u32>(),
            mask in 0_u8..=128,
        ) {
            let key = ServerKey { address, protocol };
            let mask_length = mask.min(key.full_mask());
            let server = VirtualServer { key, scheduler, flags, timeout, mask_length };
            let reply = round_trip(command::NEW_SERVICE, |writer| encode_virtual(writer, &server));
            prop_assert_eq!(reply, Some(Reply::Virtual(server)));
        }

        #[test]
        fn a_real_server_decodes_back(
            address in socket_address(),
            method in 0_u32..8,
            weight in any::<u32>(),
            thresholds in any::<(u32, u32)>(),
        ) {
            let real = RealServer {
                method,
                upper_threshold: thresholds.0,
                lower_threshold: thresholds.1,
                ..RealServer::masqueraded(address, weight)
            };
            let reply = round_trip(command::NEW_DEST, |writer| {
                writer.nest(DEST, |writer| {
                    encode_real_key_attributes(writer, address);
                    writer.u16_host(dest::ADDRESS_FAMILY, if address.is_ipv4() { 2 } else { 10 });
                    writer.u32_host(dest::METHOD, method);
                    writer.u32_host(dest::WEIGHT, weight);
                    writer.u32_host(dest::UPPER_THRESHOLD, thresholds.0);
                    writer.u32_host(dest::LOWER_THRESHOLD, thresholds.1);
                });
            });
            prop_assert_eq!(reply, Some(Reply::Real(real)));
        }

        #[test]
        fn timeouts_decode_back(tcp in any::<u32>(), tcp_fin in any::<u32>(), udp in any::<u32>()) {
            let timeouts = Timeouts { tcp, tcp_fin, udp };
            let reply = round_trip(command::SET_CONFIG, |writer| encode_timeouts(writer, timeouts));
            prop_assert_eq!(reply, Some(Reply::Timeouts(timeouts)));
        }
    }

    #[test]
    fn without_a_family_zeros_behind_an_address_mean_ipv4() {
        for text in ["10.244.0.5:8080", "[fd00:10:244::5]:8080"] {
            let real = RealServer::masqueraded(text.parse().expect("an address"), 1);
            let reply = round_trip(command::NEW_DEST, |writer| encode_real(writer, &real));
            assert_eq!(reply, Some(Reply::Real(real)));
        }
    }

    #[test]
    fn servers_of_packet_marks_are_left_out() {
        let reply = round_trip(command::NEW_SERVICE, |writer| {
            writer.nest(SERVICE, |writer| {
                writer.u16_host(service::ADDRESS_FAMILY, 2);
                writer.u32_host(5, 7);
            });
        });
        assert_eq!(reply, None);
    }
}

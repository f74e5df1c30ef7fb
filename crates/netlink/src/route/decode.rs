//! The bytes of links, addresses and routes as the kernel sends them.

use super::{InterfaceAddress, Link};
use crate::family::address;
use crate::wire::{Attributes, Malformed};

/// Message types of rtnetlink.
pub(super) mod kind {
    pub(in crate::route) const NEW_LINK: u16 = 16;
    pub(in crate::route) const DELETE_LINK: u16 = 17;
    pub(in crate::route) const GET_LINK: u16 = 18;
    pub(in crate::route) const NEW_ADDRESS: u16 = 20;
    pub(in crate::route) const DELETE_ADDRESS: u16 = 21;
    pub(in crate::route) const GET_ADDRESS: u16 = 22;
    pub(in crate::route) const NEW_ROUTE: u16 = 24;
    pub(in crate::route) const GET_ROUTE: u16 = 26;
    pub(in crate::route) const NEW_NEIGHBOUR: u16 = 28;
}

/// The value of a link's operational state that means it passes packets.
const OPERATIONAL: u8 = 6;
/// A route to this host itself.
const LOCAL_ROUTE: u8 = 2;

/// Reads `struct ifinfomsg` and the attributes behind it.
pub(super) fn decode_link(payload: &[u8]) -> Result<Link, Malformed> {
    const NAME: u16 = 3;
    const STATE: u16 = 16;
    const INFO: u16 = 18;
    let (header, attributes) = payload.split_first_chunk::<16>().ok_or(Malformed { what: "link message" })?;
    let [_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *header;
    let mut link = Link {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        name: String::new(),
        flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        kind: None,
        operational: false,
    };
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        match attribute.kind {
            NAME => link.name = attribute.text().into_owned(),
            STATE => link.operational = attribute.u8()? == OPERATIONAL,
            INFO => link.kind = decode_kind(attribute.nested())?,
            _ => {}
        }
    }
    Ok(link)
}

fn decode_kind(attributes: Attributes<'_>) -> Result<Option<String>, Malformed> {
    const KIND: u16 = 1;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == KIND {
            return Ok(Some(attribute.text().into_owned()));
        }
    }
    Ok(None)
}

/// Whether a route, `struct rtmsg` with attributes behind it, leads to this host itself.
pub(super) fn is_local_route(payload: &[u8]) -> bool {
    payload.get(7) == Some(&LOCAL_ROUTE)
}

/// Reads `struct ifaddrmsg` and the address behind it.
pub(super) fn decode_address(payload: &[u8]) -> Result<Option<InterfaceAddress>, Malformed> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const FLAGS: u16 = 8;
    let (header, attributes) =
        payload.split_first_chunk::<8>().ok_or(Malformed { what: "address message" })?;
    let [_, prefix_length, flags, scope, i0, i1, i2, i3] = *header;
    let (mut remote, mut local, mut all_flags) = (None, None, None);
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        match attribute.kind {
            ADDRESS => remote = address(attribute.payload),
            LOCAL => local = address(attribute.payload),
            FLAGS => all_flags = Some(attribute.u32_host()?),
            _ => {}
        }
    }
    // On a point-to-point link the first attribute is the peer's address and the second one ours.
    Ok(local.or(remote).map(|address| InterfaceAddress {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        address,
        prefix_length,
        scope,
        flags: all_flags.unwrap_or_else(|| u32::from(flags)),
    }))
}

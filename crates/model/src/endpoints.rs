//! From slices to the endpoints of one service port: merged, without duplicates, in text order.

mod text_order;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use crate::name::Name;
use crate::object::{Conditions, EndpointSlice, Hints};
use crate::pool::Backend;

/// One endpoint of a service port, with all that its choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate<'a> {
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) conditions: Conditions,
    pub(crate) node: Option<&'a Name>,
    pub(crate) local: bool,
    pub(crate) zone_hint: HintMatch,
    pub(crate) node_hint: HintMatch,
}

/// How a hint relates to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HintMatch {
    /// There is no such hint.
    Absent,
    /// It names others.
    Others,
    /// It names this node, or its zone.
    Us,
}

impl Candidate<'_> {
    pub(crate) fn backend(&self) -> Backend {
        Backend { ip: self.ip, port: self.port, local: self.local, weight: 1, conditions: self.conditions }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

/// Where we are, as far as endpoints are concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a str,
    pub(crate) zone: Option<&'a str>,
}

/// All endpoints of the port with this name and protocol. Slices come in the order of their names, which settles what happens when two
/// of them disagree about one address.
pub(crate) fn merge<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port_name: &Name,
    protocol: crate::Protocol,
    place: Place<'_>,
) -> Vec<Candidate<'a>> {
    let mut all = Vec::new();
    for slice in slices {
        for port in slice.ports.iter().filter(|port| port.is_target_of(port_name, protocol)) {
            collect(slice, port.port.get(), place, &mut all);
        }
    }
    // The sort is stable, so entries for one address stay in the order in which they were seen.
    text_order::sort(&mut all, Candidate::address);
    all.dedup_by(|later, kept| {
        let same = later.address() == kept.address();
        // One that is not terminating always replaces; a terminating one only fills a gap.
        if same && !later.conditions.terminating {
            *kept = *later;
        }
        same
    });
    all
}

fn collect<'a>(slice: &'a EndpointSlice, port: u16, place: Place<'_>, all: &mut Vec<Candidate<'a>>) {
    let hints: Vec<(HintMatch, HintMatch)> =
        slice.hints().iter().map(|hints| match_hints(hints, place)).collect();
    all.reserve(slice.len());
    for endpoint in slice.endpoints() {
        let (zone_hint, node_hint) = endpoint
            .hints
            .and_then(|index| hints.get(index).copied())
            .unwrap_or((HintMatch::Absent, HintMatch::Absent));
        all.push(Candidate {
            ip: endpoint.ip,
            port,
            conditions: endpoint.conditions,
            node: endpoint.node,
            local: !place.node.is_empty() && endpoint.node.is_some_and(|node| node.as_str() == place.node),
            zone_hint,
            node_hint,
        });
    }
}

fn match_hints(hints: &Hints, place: Place<'_>) -> (HintMatch, HintMatch) {
    let find = |names: &[Name], ours: Option<&str>| match ours.filter(|ours| !ours.is_empty()) {
        _ if names.is_empty() => HintMatch::Absent,
        Some(ours) if names.iter().any(|name| name.as_str() == ours) => HintMatch::Us,
        _ => HintMatch::Others,
    };
    (find(&hints.zones, place.zone), find(&hints.nodes, Some(place.node)))
}

/// Sorts by the text `ip:port`, as all lists of endpoints are.
pub(crate) fn sort_by_text(backends: &mut [Backend]) {
    text_order::sort(backends, Backend::address);
}

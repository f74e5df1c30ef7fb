//! Merges EndpointSlices into the endpoints of one service port: no duplicates, sorted by the text `ip:port`.

mod text_order;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use crate::name::Name;
use crate::object::{Conditions, EndpointSlice, Hints};
use crate::pool::Backend;

/// One endpoint of a service port, with everything that its selection depends on.
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
    /// The endpoint has no such hint.
    Absent,
    /// The hint names other nodes or zones only.
    Others,
    /// The hint names this node or its zone.
    ThisNode,
}

impl Candidate<'_> {
    pub(crate) fn backend(&self) -> Backend {
        Backend { ip: self.ip, port: self.port, local: self.local, weight: 1, conditions: self.conditions }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

/// Where this node is: decides which endpoints are local and which hints match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeLocation<'a> {
    pub(crate) node: &'a str,
    pub(crate) zone: Option<&'a str>,
}

/// All endpoints of the port with this name and protocol. Where two slices disagree about one address, the better state counts.
pub(crate) fn merge<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port_name: &Name,
    protocol: crate::Protocol,
    location: NodeLocation<'_>,
) -> Vec<Candidate<'a>> {
    let mut all = Vec::new();
    for slice in slices {
        for port in slice.ports.iter().filter(|port| port.is_target_of(port_name, protocol)) {
            collect(slice, port.port.get(), location, &mut all);
        }
    }
    // The sort is stable, so entries for one address stay in the order in which they were seen.
    text_order::sort(&mut all, Candidate::address);
    all.dedup_by(|later, kept| {
        let same = later.address() == kept.address();
        if same && outranks(later, kept) {
            *kept = *later;
        }
        same
    });
    all
}

/// Whether a later entry for the same address counts instead of an earlier one: an endpoint that is not terminating before one that is, a ready one
/// before others, a serving one before others. Of equal ones that are not terminating the later one counts.
fn outranks(later: &Candidate<'_>, kept: &Candidate<'_>) -> bool {
    let rank = |candidate: &Candidate<'_>| {
        let Conditions { ready, serving, terminating } = candidate.conditions;
        (!terminating, ready, serving)
    };
    match rank(later).cmp(&rank(kept)) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => !later.conditions.terminating,
        std::cmp::Ordering::Less => false,
    }
}

fn collect<'a>(
    slice: &'a EndpointSlice,
    port: u16,
    location: NodeLocation<'_>,
    all: &mut Vec<Candidate<'a>>,
) {
    let hints: Vec<(HintMatch, HintMatch)> =
        slice.hints().iter().map(|hints| match_hints(hints, location)).collect();
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
            local: !location.node.is_empty()
                && endpoint.node.is_some_and(|node| node.as_str() == location.node),
            zone_hint,
            node_hint,
        });
    }
}

fn match_hints(hints: &Hints, location: NodeLocation<'_>) -> (HintMatch, HintMatch) {
    let find = |names: &[Name], ours: Option<&str>| match ours.filter(|ours| !ours.is_empty()) {
        _ if names.is_empty() => HintMatch::Absent,
        Some(ours) if names.iter().any(|name| name.as_str() == ours) => HintMatch::ThisNode,
        _ => HintMatch::Others,
    };
    (find(&hints.zones, location.zone), find(&hints.nodes, Some(location.node)))
}

/// Sorts by the text `ip:port`, the order of every list of endpoints.
pub(crate) fn sort_by_text(backends: &mut [Backend]) {
    text_order::sort(backends, Backend::address);
}

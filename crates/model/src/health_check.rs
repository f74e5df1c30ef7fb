//! `healthCheckNodePort`: the port on which load balancers ask how many endpoints of a Service run on this node.

use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::endpoints::{NodeLocation, merge};
use crate::object::EndpointSlice;

/// A port on which load balancers ask for the number of local endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: NonZeroU16,
    /// Distinct ready endpoints on this node.
    pub local_endpoints: usize,
}

/// Distinct addresses of ready endpoints on this node, over all ports of the slices: a pod with two ports counts once.
pub(crate) fn local_ready_endpoints<'a, I: Iterator<Item = &'a EndpointSlice>>(
    slices: impl Fn() -> I,
    location: NodeLocation<'_>,
) -> usize {
    let mut keys: Vec<_> =
        slices().flat_map(|slice| slice.ports.iter().map(|port| (&port.name, port.protocol))).collect();
    keys.sort();
    keys.dedup();
    let mut ips: Vec<IpAddr> = keys
        .into_iter()
        .flat_map(|(name, protocol)| merge(slices(), name, protocol, location))
        .filter(|candidate| candidate.local && candidate.conditions.ready)
        .map(|candidate| candidate.ip)
        .collect();
    ips.sort_unstable();
    ips.dedup();
    ips.len()
}

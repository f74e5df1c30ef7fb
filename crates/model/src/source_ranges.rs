//! `loadBalancerSourceRanges`: which clients may use the load-balancer addresses of a Service.

use ipnet::IpNet;

use crate::desired::NodeView;
use crate::ip::{Family, parse_cidr};
use crate::manifest;
use crate::object::Service;
use crate::problem::Problems;

/// The clients that may use load-balancer frontends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRanges {
    /// The ranges of this family in the order of the Service; never empty.
    pub ranges: Box<[IpNet]>,
    /// Also allow the load-balancer addresses themselves. Set if a range contains the node's address: a process on the node that connects
    /// to a load-balancer address bound there has that address as its source.
    pub frontends_too: bool,
}

/// The ranges of both families as written in the Service.
pub(crate) fn parse(spec: &manifest::ServiceSpec, problems: &mut Problems) -> Box<[IpNet]> {
    let mut ranges = Vec::with_capacity(spec.load_balancer_source_ranges.len());
    for (index, text) in spec.load_balancer_source_ranges.iter().enumerate() {
        match parse_cidr(text.trim()) {
            Some(net) => ranges.push(net),
            None if text.trim().is_empty() => {}
            None => problems.add(
                format!("spec.loadBalancerSourceRanges[{index}]"),
                format!("{text:?} is not a CIDR such as 192.0.2.0/24; left out, which can leave the address open to all"),
            ),
        }
    }
    ranges.into()
}

/// The ranges of one family. Empty means that every client is allowed: the Service gives none for this family, or one of them covers all
/// of it.
pub(crate) fn of_family(all: &[IpNet], family: Family) -> Vec<IpNet> {
    let ranges = || all.iter().filter(|net| Family::of_net(net) == family);
    if ranges().any(|net| net.prefix_len() == 0) { Vec::new() } else { ranges().copied().collect() }
}

/// The restriction that holds for a Service on this node; `None` if every client is allowed or there is no load-balancer address.
pub(crate) fn resolve(service: &Service, family: Family, node: &NodeView) -> Option<Box<SourceRanges>> {
    service.load_balancer_ips(family).next()?;
    let ranges = service.source_ranges(family);
    if ranges.is_empty() {
        return None;
    }
    let frontends_too = ranges.iter().any(|range| range.contains(&node.ip));
    Some(Box::new(SourceRanges { ranges: ranges.into(), frontends_too }))
}

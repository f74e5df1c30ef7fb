//! `portwarden explain`: the decisions about a Service and their reasons, recorded while the deciding code runs.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use crate::desired::{Admission, Exposure, Frontend, PoolKind, ProxiedService, Verdict};
use crate::endpoint_selection::{DecisionObserver, Reason, Topology};
use crate::endpoints::Candidate;
use crate::ip::Family;
use crate::name::{Name, NamespacedName, PortName, Protocol};
use crate::object::{Conditions, EndpointSlice, SlicePort};
use crate::source_ranges::SourceRanges;

/// Everything that was decided about one Service in one family.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// In the order of the Service's ports.
    pub ports: Vec<PortExplanation>,
    /// Slices of the other family, which are not used here.
    pub other_family: Vec<NamespacedName>,
    /// Ports of slices that match no port of the Service. Their endpoints are not used on that port.
    pub unmatched: Vec<UnmatchedPort>,
}

/// A port of a slice that matches no port of its Service.
#[derive(Debug, Clone, PartialEq)]
pub struct UnmatchedPort {
    /// The slice that has the port.
    pub slice: NamespacedName,
    /// The name in the slice; the Service has no port of this name and protocol.
    pub port: Name,
    /// The protocol in the slice.
    pub protocol: Protocol,
}

/// Everything that was decided about one port.
#[derive(Debug, Clone, PartialEq)]
pub struct PortExplanation {
    /// Service, port name and protocol.
    pub name: PortName,
    /// How hints narrowed the cluster-wide pool; `None` if no policy needs that pool.
    pub topology: Option<Topology>,
    /// Every known endpoint, used or not.
    pub endpoints: Vec<EndpointExplanation>,
    /// What happens to traffic at each address.
    pub frontends: Vec<FrontendExplanation>,
    /// Session affinity: for how many seconds after its last connection a client keeps its endpoint.
    pub affinity: Option<NonZeroU32>,
    /// The clients that may use the load-balancer frontends; `None` means all.
    pub source_ranges: Option<Box<SourceRanges>>,
}

/// Why an endpoint is used, or not.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointExplanation {
    /// Address and port of the endpoint.
    pub address: SocketAddr,
    /// The node it runs on, if the slice names one.
    pub node: Option<Name>,
    /// Whether that is this node.
    pub on_this_node: bool,
    /// Its conditions, merged over all slices that name it.
    pub conditions: Conditions,
    /// Whether it is in the cluster-wide pool; `None` if no policy needs that pool.
    pub cluster: Option<Reason>,
    /// Whether it is in the local pool; `None` if no policy needs that pool.
    pub local: Option<Reason>,
}

/// What a frontend does, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontendExplanation {
    /// As dataplanes see it.
    pub frontend: Frontend,
    /// The reason of the verdict on traffic that starts on this node.
    pub from_node: FrontendReason,
    /// The reason of the verdict on all other traffic.
    pub from_elsewhere: FrontendReason,
}

/// Why traffic gets its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontendReason {
    /// Another frontend with the same address and port takes precedence.
    TakenByAnother,
    /// The settings forbid external IPs.
    NotAllowed,
    /// The node port is a port of Portwarden's own servers.
    ReservedPort,
    /// No endpoint in the cluster can be used.
    NoEndpoints,
    /// The policy is Local, and endpoints are only on other nodes.
    NoLocalEndpoints,
    /// The policy is Local, and this node has endpoints.
    LocalEndpoints,
    /// The policy is Cluster, and there are endpoints.
    ClusterEndpoints,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Ready => "used: ready",
            Reason::TerminatingFallback => "used: terminating but still serving, and no endpoint is ready",
            Reason::HintedForOtherNodes => "not used: its hints name other nodes",
            Reason::HintedForOtherZones => "not used: its hints name other zones",
            Reason::OnAnotherNode => "not used: on another node",
            Reason::NotReady => "not used: not ready",
            Reason::TerminatingWhileOthersAreReady => "not used: terminating, and other endpoints are ready",
            Reason::TerminatingAndNotServing => "not used: terminating and no longer serving",
        })
    }
}

impl fmt::Display for FrontendReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrontendReason::TakenByAnother => {
                "not used: another frontend with this address and port takes precedence"
            }
            FrontendReason::NotAllowed => "not used: the configuration does not allow external IPs",
            FrontendReason::ReservedPort => "not used: a port of Portwarden's own servers",
            FrontendReason::NoEndpoints => "rejected: the cluster has no usable endpoint",
            FrontendReason::NoLocalEndpoints => {
                "dropped: the policy is Local and all endpoints are on other nodes"
            }
            FrontendReason::LocalEndpoints => "forwarded to an endpoint on this node: the policy is Local",
            FrontendReason::ClusterEndpoints => "forwarded to any endpoint of the cluster",
        })
    }
}

/// Records decisions as they are made.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    ports: Vec<PortExplanation>,
    /// Where the last port has each endpoint: a Service can have thousands.
    places: HashMap<SocketAddr, usize>,
}

impl Recorder {
    /// Adds what can only be read from the finished Service and all its slices.
    pub(crate) fn finish(
        mut self,
        service: ProxiedService,
        slices: &[EndpointSlice],
        family: Family,
    ) -> Explanation {
        let other_family =
            slices.iter().filter(|s| s.family() != family).map(|slice| slice.name.clone()).collect();
        let ours = slices.iter().filter(|slice| slice.family() == family);
        let is_target = |port: &SlicePort| {
            self.ports.iter().any(|known| port.is_target_of(&known.name.port, known.name.protocol))
        };
        let unmatched = ours
            .flat_map(|slice| slice.ports.iter().map(move |port| (slice, port)))
            .filter(|(_, port)| !is_target(port))
            .map(|(slice, port)| UnmatchedPort {
                slice: slice.name.clone(),
                port: port.name.clone(),
                protocol: port.protocol,
            })
            .collect();
        for (explanation, port) in self.ports.iter_mut().zip(service.ports) {
            explanation.frontends = port.frontends.iter().map(explain_frontend).collect();
            explanation.affinity = port.affinity;
            explanation.source_ranges = port.source_ranges;
        }
        Explanation { ports: self.ports, other_family, unmatched }
    }

    fn endpoint(&mut self, candidate: &Candidate<'_>) -> Option<&mut EndpointExplanation> {
        let endpoints = &mut self.ports.last_mut()?.endpoints;
        let address = candidate.address();
        let index = *self.places.entry(address).or_insert(endpoints.len());
        if index == endpoints.len() {
            endpoints.push(EndpointExplanation {
                address,
                node: candidate.node.cloned(),
                on_this_node: candidate.local,
                conditions: candidate.conditions,
                cluster: None,
                local: None,
            });
        }
        endpoints.get_mut(index)
    }
}

impl DecisionObserver for Recorder {
    fn port(&mut self, name: &PortName) {
        self.places.clear();
        self.ports.push(PortExplanation {
            name: name.clone(),
            topology: None,
            endpoints: Vec::new(),
            frontends: Vec::new(),
            affinity: None,
            source_ranges: None,
        });
    }

    fn topology(&mut self, topology: Topology) {
        if let Some(port) = self.ports.last_mut() {
            port.topology = Some(topology);
        }
    }

    fn cluster(&mut self, candidate: &Candidate<'_>, reason: Reason) {
        if let Some(endpoint) = self.endpoint(candidate) {
            endpoint.cluster = Some(reason);
        }
    }

    fn local(&mut self, candidate: &Candidate<'_>, reason: Reason) {
        if let Some(endpoint) = self.endpoint(candidate) {
            endpoint.local = Some(reason);
        }
    }
}

fn explain_frontend(frontend: &Frontend) -> FrontendExplanation {
    let reason = |verdict| match verdict {
        _ if frontend.admission == Admission::Shadowed => FrontendReason::TakenByAnother,
        _ if frontend.admission == Admission::NotAllowed => match frontend.exposure {
            Exposure::NodePort => FrontendReason::ReservedPort,
            _ => FrontendReason::NotAllowed,
        },
        Verdict::Reject => FrontendReason::NoEndpoints,
        Verdict::Drop => FrontendReason::NoLocalEndpoints,
        Verdict::Forward(PoolKind::Local) => FrontendReason::LocalEndpoints,
        Verdict::Forward(PoolKind::Cluster) => FrontendReason::ClusterEndpoints,
    };
    FrontendExplanation {
        frontend: frontend.clone(),
        from_node: reason(frontend.from_node),
        from_elsewhere: reason(frontend.from_elsewhere),
    }
}

//! Services: which are proxied, at which addresses, with which policies.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};
use std::num::{NonZeroU16, NonZeroU32};

use ipnet::IpNet;

use crate::ip::{Family, PerFamily, parse_ip};
use crate::manifest::{self, LABEL_PROXY_NAME};
use crate::name::{Interner, Name, NamespacedName, Protocol};
use crate::problem::{Problem, Problems};
use crate::{session_affinity, source_ranges};

/// The type of a proxied Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    ClusterIp,
    /// Also on a port of every node.
    NodePort,
    /// Also through a load balancer.
    LoadBalancer,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Matches the name of a slice's port; may be empty.
    pub name: Name,
    /// Matches the protocol of a slice's port.
    pub protocol: Protocol,
    /// The number on cluster, external and load-balancer addresses.
    pub port: u16,
    /// The number on the node's own addresses.
    pub node_port: Option<NonZeroU16>,
}

/// A Service that is proxied in at least one family. Two equal values need the same rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The identity of the Service; its slices name it.
    pub name: NamespacedName,
    /// `spec.type`; decides whether the external policy counts.
    pub kind: ServiceType,
    /// A family without a cluster address does not proxy the Service.
    pub cluster_ips: PerFamily<Option<IpAddr>>,
    /// Unique by name and protocol: of two equal ones the last counts.
    pub ports: Box<[ServicePort]>,
    /// `spec.externalIPs`, both families, in order.
    pub external_ips: Box<[IpAddr]>,
    /// Load-balancer addresses with `ipMode: VIP`, both families, in order.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// `spec.loadBalancerSourceRanges`, both families; see [`Service::source_ranges`].
    pub load_balancer_source_ranges: Box<[IpNet]>,
    /// Session affinity by client address, with its timeout in seconds.
    pub affinity: Option<NonZeroU32>,
    /// `internalTrafficPolicy: Local`.
    pub internal_policy_local: bool,
    /// `externalTrafficPolicy: Local`, where the type lets it count.
    pub external_policy_local: bool,
    /// `spec.healthCheckNodePort`, where type and policy need one.
    pub health_check_node_port: Option<NonZeroU16>,
}

impl Service {
    /// Parses a Service. `None` if it must not be proxied: headless, ExternalName, or assigned to another proxy.
    pub fn from_manifest(from: &manifest::Service, names: &mut Interner) -> (Option<Service>, Vec<Problem>) {
        let name = NamespacedName::new(&from.metadata.namespace, &from.metadata.name);
        let mut problems = Problems::of("Service", &name);
        let service = parse(from, name, names, &mut problems);
        (service, problems.into_vec())
    }

    /// External addresses of one family.
    pub fn external_ips(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.external_ips.iter().copied().filter(move |ip| Family::of(*ip) == family)
    }

    /// Load-balancer addresses of one family.
    pub fn load_balancer_ips(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.load_balancer_ips.iter().copied().filter(move |ip| Family::of(*ip) == family)
    }

    /// Source ranges of one family. Empty means that every client is allowed.
    pub fn source_ranges(&self, family: Family) -> Vec<IpNet> {
        source_ranges::of_family(&self.load_balancer_source_ranges, family)
    }
}

fn parse(
    from: &manifest::Service,
    name: NamespacedName,
    names: &mut Interner,
    problems: &mut Problems,
) -> Option<Service> {
    let spec = &from.spec;
    if from.metadata.name.is_empty() {
        problems.add("metadata.name", "missing; Service left out");
        return None;
    }
    if from.metadata.labels.contains_key(LABEL_PROXY_NAME) || matches!(spec.cluster_ip.as_str(), "" | "None")
    {
        return None;
    }
    let kind = match spec.r#type.as_str() {
        "ExternalName" => return None,
        "NodePort" => ServiceType::NodePort,
        "LoadBalancer" => ServiceType::LoadBalancer,
        "ClusterIP" | "" => ServiceType::ClusterIp,
        other => {
            problems.add("spec.type", format!("{other:?} is not a known type; treated as ClusterIP"));
            ServiceType::ClusterIp
        }
    };
    let cluster_ips = cluster_ips(spec, problems);
    if cluster_ips.v4.is_none() && cluster_ips.v6.is_none() {
        return None;
    }
    let external_policy_local = spec.external_traffic_policy == "Local"
        && (kind != ServiceType::ClusterIp || !spec.external_ips.is_empty());
    Some(Service {
        name,
        kind,
        cluster_ips,
        ports: ports(spec, names, problems),
        external_ips: external_ips(spec, problems),
        load_balancer_ips: load_balancer_ips(&from.status),
        load_balancer_source_ranges: source_ranges::parse(spec, problems),
        affinity: session_affinity::parse(spec, problems),
        internal_policy_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        external_policy_local,
        health_check_node_port: health_check_node_port(spec, kind, external_policy_local, problems),
    })
}

fn cluster_ips(spec: &manifest::ServiceSpec, problems: &mut Problems) -> PerFamily<Option<IpAddr>> {
    let mut ips = PerFamily::default();
    if spec.ip_families.is_empty() {
        match parse_ip(&spec.cluster_ip) {
            Some(ip) if is_special(ip) => problems.add("spec.clusterIP", special(ip)),
            Some(ip) => ips[Family::of(ip)] = Some(ip),
            None => problems
                .add("spec.clusterIP", format!("{:?} is not an IP address; not proxied", spec.cluster_ip)),
        }
        return ips;
    }
    for family in Family::BOTH {
        let index = (0..spec.cluster_ips.len())
            .find(|i| spec.ip_families.get(*i).map(String::as_str) == Some(family.as_str()));
        let Some(index) = index else { continue };
        let text = &spec.cluster_ips[index];
        match parse_ip(text).filter(|ip| Family::of(*ip) == family) {
            Some(ip) if is_special(ip) => problems.add(format!("spec.clusterIPs[{index}]"), special(ip)),
            Some(ip) => ips[family] = Some(ip),
            None => problems.add(
                format!("spec.clusterIPs[{index}]"),
                format!("{text:?} is not an {family} address; not proxied for {family}"),
            ),
        }
    }
    ips
}

/// Whether an address can belong to no Service. Unknown ports of cluster addresses are refused, so that one Service with 127.0.0.1 would cut
/// off every process of the node from its own servers.
fn is_special(ip: IpAddr) -> bool {
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || broadcast
}

fn special(ip: IpAddr) -> String {
    format!("{ip} cannot be the address of a Service; not proxied")
}

fn ports(spec: &manifest::ServiceSpec, names: &mut Interner, problems: &mut Problems) -> Box<[ServicePort]> {
    let mut ports: Vec<ServicePort> = Vec::with_capacity(spec.ports.len());
    for (index, port) in spec.ports.iter().enumerate() {
        let Some(protocol) = Protocol::parse(&port.protocol) else {
            problems.add(
                format!("spec.ports[{index}].protocol"),
                format!("{:?} is not TCP, UDP or SCTP; port left out", port.protocol),
            );
            continue;
        };
        let Some(number) = port_number(port.port) else {
            problems.add(
                format!("spec.ports[{index}].port"),
                format!("{} is not a port number; port left out", port.port),
            );
            continue;
        };
        if port.node_port != 0 && port_number(port.node_port).is_none() {
            problems.add(
                format!("spec.ports[{index}].nodePort"),
                format!("{} is not a port number; node port left out", port.node_port),
            );
        }
        let parsed = ServicePort {
            name: names.name(&port.name),
            protocol,
            port: number.get(),
            node_port: port_number(port.node_port),
        };
        match ports.iter_mut().find(|p| p.name == parsed.name && p.protocol == protocol) {
            Some(same) => *same = parsed,
            None => ports.push(parsed),
        }
    }
    ports.into()
}

fn external_ips(spec: &manifest::ServiceSpec, problems: &mut Problems) -> Box<[IpAddr]> {
    let mut ips = Vec::with_capacity(spec.external_ips.len());
    for (index, text) in spec.external_ips.iter().enumerate() {
        match parse_ip(text) {
            Some(ip) => ips.push(ip),
            None if text.trim().is_empty() => {}
            None => problems.add(
                format!("spec.externalIPs[{index}]"),
                format!("{text:?} is not an IP address; left out"),
            ),
        }
    }
    ips.into()
}

fn load_balancer_ips(status: &manifest::ServiceStatus) -> Box<[IpAddr]> {
    let ours =
        |ingress: &&manifest::LoadBalancerIngress| matches!(ingress.ip_mode.as_deref(), None | Some("VIP"));
    status.load_balancer.ingress.iter().filter(ours).filter_map(|ingress| parse_ip(&ingress.ip)).collect()
}

fn health_check_node_port(
    spec: &manifest::ServiceSpec,
    kind: ServiceType,
    external_policy_local: bool,
    problems: &mut Problems,
) -> Option<NonZeroU16> {
    if kind != ServiceType::LoadBalancer || !external_policy_local {
        return None;
    }
    let port = port_number(spec.health_check_node_port);
    if port.is_none() {
        problems.add(
            "spec.healthCheckNodePort",
            format!(
                "{} is not a port number; load balancers cannot ask this node for its endpoints",
                spec.health_check_node_port
            ),
        );
    }
    port
}

fn port_number(number: i32) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

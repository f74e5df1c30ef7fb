//! From a Service and its endpoints to frontends: which addresses, which pool for whom, who is masqueraded.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::choice::{Choice, Needs, Why, choose};
use crate::desired::{
    Admission, Exposure, Frontend, HealthCheck, Masquerade, NodeView, PodTraffic, PoolKind, ProxiedPort,
    ProxiedService, SourceRanges, TrafficPolicy, Verdict,
};
use crate::endpoints::{Candidate, Place, merge};
use crate::ip::Family;
use crate::name::PortName;
use crate::object::{EndpointSlice, Service, ServicePort};
use crate::pool::{Backend, Pool};
use crate::reserved_ports::is_reserved;
use crate::settings::Settings;

/// Everything that the outcome depends on, besides the Service and its slices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) family: Family,
    pub(crate) settings: &'a Settings,
    pub(crate) node: &'a NodeView,
    pub(crate) place: Place<'a>,
}

/// The Service in one family; `None` if it has no address there.
pub(crate) fn build(
    service: &Service,
    slices: &[EndpointSlice],
    context: Context<'_>,
    why: &mut impl Why,
) -> Option<ProxiedService> {
    let cluster_ip = service.cluster_ips[context.family]?;
    let ours = || slices.iter().filter(|slice| slice.family() == context.family);
    let source_ranges = source_ranges(service, context);
    let ports = service.ports.iter().map(|port| {
        let name =
            PortName { service: service.name.clone(), port: port.name.clone(), protocol: port.protocol };
        why.port(&name);
        let candidates = merge(ours(), &port.name, port.protocol, context.place);
        let exposed = Exposed::of(service, port, context.family);
        let choice = choose(&candidates, exposed.needs(), why);
        let endpoints = all_endpoints(&candidates, &choice);
        ProxiedPort {
            frontends: frontends(service, port, cluster_ip, &choice, context),
            affinity: service.affinity,
            source_ranges: source_ranges.clone(),
            has_endpoints: choice.has_any,
            no_local_internal: choice.has_any && service.internal_policy_local && choice.local.is_empty(),
            no_local_external: choice.has_any && service.external_policy_local && choice.local.is_empty(),
            cluster: choice.cluster,
            local: choice.local,
            endpoints,
            name,
        }
    });
    let ports = ports.collect();
    let health_check = service
        .health_check_node_port
        .map(|port| HealthCheck { port, local_endpoints: local_ready_endpoints(ours, context.place) });
    Some(ProxiedService { ports, health_check })
}

/// Which policies and frontends a service port has, as far as the choice of endpoints depends on it.
struct Exposed {
    internal_local: bool,
    external_local: bool,
    externally: bool,
}

impl Exposed {
    fn of(service: &Service, port: &ServicePort, family: Family) -> Self {
        Exposed {
            internal_local: service.internal_policy_local,
            external_local: service.external_policy_local,
            externally: port.node_port.is_some()
                || service.load_balancer_ips(family).next().is_some()
                || service.external_ips(family).next().is_some(),
        }
    }

    /// Policy Local for external traffic still needs the cluster-wide pool, for traffic that starts on the node.
    fn needs(&self) -> Needs {
        Needs {
            cluster: !self.internal_local || self.externally,
            local: self.internal_local || (self.external_local && self.externally),
        }
    }
}

fn frontends(
    service: &Service,
    port: &ServicePort,
    cluster_ip: IpAddr,
    choice: &Choice,
    context: Context<'_>,
) -> Box<[Frontend]> {
    let mut frontends = vec![cluster_frontend(service, port, cluster_ip, choice, context)];
    let external = |exposure, ip, port| external_frontend(service, choice, exposure, ip, port);
    let admission =
        if context.settings.allow_external_ips { Admission::Active } else { Admission::NotAllowed };
    frontends.extend(
        service
            .external_ips(context.family)
            .map(|ip| Frontend { admission, ..external(Exposure::ExternalIp, Some(ip), port.port) }),
    );
    frontends.extend(
        service
            .load_balancer_ips(context.family)
            .map(|ip| external(Exposure::LoadBalancerIp, Some(ip), port.port)),
    );
    frontends.extend(port.node_port.map(|node_port| {
        let reserved = is_reserved(context.settings, port.protocol, node_port.get());
        let admission = if reserved { Admission::NotAllowed } else { Admission::Active };
        Frontend { admission, ..external(Exposure::NodePort, None, node_port.get()) }
    }));
    frontends.into()
}

fn cluster_frontend(
    service: &Service,
    port: &ServicePort,
    ip: IpAddr,
    choice: &Choice,
    context: Context<'_>,
) -> Frontend {
    let policy = policy(service.internal_policy_local);
    let verdict = verdict(choice, policy);
    let masquerade = match &context.node.pod_traffic {
        _ if context.settings.masquerade_all => Masquerade::Always,
        PodTraffic::Unknown => Masquerade::Never,
        _ => Masquerade::NotFromPods,
    };
    Frontend {
        exposure: Exposure::ClusterIp,
        ip: Some(ip),
        port: port.port,
        from_node: verdict,
        from_elsewhere: verdict,
        policy,
        masquerade,
        admission: Admission::Active,
    }
}

fn external_frontend(
    service: &Service,
    choice: &Choice,
    exposure: Exposure,
    ip: Option<IpAddr>,
    port: u16,
) -> Frontend {
    let policy = policy(service.external_policy_local);
    Frontend {
        exposure,
        ip,
        port,
        from_node: verdict(choice, TrafficPolicy::Cluster),
        from_elsewhere: verdict(choice, policy),
        policy,
        masquerade: match policy {
            TrafficPolicy::Local => Masquerade::FromHost,
            TrafficPolicy::Cluster => Masquerade::Always,
        },
        admission: Admission::Active,
    }
}

fn policy(local: bool) -> TrafficPolicy {
    if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

fn verdict(choice: &Choice, policy: TrafficPolicy) -> Verdict {
    match (choice.has_any, policy) {
        (false, _) => Verdict::Reject,
        (true, TrafficPolicy::Cluster) => Verdict::Forward(PoolKind::Cluster),
        (true, TrafficPolicy::Local) if choice.local.is_empty() => Verdict::Drop,
        (true, TrafficPolicy::Local) => Verdict::Forward(PoolKind::Local),
    }
}

fn source_ranges(service: &Service, context: Context<'_>) -> Option<Box<SourceRanges>> {
    service.load_balancer_ips(context.family).next()?;
    let ranges = service.source_ranges(context.family);
    if ranges.is_empty() {
        return None;
    }
    let frontends_too = ranges.iter().any(|range| range.contains(&context.node.ip));
    Some(Box::new(SourceRanges { ranges: ranges.into(), frontends_too }))
}

/// Every endpoint; usually one of the pools holds them all, and its memory is shared.
fn all_endpoints(candidates: &[Candidate<'_>], choice: &Choice) -> Pool {
    let whole = [&choice.cluster, &choice.local].into_iter().find(|pool| pool.len() == candidates.len());
    whole
        .cloned()
        .unwrap_or_else(|| Pool::new(&candidates.iter().map(Candidate::backend).collect::<Vec<Backend>>()))
}

/// Distinct addresses of ready endpoints on this node, over all ports of the slices: a pod with two ports counts once.
fn local_ready_endpoints<'a, I: Iterator<Item = &'a EndpointSlice>>(
    slices: impl Fn() -> I,
    place: Place<'_>,
) -> usize {
    let mut keys: Vec<_> =
        slices().flat_map(|slice| slice.ports.iter().map(|port| (&port.name, port.protocol))).collect();
    keys.sort();
    keys.dedup();
    let mut ips: Vec<IpAddr> = keys
        .into_iter()
        .flat_map(|(name, protocol)| merge(slices(), name, protocol, place))
        .filter(|candidate| candidate.local && candidate.conditions.ready)
        .map(|candidate| candidate.ip)
        .collect();
    ips.sort_unstable();
    ips.dedup();
    ips.len()
}

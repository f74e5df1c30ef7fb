//! Builds the frontends of a Service: addresses, traffic policies, verdicts, masquerading.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::desired::{
    Admission, Exposure, Frontend, Masquerade, NodeView, PodTraffic, PoolKind, ProxiedPort, ProxiedService,
    TrafficPolicy, Verdict,
};
use crate::endpoint_selection::{DecisionObserver, NeededPools, Selection, select_endpoints};
use crate::endpoints::{Candidate, NodeLocation, merge};
use crate::health_check::{HealthCheck, local_ready_endpoints};
use crate::ip::Family;
use crate::name::PortName;
use crate::object::{EndpointSlice, Service, ServicePort};
use crate::pool::{Backend, Pool};
use crate::reserved_ports::is_reserved;
use crate::settings::Settings;
use crate::source_ranges;

/// Everything that the result depends on, besides the Service and its slices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) family: Family,
    pub(crate) settings: &'a Settings,
    pub(crate) node: &'a NodeView,
    pub(crate) location: NodeLocation<'a>,
}

/// The Service in one family; `None` if it has no address there.
pub(crate) fn build(
    service: &Service,
    slices: &[EndpointSlice],
    context: Context<'_>,
    observer: &mut impl DecisionObserver,
) -> Option<ProxiedService> {
    let cluster_ip = service.cluster_ips[context.family]?;
    let ours = || slices.iter().filter(|slice| slice.family() == context.family);
    let source_ranges = source_ranges::resolve(service, context.family, context.node);
    let ports = service.ports.iter().map(|port| {
        let name =
            PortName { service: service.name.clone(), port: port.name.clone(), protocol: port.protocol };
        observer.port(&name);
        let candidates = merge(ours(), &port.name, port.protocol, context.location);
        let exposed = Exposed::of(service, port, context.family);
        let selection = select_endpoints(&candidates, exposed.needed_pools(), observer);
        let endpoints = all_endpoints(&candidates, &selection);
        ProxiedPort {
            frontends: frontends(service, port, cluster_ip, &selection, context),
            affinity: service.affinity,
            source_ranges: source_ranges.clone(),
            has_endpoints: selection.has_any,
            no_local_internal: selection.has_any
                && service.internal_policy_local
                && selection.local.is_empty(),
            no_local_external: selection.has_any
                && service.external_policy_local
                && selection.local.is_empty(),
            cluster: selection.cluster,
            local: selection.local,
            endpoints,
            name,
        }
    });
    let ports = ports.collect();
    let health_check = service
        .health_check_node_port
        .map(|port| HealthCheck { port, local_endpoints: local_ready_endpoints(ours, context.location) });
    Some(ProxiedService { ports, health_check })
}

/// The policies and frontends of a service port that decide which pools it needs.
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
    fn needed_pools(&self) -> NeededPools {
        NeededPools {
            cluster: !self.internal_local || self.externally,
            local: self.internal_local || (self.external_local && self.externally),
        }
    }
}

fn frontends(
    service: &Service,
    port: &ServicePort,
    cluster_ip: IpAddr,
    selection: &Selection,
    context: Context<'_>,
) -> Box<[Frontend]> {
    let mut frontends = vec![cluster_frontend(service, port, cluster_ip, selection, context)];
    let external = |exposure, ip, port| external_frontend(service, selection, exposure, ip, port);
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
    selection: &Selection,
    context: Context<'_>,
) -> Frontend {
    let policy = policy(service.internal_policy_local);
    let verdict = verdict(selection, policy);
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
    selection: &Selection,
    exposure: Exposure,
    ip: Option<IpAddr>,
    port: u16,
) -> Frontend {
    let policy = policy(service.external_policy_local);
    Frontend {
        exposure,
        ip,
        port,
        from_node: verdict(selection, TrafficPolicy::Cluster),
        from_elsewhere: verdict(selection, policy),
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

fn verdict(selection: &Selection, policy: TrafficPolicy) -> Verdict {
    match (selection.has_any, policy) {
        (false, _) => Verdict::Reject,
        (true, TrafficPolicy::Cluster) => Verdict::Forward(PoolKind::Cluster),
        (true, TrafficPolicy::Local) if selection.local.is_empty() => Verdict::Drop,
        (true, TrafficPolicy::Local) => Verdict::Forward(PoolKind::Local),
    }
}

/// Every endpoint. Usually one of the pools holds them all; then its memory is shared.
fn all_endpoints(candidates: &[Candidate<'_>], selection: &Selection) -> Pool {
    let whole =
        [&selection.cluster, &selection.local].into_iter().find(|pool| pool.len() == candidates.len());
    whole
        .cloned()
        .unwrap_or_else(|| Pool::new(&candidates.iter().map(Candidate::backend).collect::<Vec<Backend>>()))
}

//! From what is written in a scenario to manifests, and to the servers that their endpoints need.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use portwarden_model::{Event, Family, NamespacedName};

use super::format::{
    Deletion, EndpointContent, FamilyName, Objects, Policy, PortContent, ProtocolName, ServiceContent,
    ServiceType, SliceContent,
};
use super::twins::{ip_in, net_in};
use crate::build::{self, EndpointBuilder, NAMESPACE, PortBuilder, ServiceBuilder, endpoint, service, slice};
use crate::probe::Transport;
use crate::rig::{Object, Rig};
use crate::topology::Topology;

/// Turns written objects into manifests, and remembers the Services that it has seen.
pub(super) struct Catalogue {
    families: Vec<Family>,
    services: BTreeMap<String, ServiceContent>,
}

/// What follows from written objects.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) objects: Vec<Object>,
    /// Host, transport and port.
    pub(super) servers: Vec<(String, Transport, u16)>,
}

impl Catalogue {
    /// For a scenario of these families.
    pub(super) fn new(families: &[FamilyName]) -> Catalogue {
        let families = families.iter().copied().map(Family::from).collect();
        Catalogue { families, services: BTreeMap::new() }
    }

    /// What objects become.
    pub(super) fn apply(&mut self, objects: &Objects, topology: &Topology) -> Result<Wanted> {
        let mut wanted = Wanted::default();
        for (name, content) in &objects.services {
            let object = self.service(name, content).with_context(|| format!("Service {name}"))?;
            wanted.objects.push(object.into());
            self.services.insert(name.clone(), content.clone());
            if let Some(endpoints) = &content.endpoints {
                self.endpoints(name, endpoints, topology, &mut wanted)?;
            }
        }
        for (name, endpoints) in &objects.endpoints {
            self.endpoints(name, endpoints, topology, &mut wanted)?;
        }
        for (name, content) in &objects.slices {
            self.slices(name, content, topology, &mut wanted).with_context(|| format!("slice {name}"))?;
        }
        if let Some(content) = &objects.node {
            let node = content.zone.iter().fold(Rig::node(), |node, zone| node.zone(zone));
            wanted.objects.push(node.into());
        }
        for (name, nets) in &objects.service_cidrs {
            let mut all = Vec::new();
            for (net, family) in
                nets.iter().flat_map(|net| self.families.iter().map(move |family| (net, *family)))
            {
                all.extend(net_in(net.0, family)?);
            }
            wanted.objects.push(build::service_cidr(name, all).into());
        }
        Ok(wanted)
    }

    /// What the end of objects means.
    pub(super) fn delete(&self, deletion: &Deletion) -> Vec<Event> {
        let name = |name: &String| NamespacedName::new(NAMESPACE, name);
        let mut events: Vec<Event> =
            deletion.services.iter().map(|service| Event::ServiceDeleted(name(service))).collect();
        let with_services = deletion.services.iter().filter(|_| !deletion.keep_endpoints);
        for slice in with_services.chain(&deletion.slices) {
            let names = self.families.iter().map(|family| slice_name(slice, *family));
            events.extend(names.map(|slice| Event::SliceDeleted(name(&slice))));
        }
        events.extend(
            deletion.service_cidrs.iter().map(|cidr| Event::ServiceCidrDeleted(cidr.as_str().into())),
        );
        events
    }

    fn service(&self, name: &str, content: &ServiceContent) -> Result<ServiceBuilder> {
        let mut built = service(name).of_type(type_name(content.r#type));
        let families = self.families(content.families.as_deref());
        match content.cluster_ip.parse::<IpAddr>() {
            Ok(ip) => {
                for family in &families {
                    built = ip_in(ip, *family)?.iter().fold(built, ServiceBuilder::cluster_ip);
                }
            }
            Err(_) => built = built.cluster_ip(&content.cluster_ip),
        }
        for port in &content.ports {
            let node_port = port.node_port.unwrap_or(0);
            built = built.port(port_builder(port, port.port).node_port(node_port));
        }
        for family in families {
            for ip in &content.external_ips {
                built = ip_in(*ip, family)?.iter().fold(built, ServiceBuilder::external_ip);
            }
            for ingress in &content.ingress {
                let mode = ingress.ip_mode.as_deref();
                built = ip_in(ingress.ip, family)?.iter().fold(built, |built, ip| built.ingress(ip, mode));
            }
            for range in &content.load_balancer_source_ranges {
                built = net_in(range.0, family)?.iter().fold(built, ServiceBuilder::source_range);
            }
        }
        if content.external_traffic_policy == Policy::Local {
            built = built.external_policy_local();
        }
        if content.internal_traffic_policy == Policy::Local {
            built = built.internal_policy_local();
        }
        built = content.client_ip_affinity.into_iter().fold(built, ServiceBuilder::affinity);
        built =
            content.health_check_node_port.into_iter().fold(built, ServiceBuilder::health_check_node_port);
        Ok(content.labels.iter().fold(built, |built, (key, value)| built.label(key, value)))
    }

    /// The slices that follow from a Service's endpoints.
    fn endpoints(
        &self,
        name: &str,
        endpoints: &[EndpointContent],
        topology: &Topology,
        wanted: &mut Wanted,
    ) -> Result<()> {
        let content = self.services.get(name).with_context(|| format!("there is no Service {name} yet"))?;
        let ports = content.ports.iter().map(|port| PortContent {
            port: port.target_port.unwrap_or(port.port),
            target_port: None,
            node_port: None,
            ..port.clone()
        });
        let content = SliceContent {
            service: name.to_owned(),
            families: content.families.clone(),
            ports: ports.collect(),
            endpoints: endpoints.to_vec(),
        };
        self.slices(name, &content, topology, wanted).with_context(|| format!("endpoints of Service {name}"))
    }

    fn slices(
        &self,
        name: &str,
        content: &SliceContent,
        topology: &Topology,
        wanted: &mut Wanted,
    ) -> Result<()> {
        for family in self.families(content.families.as_deref()) {
            let mut built = slice(&content.service, &slice_name(name, family)).family(family);
            for port in &content.ports {
                built = built.port(port_builder(port, port.port));
            }
            for endpoint in &content.endpoints {
                built = built.endpoint(endpoint_builder(endpoint, family, topology)?);
            }
            wanted.objects.push(built.into());
        }
        for host in content.endpoints.iter().filter_map(|endpoint| endpoint.0.host.as_ref()) {
            let servers =
                content.ports.iter().map(|port| (host.clone(), transport(port.protocol), port.port));
            wanted.servers.extend(servers);
        }
        Ok(())
    }

    fn families(&self, given: Option<&[FamilyName]>) -> Vec<Family> {
        match given {
            Some(families) => families.iter().copied().map(Family::from).collect(),
            None => self.families.clone(),
        }
    }
}

fn endpoint_builder(
    EndpointContent(fields): &EndpointContent,
    family: Family,
    topology: &Topology,
) -> Result<EndpointBuilder> {
    let (ip, node) = match (&fields.host, fields.address) {
        (Some(host), None) => {
            let host = topology.host(host).with_context(|| format!("there is no host {host}"))?;
            (host.ip().like(family.loopback()), node_of(host.name()))
        }
        (None, Some(address)) => {
            let ip =
                ip_in(address, family)?.with_context(|| format!("{address} is not an {family} address"))?;
            (ip, None)
        }
        _ => bail!("an endpoint has either a host or an address"),
    };
    let mut built = endpoint(ip);
    if let Some(node) = fields.node.as_deref().or(node) {
        built = built.on(node);
    }
    built = fields.ready.into_iter().fold(built, EndpointBuilder::ready);
    built = fields.serving.into_iter().fold(built, EndpointBuilder::serving);
    built = fields.terminating.into_iter().fold(built, EndpointBuilder::terminating);
    built = fields.for_zones.iter().fold(built, |built, zone| built.for_zone(zone));
    Ok(fields.for_nodes.iter().fold(built, |built, node| built.for_node(node)))
}

/// The node on which a host's endpoints run.
pub(super) fn node_of(host: &str) -> Option<&'static str> {
    match host {
        "node-a" => Some("node-a"),
        "node-b" => Some("node-b"),
        _ if host.starts_with("pod-") => Some("node-a"),
        _ if host.starts_with("remote-pod-") => Some("node-b"),
        _ => None,
    }
}

fn port_builder(content: &PortContent, number: u16) -> PortBuilder {
    let built = build::port(number).name(&content.name);
    match content.protocol {
        ProtocolName::TCP => built,
        ProtocolName::UDP => built.udp(),
        ProtocolName::SCTP => built.sctp(),
    }
}

fn transport(protocol: ProtocolName) -> Transport {
    match protocol {
        ProtocolName::TCP => Transport::Tcp,
        ProtocolName::UDP => Transport::Udp,
        ProtocolName::SCTP => Transport::Sctp,
    }
}

fn slice_name(name: &str, family: Family) -> String {
    format!("{name}-{}", family.as_str().to_lowercase())
}

fn type_name(kind: ServiceType) -> &'static str {
    match kind {
        ServiceType::ClusterIP => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
        ServiceType::ExternalName => "ExternalName",
    }
}

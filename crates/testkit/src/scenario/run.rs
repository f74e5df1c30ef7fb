//! Plays a scenario: builds the topology, starts the dataplane, does one step after the other.

mod lasting;
mod probing;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portwarden_model::{DetectLocal, Family, Name, NamespacedName, NodePortRange, Settings};

use super::format::{
    Content, Deletion, DetectLocalMode, HealthCheckContent, Objects, Sender, SettingsContent, Step, Target,
};
use super::objects::Catalogue;
use super::twins::{both, ip_in, net_in};
use crate::build::NAMESPACE;
use crate::oracle::Packet;
use crate::probe::{Connection, Load, Probe};
use crate::rig::{Candidate, Rig};
use crate::topology::addresses::CLUSTER_CIDR;
use crate::topology::{PodNetwork, Topology};

/// Plays it to its end, or to the first step that does not go as written.
pub(super) fn run(content: &Content, candidate: Candidate) -> Result<()> {
    let mut play = Play::start(content, candidate)?;
    for step in &content.steps {
        play.step(&step.value).with_context(|| format!("line {}", step.referenced.line()))?;
    }
    Ok(())
}

/// A scenario under way.
struct Play {
    rig: Rig,
    catalogue: Catalogue,
    families: Vec<Family>,
    /// The host that answered probes with a word, in a family.
    sticky: BTreeMap<(String, Family), String>,
    /// Connections by name and family, with the host that answered first, if any did.
    connections: BTreeMap<(String, Family), (Connection, Option<String>)>,
    loads: BTreeMap<(String, Family), Load>,
}

/// One way of a step, in one family.
struct Way<'a> {
    family: Family,
    packet: Packet<'a>,
    probe: Probe,
}

impl Way<'_> {
    fn target(&self) -> SocketAddr {
        self.packet.to
    }
}

impl Play {
    fn start(content: &Content, candidate: Candidate) -> Result<Play> {
        let pod_network = if content.topology.bridge { PodNetwork::Bridge } else { PodNetwork::Routed };
        let mut topology = Topology::builder()
            .pods(content.topology.pods)
            .remote_pods(content.topology.remote_pods)
            .pod_network(pod_network);
        for ip in &content.topology.node_addresses {
            topology = topology.node_address(both(*ip)?);
        }
        let families: Vec<Family> = content.families.iter().copied().map(Family::from).collect();
        let settings =
            settings(&content.settings, Rig::settings(&candidate), &families).context("settings")?;
        let localhost = content.settings.localhost_node_ports.unwrap_or(true);
        let mut play = Play {
            rig: Rig::with_options(candidate, topology.build()?, settings, localhost)?,
            catalogue: Catalogue::new(&content.families),
            families,
            sticky: BTreeMap::new(),
            connections: BTreeMap::new(),
            loads: BTreeMap::new(),
        };
        play.apply(&content.objects).context("objects")?;
        play.rig.sync()?;
        Ok(play)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Probe(probe) => self.probe(probe),
            Step::Apply(objects) => {
                self.apply(objects)?;
                self.rig.sync()
            }
            Step::Delete(deletion) => {
                self.delete(deletion);
                self.rig.sync()
            }
            Step::Connect(connect) => self.connect(connect),
            Step::Exchange(exchange) => self.exchange(exchange),
            Step::Load(start) => self.start_load(start),
            Step::AwaitLoad(check) => self.await_load(check),
            Step::EndLoad(check) => self.end_load(check),
            Step::Forget(forget) => self.forget(forget),
            Step::Pause(seconds) => {
                thread::sleep(Duration::from_secs_f64(*seconds));
                Ok(())
            }
            Step::Clients(clients) => self.clients(clients),
            Step::Restart(restart) => {
                self.apply(&restart.apply)?;
                self.delete(&restart.delete);
                self.rig.restart()
            }
            Step::HealthCheck(check) => self.health_check(check),
        }
    }

    fn apply(&mut self, objects: &Objects) -> Result<()> {
        let wanted = self.catalogue.apply(objects, self.rig.topology())?;
        for (host, transport, port) in wanted.servers {
            self.rig.serve(&host, transport, port)?;
        }
        for object in wanted.objects {
            self.rig.apply(object);
        }
        Ok(())
    }

    fn delete(&mut self, deletion: &Deletion) {
        for event in self.catalogue.delete(deletion) {
            self.rig.event(event);
        }
    }

    /// The ways in which a sender reaches a target: one for each family in which both have an address.
    fn ways(&self, from: &Sender, to: &Target) -> Result<Vec<Way<'_>>> {
        let host = self.rig.host(&from.host)?;
        let mut ways = Vec::new();
        for family in self.families.iter().copied() {
            let Some(ip) = ip_in(to.address.ip(), family)? else { continue };
            let target = SocketAddr::new(ip, to.address.port());
            let mut packet = Packet::new(self.rig.topology(), host, to.transport, target);
            let mut probe = host.probe();
            if let Some(own) = from.ip {
                let Some(source) = ip_in(own, family)? else { continue };
                packet.source = source;
                probe = probe.from(source);
            }
            ways.push(Way { family, packet, probe });
        }
        ensure!(!ways.is_empty(), "there is no way from {from} to {to} in the families of this scenario");
        Ok(ways)
    }

    fn health_check(&self, check: &HealthCheckContent) -> Result<()> {
        let name = NamespacedName::new(NAMESPACE, &check.service);
        for family in &self.families {
            let service = self.rig.cluster().desired(*family).service(&name);
            let service = service.with_context(|| format!("{family}: {name} is not proxied"))?;
            let shown = service.health_check.map(|check| (check.port.get(), check.local_endpoints));
            let expected = check.port.map(|port| (port, check.local_endpoints));
            ensure!(shown == expected, "{family}: port and endpoints are {shown:?}, expected {expected:?}");
        }
        Ok(())
    }
}

/// What the operator set, on top of what is usual.
fn settings(content: &SettingsContent, usual: Settings, families: &[Family]) -> Result<Settings> {
    let detect_local = match content.detect_local_mode {
        None if content.cluster_cidrs.is_none() => usual.detect_local.clone(),
        None | Some(DetectLocalMode::ClusterCIDR) => {
            let mut nets = Vec::new();
            for net in content.cluster_cidrs.iter().flatten() {
                for family in families {
                    nets.extend(net_in(net.0, *family)?);
                }
            }
            let nets = if content.cluster_cidrs.is_some() { nets } else { CLUSTER_CIDR.both().into() };
            DetectLocal::ClusterCidr(nets)
        }
        Some(DetectLocalMode::NodeCIDR) => DetectLocal::NodeCidr,
        Some(DetectLocalMode::BridgeInterface) => {
            DetectLocal::BridgeInterface(name(content.bridge_interface.as_deref(), "bridgeInterface")?)
        }
        Some(DetectLocalMode::InterfaceNamePrefix) => DetectLocal::InterfaceNamePrefix(name(
            content.interface_name_prefix.as_deref(),
            "interfaceNamePrefix",
        )?),
        Some(DetectLocalMode::Off) => DetectLocal::Off,
    };
    let node_port_addresses = match &content.node_port_addresses {
        None => usual.node_port_addresses.clone(),
        Some(given) => node_port_ranges(given, families)?,
    };
    Ok(Settings {
        detect_local,
        masquerade_all: content.masquerade_all,
        node_port_addresses,
        allow_external_ips: content.allow_service_external_ips.unwrap_or(true),
        reserved_ports: content.reserved_ports.clone(),
        ..usual
    })
}

fn name(given: Option<&str>, key: &str) -> Result<Name> {
    given.map(Name::from).with_context(|| format!("this mode needs {key}"))
}

fn node_port_ranges(given: &[String], families: &[Family]) -> Result<Vec<NodePortRange>> {
    let mut ranges = Vec::new();
    for text in given {
        match text.as_str() {
            "primary" => ranges.push(NodePortRange::Primary),
            "localhost" => ranges.push(NodePortRange::Localhost),
            "all" => ranges.push(NodePortRange::All),
            cidr => {
                let Ok(net) = cidr.parse() else {
                    bail!("nodePortAddresses: {cidr:?} is none of primary, localhost, all or a range");
                };
                for family in families {
                    ranges.extend(net_in(net, *family)?.map(NodePortRange::Cidr));
                }
            }
        }
    }
    Ok(ranges)
}

/// What a source of this kind is in the family of `target`.
fn address_in(ip: IpAddr, family: Family) -> Result<IpAddr> {
    ip_in(ip, family)?.with_context(|| format!("{ip} is not an {family} address"))
}

//! What the kernel holds for the frontends of an explanation, compared with what it should hold.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use portwarden_model::{Family, FrontendKey, ObservedFrontend, Protocol, Treatment};
use serde::Serialize;

use super::Explained;
use crate::introspection::{
    Action, ExplainedEndpoint, ExplainedFrontend, ExplainedPort, ExplainedVerdict, ExposureName,
    PacketExplanation, ServiceExplanation,
};
use crate::modes::{Mode, ReadBack};

/// The comparison of one Service or packet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KernelCheck {
    /// Why the kernel was not read; absent if it was.
    skipped: Option<String>,
    frontends: Vec<KernelFrontend>,
}

/// What the kernel holds for one frontend.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KernelFrontend {
    /// As in the explanation.
    pub(super) frontend: String,
    #[serde(skip)]
    pub(super) key: FrontendKey,
    pub(super) from_node: String,
    pub(super) from_elsewhere: String,
    /// What the mode does instead of what the explanation says, where its mechanism cannot do that.
    pub(super) adapted: Option<String>,
    /// One sentence each; empty if the kernel does what it should.
    pub(super) differences: Vec<String>,
    /// Elements or rules, as they were read.
    pub(super) evidence: Vec<String>,
}

impl KernelCheck {
    pub(super) fn skipped(reason: &str) -> Self {
        KernelCheck { skipped: Some(reason.to_owned()), frontends: Vec::new() }
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    pub(super) fn differs(&self) -> bool {
        self.frontends.iter().any(|frontend| !frontend.differences.is_empty())
    }

    pub(super) fn of(&self, key: &FrontendKey) -> Option<&KernelFrontend> {
        self.frontends.iter().find(|frontend| frontend.key == *key)
    }

    pub(super) fn all(&self) -> &[KernelFrontend] {
        &self.frontends
    }
}

/// Reads back every frontend of an explanation.
pub(super) fn check(mode: Mode, explained: &Explained) -> anyhow::Result<KernelCheck> {
    match explained {
        Explained::Service(service) => check_service(mode, service, |_| true),
        Explained::Packet(packet) => check_packet(mode, packet),
    }
}

fn check_packet(mode: Mode, packet: &PacketExplanation) -> anyhow::Result<KernelCheck> {
    let key = packet_key(packet).context("the packet has no readable destination")?;
    match &packet.explanation {
        Some(service) => check_service(mode, service, |one| *one == key),
        None => {
            let family = key.ip.map_or(Family::V4, Family::of);
            let Some(mut kernel) = mode.read_back(family)? else { return Ok(not_readable(mode)) };
            let wanted = ObservedFrontend::not_served();
            let found = compare(kernel.as_mut(), key, &wanted, None)?;
            Ok(KernelCheck { skipped: None, frontends: vec![found] })
        }
    }
}

/// The frontend that a packet meets: a node port has no address of its own.
pub(super) fn packet_key(packet: &PacketExplanation) -> Option<FrontendKey> {
    let (address, protocol) = packet.to.rsplit_once('/')?;
    let address: SocketAddr = address.parse().ok()?;
    let is_node_port = packet.exposure == Some(ExposureName::NodePort);
    let ip = (!is_node_port).then_some(address.ip());
    Some(FrontendKey { ip, port: address.port(), protocol: Protocol::parse(protocol)? })
}

fn check_service(
    mode: Mode,
    service: &ServiceExplanation,
    wanted: impl Fn(&FrontendKey) -> bool,
) -> anyhow::Result<KernelCheck> {
    let mut frontends = Vec::new();
    let mut readers: BTreeMap<Family, Box<dyn ReadBack>> = BTreeMap::new();
    for of_family in &service.families {
        let family = if of_family.family == Family::V4.as_str() { Family::V4 } else { Family::V6 };
        for port in &of_family.ports {
            for frontend in port.frontends.iter().filter(|frontend| frontend.active) {
                let Some(key) = key_of(port, frontend).filter(&wanted) else { continue };
                // An explanation lists a limited number of endpoints.
                if port.endpoints.len() < port.endpoint_count {
                    return Ok(KernelCheck::skipped("not compared: the Service has too many endpoints"));
                }
                let kernel = match readers.entry(family) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(free) => match mode.read_back(family)? {
                        Some(reader) => free.insert(reader),
                        None => return Ok(not_readable(mode)),
                    },
                };
                let desired = desired(port, frontend);
                let adapted = mode.adapt(desired.clone(), &cluster_endpoints(port));
                let note =
                    (adapted != desired).then(|| format!("in mode {mode}: {}", adapted.from_elsewhere));
                frontends.push(compare(kernel.as_mut(), key, &adapted, note)?);
            }
        }
    }
    Ok(KernelCheck { skipped: None, frontends })
}

fn not_readable(mode: Mode) -> KernelCheck {
    KernelCheck::skipped(&format!("not read: mode {mode} has no rules here that can be read back"))
}

fn compare(
    kernel: &mut dyn ReadBack,
    key: FrontendKey,
    desired: &ObservedFrontend,
    adapted: Option<String>,
) -> anyhow::Result<KernelFrontend> {
    let (seen, differences) = kernel.compare(&key, desired)?;
    Ok(KernelFrontend {
        frontend: key.to_string(),
        key,
        from_node: seen.from_node.to_string(),
        from_elsewhere: seen.from_elsewhere.to_string(),
        adapted,
        differences,
        evidence: seen.evidence,
    })
}

pub(super) fn key_of(port: &ExplainedPort, frontend: &ExplainedFrontend) -> Option<FrontendKey> {
    let ip = match &frontend.ip {
        Some(text) => Some(text.parse::<IpAddr>().ok()?),
        None => None,
    };
    Some(FrontendKey { ip, port: frontend.port, protocol: Protocol::parse(&port.protocol)? })
}

/// What the kernel should hold.
fn desired(port: &ExplainedPort, frontend: &ExplainedFrontend) -> ObservedFrontend {
    let treatment = |verdict: &ExplainedVerdict| match (verdict.action, verdict.pool.as_deref()) {
        (Action::Forward, Some("local")) => {
            Treatment::Forwarded(pool(port, |one| one.local.as_ref().is_some_and(|used| used.used)))
        }
        (Action::Forward, _) => Treatment::Forwarded(cluster_endpoints(port)),
        (Action::Reject, _) => Treatment::Rejected,
        (Action::Drop, _) => Treatment::Dropped,
        (Action::None, _) => Treatment::NotServed,
    };
    ObservedFrontend {
        from_node: treatment(&frontend.from_node),
        from_elsewhere: treatment(&frontend.from_elsewhere),
        masquerade: None,
        evidence: Vec::new(),
    }
}

/// The endpoints of policy Cluster.
fn cluster_endpoints(port: &ExplainedPort) -> BTreeSet<SocketAddr> {
    pool(port, |one| one.cluster.as_ref().is_some_and(|used| used.used))
}

fn pool(port: &ExplainedPort, used: fn(&ExplainedEndpoint) -> bool) -> BTreeSet<SocketAddr> {
    port.endpoints.iter().filter(|one| used(one)).filter_map(|one| one.address.parse().ok()).collect()
}

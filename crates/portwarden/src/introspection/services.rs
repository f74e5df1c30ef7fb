//! `/api/services`: the list of Services, searched and paged here and not in the browser.
//!
//! The engine copies names and states into an index, at most once in a while; searching, sorting and paging happen in the server. For each
//! request the engine then looks up the Services of one page.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portwarden_model::{
    Cluster, Exposure, Family, NamespacedName, ProxiedPort, ProxiedService, Verdict, parse_ip,
};

use super::api::{ServicePage, ServiceRow, ServiceState};

/// Services on one page.
const PAGE: usize = 50;

/// An index is used for at least this long.
const FRESH: Duration = Duration::from_secs(1);

/// An index that is older is dropped.
const OLD: Duration = Duration::from_secs(30);

/// Building indexes may take one part in this many of the engine's time.
const SHARE: u32 = 100;

/// The names of all Services and their states, at one moment.
pub(super) struct Index {
    entries: Vec<(NamespacedName, ServiceState)>,
    built: Instant,
    took: Duration,
}

/// What to show of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Parts of the name, separated by blanks; or an address.
    pub(super) text: String,
    /// Only Services that are not in the state `serving`.
    pub(super) troubled: bool,
    /// From 0.
    pub(super) page: usize,
}

/// The names on one page, and where it is among others.
pub(super) struct Selection {
    page: ServicePage,
    pub(super) names: Vec<(NamespacedName, ServiceState)>,
}

impl Index {
    /// Copies names and states. Runs on the engine's thread; the work is in proportion to the number of Services.
    pub(super) fn build(cluster: &Cluster, refused: &[NamespacedName]) -> Index {
        let built = Instant::now();
        let entries = cluster.service_names().map(|name| (name.clone(), state(cluster, name, refused)));
        let entries = entries.collect();
        Index { entries, built, took: built.elapsed() }
    }

    /// Sorts the entries. Not done by the engine.
    pub(super) fn sort(mut self) -> Index {
        self.entries.sort_unstable();
        self
    }

    /// Whether it is too old, and enough time has passed for another one.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.built) > FRESH.max(self.took * SHARE)
    }

    /// Whether no one has asked for the list for a while, so that its memory can be freed.
    pub(super) fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.built) > OLD.max(2 * SHARE * self.took)
    }

    /// The names that match, of one page. `at_address` are the Services that have the address in the query, if it is one.
    pub(super) fn select(&self, query: &Query, at_address: Option<&[NamespacedName]>) -> Selection {
        let words: Vec<String> = query.text.split_whitespace().map(str::to_lowercase).collect();
        let by_name = |name: &NamespacedName| words.iter().all(|word| name.as_str().contains(word.as_str()));
        let matches = |(name, state): &&(NamespacedName, ServiceState)| {
            (!query.troubled || *state != ServiceState::Serving)
                && match at_address {
                    Some(names) => names.binary_search(name).is_ok() || by_name(name),
                    None => by_name(name),
                }
        };
        let matching: Vec<&(NamespacedName, ServiceState)> = self.entries.iter().filter(matches).collect();
        let pages = matching.len().div_ceil(PAGE).max(1);
        let page = query.page.min(pages - 1);
        let names = matching.iter().skip(page * PAGE).take(PAGE).map(|entry| (*entry).clone()).collect();
        let page = ServicePage {
            page,
            pages,
            matching: matching.len(),
            total: self.entries.len(),
            troubled: self.entries.iter().filter(|(_, state)| *state != ServiceState::Serving).count(),
            services: Vec::new(),
        };
        Selection { page, names }
    }
}

impl Query {
    /// The address that the query is, if it is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        parse_ip(self.text.trim())
    }
}

impl Selection {
    /// The page with its Services.
    pub(super) fn with(mut self, services: Vec<ServiceRow>) -> ServicePage {
        self.page.services = services;
        self.page
    }
}

/// The Services with this address at a frontend or an endpoint, sorted. Runs on the engine's thread.
pub(super) fn at_address(cluster: &Cluster, ip: IpAddr) -> Vec<NamespacedName> {
    let has = |port: &ProxiedPort| {
        port.frontends.iter().any(|frontend| frontend.ip == Some(ip))
            || port.endpoints.iter().any(|backend| backend.ip == ip)
    };
    let services = cluster.desired(Family::of(ip)).services();
    let mut names: Vec<NamespacedName> =
        services.filter(|(_, service)| service.ports.iter().any(has)).map(|(name, _)| name.clone()).collect();
    names.sort_unstable();
    names
}

/// The rows of one page. Runs on the engine's thread; Services that were deleted since are left out.
pub(super) fn rows(
    cluster: &Cluster,
    names: &[(NamespacedName, ServiceState)],
    refused: &[NamespacedName],
) -> Vec<ServiceRow> {
    names.iter().filter_map(|(name, _)| row(cluster, name, refused)).collect()
}

fn in_families<'a>(
    cluster: &'a Cluster,
    name: &'a NamespacedName,
) -> impl Iterator<Item = (Family, &'a Arc<ProxiedService>)> {
    Family::BOTH
        .into_iter()
        .filter_map(move |family| cluster.desired(family).service(name).map(|service| (family, service)))
}

fn state(cluster: &Cluster, name: &NamespacedName, refused: &[NamespacedName]) -> ServiceState {
    if refused.binary_search(name).is_ok() {
        return ServiceState::Refused;
    }
    let states = in_families(cluster, name).flat_map(|(_, service)| service.ports.iter().map(port_state));
    states.max().unwrap_or(ServiceState::Serving)
}

fn port_state(port: &ProxiedPort) -> ServiceState {
    let states = port.frontends.iter().map(|frontend| match frontend.from_elsewhere {
        _ if !frontend.is_active() => ServiceState::PartlyServed,
        Verdict::Forward(_) => ServiceState::Serving,
        Verdict::Drop => ServiceState::NoLocalEndpoints,
        Verdict::Reject => ServiceState::NoEndpoints,
    });
    states.max().unwrap_or(ServiceState::Serving)
}

fn row(cluster: &Cluster, name: &NamespacedName, refused: &[NamespacedName]) -> Option<ServiceRow> {
    let mut row = ServiceRow {
        service: name.to_string(),
        state: state(cluster, name, refused),
        families: Vec::new(),
        cluster_ips: Vec::new(),
        ports: Vec::new(),
        exposures: Vec::new(),
        used_endpoints: 0,
        endpoints: 0,
    };
    for (family, service) in in_families(cluster, name) {
        row.families.push(family.to_string());
        for port in &service.ports {
            add_port(port, &mut row);
        }
    }
    (!row.families.is_empty()).then_some(row)
}

fn add_port(port: &ProxiedPort, row: &mut ServiceRow) {
    let mut add = |list: fn(&mut ServiceRow) -> &mut Vec<String>, text: String| {
        let list = list(row);
        if !list.contains(&text) {
            list.push(text);
        }
    };
    for frontend in &port.frontends {
        let ip = frontend.ip.map(|ip| ip.to_string()).unwrap_or_default();
        match frontend.exposure {
            Exposure::ClusterIp => {
                let name = port.name.port.as_str();
                let blank = if name.is_empty() { "" } else { " " };
                add(|row| &mut row.ports, format!("{name}{blank}{}/{}", frontend.port, port.protocol()));
                add(|row| &mut row.cluster_ips, ip);
            }
            Exposure::ExternalIp => add(|row| &mut row.exposures, format!("external IP {ip}")),
            Exposure::LoadBalancerIp => add(|row| &mut row.exposures, format!("load balancer {ip}")),
            Exposure::NodePort => add(|row| &mut row.exposures, format!("node port {}", frontend.port)),
        }
    }
    row.endpoints += port.endpoints.len();
    row.used_endpoints += used_endpoints(port);
}

/// How many endpoints the pools of a port have together.
fn used_endpoints(port: &ProxiedPort) -> usize {
    match (&port.cluster, &port.local) {
        (cluster, local) if local.is_empty() || local.shares_with(cluster) => cluster.len(),
        (cluster, local) if cluster.is_empty() => local.len(),
        _ => port.reachable().len(),
    }
}

//! `/api/explain?service=`: the decisions about a Service, as types that clients can use, too.

use portwarden_model::{
    Admission, Cluster, EndpointExplanation, Explanation, Exposure, Family, Frontend, FrontendExplanation,
    FrontendReason, Masquerade, NamespacedName, PodTraffic, PoolKind, PortExplanation, Reason, Topology,
    TrafficPolicy, Verdict,
};
use serde::{Deserialize, Serialize};

use super::api::RefusedService;
use crate::modes::SourceAddress;

/// Endpoints of one port that an answer lists.
const ENDPOINTS: usize = 1000;

/// Everything that was decided about one Service on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceExplanation {
    /// `namespace/name`.
    pub service: String,
    /// The Node for which it was decided.
    pub node: String,
    /// The families in which the Service is proxied.
    pub families: Vec<ExplainedFamily>,
    /// Families in which the kernel refuses the Service.
    pub refused: Vec<RefusedService>,
}

/// One family of a Service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedFamily {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// How pod traffic is identified, as a sentence.
    pub pod_traffic: String,
    /// In the order of the Service's ports.
    pub ports: Vec<ExplainedPort>,
    /// Facts about slices that are not used.
    pub notes: Vec<String>,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPort {
    /// May be empty if the Service has one port.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Where the port is reached.
    pub frontends: Vec<ExplainedFrontend>,
    /// The first endpoints, used or not.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// How many endpoints there are.
    pub endpoint_count: usize,
    /// How many endpoints are used for policy Cluster; absent if no frontend needs them.
    pub cluster_pool: Option<usize>,
    /// How many endpoints are used for policy Local; absent if no frontend needs them.
    pub local_pool: Option<usize>,
    /// How topology hints narrow the endpoints, as a sentence; absent if they do not.
    pub topology: Option<String>,
    /// For how many seconds after its last connection a client keeps its endpoint; absent without session affinity.
    pub affinity: Option<u32>,
    /// The clients that may use the load-balancer addresses; empty means all.
    pub source_ranges: Vec<String>,
}

/// One address and port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedFrontend {
    /// Which part of the Service defines it.
    pub exposure: ExposureName,
    /// Absent for a node port.
    pub ip: Option<String>,
    /// The Service's port or the node port.
    pub port: u16,
    /// As an operator would write it: `10.96.0.10:80`, `port 30080 of this node's addresses`.
    pub address: String,
    /// `Cluster` or `Local`.
    pub policy: String,
    /// Whether it is served.
    pub active: bool,
    /// What happens to traffic that starts on this node.
    pub from_node: ExplainedVerdict,
    /// What happens to all other traffic.
    pub from_elsewhere: ExplainedVerdict,
    /// Whose address the endpoint sees, as a sentence.
    pub masquerade: String,
    /// Whether only clients in the port's `sourceRanges` may use it.
    pub restricted: bool,
}

/// Which part of a Service defines a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the same as portwarden_model::Exposure")]
pub enum ExposureName {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

/// What happens to new connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedVerdict {
    /// What is done.
    pub action: Action,
    /// `cluster` or `local`, if the action is `forward`.
    pub pool: Option<String>,
    /// Why, as a sentence.
    pub reason: String,
}

/// What is done with a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// It goes to an endpoint.
    Forward,
    /// It is refused at once.
    Reject,
    /// It gets no answer.
    Drop,
    /// Portwarden does not touch it.
    None,
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedEndpoint {
    /// Address and port.
    pub address: String,
    /// The node it runs on, if its slice names one.
    pub node: Option<String>,
    /// Whether that is this node.
    pub on_this_node: bool,
    /// Its conditions.
    pub ready: bool,
    /// Whether it still answers.
    pub serving: bool,
    /// Whether its pod is being deleted.
    pub terminating: bool,
    /// Whether it is used for policy Cluster; absent if no frontend needs that.
    pub cluster: Option<EndpointUse>,
    /// Whether it is used for policy Local; absent if no frontend needs that.
    pub local: Option<EndpointUse>,
}

/// Whether an endpoint is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointUse {
    /// Whether it gets new connections.
    pub used: bool,
    /// Why, as a sentence.
    pub reason: String,
}

/// Explains a Service in both families; `None` if it is not proxied.
pub fn explain_service(
    cluster: &Cluster,
    service: &NamespacedName,
    source: SourceAddress,
) -> Option<ServiceExplanation> {
    let of_family = |family: Family| Some((family, cluster.explain(service, family)?));
    let mut explained: Vec<(Family, Explanation)> = Family::BOTH.into_iter().filter_map(of_family).collect();
    if explained.len() == Family::BOTH.len() {
        // Each slice is used in its own family, which is no news.
        explained.iter_mut().for_each(|(_, explanation)| explanation.other_family.clear());
    }
    let families: Vec<ExplainedFamily> =
        explained.iter().map(|(family, one)| explained_family(cluster, *family, one, source)).collect();
    (!families.is_empty()).then(|| ServiceExplanation {
        service: service.to_string(),
        node: cluster.settings().node_name.to_string(),
        families,
        refused: Vec::new(),
    })
}

/// Names of proxied Services that resemble one that does not exist.
pub fn similar_services(cluster: &Cluster, service: &NamespacedName) -> Vec<String> {
    let alike = |other: &&NamespacedName| {
        other.name() == service.name()
            || (other.namespace() == service.namespace()
                && (other.name().contains(service.name()) || service.name().contains(other.name())))
    };
    let mut names: Vec<String> =
        cluster.service_names().filter(alike).take(20).map(ToString::to_string).collect();
    names.sort_unstable();
    names
}

fn explained_family(
    cluster: &Cluster,
    family: Family,
    explanation: &Explanation,
    source: SourceAddress,
) -> ExplainedFamily {
    let unmatched = explanation.unmatched.iter().map(|port| {
        let name =
            if port.port.as_str().is_empty() { "without a name".to_owned() } else { port.port.to_string() };
        format!(
            "slice {} has a port {name} ({}) that matches no port of the Service",
            port.slice, port.protocol
        )
    });
    let other = explanation
        .other_family
        .iter()
        .map(|slice| format!("slice {slice} belongs to the other IP family and is not used here"));
    ExplainedFamily {
        family: family.to_string(),
        pod_traffic: pod_traffic(&cluster.desired(family).node.pod_traffic),
        ports: explanation.ports.iter().map(|port| explained_port(port, source)).collect(),
        notes: unmatched.chain(other).collect(),
    }
}

fn pod_traffic(pod_traffic: &PodTraffic) -> String {
    match pod_traffic {
        PodTraffic::Unknown => "no packet is identified as a pod's".to_owned(),
        PodTraffic::From(net) => format!("packets from {net} are a pod's"),
        PodTraffic::Interface(name) => format!("packets that arrive on interface {name} are a pod's"),
        PodTraffic::InterfacePrefix(prefix) => {
            format!("packets that arrive on an interface whose name starts with {prefix} are a pod's")
        }
    }
}

fn explained_port(port: &PortExplanation, source: SourceAddress) -> ExplainedPort {
    let used = |reason: fn(&EndpointExplanation) -> Option<Reason>| {
        let needed = port.endpoints.iter().any(|endpoint| reason(endpoint).is_some());
        needed.then(|| port.endpoints.iter().filter(|one| reason(one).is_some_and(Reason::used)).count())
    };
    let topology = match port.topology {
        Some(Topology::SameNode) => Some("topology hints: only endpoints hinted for this node are used"),
        Some(Topology::SameZone) => {
            Some("topology hints: only endpoints hinted for this node's zone are used")
        }
        Some(Topology::Everywhere) | None => None,
    };
    let restricted = port.source_ranges.is_some();
    ExplainedPort {
        name: port.name.port.to_string(),
        protocol: port.name.protocol.to_string(),
        frontends: port.frontends.iter().map(|one| explained_frontend(one, restricted, source)).collect(),
        endpoints: port.endpoints.iter().take(ENDPOINTS).map(explained_endpoint).collect(),
        endpoint_count: port.endpoints.len(),
        cluster_pool: used(|endpoint| endpoint.cluster),
        local_pool: used(|endpoint| endpoint.local),
        topology: topology.map(str::to_owned),
        affinity: port.affinity.map(|seconds| seconds.get()),
        source_ranges: port
            .source_ranges
            .iter()
            .flat_map(|ranges| ranges.ranges.iter())
            .map(ToString::to_string)
            .collect(),
    }
}

fn explained_frontend(
    explained: &FrontendExplanation,
    restricted: bool,
    source: SourceAddress,
) -> ExplainedFrontend {
    let FrontendExplanation { frontend, from_node, from_elsewhere } = explained;
    let verdict = |verdict: Verdict, reason: FrontendReason| {
        let (action, pool) = match (frontend.admission, verdict) {
            (Admission::Shadowed | Admission::NotAllowed, _) => (Action::None, None),
            (Admission::Active, Verdict::Forward(PoolKind::Cluster)) => (Action::Forward, Some("cluster")),
            (Admission::Active, Verdict::Forward(PoolKind::Local)) => (Action::Forward, Some("local")),
            (Admission::Active, Verdict::Reject) => (Action::Reject, None),
            (Admission::Active, Verdict::Drop) => (Action::Drop, None),
        };
        ExplainedVerdict { action, pool: pool.map(str::to_owned), reason: reason.to_string() }
    };
    ExplainedFrontend {
        exposure: frontend.exposure.into(),
        ip: frontend.ip.map(|ip| ip.to_string()),
        port: frontend.port,
        address: address_of(frontend),
        policy: policy_name(frontend.policy).to_owned(),
        active: frontend.is_active(),
        from_node: verdict(frontend.from_node, *from_node),
        from_elsewhere: verdict(frontend.from_elsewhere, *from_elsewhere),
        masquerade: masquerade_text(source, frontend.masquerade).to_owned(),
        restricted: restricted && frontend.exposure == Exposure::LoadBalancerIp,
    }
}

fn explained_endpoint(endpoint: &EndpointExplanation) -> ExplainedEndpoint {
    let used = |reason: Reason| EndpointUse { used: reason.used(), reason: reason.to_string() };
    ExplainedEndpoint {
        address: endpoint.address.to_string(),
        node: endpoint.node.as_ref().map(ToString::to_string),
        on_this_node: endpoint.on_this_node,
        ready: endpoint.conditions.ready,
        serving: endpoint.conditions.serving,
        terminating: endpoint.conditions.terminating,
        cluster: endpoint.cluster.map(used),
        local: endpoint.local.map(used),
    }
}

/// As an operator would write it.
pub(super) fn address_of(frontend: &Frontend) -> String {
    match frontend.ip {
        Some(ip) => std::net::SocketAddr::new(ip, frontend.port).to_string(),
        None => format!("port {} of this node's addresses", frontend.port),
    }
}

fn policy_name(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

/// What endpoints see where the proxy itself connects to them.
pub(super) const PROXY_CONNECTS: &str =
    "the proxy connects to the endpoint: the endpoint sees the node's address, whoever the client is";

fn masquerade_text(source: SourceAddress, masquerade: Masquerade) -> &'static str {
    if source == SourceAddress::Node {
        return PROXY_CONNECTS;
    }
    match masquerade {
        Masquerade::Never => "not masqueraded: the endpoint sees the client's address",
        Masquerade::NotFromPods => {
            "masqueraded unless the client is a pod: the endpoint sees the node's address"
        }
        Masquerade::FromHost => {
            "masqueraded if the client is a process on this node: the endpoint sees the node's address"
        }
        Masquerade::Always => "masqueraded: the endpoint sees the node's address",
    }
}

impl From<Exposure> for ExposureName {
    fn from(exposure: Exposure) -> Self {
        match exposure {
            Exposure::ClusterIp => ExposureName::ClusterIp,
            Exposure::ExternalIp => ExposureName::ExternalIp,
            Exposure::LoadBalancerIp => ExposureName::LoadBalancerIp,
            Exposure::NodePort => ExposureName::NodePort,
        }
    }
}

impl ExposureName {
    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            ExposureName::ClusterIp => "cluster IP",
            ExposureName::ExternalIp => "external IP",
            ExposureName::LoadBalancerIp => "load-balancer IP",
            ExposureName::NodePort => "node port",
        }
    }
}

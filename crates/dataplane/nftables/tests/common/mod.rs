//! A node with the dataplane in it.

use std::time::Instant;

use portwarden_model::manifest;
use portwarden_model::object::{EndpointSlice, Service};
use portwarden_model::{
    Changes, Cluster, Dataplane, DetectLocal, Event, Family, Interner, Kind, NodePortRange, Notification,
    PerFamily, Report, Settings, parse_cidr,
};
use portwarden_nftables::{Nftables, Options};
use portwarden_testkit::Topology;
use serde_json::{Value, json};

/// The dataplane in the node of a topology.
pub(crate) struct Node {
    pub(crate) topology: Topology,
    pub(crate) cluster: Cluster,
    pub(crate) dataplane: Nftables,
    pub(crate) options: Options,
    pending: PerFamily<Changes>,
    names: Interner,
}

impl Node {
    pub(crate) fn new(topology: Topology) -> Self {
        Node::with(topology, Options::default(), Vec::new())
    }

    /// With options of the dataplane, and ranges for node ports.
    pub(crate) fn with(topology: Topology, options: Options, node_ports: Vec<NodePortRange>) -> Self {
        let mut settings = Settings::new("node-a");
        settings.detect_local = DetectLocal::ClusterCidr(
            ["10.244.0.0/16", "fd00:10:244::/56"].iter().filter_map(|net| parse_cidr(net)).collect(),
        );
        settings.node_port_addresses = node_ports;
        let dataplane = start(&topology, options);
        let mut cluster = Cluster::new(settings);
        for kind in Kind::ALL {
            cluster.apply(Event::ListDone(kind));
        }
        let pending = PerFamily::from_fn(|_| Changes::everything());
        Node { topology, cluster, dataplane, options, pending, names: Interner::default() }
    }

    /// A new process: another dataplane over the same kernel.
    pub(crate) fn restart(&mut self) {
        self.dataplane = start(&self.topology, self.options);
        self.pending = PerFamily::from_fn(|_| Changes::everything());
    }

    pub(crate) fn service(&mut self, service: Value) {
        let service: manifest::Service = serde_json::from_value(service).unwrap();
        let (service, problems) = Service::from_manifest(&service, &mut self.names);
        assert_eq!(problems, []);
        self.cluster.apply(Event::ServiceApplied(service.unwrap()));
    }

    pub(crate) fn slice(&mut self, slice: Value) {
        let slice: manifest::EndpointSlice = serde_json::from_value(slice).unwrap();
        let (slice, problems) = EndpointSlice::from_manifest(&slice, &mut self.names);
        assert_eq!(problems, []);
        self.cluster.apply(Event::SliceApplied(slice.unwrap()));
    }

    /// One TCP port 8080 on these addresses.
    pub(crate) fn endpoints(&mut self, service: &str, addresses: &[String]) {
        let family = if addresses.first().is_some_and(|a| a.contains(':')) { "IPv6" } else { "IPv4" };
        let endpoints: Vec<Value> =
            addresses.iter().map(|a| json!({ "addresses": [a], "nodeName": node_of(a) })).collect();
        self.slice(json!({
            "metadata": { "namespace": "demo", "name": format!("{service}-{family}"), "labels": { "kubernetes.io/service-name": service } },
            "addressType": family, "endpoints": endpoints, "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        }));
    }

    /// The next sync is a full one.
    pub(crate) fn full(&mut self) {
        self.pending.v4.full = true;
        self.pending.v6.full = true;
    }

    /// Brings the kernel to the cluster's state.
    pub(crate) fn sync(&mut self) -> PerFamily<Report> {
        let changes = self.cluster.resolve();
        self.pending.v4.merge(changes.v4);
        self.pending.v6.merge(changes.v6);
        PerFamily::from_fn(|family| self.sync_family(family))
    }

    fn sync_family(&mut self, family: Family) -> Report {
        let changes = std::mem::take(&mut self.pending[family]);
        let desired = self.cluster.desired(family);
        self.dataplane.sync(desired, &changes, Instant::now()).unwrap_or_else(|error| {
            let cause = error.source.source().map(ToString::to_string);
            panic!("{error}: {cause:?}")
        })
    }

    /// Repairs what other processes changed, as the engine would.
    pub(crate) fn repair(&mut self) -> PerFamily<Option<String>> {
        let mut found: PerFamily<Option<String>> = PerFamily::from_fn(|_| None);
        for notification in self.dataplane.poll(Instant::now()) {
            if let Notification::Tampered { family, what } = notification {
                self.pending[family].full = true;
                found[family] = Some(what);
            }
        }
        self.sync();
        found
    }

    pub(crate) fn nft(&self, command: &[&str]) -> String {
        self.topology.node().command("nft").args(command).run().unwrap()
    }
}

fn start(topology: &Topology, options: Options) -> Nftables {
    let _inside = topology.node().namespace().enter().unwrap();
    Nftables::new(&Family::BOTH, options).unwrap()
}

fn node_of(address: &str) -> &'static str {
    if address.starts_with("10.244.0.") || address.starts_with("fd00:10:244::") { "node-a" } else { "node-b" }
}

/// A Service with one TCP port 80; `more` adds fields or replaces them.
pub(crate) fn web(cluster_ip: &str, more: Value) -> Value {
    let mut service = json!({
        "metadata": { "namespace": "demo", "name": "web" },
        "spec": { "type": "ClusterIP", "clusterIP": cluster_ip, "ports": [{ "port": 80, "protocol": "TCP" }] },
    });
    merge(&mut service, more);
    service
}

pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

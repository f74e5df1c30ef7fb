//! A node with both layers of the mode, for real sockets.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use portwarden_ebpf::{Ebpf, Options, ServiceCounters, Sizes, cleanup};
use portwarden_model::{
    Changes, Cluster, Dataplane, Event, Family, Kind, NodePortRange, Notification, Report, SyncError,
};
use portwarden_nftables::{Nftables, Options as NftablesOptions};
use portwarden_testkit::build::{
    NodeBuilder, PortBuilder, ServiceBuilder, ToEvent, endpoint, node, service_cidr, slice,
};
use portwarden_testkit::rig::{Candidate, Rig};
use portwarden_testkit::topology::addresses::{NODE, SERVICE_CIDR};
use portwarden_testkit::{Host, Namespace, Topology, bpf};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The node under test, with what the engine would hold.
pub(crate) struct Node {
    pub(crate) topology: Topology,
    pub(crate) cluster: Cluster,
    pub(crate) counters: ServiceCounters,
    pub(crate) options: Options,
    layers: Option<(Nftables, Ebpf)>,
}

impl Node {
    /// A node with three pods. `name` must be unique among the tests of the file.
    pub(crate) fn new(name: &str) -> Result<Node> {
        Node::with(name, |_| ())
    }

    /// The same, with other options.
    pub(crate) fn with(name: &str, change: impl FnOnce(&mut Options)) -> Result<Node> {
        let topology = Topology::builder().pods(3).remote_pods(1).build()?;
        let hosts = std::iter::once(topology.node()).chain(topology.pods());
        let mut options = Options {
            cgroup: Some(bpf::cgroup()?),
            pin_directory: bpf::pin_directory(name)?,
            sizes: Sizes { endpoints: 256, frontends: 64, counted_ports: 16 },
            namespaces: Some(hosts.map(|host| host.namespace().path()).collect()),
            ..Options::new(&Family::BOTH)
        };
        change(&mut options);
        let settings = portwarden_model::Settings {
            node_port_addresses: vec![NodePortRange::All],
            ..Rig::settings(&CANDIDATE)
        };
        let mut cluster = Cluster::new(settings);
        cluster.apply(Event::HostAddresses(topology.node_addresses().into()));
        let own = NODE.both().into_iter().fold(node("node-a"), NodeBuilder::ip);
        cluster.apply(own.build().event());
        cluster.apply(service_cidr("kubernetes", SERVICE_CIDR.both()).event());
        for kind in Kind::ALL {
            cluster.apply(Event::ListDone(kind));
        }
        let mut node =
            Node { topology, cluster, counters: ServiceCounters::default(), options, layers: None };
        node.start()?;
        Ok(node)
    }

    /// Starts the layers, in place of earlier ones, as a new process would.
    pub(crate) fn start(&mut self) -> Result<Report> {
        let layers = {
            let _inside = self.topology.node().namespace().enter()?;
            let nftables = Nftables::new(&Family::BOTH, NftablesOptions::default())?;
            let ebpf = Ebpf::new(self.options.clone(), self.counters.clone())?;
            (nftables, ebpf)
        };
        self.layers = Some(layers);
        self.cluster.resolve();
        self.full_sync().map_err(|error| text(&error))
    }

    /// Applies what changed. The report is that of the programs' layer.
    pub(crate) fn sync(&mut self) -> Result<Report> {
        let changes = self.cluster.resolve();
        let mut whole = Report::default();
        for (family, changes) in changes.iter() {
            whole.merge(self.sync_family(family, changes).map_err(|error| text(&error))?);
        }
        Ok(whole)
    }

    /// Compares everything.
    pub(crate) fn full_sync(&mut self) -> Result<Report, SyncError> {
        let mut whole = Report::default();
        for family in Family::BOTH {
            whole.merge(self.sync_family(family, &Changes::everything())?);
        }
        Ok(whole)
    }

    fn sync_family(&mut self, family: Family, changes: &Changes) -> Result<Report, SyncError> {
        let namespace = self.topology.node().namespace().clone();
        let _inside = namespace.enter().expect("a namespace that we hold");
        let (nftables, ebpf) = self.layers.as_mut().expect("the layers were started");
        let desired = self.cluster.desired(family);
        nftables.sync(desired, changes, Instant::now())?;
        ebpf.sync(desired, changes, Instant::now())
    }

    /// When the programs' layer wants to be polled.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.layers.as_ref().and_then(|(_, ebpf)| ebpf.next_deadline())
    }

    /// What the programs' layer has noticed.
    pub(crate) fn poll(&mut self, now: Instant) -> Vec<Notification> {
        let namespace = self.topology.node().namespace().clone();
        let _inside = namespace.enter().expect("a namespace that we hold");
        self.layers.as_mut().map(|(_, ebpf)| ebpf.poll(now)).unwrap_or_default()
    }

    /// Applies a Service with these pods as endpoints, by number, in both families.
    pub(crate) fn apply(&mut self, service: ServiceBuilder, name: &str, port: &PortBuilder, pods: &[usize]) {
        self.cluster.apply(service.build().event());
        self.endpoints(name, port, pods);
    }

    /// Replaces the endpoints of a Service.
    pub(crate) fn endpoints(&mut self, name: &str, port: &PortBuilder, pods: &[usize]) {
        for family in Family::BOTH {
            let mut own = slice(name, &format!("{name}-{family}")).family(family).port(port.clone());
            for pod in pods {
                let ip = self.topology.pod(*pod).ip();
                let ip = if family == Family::V4 { ip.v4.to_string() } else { ip.v6.to_string() };
                own = own.endpoint(endpoint(ip).on("node-a"));
            }
            self.cluster.apply(own.build().event());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.layers = None;
        if let Err(error) = cleanup(&self.options.pin_directory) {
            eprintln!("cannot clean up: {error}");
        }
    }
}

const CANDIDATE: Candidate = Candidate {
    name: "ebpf",
    mode: portwarden_testkit::oracle::Mode {
        guards_cluster_ips: true,
        remote_hairpin: false,
        ranges_without_endpoints: true,
        refuses_own_host: true,
        localhost_node_ports: true,
        contested_frontends: false,
        dead_node_ports_everywhere: false,
        proxies: false,
        virtual_servers: false,
        at_sockets: true,
        untracked_pods: false,
    },
    node_port_addresses: &[],
    start: |_| Ok(Vec::new()),
    clean_flows: |_, _, _| Ok(()),
    stop: |_| (),
};

fn text(error: &SyncError) -> anyhow::Error {
    anyhow::anyhow!("{error}: {:?}", error.source)
}

/// Answers datagrams with the host's name, in both families, until the process ends.
pub(crate) fn echo(host: &Host, port: u16) -> Result<()> {
    for ip in host.ip().both() {
        let socket = open(host.namespace(), SocketAddr::new(ip, port))?;
        let name = host.name().to_owned();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(name.as_bytes(), from);
            }
        });
    }
    Ok(())
}

/// A UDP socket in a namespace.
pub(crate) fn open(namespace: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    let _inside = namespace.enter()?;
    UdpSocket::bind(address).with_context(|| format!("cannot bind {address}"))
}

/// A UDP client that waits for a while.
pub(crate) fn client(host: &Host, to: SocketAddr) -> Result<UdpSocket> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = open(host.namespace(), any.parse()?)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// Where a test may leave something.
pub(crate) fn links(node: &Node) -> PathBuf {
    node.options.pin_directory.join("links")
}

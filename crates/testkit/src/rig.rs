//! A node under test: a topology, the cluster as the model knows it, and a dataplane for each family.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use portwarden_model::{
    Changes, Cluster, Dataplane, Desired, DetectLocal, Event, Interner, Kind, NodePortRange, PerFamily,
    Settings, SyncError, manifest,
};
use tempfile::TempDir;

use crate::build::{NodeBuilder, ServiceBuilder, SliceBuilder, ToEvent, node, service_cidr};
use crate::drive::sync_to_end;
use crate::netns::Namespace;
use crate::oracle::{Mode, Oracle, Served};
use crate::probe::Transport;
use crate::topology::addresses::{CLUSTER_CIDR, NODE, NODE_PODS, SERVICE_CIDR};
use crate::topology::{Host, Topology};

/// A dataplane that can be put to the test.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// What tests and scenarios call it.
    pub name: &'static str,
    /// What it does differently from others.
    pub mode: Mode,
    /// Where its node ports answer by default.
    pub node_port_addresses: &'static [NodePortRange],
    /// Makes the dataplanes of both families: one for each, or one that serves both. Called inside the node's namespace.
    pub start: Start,
    /// Removes flows that lead nowhere, as the engine does after a sync. Called inside the node's namespace.
    pub clean_flows: fn(&Desired, &Changes, &[IpAddr]) -> Result<()>,
    /// Removes what would outlive the node's namespace. Called at the end.
    pub stop: fn(&Options),
}

/// Makes dataplanes.
pub type Start = fn(&Options) -> Result<Vec<Box<dyn Dataplane>>>;

/// Options that only some dataplanes have.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether node ports answer on loopback, where the mode can do that.
    pub localhost_node_ports: bool,
    /// A folder that no other test uses.
    pub folder: PathBuf,
    /// The namespaces of the node and of its pods.
    pub namespaces: Vec<Namespace>,
}

/// One manifest.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A Service.
    Service(Box<manifest::Service>),
    /// An EndpointSlice.
    Slice(manifest::EndpointSlice),
    /// A Node.
    Node(manifest::Node),
    /// A ServiceCIDR.
    ServiceCidr(manifest::ServiceCidr),
}

/// The node under test.
pub struct Rig {
    topology: Topology,
    served: Served,
    candidate: Candidate,
    options: Options,
    cluster: Cluster,
    names: Interner,
    dataplanes: Vec<Box<dyn Dataplane>>,
    _folder: TempDir,
}

impl Rig {
    /// A node without Services, with rules for that. Settings start from [`Rig::settings`].
    pub fn new(candidate: Candidate, topology: Topology, settings: Settings) -> Result<Rig> {
        Rig::with_options(candidate, topology, settings, true)
    }

    /// The same, with node ports on loopback if wanted.
    pub fn with_options(
        candidate: Candidate,
        topology: Topology,
        settings: Settings,
        localhost_node_ports: bool,
    ) -> Result<Rig> {
        let folder = TempDir::new().context("cannot make a folder")?;
        let hosts = std::iter::once(topology.node()).chain(topology.pods());
        let namespaces = hosts.map(|host| host.namespace().clone()).collect();
        let options = Options { localhost_node_ports, folder: folder.path().to_owned(), namespaces };
        let mut cluster = Cluster::new(settings);
        cluster.apply(Event::HostAddresses(topology.node_addresses().into()));
        let dataplanes = start(&candidate, &topology, &options)?;
        let mut rig = Rig {
            topology,
            served: Served::new(),
            candidate,
            options,
            cluster,
            names: Interner::default(),
            dataplanes,
            _folder: folder,
        };
        rig.apply(Rig::node());
        rig.apply(service_cidr("kubernetes", SERVICE_CIDR.both()));
        for kind in Kind::ALL {
            rig.cluster.apply(Event::ListDone(kind));
        }
        rig.cluster.resolve();
        rig.sync_with(&everything())?;
        Ok(rig)
    }

    /// What an operator would set for this topology and leave at its default else.
    pub fn settings(candidate: &Candidate) -> Settings {
        Settings {
            detect_local: DetectLocal::ClusterCidr(CLUSTER_CIDR.both().into()),
            pod_ranges: CLUSTER_CIDR.both().into(),
            node_port_addresses: candidate.node_port_addresses.into(),
            ..Settings::new("node-a")
        }
    }

    /// The Node object of the node under test.
    pub fn node() -> NodeBuilder {
        let node = NODE.both().into_iter().fold(node("node-a"), NodeBuilder::ip);
        NODE_PODS.both().into_iter().fold(node, NodeBuilder::pod_cidr)
    }

    /// Who is where.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The cluster as the model knows it.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What must become of packets, as of the last sync.
    pub fn oracle(&self) -> Oracle<'_> {
        let mut mode = self.candidate.mode;
        mode.localhost_node_ports &= self.options.localhost_node_ports;
        let desired = PerFamily::from_fn(|family| self.cluster.desired(family));
        Oracle::new(&self.topology, &self.served, desired, mode)
    }

    /// Lets a host answer on a port, if it does not yet.
    pub fn serve(&mut self, host: &str, transport: Transport, port: u16) -> Result<()> {
        if self.served.insert((host.to_owned(), transport, port)) {
            self.host(host)?.serve(transport, port)?;
        }
        Ok(())
    }

    /// The host called `name`.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.topology.host(name).with_context(|| format!("there is no host {name} in this topology"))
    }

    /// Takes in an object; [`Rig::sync`] makes it count.
    pub fn apply(&mut self, object: impl Into<Object>) {
        let event = object.into().event(&mut self.names);
        self.cluster.apply(event);
    }

    /// Takes in the end of an object.
    pub fn delete(&mut self, object: &Object) {
        self.cluster.apply(object.deletion());
    }

    /// Takes in an event.
    pub fn event(&mut self, event: Event) {
        self.cluster.apply(event);
    }

    /// Changes settings.
    pub fn set_settings(&mut self, settings: Settings) {
        self.cluster.set_settings(settings);
    }

    /// Brings the kernel up to date with what changed.
    pub fn sync(&mut self) -> Result<()> {
        let changes = self.cluster.resolve();
        self.sync_with(&changes)
    }

    /// Restarts the dataplanes over the kernel's state, as after the end of the process.
    pub fn restart(&mut self) -> Result<()> {
        self.dataplanes = start(&self.candidate, &self.topology, &self.options)?;
        self.cluster.resolve();
        self.sync_with(&everything())
    }

    fn sync_with(&mut self, changes: &PerFamily<Changes>) -> Result<()> {
        let _inside = self.topology.node().namespace().enter()?;
        for (family, changes) in changes.iter().filter(|(_, changes)| !changes.is_empty()) {
            let desired = self.cluster.desired(family);
            let failed = |error: SyncError| anyhow!("{family} sync failed: {}", chain(error.source.as_ref()));
            let serving = self.dataplanes.iter_mut().find(|plane| plane.families().contains(&family));
            let dataplane = serving.with_context(|| format!("no dataplane serves {family}"))?;
            let report = sync_to_end(dataplane.as_mut(), desired, changes).map_err(failed)?;
            if let Some(refused) = report.refused.first() {
                return Err(anyhow!("{family} sync left out {}: {}", refused.service, refused.reason));
            }
            (self.candidate.clean_flows)(desired, changes, self.cluster.host_addresses())
                .with_context(|| format!("cannot clean {family} flows"))?;
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.dataplanes.clear();
        (self.candidate.stop)(&self.options);
    }
}

impl Object {
    /// The event of a source for it.
    pub fn event(&self, names: &mut Interner) -> Event {
        self.manifest().event_with(names)
    }

    /// The event of a source for its deletion.
    pub fn deletion(&self) -> Event {
        self.manifest().deletion()
    }

    fn manifest(&self) -> &dyn ToEvent {
        match self {
            Object::Service(service) => service.as_ref(),
            Object::Slice(slice) => slice,
            Object::Node(node) => node,
            Object::ServiceCidr(cidr) => cidr,
        }
    }
}

impl From<ServiceBuilder> for Object {
    fn from(builder: ServiceBuilder) -> Object {
        Object::Service(Box::new(builder.build()))
    }
}

impl From<SliceBuilder> for Object {
    fn from(builder: SliceBuilder) -> Object {
        Object::Slice(builder.build())
    }
}

impl From<NodeBuilder> for Object {
    fn from(builder: NodeBuilder) -> Object {
        Object::Node(builder.build())
    }
}

impl From<manifest::ServiceCidr> for Object {
    fn from(cidr: manifest::ServiceCidr) -> Object {
        Object::ServiceCidr(cidr)
    }
}

fn everything() -> PerFamily<Changes> {
    PerFamily::from_fn(|_| Changes::everything())
}

fn start(candidate: &Candidate, topology: &Topology, options: &Options) -> Result<Vec<Box<dyn Dataplane>>> {
    let _inside = topology.node().namespace().enter()?;
    (candidate.start)(options).with_context(|| format!("cannot start the {} dataplane", candidate.name))
}

/// An error with all its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

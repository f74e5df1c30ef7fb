//! A node in a namespace, with a cluster that the tests change. Needs a kernel with IPVS: `scripts/test-uml`.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use portwarden_ipvs::{Ipvs, Options, apply_sysctls};
use portwarden_model::{
    Changes, Cluster, Dataplane, DetectLocal, Event, Family, Interner, Kind, PerFamily, Report, Settings,
};
use portwarden_netlink::ipvs::{self, RealServer, ServerKey, VirtualServer};
use portwarden_testkit::Namespace;
use portwarden_testkit::build::{EndpointBuilder, ServiceBuilder, SliceBuilder, node, slice};
use portwarden_testkit::rig::Object;
use portwarden_xtables::{Programs, Variant};

/// The node's own addresses.
pub const NODE_IPS: [&str; 2] = ["192.168.0.2", "fd00:192:168::2"];

pub struct Node {
    pub namespace: Namespace,
    pub cluster: Cluster,
    pub dataplane: Ipvs,
    pub options: Options,
    names: Interner,
    lock: tempfile::TempDir,
}

pub fn settings() -> Settings {
    Settings {
        detect_local: DetectLocal::ClusterCidr(
            ["10.244.0.0/16", "fd00:10:244::/56"].map(|net| net.parse().expect("a range")).into(),
        ),
        ..Settings::new("node-a")
    }
}

pub fn options() -> Options {
    Options { variant: Variant::Legacy, ..Options::default() }
}

impl Node {
    pub fn new() -> Result<Node> {
        Node::with(settings(), options())
    }

    /// A namespace with a device that bears the node's addresses, and no Services yet.
    pub fn with(settings: Settings, options: Options) -> Result<Node> {
        let namespace = Namespace::new("node")?;
        for arguments in [
            "link set lo up",
            "link add eth0 type veth peer name eth1",
            "link set eth0 up",
            "link set eth1 up",
            "addr add 192.168.0.2/24 dev eth0",
            "addr add fd00:192:168::2/64 dev eth0 nodad",
        ] {
            namespace.command("ip").args(arguments.split(' ')).run()?;
        }
        namespace.run(|| Ok(apply_sysctls("/proc".as_ref(), false)?))?;
        let lock = tempfile::tempdir()?;
        let dataplane = start(&namespace, &options, &lock)?;
        let mut cluster = Cluster::new(settings);
        let ips: Vec<IpAddr> = NODE_IPS.iter().map(|ip| ip.parse().expect("an address")).collect();
        cluster.apply(Event::HostAddresses(ips.clone().into()));
        let mut node = Node { namespace, cluster, dataplane, options, names: Interner::default(), lock };
        node.apply(ips.iter().fold(self::node("node-a"), |node, ip| node.ip(ip)));
        for kind in Kind::ALL {
            node.cluster.apply(Event::ListDone(kind));
        }
        Ok(node)
    }

    pub fn apply(&mut self, object: impl Into<Object>) {
        let event = object.into().event(&mut self.names);
        self.cluster.apply(event);
    }

    pub fn delete(&mut self, object: impl Into<Object>) {
        self.cluster.apply(object.into().deletion());
    }

    /// Applies a Service with endpoints in both families: 10.244.0.N and its twin, on this node if `local`.
    pub fn serve(
        &mut self,
        service: ServiceBuilder,
        endpoints: &[(u8, bool)],
        port: fn() -> Vec<portwarden_testkit::build::PortBuilder>,
    ) {
        let built = service.build();
        let name = built.metadata.name.clone();
        self.apply(Object::Service(Box::new(built)));
        self.endpoints(&name, endpoints, port);
    }

    pub fn endpoints(
        &mut self,
        service: &str,
        endpoints: &[(u8, bool)],
        ports: fn() -> Vec<portwarden_testkit::build::PortBuilder>,
    ) {
        for family in Family::BOTH {
            let prefix = if family == Family::V4 { "10.244.0." } else { "fd00:10:244::" };
            let name = format!("{service}-{}", family.as_str().to_lowercase());
            let mut built: SliceBuilder =
                ports().into_iter().fold(slice(service, &name).family(family), SliceBuilder::port);
            for (number, local) in endpoints {
                let endpoint: EndpointBuilder =
                    portwarden_testkit::build::endpoint(format!("{prefix}{number}"));
                built = built.endpoint(endpoint.on(if *local { "node-a" } else { "node-b" }));
            }
            self.apply(built);
        }
    }

    /// Syncs what changed.
    pub fn sync(&mut self) -> Result<PerFamily<Report>> {
        let changes = self.cluster.resolve();
        self.sync_with(&changes)
    }

    /// Compares everything with the kernel.
    pub fn full_sync(&mut self) -> Result<PerFamily<Report>> {
        self.cluster.resolve();
        self.sync_with(&PerFamily::from_fn(|_| Changes::everything()))
    }

    pub fn sync_with(&mut self, changes: &PerFamily<Changes>) -> Result<PerFamily<Report>> {
        let _inside = self.namespace.enter()?;
        let mut reports = PerFamily::from_fn(|_| Report::default());
        for family in Family::BOTH {
            let desired = self.cluster.desired(family);
            let report = self.dataplane.sync(desired, &changes[family], Instant::now());
            reports[family] = report.map_err(|error| anyhow!("{family}: {}: {:?}", error, error.source))?;
        }
        Ok(reports)
    }

    /// The process ends and starts again.
    pub fn restart(&mut self) -> Result<PerFamily<Report>> {
        self.dataplane = start(&self.namespace, &self.options, &self.lock)?;
        self.full_sync()
    }

    pub fn poll(&mut self, now: Instant) -> Result<Vec<portwarden_model::Notification>> {
        let _inside = self.namespace.enter()?;
        Ok(self.dataplane.poll(now))
    }

    pub fn ipvs<T: Send>(&self, work: impl FnOnce(&mut ipvs::Ipvs) -> Result<T> + Send) -> Result<T> {
        self.namespace.run(|| work(&mut ipvs::Ipvs::open()?.context("this kernel has no IPVS")?))
    }

    pub fn servers(&self) -> Result<Vec<VirtualServer>> {
        let mut servers = self.ipvs(|ipvs| Ok(ipvs.servers()?))?;
        servers.sort_by_key(|server| server.key);
        Ok(servers)
    }

    pub fn has_server(&self, text: &str, protocol: u16) -> Result<bool> {
        Ok(self.servers()?.iter().any(|server| server.key == key(text, protocol)))
    }

    /// The weights of the real servers of a TCP server, by address.
    pub fn weights(&self, server: &str) -> Result<Vec<(SocketAddr, u32)>> {
        let mut reals: Vec<RealServer> = self.ipvs(|ipvs| Ok(ipvs.real_servers(&key(server, 6))?))?;
        reals.sort_by_key(|real| real.address);
        Ok(reals.into_iter().map(|real| (real.address, real.weight)).collect())
    }

    pub fn save(&self, family: Family, table: &str) -> Result<String> {
        let program = if family == Family::V4 { "iptables-legacy-save" } else { "ip6tables-legacy-save" };
        self.namespace.command(program).args(["-t", table]).run()
    }

    /// What the program `ipset` shows of a set.
    pub fn set(&self, name: &str) -> Result<String> {
        self.namespace.command("ipset").args(["list", name]).run()
    }

    pub fn ip(&self, arguments: &str) -> Result<String> {
        self.namespace.command("ip").args(arguments.split(' ')).run()
    }
}

fn start(namespace: &Namespace, options: &Options, lock: &tempfile::TempDir) -> Result<Ipvs> {
    let _inside = namespace.enter()?;
    let file = lock.path().join("xtables.lock");
    let programs = |family| Programs::new(family, Variant::Legacy).env("XTABLES_LOCKFILE", &file);
    Ok(Ipvs::with_programs(&Family::BOTH, options.clone(), programs)?)
}

pub fn key(text: &str, protocol: u16) -> ServerKey {
    ServerKey { address: text.parse().expect("an address"), protocol }
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub fn written(reports: &PerFamily<Report>) -> usize {
    reports.iter().map(|(_, report)| report.written).sum()
}

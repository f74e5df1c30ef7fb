//! One Service in terms of this mode: virtual servers, set entries, addresses to bind. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portwarden_model::{
    Exposure, Frontend, Masquerade, NodePortAddresses, NodeView, Pool, Protocol, ProxiedPort, ProxiedService,
    TrafficPolicy, Verdict,
};
use portwarden_netlink::ipset::Entry;
use portwarden_netlink::ipvs::{ServerKey, flags};

use crate::names::SetId;
use crate::rules::SourceDrop;

/// What a Service needs. There is one for each Service, most of them with one element in each list, so the lists have no room to grow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServicePlan {
    /// Its virtual servers.
    pub servers: Box<[PlannedServer]>,
    /// Entries of sets, sorted, each once.
    pub entries: Box<[(SetId, Entry)]>,
    /// Addresses that the device must bear, sorted, each once.
    pub addresses: Box<[IpAddr]>,
    /// Load-balancer addresses that processes of the node may not use, sorted, each once.
    pub source_drops: Box<[SourceDrop]>,
    /// Whose connections to its cluster addresses are masqueraded, if it has any.
    pub cluster_ip_masquerade: Option<Masquerade>,
}

/// A virtual server with its real servers.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedServer {
    /// Address, port and protocol.
    pub key: ServerKey,
    /// It comes from a node port: a Service address wins over it.
    pub node_port: bool,
    /// What the kernel needs to know beside the scheduler.
    pub settings: ServerSettings,
    /// The endpoints that are its real servers.
    pub reals: Pool,
}

/// What can differ between the virtual servers of one scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSettings {
    /// Bits as in [`flags`], without [`flags::HASHED`].
    pub flags: u32,
    /// Seconds that a client stays with its real server.
    pub timeout: u32,
}

/// What a plan depends on beside the Service.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// Holds the node ports' addresses and the way to identify pod traffic.
    pub node: &'a NodeView,
    /// Addresses of the node that are on another device than ours: no loopback ones, no IPv6 link-local ones.
    pub node_addresses: &'a BTreeSet<IpAddr>,
    /// The flags that the scheduler needs.
    pub scheduler_flags: u32,
}

/// The flags that a scheduler needs. `mh` hashes the port as well, as kube-proxy configures it.
pub fn scheduler_flags(scheduler: &str) -> u32 {
    if scheduler == "mh" { flags::SCHEDULER_PORT } else { 0 }
}

/// The plan of a Service.
pub fn plan(service: &ProxiedService, around: Surroundings<'_>) -> ServicePlan {
    let mut planner = Planner::new(around);
    for port in &service.ports {
        planner.port(port);
    }
    if let Some(check) = service.health_check {
        planner.entry(SetId::HealthCheckNodePort, Entry::Port(check.port.get()));
    }
    planner.finish()
}

struct Planner<'a> {
    around: Surroundings<'a>,
    servers: Vec<PlannedServer>,
    entries: BTreeSet<(SetId, Entry)>,
    addresses: BTreeSet<IpAddr>,
    source_drops: BTreeSet<SourceDrop>,
    cluster_ip_masquerade: Option<Masquerade>,
}

impl<'a> Planner<'a> {
    fn new(around: Surroundings<'a>) -> Self {
        Planner {
            around,
            servers: Vec::new(),
            entries: BTreeSet::new(),
            addresses: BTreeSet::new(),
            source_drops: BTreeSet::new(),
            cluster_ip_masquerade: None,
        }
    }

    fn finish(self) -> ServicePlan {
        ServicePlan {
            servers: self.servers.into_boxed_slice(),
            entries: self.entries.into_iter().collect(),
            addresses: self.addresses.into_iter().collect(),
            source_drops: self.source_drops.into_iter().collect(),
            cluster_ip_masquerade: self.cluster_ip_masquerade,
        }
    }

    fn port(&mut self, port: &ProxiedPort) {
        let protocol = port.protocol().number();
        // In whatever state: a connection to itself that is under way must find its way back.
        for backend in port.endpoints.iter().filter(|backend| backend.local) {
            let entry = Entry::IpPortIp(backend.ip, protocol, backend.port, backend.ip);
            self.entry(SetId::LoopBack, entry);
        }
        for frontend in port.active_frontends() {
            match (frontend.exposure, frontend.ip) {
                (Exposure::ClusterIp, Some(ip)) => self.cluster_ip(port, frontend, ip),
                (Exposure::ExternalIp, Some(ip)) => self.external_ip(port, frontend, ip),
                (Exposure::LoadBalancerIp, Some(ip)) => self.load_balancer(port, frontend, ip),
                (Exposure::NodePort, _) => self.node_port(port, frontend),
                (_, None) => {}
            }
        }
    }

    fn cluster_ip(&mut self, port: &ProxiedPort, frontend: &Frontend, ip: IpAddr) {
        self.entry(SetId::ClusterIp, address_entry(port, frontend, ip));
        self.cluster_ip_masquerade = Some(frontend.masquerade);
        self.addresses.insert(ip);
        self.server(port, frontend, ip, false);
    }

    fn external_ip(&mut self, port: &ProxiedPort, frontend: &Frontend, ip: IpAddr) {
        let set = match frontend.policy {
            TrafficPolicy::Cluster => SetId::ExternalIp,
            TrafficPolicy::Local => SetId::ExternalIpLocal,
        };
        self.entry(set, address_entry(port, frontend, ip));
        self.bind_unless_present(ip);
        self.server(port, frontend, ip, false);
    }

    fn load_balancer(&mut self, port: &ProxiedPort, frontend: &Frontend, ip: IpAddr) {
        let entry = address_entry(port, frontend, ip);
        self.entry(SetId::LoadBalancer, entry);
        if frontend.policy == TrafficPolicy::Local {
            self.entry(SetId::LoadBalancerLocal, entry);
        }
        self.source_ranges(port, frontend, ip);
        self.bind_unless_present(ip);
        self.server(port, frontend, ip, false);
    }

    fn source_ranges(&mut self, port: &ProxiedPort, frontend: &Frontend, ip: IpAddr) {
        let Some(allowed) = &port.source_ranges else { return };
        // A set cannot hold a range of all addresses, which would restrict nothing.
        if allowed.ranges.iter().any(|range| range.prefix_len() == 0) {
            return;
        }
        let protocol = port.protocol();
        self.entry(SetId::LoadBalancerFw, address_entry(port, frontend, ip));
        for range in &allowed.ranges {
            let range = range.trunc();
            let entry =
                Entry::IpPortNet(ip, protocol.number(), frontend.port, range.addr(), range.prefix_len());
            self.entry(SetId::LoadBalancerSourceCidr, entry);
        }
        if allowed.frontends_too {
            let entry = Entry::IpPortIp(ip, protocol.number(), frontend.port, ip);
            self.entry(SetId::LoadBalancerSourceIp, entry);
        } else {
            self.source_drops.insert(SourceDrop { ip, protocol, port: frontend.port });
        }
    }

    fn node_port(&mut self, port: &ProxiedPort, frontend: &Frontend) {
        let local = frontend.policy == TrafficPolicy::Local;
        let (all_set, local_set) = node_port_sets(port.protocol());
        let mut any = false;
        for ip in node_port_addresses(self.around) {
            any = true;
            self.server(port, frontend, ip, true);
            if port.protocol() == Protocol::Sctp {
                self.node_port_entries(all_set, local_set, local, address_entry(port, frontend, ip));
            }
        }
        if any && port.protocol() != Protocol::Sctp {
            self.node_port_entries(all_set, local_set, local, Entry::Port(frontend.port));
        }
    }

    fn node_port_entries(&mut self, all: SetId, local_set: SetId, local: bool, entry: Entry) {
        self.entry(all, entry);
        if local {
            self.entry(local_set, entry);
        }
    }

    fn server(&mut self, port: &ProxiedPort, frontend: &Frontend, ip: IpAddr, node_port: bool) {
        let key = ServerKey {
            address: SocketAddr::new(ip, frontend.port),
            protocol: u16::from(port.protocol().number()),
        };
        let (persistent, timeout) = match port.affinity {
            Some(seconds) => (flags::PERSISTENT, seconds.get()),
            None => (0, 0),
        };
        let settings = ServerSettings { flags: persistent | self.around.scheduler_flags, timeout };
        let reals = real_servers(port, frontend).clone();
        self.servers.push(PlannedServer { key, node_port, settings, reals });
    }

    fn entry(&mut self, set: SetId, entry: Entry) {
        self.entries.insert((set, entry));
    }

    /// An address that another device bears is local already.
    fn bind_unless_present(&mut self, ip: IpAddr) {
        if !self.around.node_addresses.contains(&ip) {
            self.addresses.insert(ip);
        }
    }
}

/// The endpoints behind a frontend. A virtual server cannot drop: with policy Local and endpoints only elsewhere, those elsewhere are used.
fn real_servers<'a>(port: &'a ProxiedPort, frontend: &Frontend) -> &'a Pool {
    match frontend.from_elsewhere {
        Verdict::Forward(kind) => port.pool(kind),
        Verdict::Drop | Verdict::Reject => &port.cluster,
    }
}

fn node_port_addresses<'a>(around: Surroundings<'a>) -> impl Iterator<Item = IpAddr> + 'a {
    let chosen = &around.node.node_ports;
    around.node_addresses.iter().copied().filter(move |ip| match chosen {
        NodePortAddresses::All => true,
        NodePortAddresses::Only(ips) => ips.contains(ip),
    })
}

fn node_port_sets(protocol: Protocol) -> (SetId, SetId) {
    match protocol {
        Protocol::Tcp => (SetId::NodePortTcp, SetId::NodePortLocalTcp),
        Protocol::Udp => (SetId::NodePortUdp, SetId::NodePortLocalUdp),
        Protocol::Sctp => (SetId::NodePortSctp, SetId::NodePortLocalSctp),
    }
}

fn address_entry(port: &ProxiedPort, frontend: &Frontend, ip: IpAddr) -> Entry {
    Entry::IpPort(ip, port.protocol().number(), frontend.port)
}

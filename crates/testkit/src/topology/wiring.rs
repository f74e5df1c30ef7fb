//! Builds the namespaces of a topology and joins them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use ipnet::IpNet;

use super::addresses::{
    self, DualIp, DualNet, EVERYWHERE, EXTERNAL_IPS, NODE, NODE_B, NODE_B_PODS, NODE_PODS, NODE_SECONDARY,
    POD_GATEWAY, ROUTER, SERVICE_CIDR, UPLINK, VIPS,
};
use super::{Builder, Host, PodNetwork, Topology};
use crate::netns::Namespace;
use crate::probe::Servers;
use crate::route::{LOOPBACK, Mac, Route, VethEnd};

/// The first device of every namespace: `eth0`, or the uplink's bridge.
const FIRST_DEVICE: u32 = 2;
/// The bridge of the pods.
const POD_BRIDGE: u32 = 3;
/// The devices towards pods, or towards nodes on the uplink's bridge, count from here.
const PORTS: u32 = 10;

pub(super) fn build(plan: &Builder) -> Result<Topology> {
    let servers = Arc::new(Servers::start()?);
    let host = |name: &str, addresses: Vec<DualIp>, forwards| -> Result<Host> {
        let namespace = Namespace::new(name)?;
        prepare(&namespace, forwards)?;
        Ok(Host::new(namespace, addresses, Arc::clone(&servers)))
    };
    let pod = |prefix: &str, network, index| {
        host(&format!("{prefix}-{index}"), vec![addresses::pod(network, index)], false)
    };
    let topology = Topology {
        node: host("node-a", [&[NODE, NODE_SECONDARY], plan.node_addresses.as_slice()].concat(), true)?,
        node_b: host("node-b", vec![NODE_B], true)?,
        outside: host("outside", addresses::clients().chain([ROUTER]).collect(), false)?,
        pods: (0..plan.pods).map(|index| pod("pod", NODE_PODS, index)).collect::<Result<_>>()?,
        remote_pods: (0..plan.remote_pods)
            .map(|index| pod("remote-pod", NODE_B_PODS, index))
            .collect::<Result<_>>()?,
        pod_network: plan.pod_network,
    };
    join_uplink(&topology)?;
    let mut node = Wire::open(&topology.node)?;
    match plan.pod_network {
        PodNetwork::Routed => node.attach_routed(&topology.pods)?,
        PodNetwork::Bridge => node.attach_to_bridge(&topology.pods)?,
    }
    Wire::open(&topology.node_b)?.attach_routed(&topology.remote_pods)?;
    for host in topology.hosts() {
        let mut route = Route::open(host.namespace())?;
        host.addresses().iter().try_for_each(|ip| route.wait_own(ip.v6.into()))?;
    }
    Ok(topology)
}

/// Reserved by RFC 4443, so that a mask of it limits nothing; a mask of no type at all cannot be written.
const UNUSED_ICMPV6_TYPE: &str = "255";

/// Kernel settings that must be in place before the first device: devices copy them at birth.
fn prepare(namespace: &Namespace, forwards: bool) -> Result<()> {
    let _entered = namespace.enter()?;
    let forward = if forwards { "1" } else { "0" };
    for (setting, value) in [
        ("net/ipv4/ip_forward", forward),
        ("net/ipv6/conf/all/forwarding", forward),
        ("net/ipv6/conf/default/forwarding", forward),
        ("net/ipv6/conf/all/disable_ipv6", "0"),
        ("net/ipv6/conf/default/disable_ipv6", "0"),
        // Addresses are ours alone; looking for duplicates would only delay them.
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_ra", "0"),
        ("net/ipv6/conf/default/router_solicitations", "0"),
        // What a dataplane lets through may come from, and go to, anywhere.
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        ("net/ipv4/conf/all/send_redirects", "0"),
        ("net/ipv4/conf/default/send_redirects", "0"),
        ("net/ipv4/conf/all/accept_redirects", "0"),
        ("net/ipv6/conf/default/accept_redirects", "0"),
        // Every rejected packet needs its ICMP error, not just six per second.
        ("net/ipv4/icmp_ratemask", "0"),
        ("net/ipv6/icmp/ratemask", UNUSED_ICMPV6_TYPE),
        // Load generators use up ports quickly.
        ("net/ipv4/tcp_tw_reuse", "1"),
    ] {
        fs::write(Path::new("/proc/sys").join(setting), value)
            .with_context(|| format!("cannot set {setting} to {value} in namespace {}", namespace.name()))?;
    }
    Ok(())
}

/// Joins both nodes and the outside by a bridge that lives in the outside.
fn join_uplink(topology: &Topology) -> Result<()> {
    let mut outside = Wire::open(&topology.outside)?;
    outside.route.bridge("br0", FIRST_DEVICE, mac(MAC_HOST, ROUTER));
    outside.route.up(FIRST_DEVICE);
    let mut nodes =
        [(Wire::open(&topology.node)?, NODE, PORTS), (Wire::open(&topology.node_b)?, NODE_B, PORTS + 1)];
    for (node, ip, port) in &nodes {
        outside.veth(*port, node.host.name(), mac(MAC_PORT, *ip), node.host, mac(MAC_HOST, *ip));
        outside.route.port(*port, FIRST_DEVICE);
        outside.route.up(*port);
    }
    outside.route.commit()?;
    for (node, ..) in &mut nodes {
        node.route.up(FIRST_DEVICE);
        node.route.commit()?;
        node.route.wait_ready(FIRST_DEVICE)?;
    }
    for port in [FIRST_DEVICE, PORTS, PORTS + 1] {
        outside.route.wait_ready(port)?;
    }

    let [(node, ..), (node_b, ..)] = &mut nodes;
    let to_services = [SERVICE_CIDR, VIPS, EXTERNAL_IPS, host_net(NODE_SECONDARY)];
    node.join(&topology.node.addresses()[1..], NODE, NODE, &[(NODE_B_PODS, NODE_B), (EVERYWHERE, ROUTER)])?;
    let via_node = to_services.map(|network| (network, NODE));
    node_b.join(
        &[],
        NODE_B,
        NODE_B,
        &[&via_node[..], &[(NODE_PODS, NODE), (EVERYWHERE, ROUTER)]].concat(),
    )?;
    let clients: Vec<_> = addresses::clients().collect();
    let source = topology.outside.ip();
    let routes = [&via_node[..], &[(NODE_PODS, NODE), (NODE_B_PODS, NODE_B)]].concat();
    outside.join(&clients, ROUTER, source, &routes)
}

/// The devices of one host, while they are being made.
struct Wire<'a> {
    host: &'a Host,
    route: Route,
}

impl<'a> Wire<'a> {
    /// Opens the host's namespace for changes, with loopback up.
    fn open(host: &'a Host) -> Result<Wire<'a>> {
        let mut route = Route::open(host.namespace())?;
        route.up(LOOPBACK);
        Ok(Wire { host, route })
    }

    /// Gathers a veth pair: device `index` here, `eth0` in `there`.
    fn veth(&mut self, index: u32, name: &str, here: Mac, there: &Host, there_mac: Mac) {
        let here = VethEnd { namespace: self.host.namespace(), name, index, mac: here };
        let there =
            VethEnd { namespace: there.namespace(), name: "eth0", index: FIRST_DEVICE, mac: there_mac };
        self.route.veth(&here, &there);
    }

    /// Gives the uplink's device its addresses and routes; traffic starts from `source`.
    fn join(
        &mut self,
        others: &[DualIp],
        own: DualIp,
        source: DualIp,
        routes: &[(DualNet, DualIp)],
    ) -> Result<()> {
        // Left to choose, as masquerading leaves it, the kernel takes the IPv4 address added first and the IPv6
        // address added last.
        self.route.address(FIRST_DEVICE, IpNet::new(own.v4.into(), UPLINK.v4.prefix_len())?);
        for ip in others.iter().flat_map(|ip| ip.both()) {
            self.route.address(FIRST_DEVICE, ip.into());
        }
        self.route.address(FIRST_DEVICE, IpNet::new(own.v6.into(), UPLINK.v6.prefix_len())?);
        for peer in [NODE, NODE_B, ROUTER].into_iter().filter(|peer| *peer != own) {
            self.neighbour(FIRST_DEVICE, peer, mac(MAC_HOST, peer));
        }
        for network in UPLINK.both() {
            self.route.route(network, FIRST_DEVICE, None, Some(source.like(network.addr())));
        }
        for (network, gateway) in routes {
            for network in network.both() {
                let (via, source) = (gateway.like(network.addr()), source.like(network.addr()));
                self.route.route(network, FIRST_DEVICE, Some(via), Some(source));
            }
        }
        self.route.commit()
    }

    /// Attaches each pod by a device and a route of its own.
    fn attach_routed(&mut self, pods: &[Host]) -> Result<()> {
        for (index, pod) in (0..).zip(pods) {
            let device = PORTS + index;
            self.veth(device, &format!("veth{index}"), mac(MAC_PORT, pod.ip()), pod, mac(MAC_HOST, pod.ip()));
            self.route.up(device);
        }
        self.route.commit()?;
        for pod in pods {
            configure_pod(pod, mac(MAC_PORT, pod.ip()))?;
        }
        for (index, pod) in (0..).zip(pods) {
            let device = PORTS + index;
            self.route.wait_ready(device)?;
            self.neighbour(device, pod.ip(), mac(MAC_HOST, pod.ip()));
            for network in host_net(pod.ip()).both() {
                self.route.route(network, device, None, None);
            }
        }
        self.route.commit()
    }

    /// Attaches all pods to one bridge that has an address in their network.
    ///
    /// A pod still has no route to its neighbours but through the node: answers that took the short way over the
    /// bridge would bypass address translation where the kernel has no `br_netfilter`.
    fn attach_to_bridge(&mut self, pods: &[Host]) -> Result<()> {
        let gateway = addresses::POD_BRIDGE;
        let bridge_mac = mac(MAC_HOST, gateway);
        self.route.bridge("cni0", POD_BRIDGE, bridge_mac);
        self.route.up(POD_BRIDGE);
        for (index, pod) in (0..).zip(pods) {
            let device = PORTS + index;
            self.veth(device, &format!("veth{index}"), mac(MAC_PORT, pod.ip()), pod, mac(MAC_HOST, pod.ip()));
            self.route.port(device, POD_BRIDGE);
            // As network plugins do: where `br_netfilter` is loaded, a pod that reaches itself never leaves the bridge.
            self.route.hairpin(device);
            self.route.up(device);
        }
        for (ip, network) in gateway.both().into_iter().zip(NODE_PODS.both()) {
            self.route.address(POD_BRIDGE, ip.into());
            self.route.route(network, POD_BRIDGE, None, None);
        }
        for pod in pods {
            self.neighbour(POD_BRIDGE, pod.ip(), mac(MAC_HOST, pod.ip()));
        }
        self.route.commit()?;
        for pod in pods {
            configure_pod(pod, bridge_mac)?;
        }
        for device in (PORTS..).take(pods.len()).chain([POD_BRIDGE].into_iter().take(pods.len())) {
            self.route.wait_ready(device)?;
        }
        self.route.wait_own(gateway.v6.into())
    }

    fn neighbour(&mut self, device: u32, peer: DualIp, mac: Mac) {
        for ip in peer.both() {
            self.route.neighbour(device, ip, mac);
        }
    }
}

/// Gives a pod its address and a single way out, to the device with `gateway_mac`.
fn configure_pod(pod: &Host, gateway_mac: Mac) -> Result<()> {
    let mut wire = Wire::open(pod)?;
    wire.route.up(FIRST_DEVICE);
    wire.route.commit()?;
    wire.route.wait_ready(FIRST_DEVICE)?;
    wire.neighbour(FIRST_DEVICE, POD_GATEWAY, gateway_mac);
    for (ip, everywhere) in pod.ip().both().into_iter().zip(EVERYWHERE.both()) {
        wire.route.address(FIRST_DEVICE, ip.into());
        wire.route.route(everywhere, FIRST_DEVICE, Some(POD_GATEWAY.like(ip)), Some(ip));
    }
    wire.route.commit()
}

/// The networks that hold nothing but `ip`.
fn host_net(ip: DualIp) -> DualNet {
    DualNet { v4: ip.v4.into(), v6: ip.v6.into() }
}

/// The Ethernet address of the host with an IP address.
const MAC_HOST: u8 = 0;
/// The Ethernet address of the other end of its cable.
const MAC_PORT: u8 = 1;

/// An Ethernet address that shows the IPv4 address it belongs to.
fn mac(end: u8, ip: DualIp) -> Mac {
    let [a, b, c, d] = ip.v4.octets();
    [2, end, a, b, c, d]
}

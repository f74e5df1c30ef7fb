//! Rules written by hand with the `nft` program, to have something for probes to find out.

use std::net::{IpAddr, SocketAddr};

use portwarden_testkit::topology::addresses::{DualIp, VIPS};
use portwarden_testkit::{Topology, Transport};

/// The port of the address that rules translate.
pub(crate) const FRONT: u16 = 80;
/// The port that servers listen on.
pub(crate) const BACK: u16 = 8080;
/// Both transports.
pub(crate) const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

/// A cluster with two pods on each node, all serving.
pub(crate) fn serving_cluster() -> Topology {
    let topology = Topology::builder().pods(2).remote_pods(2).build().expect("a cluster");
    for pod in topology.pods().iter().chain(topology.remote_pods()) {
        for transport in TRANSPORTS {
            pod.serve(transport, BACK).expect("a server");
        }
    }
    topology
}

/// The addresses that rules translate.
pub(crate) fn vip() -> DualIp {
    VIPS.host(13)
}

/// The address and port that rules translate, in both families.
pub(crate) fn fronts() -> [SocketAddr; 2] {
    vip().both().map(|ip| SocketAddr::new(ip, FRONT))
}

/// Replaces the rules of the node, in one transaction.
pub(crate) fn rules(topology: &Topology, text: &str) {
    let script = format!("flush ruleset\n{text}");
    topology.node().command("nft").args(["-f", "-"]).input(script).run().expect("nft takes the rules");
}

/// Rules that translate the VIP, from everywhere, to `target`.
pub(crate) fn translate(target: DualIp) -> String {
    let translate = |name: &str, hook: &str| {
        let [v4, v6] = vip().both();
        format!(
            "chain {name} {{
                type nat hook {hook} priority -100
                ip daddr {v4} meta l4proto {{ tcp, udp }} dnat ip to {}:{BACK}
                ip6 daddr {v6} meta l4proto {{ tcp, udp }} dnat ip6 to [{}]:{BACK}
            }}",
            target.v4, target.v6
        )
    };
    let (pods, own) = (translate("pods", "prerouting"), translate("own", "output"));
    format!("table inet nat {{\n{pods}\n{own}\n}}")
}

/// Rules that masquerade whatever was translated.
pub(crate) fn masquerade() -> &'static str {
    "
    table inet hide {
        chain everyone { type nat hook postrouting priority 100; ct status dnat masquerade fully-random; }
    }
    "
}

/// Rules that meet every packet to the VIP with `verdict`, forwarded or sent by the node itself.
pub(crate) fn meet_with(verdict: &str) -> String {
    let chain = |hook: &str| {
        let meet = |ip: IpAddr| format!("{} daddr {ip} {verdict}", if ip.is_ipv4() { "ip" } else { "ip6" });
        let [v4, v6] = vip().both().map(meet);
        format!("chain {hook} {{ type filter hook {hook} priority 0\n{v4}\n{v6}\n}}")
    };
    format!("table inet filter {{\n{}\n{}\n}}", chain("forward"), chain("output"))
}

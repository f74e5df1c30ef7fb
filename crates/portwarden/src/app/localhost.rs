//! Node ports on loopback addresses. Mode iptables offers them on 127.0.0.1, and needs the kernel's `route_localnet` for it; mode nftables
//! offers those of TCP through a proxy in user space, if a feature gate is on.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use portwarden_model::{Family, NodePortRange, Protocol};
use tracing::{debug, info};

use crate::config::gates::Feature;
use crate::config::{Config, Mode};
use crate::logging::chain;
use crate::metrics::{LoopbackMetrics, MetricError};

/// Whoever asks for metrics does not wait longer than this for the kernel.
const SCRAPE: Duration = Duration::from_secs(2);

/// Whether a proxy in user space serves them, where ranges for node ports name loopback addresses.
pub(super) fn proxied(config: &Config) -> bool {
    config.mode == Mode::Nftables && config.gates.enabled(Feature::NftablesLocalhostNodePorts)
}

/// Shows the metrics of that proxy, and of what is refused instead, once it is wanted.
pub(super) fn show_rejected(config: &Config, metrics: &LoopbackMetrics) -> Result<(), MetricError> {
    if !proxied(config) {
        return Ok(());
    }
    metrics.show(Box::new(|| {
        let until = Instant::now() + SCRAPE;
        Family::BOTH.into_iter().flat_map(|family| rejected(family, until)).collect()
    }))
}

fn rejected(family: Family, until: Instant) -> Vec<(Family, Protocol, u64)> {
    let patience = until.saturating_duration_since(Instant::now());
    match portwarden_nftables::loopback_rejected_packets(family, patience) {
        Ok(packets) => packets.into_iter().map(|(protocol, count)| (family, protocol, count)).collect(),
        Err(error) => {
            debug!(ipFamily = %family, err = chain(&error), "Cannot read counters of nftables");
            Vec::new()
        }
    }
}

/// Whether a configuration asks mode iptables for them, as far as it can be told without the Node.
pub(super) fn wanted(config: &Config) -> bool {
    allowed(config) && on_loopback(&config.node_port_addresses)
}

/// Whether they are not switched off altogether.
pub(super) fn allowed(config: &Config) -> bool {
    config.mode == Mode::Iptables && config.localhost_node_ports
}

/// Says what is about to be set. It opens the host a little, so nobody should have to find out by himself.
pub(super) fn tell() {
    info!(
        "Setting route_localnet=1 to allow node-ports on localhost; to prevent this, set --iptables-localhost-nodeports=false, or leave \
         loopback addresses out of --nodeport-addresses"
    );
}

/// Whether node ports answer on IPv4 loopback addresses. Without a range of the family they answer everywhere; the Node's own addresses,
/// which are not known here, are no loopback addresses.
fn on_loopback(ranges: &[NodePortRange]) -> bool {
    let includes = |range: &NodePortRange| match range {
        NodePortRange::Localhost | NodePortRange::All => Some(true),
        NodePortRange::Primary => Some(false),
        NodePortRange::Cidr(net) if Family::of_net(net) == Family::V4 => {
            Some(net.addr().is_loopback() || net.contains(&IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0))))
        }
        NodePortRange::Cidr(_) => None,
    };
    let mut of_family = ranges.iter().filter_map(includes).peekable();
    of_family.peek().is_none() || of_family.any(|includes| includes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_decide_whether_loopback_is_among_them() {
        let cidr = |text: &str| NodePortRange::Cidr(text.parse().expect("a range"));
        for (ranges, expected) in [
            (vec![], true),
            (vec![NodePortRange::All], true),
            (vec![NodePortRange::Localhost], true),
            (vec![NodePortRange::Primary], false),
            (vec![NodePortRange::Primary, NodePortRange::Localhost], true),
            (vec![cidr("10.0.0.0/8")], false),
            (vec![cidr("0.0.0.0/0")], true),
            (vec![cidr("127.0.0.1/32")], true),
            (vec![cidr("126.0.0.0/7")], true),
            (vec![cidr("fd00::/8")], true),
            (vec![cidr("fd00::/8"), cidr("10.0.0.0/8")], false),
        ] {
            assert_eq!(on_loopback(&ranges), expected, "{ranges:?}");
        }
    }
}

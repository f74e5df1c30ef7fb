//! The two kernel settings that matter to this mode. Both belong to the network namespace of the calling thread.

use std::fs;

use crate::error::Error;

const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// Lets packets to loopback addresses leave the loopback device, without which node ports cannot answer there. It is never set back:
/// something else may rely on it by then.
pub fn allow_loopback_node_ports() -> Result<(), Error> {
    if fs::read_to_string(ROUTE_LOCALNET).is_ok_and(|value| value.trim() == "1") {
        return Ok(());
    }
    fs::write(ROUTE_LOCALNET, "1").map_err(|source| Error::Sysctl {
        path: ROUTE_LOCALNET.to_owned(),
        value: "1",
        source,
    })
}

/// Whether conntrack calls packets outside a TCP window valid. A setting that cannot be read counts as off.
pub(crate) fn tcp_is_liberal() -> bool {
    fs::read_to_string(TCP_BE_LIBERAL).is_ok_and(|value| value.trim() != "0")
}

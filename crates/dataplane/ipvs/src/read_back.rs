//! Which of our virtual servers the kernel holds, for the commands that compare them with what should be there.

use portwarden_model::Family;
use portwarden_netlink::ipvs::{Ipvs, RealServer, ServerKey};
use portwarden_netlink::route::Route;

use crate::cleanup::read_ownership;
use crate::names::DEVICE;
use crate::ownership::Role;

/// One of our virtual servers, or kube-proxy's, as it was read.
#[derive(Debug, Clone)]
pub struct FoundServer {
    /// Address, port and protocol.
    pub key: ServerKey,
    /// It answers a node port on one of the node's addresses, rather than an address of a Service.
    pub node_port: bool,
    /// Its real servers, with those that leave.
    pub reals: Vec<RealServer>,
}

/// Lists the virtual servers of one family that are ours. Without the device there are none, and the kernel is not asked for any: that would
/// load the module.
pub fn find_servers(family: Family) -> Result<Vec<FoundServer>, portwarden_netlink::Error> {
    let mut route = Route::open()?;
    let Some(device) = route.link(DEVICE)? else { return Ok(Vec::new()) };
    let ownership = read_ownership(&mut route, device.index)?;
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for key in ipvs.servers()?.into_iter().map(|server| server.key) {
        if Family::of(key.address.ip()) != family {
            continue;
        }
        if let Some(role) = ownership.role(&key) {
            let node_port = role == Role::NodePort;
            found.push(FoundServer { key, node_port, reals: ipvs.real_servers(&key)? });
        }
    }
    Ok(found)
}

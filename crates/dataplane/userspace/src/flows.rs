//! Which flows the kernel should forget.
//!
//! The kernel remembers for every UDP flow where it was redirected to, and as long as packets come it does not look at the rules again. In this mode
//! a flow leads to one of our sockets, whatever its endpoint is, so that the model's answer for other modes does not fit.
//!
//! | flow | is stale if |
//! |---|---|
//! | UDP, to a place of a Service | no rule leads from there to the socket it goes to, or it was never redirected |
//! | UDP, to a place that is gone | it was redirected |
//! | TCP, to a place of a Service, after a full sync | it was never redirected nor answered: it began while rules were missing |

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use portwarden_model::{Changes, Desired, Family, NodePortAddresses, Protocol};
use portwarden_netlink::conntrack::{Conntrack, Flow};
use portwarden_netlink::route::Route;
use portwarden_netlink::{Error, IpFamily};

use crate::redirect::{Action, Origin, Place, Portal};

/// Knows which flows of one family are stale after a sync.
pub(crate) struct StaleFlows<'a> {
    node_ports: &'a NodePortAddresses,
    portals: HashMap<Place, &'a Portal>,
    gone: HashSet<Place>,
    full: bool,
}

impl<'a> StaleFlows<'a> {
    pub(crate) fn new(
        desired: &'a Desired,
        changes: &Changes,
        portals: impl Iterator<Item = &'a Portal>,
    ) -> Self {
        let gone = changes.gone.iter();
        StaleFlows {
            node_ports: &desired.node.node_ports,
            portals: portals.map(|portal| (portal.place, portal)).collect(),
            gone: gone.map(|g| Place { ip: g.ip, port: g.port, protocol: g.protocol }).collect(),
            full: changes.full,
        }
    }

    /// Deletes them.
    pub(crate) fn delete(&self, family: Family) -> Result<(), Error> {
        let family = match family {
            Family::V4 => IpFamily::Ipv4,
            Family::V6 => IpFamily::Ipv6,
        };
        let host = Route::open()?.addresses(Some(family))?;
        let host: HashSet<IpAddr> = host.into_iter().map(|one| one.address).collect();
        let deletion = Conntrack::open()?.delete(family, |flow| self.is_stale(flow, &host))?;
        deletion.errors.into_iter().next().map_or(Ok(()), Err)
    }

    fn is_stale(&self, flow: &Flow, host: &HashSet<IpAddr>) -> bool {
        let Some(protocol) = Protocol::from_number(flow.original.protocol) else { return false };
        let (ip, port) = (flow.original.destination, flow.original.destination_port);
        let answers = SocketAddr::new(flow.reply.source, flow.reply.source_port);
        let redirected = answers != SocketAddr::new(ip, port);
        let by_address = Place { ip: Some(ip), port, protocol };
        let node_port = Place { ip: None, ..by_address };
        let is_node_port = host.contains(&ip) && self.node_ports.contains(ip);
        let portal = self.portals.get(&by_address);
        let portal = portal.or_else(|| self.portals.get(&node_port).filter(|_| is_node_port));
        match (protocol, portal) {
            (Protocol::Udp, Some(portal)) => {
                !Origin::BOTH.into_iter().any(|origin| portal.action(origin) == Action::Redirect(answers))
            }
            (Protocol::Udp, None) => {
                let was_node_port = host.contains(&ip) && self.gone.contains(&node_port);
                redirected && (self.gone.contains(&by_address) || was_node_port)
            }
            (Protocol::Tcp, Some(_)) => self.full && !redirected && !flow.is_answered(),
            _ => false,
        }
    }
}

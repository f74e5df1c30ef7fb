//! Redirection: kernel rules that send the connections of Services to our sockets, and refuse those that have nowhere to go.

pub(crate) mod nftables;

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portwarden_model::{Exposure, Frontend, Protocol, ProxiedPort};

/// Where a connection starts, as the verdicts of a frontend distinguish it. The rules can distinguish it; a socket cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Origin {
    /// On this node: processes of the host, and pods.
    Node,
    /// Anywhere else.
    Elsewhere,
}

impl Origin {
    pub(crate) const BOTH: [Origin; 2] = [Origin::Node, Origin::Elsewhere];
}

/// What clients connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// `None` for a node port.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
}

impl Place {
    pub(crate) fn of(port: &ProxiedPort, frontend: &Frontend) -> Self {
        Place { ip: frontend.ip, port: frontend.port, protocol: port.protocol() }
    }
}

/// What the kernel does with new connections to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// They come to this socket of ours.
    Redirect(SocketAddr),
    /// They are refused at once.
    Reject,
    /// They are dropped silently.
    Drop,
}

/// The rules for one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portal {
    pub(crate) place: Place,
    pub(crate) from_node: Action,
    pub(crate) from_elsewhere: Action,
    /// Who may use it; `None` means everyone.
    pub(crate) sources: Option<Vec<IpNet>>,
}

impl Portal {
    pub(crate) fn action(&self, origin: Origin) -> Action {
        match origin {
            Origin::Node => self.from_node,
            Origin::Elsewhere => self.from_elsewhere,
        }
    }
}

/// Everything that the kernel does for one Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServiceRules {
    pub(crate) portals: Vec<Portal>,
    pub(crate) cluster_ips: Vec<IpAddr>,
    /// Sockets of our own, which nothing may reach but through the rules.
    pub(crate) sockets: Vec<(Protocol, SocketAddr)>,
}

/// Who may use a frontend. Ranges that touch or overlap are joined, since the kernel refuses overlaps.
pub(crate) fn sources(port: &ProxiedPort, frontend: &Frontend) -> Option<Vec<IpNet>> {
    let allowed = port.source_ranges.as_ref().filter(|_| frontend.exposure == Exposure::LoadBalancerIp)?;
    let mut ranges = allowed.ranges.to_vec();
    if allowed.frontends_too {
        let addresses = port.frontends.iter().filter(|f| f.exposure == Exposure::LoadBalancerIp);
        ranges.extend(addresses.filter_map(|f| f.ip).map(IpNet::from));
    }
    Some(IpNet::aggregate(&ranges))
}

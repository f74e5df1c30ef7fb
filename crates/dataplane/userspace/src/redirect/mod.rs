//! Redirection: kernel rules that send the connections of Services to our sockets, and refuse those that have nowhere to go.

pub(crate) mod iptables;
mod ledger;
pub(crate) mod nftables;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use ipnet::IpNet;
use portwarden_model::{
    Exposure, Family, Frontend, NamespacedName, NodeView, PerFamily, PortName, Protocol, ProxiedPort,
};
use portwarden_xtables::Programs;

use iptables::Iptables;
use ledger::Draft;
use nftables::Nftables;

/// Why rules could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// The kernel's answer.
    #[error(transparent)]
    Nftables(#[from] portwarden_netlink::Error),
    /// What became of an iptables program.
    #[error(transparent)]
    Iptables(#[from] portwarden_xtables::Error),
}

impl RedirectError {
    /// Whether it means that the kernel does not have what we think it has.
    pub(crate) fn is_out_of_step(&self) -> bool {
        match self {
            RedirectError::Nftables(error) => nftables::is_out_of_step(error),
            RedirectError::Iptables(error) => matches!(error, portwarden_xtables::Error::Rejected { .. }),
        }
    }
}

/// What the rules depend on besides Services and the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Connections with this mark are our own, to endpoints.
    pub(crate) mark: u32,
    /// Whether node ports answer on loopback addresses.
    pub(crate) loopback_node_ports: bool,
}

/// What writes the rules of both families.
#[derive(Debug)]
pub(crate) enum Redirect {
    Nftables(Box<Nftables>),
    Iptables(Box<Iptables>),
}

/// Sockets to which the rules of an earlier process lead.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// The ports of TCP listeners by origin.
    pub(crate) tcp: BTreeMap<Origin, u16>,
    /// The ports of UDP sockets by what they served.
    pub(crate) udp: HashMap<(Origin, Place), u16>,
}

impl Recovered {
    /// All ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (Protocol, u16)> + '_ {
        let tcp = self.tcp.values().map(|port| (Protocol::Tcp, *port));
        tcp.chain(self.udp.values().map(|port| (Protocol::Udp, *port)))
    }
}

/// What is to be written in one family.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) family: Family,
    pub(crate) node: &'a NodeView,
    /// The rules of our listeners.
    pub(crate) own: &'a ServiceRules,
    /// `None` removes a Service. Unless the kernel already has the rest, these must be all of them.
    pub(crate) services: &'a BTreeMap<NamespacedName, Option<ServiceRules>>,
    /// Compares everything with the kernel.
    pub(crate) full: bool,
}

impl Wanted<'_> {
    /// The kernel's objects for the Services, and for the listeners and `node`.
    fn draft<O>(
        &self,
        render: impl Fn(&ServiceRules) -> Vec<O>,
        node: impl IntoIterator<Item = O>,
    ) -> Draft<'_, O> {
        let services = self.services.iter().map(|(name, rules)| (name, rules.as_ref().map(&render)));
        Draft { node: render(self.own).into_iter().chain(node).collect(), services: services.collect() }
    }
}

/// What a write did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) objects: usize,
    /// Everything was rewritten or compared with the kernel.
    pub(crate) full: bool,
    /// Other processes may have changed something unnoticed.
    pub(crate) missed_notifications: bool,
}

impl Redirect {
    /// nf_tables if the kernel has it for these families.
    pub(crate) fn nftables(settings: Settings, families: &[Family]) -> Result<Self, RedirectError> {
        Ok(Redirect::Nftables(Box::new(Nftables::open(settings, families)?)))
    }

    /// These programs if they work for these families.
    pub(crate) fn iptables(
        settings: Settings,
        families: &[Family],
        programs: PerFamily<Programs>,
    ) -> Result<Self, RedirectError> {
        let redirect = Iptables::new(settings, programs);
        redirect.check(families)?;
        Ok(Redirect::Iptables(Box::new(redirect)))
    }

    /// Reads which sockets an earlier process used.
    pub(crate) fn recover(&mut self, family: Family) -> Result<Recovered, RedirectError> {
        match self {
            Redirect::Nftables(nftables) => Ok(nftables.recover(family)?),
            Redirect::Iptables(iptables) => Ok(iptables.recover(family)?),
        }
    }

    /// Writes the rules of Services and of the node.
    pub(crate) fn write(&mut self, wanted: &Wanted<'_>) -> Result<Written, RedirectError> {
        match self {
            Redirect::Nftables(nftables) => Ok(nftables.write(wanted)?),
            Redirect::Iptables(iptables) => iptables.write(wanted),
        }
    }

    /// Whether the rules of a family can be changed one by one.
    pub(crate) fn in_step(&self, family: Family) -> bool {
        match self {
            Redirect::Nftables(nftables) => nftables.in_step(family),
            Redirect::Iptables(iptables) => iptables.in_step(family),
        }
    }

    /// Whether the kernel notifies us of what other processes change.
    pub(crate) fn is_notified(&self) -> bool {
        matches!(self, Redirect::Nftables(_))
    }

    /// Reads notifications. Returns what other processes changed in our tables, by family.
    pub(crate) fn tampering(&mut self) -> Result<PerFamily<Option<String>>, RedirectError> {
        match self {
            Redirect::Nftables(nftables) => Ok(nftables.tampering()?),
            Redirect::Iptables(_) => Ok(PerFamily::default()),
        }
    }

    pub(crate) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Redirect::Nftables(nftables) => Some(nftables.watch_fd()),
            Redirect::Iptables(_) => None,
        }
    }
}

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
    pub(crate) name: PortName,
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

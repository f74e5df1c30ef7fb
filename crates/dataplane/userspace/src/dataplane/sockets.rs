//! The TCP listeners of one family: opened, or taken over from the process before, with its UDP sockets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, UdpSocket as StdUdpSocket};
use std::sync::Arc;

use portwarden_model::{Family, NodeView, Protocol};
use portwarden_netlink::IpFamily;
use portwarden_netlink::route::{Route, scope};
use tokio::sync::watch;
use tracing::info;

use super::Context;
use crate::core::{HandedOver, Listener, Offer, Predecessor, Sharing, UdpSockets, bind_udp, listen};
use crate::redirect::{Origin, Recovered, ServiceRules};
use crate::routes::{Redirected, Routes};

/// The TCP listeners, all on one address.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) ip: IpAddr,
    ports: BTreeMap<Origin, u16>,
    /// Bound and listening, but nothing accepts yet: connections wait until routes are known.
    waiting: Vec<(Origin, Vec<StdListener>)>,
    listeners: Vec<Listener>,
    /// The process that had them before, until it knows that this one serves. The connection lasts as long as this process.
    predecessor: Option<Predecessor>,
    relieved: bool,
    /// The UDP sockets of the process before, until it knows which of them this one reads.
    udp_before: HashMap<SocketAddr, StdUdpSocket>,
    /// The same sockets for the next process.
    offer: Option<Offer>,
}

/// Where the ports of listeners that were there before can be found.
pub(super) struct PortsBefore<'a> {
    /// Our own, on another address.
    pub(super) sockets: Option<&'a Sockets>,
    /// Those of another process.
    pub(super) recovered: Option<&'a Recovered>,
}

impl PortsBefore<'_> {
    fn of(&self, origin: Origin) -> Option<u16> {
        let own = self.sockets.and_then(|sockets| sockets.ports.get(&origin));
        own.or_else(|| self.recovered?.tcp.get(&origin)).copied()
    }
}

impl Sockets {
    /// Listens on an address, with the sockets of the process before if there is one. The next one gets `udp`, too.
    pub(super) fn open(
        (family, udp): (Family, &UdpSockets),
        context: &mut Context,
        ip: IpAddr,
        before: &PortsBefore<'_>,
    ) -> io::Result<Sockets> {
        let asked = if before.sockets.is_none() { Predecessor::ask(family) } else { None };
        let (predecessor, handed_over) = asked.unzip();
        let HandedOver { tcp: mut handed_over, udp: udp_before } = handed_over.unwrap_or_default();
        let workers = context.workers.all().len();
        let (mut ports, mut waiting, mut offered) = (BTreeMap::new(), Vec::new(), Vec::new());
        for origin in Origin::BOTH {
            let kept = before.of(origin);
            let is_kept = |socket: &mut StdListener| {
                socket
                    .local_addr()
                    .is_ok_and(|address| Some(address) == kept.map(|port| SocketAddr::new(ip, port)))
            };
            let mut of_origin: Vec<StdListener> = handed_over.extract_if(.., is_kept).collect();
            let port = match (kept, of_origin.len()) {
                (Some(port), 1..) => {
                    info!(address = %ip, port, sockets = of_origin.len(), "Took over listening sockets");
                    context.ports.reserve(family, Protocol::Tcp, port);
                    port
                }
                _ => {
                    let open = |port, sharing| {
                        let socket = listen(SocketAddr::new(ip, port), sharing)?;
                        let port = socket.local_addr()?.port();
                        Ok((socket, port))
                    };
                    let (first, port) = context.ports.open((family, Protocol::Tcp), kept, open)?;
                    of_origin.push(first);
                    port
                }
            };
            for _ in of_origin.len()..workers {
                of_origin.push(listen(SocketAddr::new(ip, port), Sharing::Existing)?);
            }
            for socket in &of_origin {
                offered.push(socket.try_clone()?);
            }
            ports.insert(origin, port);
            waiting.push((origin, of_origin));
        }
        let worker = &context.workers.all()[context.workers.next()].handle;
        let offer = Some(Offer::start(worker, family, offered, udp.clone()));
        let udp_before =
            udp_before.into_iter().filter_map(|socket| Some((socket.local_addr().ok()?, socket)));
        Ok(Sockets {
            ip,
            ports,
            waiting,
            listeners: Vec::new(),
            predecessor,
            relieved: false,
            udp_before: udp_before.collect(),
            offer,
        })
    }

    /// Starts to accept on sockets that only waited so far.
    pub(super) fn accept(&mut self, context: &Context, routes: &Arc<Routes>) {
        let workers = context.workers.all();
        for (origin, sockets) in self.waiting.drain(..) {
            let router = Arc::new(Redirected { routes: Arc::clone(routes), origin });
            let started = sockets.into_iter().zip((0..workers.len()).cycle()).map(|(socket, own)| {
                Listener::start((workers, own), socket, Arc::clone(&router), &context.shared)
            });
            self.listeners.extend(started);
        }
    }

    /// Opens a UDP socket, or takes over the one that the process before has there.
    pub(super) fn open_udp(&self, port: u16, sharing: Sharing) -> io::Result<(StdUdpSocket, u16)> {
        let address = SocketAddr::new(self.ip, port);
        let socket = match self.udp_before.get(&address) {
            // A sync that fails repeats this.
            Some(socket) => socket.try_clone()?,
            None => bind_udp(address, sharing)?,
        };
        let port = socket.local_addr()?.port();
        Ok((socket, port))
    }

    /// Reports to the process before, once, that this one serves, with these UDP sockets.
    pub(super) fn relieve_predecessor(&mut self, udp: impl Iterator<Item = SocketAddr>) {
        if let Some(predecessor) = self.predecessor.as_mut().filter(|_| !self.relieved) {
            let before = std::mem::take(&mut self.udp_before);
            let taken: BTreeSet<u16> =
                udp.filter(|address| before.contains_key(address)).map(|address| address.port()).collect();
            if !taken.is_empty() {
                info!(address = %self.ip, sockets = taken.len(), "Took over UDP sockets");
            }
            predecessor.relieve(&taken);
            self.relieved = true;
        }
    }

    /// The dataplane is about to end. The result changes to true when the next one serves.
    pub(super) fn end(&self) -> Option<watch::Receiver<bool>> {
        self.offer.as_ref().map(Offer::end)
    }

    /// The node has another address: the next process has no use for these.
    pub(super) fn retire(self) -> Sockets {
        Sockets { offer: None, udp_before: HashMap::new(), ..self }
    }

    /// The listener for connections of an origin.
    pub(super) fn address(&self, origin: Origin) -> Option<SocketAddr> {
        self.ports.get(&origin).map(|port| SocketAddr::new(self.ip, *port))
    }

    /// The rules for the listeners: nothing reaches them directly.
    pub(super) fn rules(&self) -> ServiceRules {
        let sockets = self.ports.values().map(|port| (Protocol::Tcp, SocketAddr::new(self.ip, *port)));
        ServiceRules { sockets: sockets.collect(), ..ServiceRules::default() }
    }
}

/// The addresses to listen on, the best first: the bind address, or the node's, or any other of the host.
pub(super) fn addresses(family: Family, context: &Context, node: &NodeView) -> Vec<IpAddr> {
    let given = context.options.bind_address.filter(|ip| !ip.is_unspecified());
    if let Some(ip) = given.filter(|ip| Family::of(*ip) == family) {
        return vec![ip];
    }
    let kernel_family = match family {
        Family::V4 => IpFamily::Ipv4,
        Family::V6 => IpFamily::Ipv6,
    };
    let host = Route::open().and_then(|mut route| route.addresses(Some(kernel_family))).unwrap_or_default();
    let global = host.into_iter().filter(|one| one.scope == scope::UNIVERSE).map(|one| one.address);
    let own = Some(node.ip).filter(|ip| !ip.is_loopback());
    own.into_iter().chain(global.filter(|ip| *ip != node.ip && !ip.is_loopback())).collect()
}

//! Links, addresses, routes and neighbours, made over rtnetlink.
//!
//! A topology takes about a hundred such requests and the suite makes hundreds of topologies, so a process per
//! request (or even per namespace) would cost more than all the traffic. Device numbers are chosen by the caller,
//! so that requests that depend on each other fit into one batch.

mod message;

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, socket,
};

use crate::netns::Namespace;
use crate::wait;
use message::{Message, Reply};

/// The number of the loopback device in every namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// Requests sent before their acknowledgements are read; more could overrun the receive buffer.
const IN_FLIGHT: usize = 64;

/// Time a device gets to become ready to send.
const READY: Duration = Duration::from_secs(5);

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// One end of a veth pair.
pub(crate) struct VethEnd<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) name: &'a str,
    pub(crate) index: u32,
    pub(crate) mac: Mac,
}

/// A rtnetlink socket of one namespace, with the requests gathered for it.
pub(crate) struct Route {
    socket: OwnedFd,
    namespace: Namespace,
    requests: Vec<(String, Message)>,
}

impl Route {
    /// Opens a socket in `namespace`.
    pub(crate) fn open(namespace: &Namespace) -> Result<Route> {
        let _entered = namespace.enter()?;
        let protocol = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .context("cannot open a route netlink socket")?;
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))
            .context("cannot reach the kernel over netlink")?;
        Ok(Route { socket, namespace: namespace.clone(), requests: Vec::new() })
    }

    /// Makes a veth pair whose first end is in this namespace.
    pub(crate) fn veth(&mut self, here: &VethEnd<'_>, there: &VethEnd<'_>) {
        self.push(format!("make veth {}", here.name), message::veth(here, there));
    }

    /// Makes a bridge.
    pub(crate) fn bridge(&mut self, name: &str, index: u32, mac: Mac) {
        self.push(format!("make bridge {name}"), message::bridge(name, index, mac));
    }

    /// Sets a device up.
    pub(crate) fn up(&mut self, index: u32) {
        self.push(format!("set device {index} up"), message::up(index));
    }

    /// Makes a device a port of a bridge.
    pub(crate) fn port(&mut self, index: u32, bridge: u32) {
        self.push(format!("attach device {index} to bridge {bridge}"), message::port(index, bridge));
    }

    /// Lets a bridge send back through this port what came in by it.
    pub(crate) fn hairpin(&mut self, index: u32) {
        self.push(format!("set device {index} to hairpin mode"), message::hairpin(index));
    }

    /// Adds an address that is usable at once; it brings no route to its network, routes are explicit here.
    pub(crate) fn address(&mut self, index: u32, address: IpNet) {
        self.push(format!("add address {address} to device {index}"), message::address(index, address));
    }

    /// Adds a route; `via` no gateway means that the destination is on the link.
    pub(crate) fn route(&mut self, to: IpNet, index: u32, via: Option<IpAddr>, source: Option<IpAddr>) {
        self.push(format!("add route to {to} by device {index}"), message::route(to, index, via, source));
    }

    /// Says where a neighbour is, for good: nothing has to be resolved, so the first packet is never late.
    pub(crate) fn neighbour(&mut self, index: u32, ip: IpAddr, mac: Mac) {
        self.push(format!("add neighbour {ip} to device {index}"), message::neighbour(index, ip, mac));
    }

    fn push(&mut self, what: String, message: Message) {
        self.requests.push((what, message));
    }

    /// Sends what was gathered, in order.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let requests = std::mem::take(&mut self.requests);
        for batch in requests.chunks(IN_FLIGHT) {
            let mut bytes = Vec::new();
            for (sequence, (_, message)) in (0..).zip(batch) {
                message.write(sequence, &mut bytes);
            }
            self.send(&bytes)?;
            for (what, _) in batch {
                self.acknowledged()
                    .with_context(|| format!("cannot {what} in namespace {}", self.namespace.name()))?;
            }
        }
        Ok(())
    }

    /// Waits until the device sends what it is given.
    ///
    /// A device whose other end came up a moment ago discards packets until the kernel's link watcher has run.
    pub(crate) fn wait_ready(&self, index: u32) -> Result<()> {
        let what = format!("device {index} of namespace {} to come up", self.namespace.name());
        self.wait(&what, &message::get_link(index), &Reply::Link { operational: true })
    }

    /// Waits until the kernel takes what is sent to its own address `ip`.
    ///
    /// It inserts the route for that a little after it has accepted an IPv6 address.
    pub(crate) fn wait_own(&self, ip: IpAddr) -> Result<()> {
        let what = format!("address {ip} of namespace {} to be usable", self.namespace.name());
        self.wait(&what, &message::get_route(ip), &Reply::Route { local: true })
    }

    /// Asks until the kernel gives the wanted answer.
    fn wait(&self, what: &str, request: &Message, wanted: &Reply) -> Result<()> {
        let ask = || self.ask(request).map(|replies| replies.contains(wanted).then_some(()));
        wait::until(READY, what, || ask().transpose())?
    }

    /// Sends one question and reads the answers, up to and with the acknowledgement.
    fn ask(&self, request: &Message) -> Result<Vec<Reply>> {
        let mut bytes = Vec::new();
        request.write(0, &mut bytes);
        self.send(&bytes)?;
        let mut replies = Vec::new();
        while !replies.iter().any(|reply| matches!(reply, Reply::Acknowledged(_))) {
            for message in message::split(&self.datagram()?) {
                replies.push(Reply::read(message)?);
            }
        }
        Ok(replies)
    }

    /// Reads one acknowledgement. The kernel sends each in a datagram of its own, in order.
    fn acknowledged(&self) -> Result<()> {
        for bytes in message::split(&self.datagram()?) {
            if let Reply::Acknowledged(status) = Reply::read(bytes)? {
                status?;
            }
        }
        Ok(())
    }

    fn datagram(&self) -> Result<Vec<u8>> {
        let mut buffer = vec![0; 32 * 1024];
        let length = retry(|| recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()))
            .context("cannot read from the route netlink socket")?;
        buffer.truncate(length);
        Ok(buffer)
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        let sent = retry(|| send(self.socket.as_raw_fd(), bytes, MsgFlags::empty()))
            .context("cannot write to the route netlink socket")?;
        if sent != bytes.len() {
            bail!("the kernel took {sent} of {} bytes of route netlink requests", bytes.len());
        }
        Ok(())
    }
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> nix::Result<usize>) -> nix::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

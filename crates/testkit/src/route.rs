//! Links, addresses, routes and neighbours of a topology, gathered into batches.
//!
//! A topology takes about a hundred such requests and the suite makes hundreds of topologies, so a process per
//! request (or even per namespace) would cost more than all the traffic. Device numbers are chosen by the caller,
//! so that requests that depend on each other fit into one batch.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use portwarden_netlink::route::{self, Request};

use crate::netns::Namespace;
use crate::wait;

pub(crate) use portwarden_netlink::route::{LOOPBACK, Mac};

/// Time a device gets to become ready to send.
const READY: Duration = Duration::from_secs(5);

/// One end of a veth pair.
pub(crate) struct VethEnd<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) name: &'a str,
    pub(crate) index: u32,
    pub(crate) mac: Mac,
}

impl VethEnd<'_> {
    fn in_namespace<'a>(&'a self, namespace: Option<BorrowedFd<'a>>) -> route::VethEnd<'a> {
        route::VethEnd { namespace, name: self.name, index: self.index, mac: self.mac }
    }
}

/// The requests gathered for one namespace.
pub(crate) struct Route {
    kernel: route::Route,
    namespace: Namespace,
    descriptions: Vec<String>,
    requests: Vec<Request>,
}

impl Route {
    /// Opens a connection in `namespace`.
    pub(crate) fn open(namespace: &Namespace) -> Result<Route> {
        let _entered = namespace.enter()?;
        let kernel = route::Route::open()?;
        Ok(Route { kernel, namespace: namespace.clone(), descriptions: Vec::new(), requests: Vec::new() })
    }

    /// Makes a veth pair whose first end is in this namespace.
    pub(crate) fn veth(&mut self, here: &VethEnd<'_>, there: &VethEnd<'_>) {
        let ends = (here.in_namespace(None), there.in_namespace(Some(there.namespace.as_fd())));
        self.push(format!("make veth {}", here.name), Request::veth(&ends.0, &ends.1));
    }

    /// Makes a bridge.
    pub(crate) fn bridge(&mut self, name: &str, index: u32, mac: Mac) {
        self.push(format!("make bridge {name}"), Request::bridge(name, index, mac));
    }

    /// Sets a device up.
    pub(crate) fn up(&mut self, index: u32) {
        self.push(format!("set device {index} up"), Request::set_up(index));
    }

    /// Makes a device a port of a bridge.
    pub(crate) fn port(&mut self, index: u32, bridge: u32) {
        self.push(format!("attach device {index} to bridge {bridge}"), Request::set_bridge(index, bridge));
    }

    /// Lets a bridge send back through this port what came in by it.
    pub(crate) fn hairpin(&mut self, index: u32) {
        self.push(format!("set device {index} to hairpin mode"), Request::set_hairpin(index));
    }

    /// Adds an address that is usable at once; it brings no route to its network, routes are explicit here.
    pub(crate) fn address(&mut self, index: u32, address: IpNet) {
        self.push(
            format!("add address {address} to device {index}"),
            Request::add_address(index, address.addr(), address.prefix_len()),
        );
    }

    /// Adds a route; `via` no gateway means that the destination is on the link.
    pub(crate) fn route(&mut self, to: IpNet, index: u32, via: Option<IpAddr>, source: Option<IpAddr>) {
        self.push(
            format!("add route to {to} by device {index}"),
            Request::add_route((to.network(), to.prefix_len()), index, via, source),
        );
    }

    /// Sets a neighbour for good: nothing has to be resolved, so the first packet is never late.
    pub(crate) fn neighbour(&mut self, index: u32, ip: IpAddr, mac: Mac) {
        self.push(format!("add neighbour {ip} to device {index}"), Request::set_neighbour(index, ip, mac));
    }

    fn push(&mut self, what: String, request: Request) {
        self.descriptions.push(what);
        self.requests.push(request);
    }

    /// Sends what was gathered, in order.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let descriptions = std::mem::take(&mut self.descriptions);
        let requests = std::mem::take(&mut self.requests);
        if let Some((index, answer)) = self.kernel.apply(&requests)?.into_iter().next() {
            let what = descriptions.get(index).context("the kernel refused a request that was not sent")?;
            bail!("cannot {what} in namespace {}: {answer}", self.namespace.name());
        }
        Ok(())
    }

    /// Waits until the device sends what it is given.
    ///
    /// A device whose other end came up a moment ago discards packets until the kernel's link watcher has run.
    pub(crate) fn wait_ready(&mut self, index: u32) -> Result<()> {
        let what = format!("device {index} of namespace {} to come up", self.namespace.name());
        wait::until(READY, &what, || done(self.kernel.is_operational(index)))?
    }

    /// Waits until the kernel takes what is sent to its own address `ip`.
    ///
    /// It inserts the route for that a little after it has accepted an IPv6 address.
    pub(crate) fn wait_own(&mut self, ip: IpAddr) -> Result<()> {
        let what = format!("address {ip} of namespace {} to be usable", self.namespace.name());
        wait::until(READY, &what, || done(self.kernel.is_local(ip)))?
    }
}

/// An answer that ends the waiting: yes, or an error.
fn done(answer: portwarden_netlink::Result<bool>) -> Option<Result<()>> {
    match answer {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(error.into())),
    }
}

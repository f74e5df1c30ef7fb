//! The addresses of the device: writing them, and noticing what other processes do to them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use portwarden_model::Family;
use portwarden_netlink::Errno;
use portwarden_netlink::error::Answer;
use portwarden_netlink::route::{Request, Route, RouteChange, RouteMonitor, RouteNotice};

use crate::error::Error;
use crate::kernel::counts_as_node_address;
use crate::names::DEVICE;
use crate::slots::Slots;

/// Binds what is missing. Returns how many addresses were bound, and which the kernel refused: a Service may name one that no device can
/// bear, such as a multicast address, which must cost no other Service anything.
pub(crate) fn bind(
    route: &mut Route,
    device: u32,
    family: Family,
    slots: &mut Slots<IpAddr>,
) -> Result<(usize, Vec<(IpAddr, Answer)>), Error> {
    let missing = slots.missing();
    // Where the device towards an endpoint has no address of its own, masquerading would choose the Service address that resembles the
    // endpoint's most.
    let request = |ip| Request::add_deprecated_address(device, ip, full_length(ip));
    let refused = write(route, family, slots, true, request)?;
    if family == Family::V6 {
        let bound: Vec<IpAddr> = missing.iter().filter(|ip| slots.is_installed(ip)).copied().collect();
        wait_until_local(route, &bound)?;
    }
    Ok((missing.len() - refused.len(), refused))
}

/// Waits until packets to IPv6 addresses that were just bound reach this host.
///
/// The kernel acknowledges such an address first and adds its local route later, on a work queue (`addrconf_dad_work`), even if the
/// address needs no search for duplicates. Until then packets to it leave the node by the default route. A sync that returned earlier
/// would report a Service as programmed that is not.
fn wait_until_local(route: &mut Route, ips: &[IpAddr]) -> Result<(), Error> {
    const PAUSE: Duration = Duration::from_micros(100);
    /// For all addresses of a sync together: 5 s, where microseconds are usual.
    const PAUSES: u32 = 50_000;
    let mut pauses = 0;
    for ip in ips {
        loop {
            let local = route.is_local(*ip).map_err(|source| Error::Kernel {
                action: "looking up the route to a Service address",
                family: Family::V6,
                source,
            })?;
            if local {
                break;
            }
            if pauses == PAUSES {
                // Such as a policy route of the operator's that leads elsewhere.
                tracing::warn!(address = %ip, "The Service address is bound to {DEVICE}, but its packets do not reach this node; see `ip -6 route get {ip}`");
                return Ok(());
            }
            pauses += 1;
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Unbinds what nothing wants. Returns how many addresses were unbound.
pub(crate) fn unbind(
    route: &mut Route,
    device: u32,
    family: Family,
    slots: &mut Slots<IpAddr>,
) -> Result<usize, Error> {
    let surplus = slots.surplus().len();
    let request = |ip| Request::delete_address(device, ip, full_length(ip));
    match write(route, family, slots, false, request)?.into_iter().next() {
        None => Ok(surplus),
        Some((ip, answer)) => {
            let request = format!("the address {ip}");
            let source = portwarden_netlink::Error::Refused { request, answer };
            Err(Error::Kernel { action: UNBINDING, family, source })
        }
    }
}

const BINDING: &str = "binding an address to kube-ipvs0";
const UNBINDING: &str = "unbinding an address from kube-ipvs0";

/// Binds or unbinds what differs. Returns what the kernel refused.
fn write(
    route: &mut Route,
    family: Family,
    slots: &mut Slots<IpAddr>,
    add: bool,
    request: impl Fn(IpAddr) -> Request,
) -> Result<Vec<(IpAddr, Answer)>, Error> {
    let (ips, action) = if add { (slots.missing(), BINDING) } else { (slots.surplus(), UNBINDING) };
    let requests: Vec<Request> = ips.iter().map(|ip| request(*ip)).collect();
    let answers = route.apply(&requests).map_err(|source| Error::Kernel { action, family, source })?;
    let harmless = if add { Errno::EEXIST } else { Errno::EADDRNOTAVAIL };
    // ENXIO: the address went with the device.
    let serious = |answer: &Answer| answer.errno != harmless && (add || answer.errno != Errno::ENXIO);
    let mut refused: HashMap<usize, Answer> =
        answers.into_iter().filter(|(_, answer)| serious(answer)).collect();
    let mut failed = Vec::new();
    for (index, ip) in ips.into_iter().enumerate() {
        match refused.remove(&index) {
            // The device is gone, which is no fault of the address; a look at everything creates it again.
            Some(answer) if answer.errno == Errno::ENODEV => {
                let source =
                    portwarden_netlink::Error::Refused { request: format!("the address {ip}"), answer };
                return Err(Error::Kernel { action, family, source });
            }
            Some(answer) => failed.push((ip, answer)),
            None => slots.acknowledge(ip, add),
        }
    }
    Ok(failed)
}

fn full_length(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// What happened to addresses since the last look.
#[derive(Debug, Default)]
pub(crate) struct Noticed {
    /// The last state of addresses on our device.
    pub(crate) on_device: HashMap<IpAddr, bool>,
    /// The last state of addresses on other devices.
    pub(crate) elsewhere: HashMap<IpAddr, bool>,
    /// Our device is gone.
    pub(crate) device_gone: bool,
    /// Notifications were lost: only a listing shows what happened.
    pub(crate) missed: bool,
}

impl Noticed {
    /// Reads what there is.
    pub(crate) fn read(monitor: &mut RouteMonitor, device: u32) -> Noticed {
        let mut noticed = Noticed::default();
        let read = monitor.read(|notice| match notice {
            RouteNotice::Change(change) => noticed.add(change, device),
            RouteNotice::Missed => noticed.missed = true,
        });
        if let Err(error) = read {
            tracing::warn!(%error, "Cannot read notifications of addresses; comparing all of them");
            noticed.missed = true;
        }
        noticed
    }

    fn add(&mut self, change: RouteChange, device: u32) {
        match change {
            RouteChange::AddressPresent(found) => self.set(found.index == device, found.address, true),
            RouteChange::AddressGone(found) => self.set(found.index == device, found.address, false),
            RouteChange::LinkGone(link) if link.name == DEVICE => self.device_gone = true,
            RouteChange::LinkPresent(link) if link.name == DEVICE => self.device_gone = false,
            RouteChange::LinkGone(_) | RouteChange::LinkPresent(_) => {}
        }
    }

    fn set(&mut self, ours: bool, ip: IpAddr, present: bool) {
        if ours {
            self.on_device.insert(ip, present);
        } else if counts_as_node_address(ip) {
            self.elsewhere.insert(ip, present);
        }
    }
}

//! Lists and watches the IP addresses of this host.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use portwarden_ipvs::DEVICE as SERVICE_DEVICE;
use portwarden_model::{Event, normalise};
use portwarden_netlink::route::{Route, RouteChange, RouteMonitor, RouteNotice};

/// Why the addresses are unknown.
#[derive(Debug, thiserror::Error)]
pub enum HostAddressError {
    /// No netlink socket.
    #[error("cannot open a netlink socket for this host's addresses")]
    Open(#[source] portwarden_netlink::Error),
    /// The kernel did not list them.
    #[error("cannot list this host's addresses")]
    List(#[source] portwarden_netlink::Error),
    /// Notifications cannot be read.
    #[error("cannot read the kernel's notifications about this host's addresses")]
    Follow(#[source] portwarden_netlink::Error),
}

/// The addresses of all interfaces in the network namespace in which it was opened, except those of Services: ipvs mode has a device for
/// them.
#[derive(Debug)]
pub struct HostAddresses {
    route: Route,
    monitor: RouteMonitor,
    /// The number of the device with the addresses of Services.
    service_device: Option<u32>,
}

impl HostAddresses {
    /// Subscribes first, so that no change is missed after the first [`HostAddresses::list`].
    pub fn open() -> Result<Self, HostAddressError> {
        let monitor = RouteMonitor::open().map_err(HostAddressError::Open)?;
        let route = Route::open().map_err(HostAddressError::Open)?;
        Ok(HostAddresses { route, monitor, service_device: None })
    }

    /// All addresses now.
    pub fn list(&mut self) -> Result<Event, HostAddressError> {
        let device = self.route.link(SERVICE_DEVICE).map_err(HostAddressError::List)?;
        self.service_device = device.map(|device| device.index);
        let listed = self.route.addresses(None).map_err(HostAddressError::List)?;
        let of_host = listed.iter().filter(|one| Some(one.index) != self.service_device);
        let mut ips: Vec<IpAddr> = of_host.map(|one| normalise(one.address)).collect();
        ips.sort_unstable();
        ips.dedup();
        Ok(Event::HostAddresses(ips.into()))
    }

    /// Readable when an address was added or removed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    /// All addresses, if they may differ from those listed before.
    pub fn changed(&mut self) -> Result<Option<Event>, HostAddressError> {
        let mut relevant = false;
        let service_device = &mut self.service_device;
        let read = self.monitor.read(|notice| match notice {
            RouteNotice::Change(RouteChange::AddressPresent(one) | RouteChange::AddressGone(one)) => {
                relevant |= Some(one.index) != *service_device;
            }
            RouteNotice::Change(RouteChange::LinkPresent(link)) if link.name == SERVICE_DEVICE => {
                *service_device = Some(link.index);
            }
            RouteNotice::Change(RouteChange::LinkPresent(_) | RouteChange::LinkGone(_)) => {}
            RouteNotice::Missed => relevant = true,
        });
        read.map_err(HostAddressError::Follow)?;
        relevant.then(|| self.list()).transpose()
    }
}

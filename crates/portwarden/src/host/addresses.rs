//! Lists and watches the IP addresses of this host.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

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

/// The addresses of all interfaces in the network namespace in which it was opened.
#[derive(Debug)]
pub struct HostAddresses {
    route: Route,
    monitor: RouteMonitor,
}

impl HostAddresses {
    /// Subscribes first, so that no change is missed after the first [`HostAddresses::list`].
    pub fn open() -> Result<Self, HostAddressError> {
        let monitor = RouteMonitor::open().map_err(HostAddressError::Open)?;
        Ok(HostAddresses { route: Route::open().map_err(HostAddressError::Open)?, monitor })
    }

    /// All addresses now.
    pub fn list(&mut self) -> Result<Event, HostAddressError> {
        let listed = self.route.addresses(None).map_err(HostAddressError::List)?;
        let mut ips: Vec<IpAddr> = listed.iter().map(|one| normalise(one.address)).collect();
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
        let read = self.monitor.read(|notice| {
            relevant |= match notice {
                RouteNotice::Change(RouteChange::AddressPresent(_) | RouteChange::AddressGone(_)) => true,
                RouteNotice::Change(RouteChange::LinkPresent(_) | RouteChange::LinkGone(_)) => false,
                RouteNotice::Missed => true,
            };
        });
        read.map_err(HostAddressError::Follow)?;
        relevant.then(|| self.list()).transpose()
    }
}

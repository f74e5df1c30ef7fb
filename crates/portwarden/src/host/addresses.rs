//! This host's addresses, followed as they change.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use portwarden_model::Event;

/// Why the addresses are not known.
#[derive(Debug, thiserror::Error)]
#[error("cannot list this host's addresses")]
pub struct HostAddressError(#[source] std::io::Error);

/// Follows.
pub struct HostAddresses {
    socket: UnixStream,
}

impl HostAddresses {
    /// All addresses of all interfaces.
    pub fn list() -> Result<Event, HostAddressError> {
        let all = nix::ifaddrs::getifaddrs().map_err(|errno| HostAddressError(errno.into()))?;
        let ips: Vec<IpAddr> = all
            .filter_map(|one| {
                let address = one.address?;
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
            })
            .collect();
        Ok(Event::HostAddresses(ips.into()))
    }

    /// Readable
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
    /// Changed
    pub fn changed(&mut self) -> Result<Option<Event>, HostAddressError> {
        Ok(None)
    }
}

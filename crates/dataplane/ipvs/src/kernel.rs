//! The connections to the kernel, and what is read from it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portwarden_model::Family;
use portwarden_netlink::ipset::Sets;
use portwarden_netlink::route::{InterfaceAddress, Route};
use portwarden_netlink::{IpFamily, ipvs};

use crate::error::Error;
use crate::names::DEVICE;

/// The connections that both families share.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) ipvs: ipvs::Ipvs,
    pub(crate) sets: Sets,
    pub(crate) route: Route,
}

/// The addresses of a family, split by device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// On our device.
    pub(crate) bound: BTreeSet<IpAddr>,
    /// On all others; no loopback ones, no IPv6 link-local ones.
    pub(crate) node: BTreeSet<IpAddr>,
}

impl Kernel {
    pub(crate) fn open() -> Result<Self, Error> {
        let failed = |source| Error::Kernel { action: "opening netlink", family: Family::V4, source };
        let ipvs = ipvs::Ipvs::open().map_err(failed)?.ok_or(Error::NoIpvs)?;
        Ok(Kernel { ipvs, sets: Sets::open().map_err(failed)?, route: Route::open().map_err(failed)? })
    }

    /// The number of our device, which is created if need be.
    pub(crate) fn ensure_device(&mut self) -> Result<u32, Error> {
        let failed = |source| Error::Device { source };
        if let Some(link) = self.route.link(DEVICE).map_err(failed)? {
            return match link.kind.as_deref() {
                Some("dummy") => Ok(link.index),
                kind => Err(Error::ForeignDevice { kind: kind.unwrap_or("a physical device").to_owned() }),
            };
        }
        // It stays down: its addresses are local all the same, and it neither sends nor answers ARP.
        self.route.create_dummy(DEVICE).map_err(failed)?;
        let link = self.route.link(DEVICE).map_err(failed)?;
        Ok(link.map_or(0, |link| link.index))
    }

    pub(crate) fn addresses(&mut self, family: Family, device: u32) -> Result<Addresses, Error> {
        let ip_family = match family {
            Family::V4 => IpFamily::Ipv4,
            Family::V6 => IpFamily::Ipv6,
        };
        let all = self.route.addresses(Some(ip_family)).map_err(|source| Error::Kernel {
            action: "listing addresses",
            family,
            source,
        })?;
        let mut addresses = Addresses::default();
        for address in all {
            addresses.add(&address, device);
        }
        Ok(addresses)
    }
}

impl Addresses {
    fn add(&mut self, found: &InterfaceAddress, device: u32) {
        if found.index == device {
            self.bound.insert(found.address);
        } else if counts_as_node_address(found.address) {
            self.node.insert(found.address);
        }
    }
}

/// Whether node ports can answer on an address, and whether it is one that a Service address can coincide with.
pub(crate) fn counts_as_node_address(ip: IpAddr) -> bool {
    let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    !ip.is_loopback() && !link_local
}

//! The two families of addresses.

use std::fmt;
use std::net::IpAddr;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl IpFamily {
    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// The number that netlink messages carry: `AF_INET` or `AF_INET6`.
    pub(crate) const fn byte(self) -> u8 {
        match self {
            Self::Ipv4 => 2,
            Self::Ipv6 => 10,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// The four or sixteen bytes of an address.
pub(crate) fn octets(address: IpAddr) -> Octets {
    match address {
        IpAddr::V4(v4) => Octets::V4(v4.octets()),
        IpAddr::V6(v6) => Octets::V6(v6.octets()),
    }
}

/// The bytes of an address, in network byte order.
#[derive(Clone, Copy)]
pub(crate) enum Octets {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl AsRef<[u8]> for Octets {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }
}

/// Reads an address from the four or sixteen bytes of an attribute.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

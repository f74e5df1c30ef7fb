//! Virtual and real servers as values.

use crate::family::IpFamily;
use std::fmt;
use std::net::SocketAddr;

/// Bits of [`VirtualServer::flags`].
pub mod flags {
    /// Connections of one client go to the same real server.
    pub const PERSISTENT: u32 = 0x1;
    /// The server is in the kernel's table. The kernel sets it; requests never carry it.
    pub const HASHED: u32 = 0x2;
    /// Each packet of UDP is scheduled on its own.
    pub const ONE_PACKET: u32 = 0x4;
    /// `sh` and `mh`: choose another real server if the hashed one is unavailable.
    pub const SCHEDULER_FALLBACK: u32 = 0x8;
    /// `sh` and `mh`: the hash covers the source port.
    pub const SCHEDULER_PORT: u32 = 0x10;
}

/// Values of [`RealServer::method`]: how packets reach the real server.
pub mod method {
    /// The destination address is rewritten, as by DNAT.
    pub const MASQUERADE: u32 = 0;
    /// Tunnelled in IP.
    pub const TUNNEL: u32 = 2;
    /// Routed with the address unchanged.
    pub const DIRECT_ROUTE: u32 = 3;
}

/// What identifies a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerKey {
    /// Address and port.
    pub address: SocketAddr,
    /// Number of the IP protocol.
    pub protocol: u16,
}

impl ServerKey {
    /// The family of its address.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.address.ip())
    }

    /// A persistence mask that covers the whole address, as a prefix length.
    pub fn full_mask(&self) -> u8 {
        match self.family() {
            IpFamily::Ipv4 => 32,
            IpFamily::Ipv6 => 128,
        }
    }
}

impl fmt::Display for ServerKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            6 => "TCP",
            17 => "UDP",
            132 => "SCTP",
            other => return write!(formatter, "{}/{other}", self.address),
        };
        write!(formatter, "{}/{name}", self.address)
    }
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// What identifies it.
    pub key: ServerKey,
    /// Name of the scheduler.
    pub scheduler: String,
    /// Bits as in [`flags`].
    pub flags: u32,
    /// Seconds that persistence lasts.
    pub timeout: u32,
    /// Clients with the same prefix of this length share a persistence entry.
    pub mask_length: u8,
}

/// A real server of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServer {
    /// Address and port.
    pub address: SocketAddr,
    /// How packets reach it, see [`method`].
    pub method: u32,
    /// Its share of new connections; none if 0.
    pub weight: u32,
    /// Connections above which it gets no new ones; no limit if 0.
    pub upper_threshold: u32,
    /// Connections below which it gets new ones again.
    pub lower_threshold: u32,
    /// Connections that it has. Requests do not carry them.
    pub connections: Connections,
}

impl RealServer {
    /// A real server that packets reach by masquerading, without limits and without connections.
    pub fn masqueraded(address: SocketAddr, weight: u32) -> Self {
        Self {
            address,
            method: method::MASQUERADE,
            weight,
            upper_threshold: 0,
            lower_threshold: 0,
            connections: Connections::default(),
        }
    }
}

/// Connections of a real server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Established.
    pub active: u32,
    /// In any other state, `TIME_WAIT` among them.
    pub inactive: u32,
    /// Entries of persistence.
    pub persistent: u32,
}

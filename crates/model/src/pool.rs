//! Pools: the endpoints that a frontend may use, packed and shared between frontends.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::object::Conditions;

/// One endpoint of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// The pod's address, as the EndpointSlice gives it.
    pub ip: IpAddr,
    /// The target port on the pod, not the Service's port.
    pub port: u16,
    /// Whether it runs on this node.
    pub local: bool,
    /// Share of new connections, relative to the other endpoints of the pool. Currently always 1.
    pub weight: u16,
    /// For dataplanes that drain terminating endpoints. Endpoint selection is already done.
    pub conditions: Conditions,
}

impl Backend {
    /// A ready endpoint with weight 1.
    pub fn new(address: SocketAddr, local: bool) -> Self {
        let conditions = Conditions { ready: true, serving: true, terminating: false };
        Backend { ip: address.ip(), port: address.port(), local, weight: 1, conditions }
    }

    /// Address and port.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

/// An ordered list of endpoints without duplicates, sorted by the text `ip:port` (so `10.0.1.10:80` comes before `10.0.1.1:80`).
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Pool(Option<Arc<Packed>>);

#[derive(PartialEq, Eq)]
enum Packed {
    V4(Box<[Entry<4>]>),
    V6(Box<[Entry<16>]>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry<const N: usize> {
    ip: [u8; N],
    port: [u8; 2],
    weight: [u8; 2],
    /// One bit each: local, ready, serving, terminating.
    flags: u8,
}

const LOCAL: u8 = 1;
const READY: u8 = 1 << 1;
const SERVING: u8 = 1 << 2;
const TERMINATING: u8 = 1 << 3;

impl<const N: usize> Entry<N> {
    fn pack(ip: [u8; N], backend: &Backend) -> Self {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let Conditions { ready, serving, terminating } = backend.conditions;
        Entry {
            ip,
            port: backend.port.to_be_bytes(),
            weight: backend.weight.to_be_bytes(),
            flags: flag(backend.local, LOCAL)
                | flag(ready, READY)
                | flag(serving, SERVING)
                | flag(terminating, TERMINATING),
        }
    }

    fn backend(self) -> Backend
    where
        IpAddr: From<[u8; N]>,
    {
        let has = |bit| self.flags & bit != 0;
        Backend {
            ip: IpAddr::from(self.ip),
            port: u16::from_be_bytes(self.port),
            local: has(LOCAL),
            weight: u16::from_be_bytes(self.weight),
            conditions: Conditions {
                ready: has(READY),
                serving: has(SERVING),
                terminating: has(TERMINATING),
            },
        }
    }
}

impl Pool {
    /// Packs endpoints of one family. The caller has sorted them.
    pub fn new(backends: &[Backend]) -> Pool {
        match backends.first() {
            None => Pool(None),
            Some(first) if first.ip.is_ipv4() => {
                Pool(Some(Arc::new(Packed::V4(backends.iter().filter_map(pack_v4).collect()))))
            }
            Some(_) => Pool(Some(Arc::new(Packed::V6(backends.iter().filter_map(pack_v6).collect())))),
        }
    }

    /// The number of endpoints.
    pub fn len(&self) -> usize {
        match self.0.as_deref() {
            None => 0,
            Some(Packed::V4(all)) => all.len(),
            Some(Packed::V6(all)) => all.len(),
        }
    }

    /// Whether the pool has no endpoint.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The endpoint at a position.
    pub fn get(&self, index: usize) -> Option<Backend> {
        match self.0.as_deref()? {
            Packed::V4(all) => all.get(index).map(|entry| entry.backend()),
            Packed::V6(all) => all.get(index).map(|entry| entry.backend()),
        }
    }

    /// The endpoints, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Backend> + '_ {
        (0..self.len()).map(|index| self.get(index).expect("the index is below the length"))
    }

    /// Whether an endpoint has this address and port.
    pub fn contains(&self, address: SocketAddr) -> bool {
        self.iter().any(|backend| backend.address() == address)
    }

    /// Whether both share one allocation. Cheaper than comparing contents.
    pub fn shares_with(&self, other: &Pool) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }
}

fn pack_v4(backend: &Backend) -> Option<Entry<4>> {
    match backend.ip {
        IpAddr::V4(ip) => Some(Entry::pack(ip.octets(), backend)),
        IpAddr::V6(_) => None,
    }
}

fn pack_v6(backend: &Backend) -> Option<Entry<16>> {
    match backend.ip {
        IpAddr::V6(ip) => Some(Entry::pack(ip.octets(), backend)),
        IpAddr::V4(_) => None,
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|b| format!("{}{}", b.address(), if b.local { " local" } else { "" })))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(text: &str, local: bool) -> Backend {
        Backend::new(text.parse().expect("an address"), local)
    }

    #[test]
    fn what_is_packed_comes_out_again() {
        for texts in [["10.0.1.10:80", "10.0.1.1:80"], ["[fd00::10]:80", "[fd00::1]:80"]] {
            let conditions = Conditions { ready: false, serving: true, terminating: true };
            let backends =
                [backend(texts[0], true), Backend { weight: 300, conditions, ..backend(texts[1], false) }];
            let pool = Pool::new(&backends);
            assert_eq!(pool.iter().collect::<Vec<_>>(), backends);
            assert_eq!((pool.len(), pool.get(1), pool.get(2)), (2, Some(backends[1]), None));
            assert!(pool.contains(backends[0].address()));
            assert!(!pool.contains(SocketAddr::new(backends[0].ip, 81)));
        }
    }

    #[test]
    fn pools_are_equal_by_content_and_shared_by_allocation() {
        let pool = Pool::new(&[backend("10.0.0.1:80", false)]);
        let same = Pool::new(&[backend("10.0.0.1:80", false)]);
        assert_eq!(pool, same);
        assert!(pool.shares_with(&pool.clone()) && !pool.shares_with(&same));
        assert_ne!(pool, Pool::new(&[backend("10.0.0.1:80", true)]), "where it runs is part of it");
        assert!(Pool::new(&[]).shares_with(&Pool::default()) && Pool::default().is_empty());
    }

    #[test]
    fn a_pool_prints_its_endpoints() {
        let pool = Pool::new(&[backend("10.0.0.1:80", true), backend("10.0.0.2:80", false)]);
        assert_eq!(format!("{pool:?}"), r#"["10.0.0.1:80 local", "10.0.0.2:80"]"#);
    }

    /// Address, port, weight and a byte of flags, without padding.
    #[test]
    fn entries_are_small() {
        assert_eq!((size_of::<Entry<4>>(), size_of::<Entry<16>>()), (9, 21));
    }
}

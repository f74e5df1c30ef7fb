//! The layout of the maps, as in `programs/layout.h`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use portwarden_model::{Family, Protocol};

use crate::sys::PUBLISH;

/// Changes whenever a map's layout does. It is part of the pin directory's name, so that a new version never reads what an old one wrote.
pub(crate) const VERSION: u32 = 2;

pub(crate) const KEY_SIZE: usize = 20;
pub(crate) const RECORD_SIZE: usize = 16;

/// The key of a frontend in the map `services`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(pub(crate) [u8; KEY_SIZE]);

impl Key {
    pub(crate) fn new(address: SocketAddr, protocol: Protocol) -> Self {
        let mut bytes = [0; KEY_SIZE];
        bytes[..16].copy_from_slice(&octets(address.ip()));
        bytes[16..18].copy_from_slice(&address.port().to_be_bytes());
        bytes[18] = protocol.number();
        Key(bytes)
    }

    pub(crate) fn family(&self) -> Family {
        let mut address = [0; 16];
        address.copy_from_slice(&self.0[..16]);
        Family::of(Ipv6Addr::from(address).to_canonical())
    }
}

/// What the map `services` says about a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// 0 refuses connections.
    pub(crate) pool: u32,
    pub(crate) affinity: u32,
    pub(crate) counter: u32,
    /// [`Record::LOCAL_POOL`].
    pub(crate) flags: u32,
}

impl Record {
    /// The pool holds only endpoints on this node.
    pub(crate) const LOCAL_POOL: u32 = 1;

    pub(crate) fn to_bytes(self) -> [u8; RECORD_SIZE] {
        let mut bytes = [0; RECORD_SIZE];
        let fields = [self.pool, self.affinity, self.counter, self.flags];
        for (chunk, field) in bytes.chunks_exact_mut(4).zip(fields) {
            chunk.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; RECORD_SIZE]) -> Self {
        let mut fields = [0; 4];
        for (chunk, field) in bytes.chunks_exact(4).zip(&mut fields) {
            *field = chunk.try_into().map_or(0, u32::from_ne_bytes);
        }
        let [pool, affinity, counter, flags] = fields;
        Record { pool, affinity, counter, flags }
    }
}

/// The one word of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolWord {
    /// The first slot.
    pub(crate) first: u32,
    /// Whether the pool's own cell holds all endpoints, too.
    pub(crate) near: bool,
    /// Logarithm of the number of slots that are reserved.
    pub(crate) order: u8,
    /// The number of endpoints.
    pub(crate) count: u32,
}

impl PoolWord {
    pub(crate) const MAX_COUNT: u32 = 0xff_ffff;
    const NEAR: u64 = 1 << 31;

    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.first) << 32
            | if self.near { Self::NEAR } else { 0 }
            | u64::from(self.order) << 24
            | u64::from(self.count & Self::MAX_COUNT)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let [o3, o2, o1, o0, order, c2, c1, c0] = bits.to_be_bytes();
        PoolWord {
            first: u32::from_be_bytes([o3, o2, o1, o0]),
            near: bits & Self::NEAR != 0,
            order: order & 0x7f,
            count: u32::from_be_bytes([0, c2, c1, c0]),
        }
    }
}

/// A value of the map `pools`: one cache line.
#[derive(Debug)]
#[repr(C, align(8))]
pub(crate) struct PoolCell {
    word: AtomicU64,
    endpoints: [AtomicU64; PoolCell::NEAR_COUNT],
}

impl PoolCell {
    /// So many endpoints fit into the cell.
    pub(crate) const NEAR_COUNT: usize = 7;

    pub(crate) fn word(&self) -> PoolWord {
        PoolWord::from_bits(self.word.load(Ordering::Relaxed))
    }

    pub(crate) fn set_word(&self, word: PoolWord) {
        self.word.store(word.to_bits(), PUBLISH);
    }

    /// From now on the pool has no endpoints.
    pub(crate) fn clear(&self) {
        self.word.store(0, PUBLISH);
    }

    /// Sets an endpoint of a near pool. Returns whether it was another one before.
    pub(crate) fn set_endpoint(&self, position: usize, address: SocketAddrV4) -> bool {
        let [_, _, port_high, port_low] = u32::from(address.port()).to_be_bytes();
        let [a, b, c, d] = address.ip().octets();
        let bits = u64::from_ne_bytes([a, b, c, d, port_high, port_low, 0, 0]);
        let differs = self.endpoints[position].load(Ordering::Relaxed) != bits;
        if differs {
            self.endpoints[position].store(bits, PUBLISH);
        }
        differs
    }

    /// The endpoints that a program can draw, if the pool is near.
    #[cfg(test)]
    pub(crate) fn near_endpoints(&self) -> Option<Vec<SocketAddr>> {
        let word = self.word();
        let address = |bits: u64| {
            let [a, b, c, d, port_high, port_low, ..] = bits.to_ne_bytes();
            SocketAddr::from(([a, b, c, d], u16::from_be_bytes([port_high, port_low])))
        };
        let near = &self.endpoints[..word.near.then_some(word.count as usize)?];
        Some(near.iter().map(|endpoint| address(endpoint.load(Ordering::Relaxed))).collect())
    }
}

/// A value of the map `slots`. The kernel rounds each value up to 8 bytes.
#[derive(Debug)]
#[repr(C, align(8))]
pub(crate) struct SlotCell(AtomicU32);

impl SlotCell {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, backend: u32) {
        self.0.store(backend, PUBLISH);
    }
}

/// A value of the map `backends`.
#[derive(Debug)]
#[repr(C, align(8))]
pub(crate) struct BackendCell {
    address: [AtomicU32; 4],
    port: AtomicU16,
    has_datagram_sockets: AtomicU16,
    pool: AtomicU32,
}

impl BackendCell {
    /// Fills a backend that nothing refers to yet.
    pub(crate) fn fill(&self, address: SocketAddr, pool: u32) {
        for (word, bytes) in self.address.iter().zip(octets(address.ip()).chunks_exact(4)) {
            word.store(bytes.try_into().map_or(0, u32::from_ne_bytes), Ordering::Relaxed);
        }
        self.port.store(address.port().to_be(), Ordering::Relaxed);
        self.has_datagram_sockets.store(0, Ordering::Relaxed);
        self.pool.store(pool, PUBLISH);
    }

    /// From now on, nothing new uses it. Its address stays for those that are about to read it.
    pub(crate) fn retire(&self) {
        self.pool.store(0, PUBLISH);
    }

    pub(crate) fn pool(&self) -> u32 {
        self.pool.load(Ordering::Relaxed)
    }

    /// Whether a UDP socket was ever connected to it.
    pub(crate) fn has_datagram_sockets(&self) -> bool {
        self.has_datagram_sockets.load(Ordering::Relaxed) != 0
    }

    /// What the program does when a UDP socket connects.
    #[cfg(test)]
    pub(crate) fn note_datagram_socket(&self) {
        self.has_datagram_sockets.store(1, Ordering::Relaxed);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let mut bytes = [0; 16];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(&self.address) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let port = u16::from_be(self.port.load(Ordering::Relaxed));
        SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), port)
    }
}

/// A value of the map `counters`: what one processor counted. The programs add to it without atomic operations.
#[derive(Debug)]
#[repr(C, align(8))]
pub(crate) struct CounterCell {
    connections: AtomicU64,
    refusals: AtomicU64,
}

impl CounterCell {
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&self) {
        self.connections.store(0, Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
    }
}

pub(crate) const PEER_SIZE: usize = 24;

/// Bytes of a key and of a value in `affinities`.
pub(crate) const AFFINITY_SIZE: usize = 16;

/// A client's record: a key and a value of `affinities`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Affinity {
    pub(crate) namespace: [u8; 8],
    pub(crate) pool: u32,
    pub(crate) last_use: [u8; 8],
    pub(crate) backend: u32,
}

impl Affinity {
    pub(crate) fn from_bytes(key: [u8; AFFINITY_SIZE], value: [u8; AFFINITY_SIZE]) -> Self {
        let ([namespace, pool], [last_use, backend]) = (halves(key), halves(value));
        Affinity { namespace, pool: first_word(pool), last_use, backend: first_word(backend) }
    }

    pub(crate) fn to_bytes(self) -> ([u8; AFFINITY_SIZE], [u8; AFFINITY_SIZE]) {
        let half = |number: u32| u64::from(number).to_le_bytes();
        (joined(self.namespace, half(self.pool)), joined(self.last_use, half(self.backend)))
    }
}

fn halves(bytes: [u8; AFFINITY_SIZE]) -> [[u8; 8]; 2] {
    let (first, second) = bytes.split_at(8);
    [first, second].map(|half| half.try_into().expect("half of 16 bytes"))
}

fn joined(first: [u8; 8], second: [u8; 8]) -> [u8; AFFINITY_SIZE] {
    let mut bytes = [0; AFFINITY_SIZE];
    bytes[..8].copy_from_slice(&first);
    bytes[8..].copy_from_slice(&second);
    bytes
}

/// Machines are little-endian: the first four bytes are the lower half.
fn first_word(bytes: [u8; 8]) -> u32 {
    let [a, b, c, d, ..] = bytes;
    u32::from_le_bytes([a, b, c, d])
}

/// An endpoint of one pool. Services may share the address, but not the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PoolEndpoint {
    /// The number of its backend.
    pub(crate) backend: u32,
    pub(crate) address: SocketAddr,
}

/// The endpoint in a value of the map `datagram_peers`.
pub(crate) fn datagram_peer(value: &[u8; PEER_SIZE]) -> PoolEndpoint {
    let mut address = [0; 16];
    address.copy_from_slice(&value[..16]);
    let [.., a, b, c, d] = *value;
    let ip = Ipv6Addr::from(address).to_canonical();
    let address = SocketAddr::new(ip, u16::from_be_bytes([value[16], value[17]]));
    PoolEndpoint { backend: u32::from_ne_bytes([a, b, c, d]), address }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_records_and_keys_keep_their_values() {
        let word = PoolWord { first: 0x1234_5678, near: false, order: 17, count: 0x9a_bcde };
        let near = PoolWord { near: true, ..word };
        assert_eq!([word, near].map(|word| PoolWord::from_bits(word.to_bits())), [word, near]);
        assert_eq!([word, near].map(PoolWord::to_bits), [0x1234_5678_119a_bcde, 0x1234_5678_919a_bcde]);
        let record = Record { pool: 1, affinity: 10800, counter: 7, flags: Record::LOCAL_POOL };
        assert_eq!(Record::from_bytes(record.to_bytes()), record);
        let affinity = Affinity { namespace: [1; 8], pool: 0x1234_5678, last_use: [2; 8], backend: 9 };
        let (key, value) = affinity.to_bytes();
        assert_eq!(
            (key[8..12].to_vec(), value[8..].to_vec()),
            (vec![0x78, 0x56, 0x34, 0x12], vec![9, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(Affinity::from_bytes(key, value), affinity);
        for (text, family) in
            [("10.96.0.1:443", Family::V4), ("[fd00::1]:443", Family::V6), ("[::1]:80", Family::V6)]
        {
            assert_eq!(Key::new(text.parse().unwrap(), Protocol::Udp).family(), family, "{text}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_programs() {
        assert_eq!((size_of::<PoolCell>(), size_of::<SlotCell>()), (64, 8));
        assert_eq!((size_of::<BackendCell>(), size_of::<CounterCell>()), (24, 16));
    }

    #[test]
    fn a_backend_reads_as_written() {
        let cell = BackendCell {
            address: Default::default(),
            port: AtomicU16::new(0),
            has_datagram_sockets: AtomicU16::new(1),
            pool: AtomicU32::new(0),
        };
        for text in ["10.0.1.2:8080", "[fd00::2]:53"] {
            let address = text.parse().unwrap();
            cell.fill(address, 3);
            assert_eq!((cell.address(), cell.pool(), cell.has_datagram_sockets()), (address, 3, false));
        }
        cell.retire();
        assert_eq!(cell.pool(), 0);
    }
}

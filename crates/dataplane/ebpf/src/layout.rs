//! The layout of the maps, as in `programs/layout.h`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use portwarden_model::{Family, Protocol};

use crate::sys::PUBLISH;

/// Changes whenever the layout of a table does. It is part of the pin directory's name, so that a new version never reads what an old one wrote.
pub(crate) const TABLES_VERSION: u32 = 3;

/// Changes whenever the layout of what is remembered for sockets does. Sockets live long, so this should be rare: until they are closed, they would show
/// their endpoints, and UDP sockets would stay connected to endpoints that left.
pub(crate) const SOCKETS_VERSION: u32 = 1;

/// A frontend in the map `services`: address, port and protocol, as words of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    address: [u32; 4],
    /// Port in network order, protocol, and [`ServiceCell::USED`].
    port_word: u32,
}

impl Key {
    pub(crate) fn new(address: SocketAddr, protocol: Protocol) -> Self {
        let [high, low] = address.port().to_be_bytes();
        let port_word = u32::from_ne_bytes([high, low, protocol.number(), ServiceCell::USED]);
        Key { address: words(address.ip()), port_word }
    }

    pub(crate) fn family(&self) -> Family {
        Family::of(ip(self.address))
    }

    /// The hash as the programs compute it.
    pub(crate) fn hash(&self, seed: u64) -> u32 {
        /// `HASH_MULTIPLIER` and `HASH_LAST_MULTIPLIER` of the programs.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        const LAST_MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
        let [a, b, c, d] = self.address.map(u64::from);
        let mix = |hash: u64, word: u64| {
            let hash = (hash ^ word).wrapping_mul(MULTIPLIER);
            hash ^ hash >> 32
        };
        let hash = [b << 32 | a, d << 32 | c, u64::from(self.port_word)].into_iter().fold(seed, mix);
        let [_, upper] = halves_of_word(hash.wrapping_mul(LAST_MULTIPLIER));
        upper
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        let [high, low, ..] = self.port_word.to_ne_bytes();
        SocketAddr::new(ip(self.address), u16::from_be_bytes([high, low]))
    }
}

/// What the map `services` says about a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// The pool, or [`Record::REFUSED`].
    pub(crate) pool: u32,
    pub(crate) affinity: u32,
    pub(crate) counter: u32,
    /// The pool holds only endpoints on this node.
    pub(crate) local: bool,
}

impl Record {
    /// In place of a pool: connections are refused.
    pub(crate) const REFUSED: u32 = u32::MAX;
    /// In place of a pool: connections are left alone.
    pub(crate) const IGNORED: u32 = 0;
}

/// A value of the map `services`: one frontend, half a cache line.
#[derive(Debug)]
#[repr(C, align(8))]
pub(crate) struct ServiceCell {
    address: [AtomicU32; 4],
    port_word: AtomicU32,
    counter: AtomicU32,
    target: AtomicU64,
}

impl ServiceCell {
    /// The last byte of the port's word: what the cell is. A cell of zeros was never used.
    const USED: u8 = 1;
    /// A search goes on behind it.
    const REMOVED: u8 = 2;
    /// The highest bit of the counter's word.
    const LOCAL: u32 = 1 << 31;

    /// The frontend here and what its record says, if there is one.
    pub(crate) fn get(&self) -> Option<(Key, Record)> {
        let port_word = self.port_word.load(Ordering::Relaxed);
        let [.., state] = port_word.to_ne_bytes();
        if state != Self::USED {
            return None;
        }
        let address = std::array::from_fn(|index| self.address[index].load(Ordering::Relaxed));
        let [pool, affinity] = halves_of_word(self.target.load(Ordering::Relaxed));
        let counter = self.counter.load(Ordering::Relaxed);
        let local = counter & Self::LOCAL != 0;
        Some((Key { address, port_word }, Record { pool, affinity, counter: counter & !Self::LOCAL, local }))
    }

    /// Whether no search goes on behind it.
    pub(crate) fn is_free(&self) -> bool {
        self.port_word.load(Ordering::Relaxed) == 0
    }

    /// Whether a search goes on behind it, although no frontend is here.
    pub(crate) fn is_removed(&self) -> bool {
        !self.is_free() && self.get().is_none()
    }

    /// Writes a frontend into a cell that is not in use; the last write makes it visible.
    pub(crate) fn fill(&self, key: Key, record: Record) {
        for (word, value) in self.address.iter().zip(key.address) {
            word.store(value, Ordering::Relaxed);
        }
        self.set(record);
        self.port_word.store(key.port_word, PUBLISH);
    }

    /// Changes what a frontend's record says.
    pub(crate) fn set(&self, record: Record) {
        let local = if record.local { Self::LOCAL } else { 0 };
        self.counter.store(record.counter & !Self::LOCAL | local, Ordering::Relaxed);
        self.target.store(u64::from(record.affinity) << 32 | u64::from(record.pool), PUBLISH);
    }

    /// Removes a frontend. A program that has just found it reads zeros, which leave the connection alone. So the next frontend in this cell is never
    /// seen with a part of this one, in whichever order a processor reads.
    pub(crate) fn remove(&self) {
        self.port_word.store(u32::from_ne_bytes([0, 0, 0, Self::REMOVED]), PUBLISH);
        self.target.store(0, PUBLISH);
        self.counter.store(0, Ordering::Relaxed);
        self.address.iter().for_each(|word| word.store(0, PUBLISH));
    }

    /// No search needs to go on behind this cell, which is not in use.
    pub(crate) fn free(&self) {
        self.port_word.store(0, PUBLISH);
    }

    /// What the first cell of the table holds.
    pub(crate) fn head(&self) -> TableHead {
        let [low, high, ..] = self.address.each_ref().map(|word| word.load(Ordering::Relaxed));
        let [hash_values, first] = halves_of_word(self.target.load(Ordering::Relaxed));
        TableHead { seed: u64::from(high) << 32 | u64::from(low), part: TablePart { first, hash_values } }
    }

    pub(crate) fn set_head(&self, head: TableHead) {
        for (word, value) in self.address.iter().zip(halves_of_word(head.seed)) {
            word.store(value, PUBLISH);
        }
        self.target.store(u64::from(head.part.first) << 32 | u64::from(head.part.hash_values), PUBLISH);
    }
}

/// What describes the table of frontends, in place of its first frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableHead {
    /// 0 if the table is new.
    pub(crate) seed: u64,
    /// The part that is in use.
    pub(crate) part: TablePart,
}

/// A part of the table of frontends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TablePart {
    /// Its first cell.
    pub(crate) first: u32,
    /// The number of different values of the hash.
    pub(crate) hash_values: u32,
}

/// The lower and the upper half.
fn halves_of_word(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
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
        for (word, value) in self.address.iter().zip(words(address.ip())) {
            word.store(value, Ordering::Relaxed);
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

    /// A UDP socket is connected to it. The programs note that when it connects.
    pub(crate) fn note_datagram_socket(&self) {
        self.has_datagram_sockets.store(1, Ordering::Relaxed);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let address = std::array::from_fn(|index| self.address[index].load(Ordering::Relaxed));
        let port = u16::from_be(self.port.load(Ordering::Relaxed));
        SocketAddr::new(ip(address), port)
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

/// The same value of the map `datagram_peers` with another backend.
pub(crate) fn with_backend(mut value: [u8; PEER_SIZE], backend: u32) -> [u8; PEER_SIZE] {
    value[PEER_SIZE - 4..].copy_from_slice(&backend.to_ne_bytes());
    value
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

/// An address as words of the programs.
fn words(ip: IpAddr) -> [u32; 4] {
    let octets = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let (words, _) = octets.as_chunks::<4>();
    std::array::from_fn(|index| u32::from_ne_bytes(words[index]))
}

/// The reverse of [`words`].
fn ip(words: [u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (chunk, word) in octets.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Mapping;

    #[test]
    fn words_affinities_and_keys_keep_their_values() {
        let word = PoolWord { first: 0x1234_5678, near: false, order: 17, count: 0x9a_bcde };
        let near = PoolWord { near: true, ..word };
        assert_eq!([word, near].map(|word| PoolWord::from_bits(word.to_bits())), [word, near]);
        assert_eq!([word, near].map(PoolWord::to_bits), [0x1234_5678_119a_bcde, 0x1234_5678_919a_bcde]);
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
            let address: SocketAddr = text.parse().unwrap();
            let key = Key::new(address, Protocol::Udp);
            assert_eq!((key.family(), key.address()), (family, address), "{text}");
        }
    }

    #[test]
    fn a_frontend_reads_as_written_until_it_is_removed() {
        let cells = Mapping::<ServiceCell>::anonymous(1).unwrap();
        let cell = &cells[0];
        assert!(cell.is_free() && !cell.is_removed() && cell.get().is_none());
        let key = Key::new("10.96.0.1:443".parse().unwrap(), Protocol::Tcp);
        for local in [false, true] {
            let record = Record { pool: 3, affinity: 10800, counter: 7, local };
            cell.fill(key, record);
            assert_eq!(cell.get(), Some((key, record)));
            assert!(!cell.is_free() && !cell.is_removed());
        }
        let refused = Record { pool: Record::REFUSED, affinity: 0, counter: 0, local: false };
        cell.set(refused);
        assert_eq!(cell.get(), Some((key, refused)));
        cell.remove();
        assert!(!cell.is_free() && cell.is_removed() && cell.get().is_none());
        let nothing = TableHead { seed: 0, part: TablePart { first: 0, hash_values: 0 } };
        assert_eq!(cell.head(), nothing, "nothing of it is left");
        cell.free();
        assert!(cell.is_free());
        let part = TablePart { first: 0x0f1e_2d3c, hash_values: 0x4b5a_6978 };
        let head = TableHead { seed: 0x0123_4567_89ab_cdef, part };
        cell.set_head(head);
        assert_eq!(cell.head(), head);
        assert!(cell.is_free(), "a search ends here");
    }

    #[test]
    fn sizes_are_those_of_the_programs() {
        assert_eq!((size_of::<PoolCell>(), size_of::<SlotCell>()), (64, 8));
        assert_eq!((size_of::<BackendCell>(), size_of::<CounterCell>()), (24, 16));
        assert_eq!(size_of::<ServiceCell>(), 32);
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

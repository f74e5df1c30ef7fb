//! Pieces of rules, each named after its nft syntax.

use std::net::IpAddr;

use ipnet::IpNet;
use portwarden_model::Family;
use portwarden_netlink::nftables::expr::{
    CmpOperator, CtKey, FibResult, MetaKey, NatKind, PayloadBase, Reject, address_type, ct_state, ct_status,
    fib,
};
use portwarden_netlink::nftables::{self, Expr, Name, Register, Verdict};

use super::sets::SetId;

const fn word(number: u8) -> Register {
    Register::word(number)
}

/// nf_tables' name for a family.
pub(super) fn kernel_family(family: Family) -> nftables::Family {
    match family {
        Family::V4 => nftables::Family::Ip,
        Family::V6 => nftables::Family::Ip6,
    }
}

/// Words that an address takes.
fn address_words(family: Family) -> u8 {
    match family {
        Family::V4 => 1,
        Family::V6 => 4,
    }
}

fn address(family: Family, v4_offset: u32, v6_offset: u32, at: u8) -> Expr {
    let (offset, length) = match family {
        Family::V4 => (v4_offset, 4),
        Family::V6 => (v6_offset, 16),
    };
    Expr::Payload { base: PayloadBase::Network, offset, length, target: word(at) }
}

fn source(family: Family, at: u8) -> Expr {
    address(family, 12, 8, at)
}

/// `ip daddr`
pub(super) fn destination(family: Family) -> Vec<Expr> {
    vec![address(family, 16, 24, 0)]
}

/// `meta l4proto . th dport` from a word on.
fn port_at(at: u8) -> [Expr; 2] {
    [
        Expr::Meta { key: MetaKey::L4proto, target: word(at) },
        Expr::Payload { base: PayloadBase::Transport, offset: 2, length: 2, target: word(at + 1) },
    ]
}

/// `meta l4proto . th dport`
pub(super) fn port() -> Vec<Expr> {
    port_at(0).to_vec()
}

/// `ip daddr . meta l4proto . th dport`
pub(super) fn place(family: Family) -> Vec<Expr> {
    let mut key = destination(family);
    key.extend(port_at(address_words(family)));
    key
}

/// `ip daddr . meta l4proto . th dport . ip saddr`
pub(super) fn place_and_source(family: Family) -> Vec<Expr> {
    let mut key = place(family);
    key.push(source(family, address_words(family) + 2));
    key
}

/// `dnat to (key) map @MAP`, after a key.
pub(super) fn redirect(family: Family, map: SetId) -> Vec<Expr> {
    vec![
        Expr::Lookup { set: map.name().into(), key: word(0), target: Some(word(0)), inverted: false },
        Expr::Nat {
            kind: NatKind::Destination,
            family: kernel_family(family),
            address: Some(word(0)),
            port: Some(word(address_words(family))),
            flags: 0,
        },
    ]
}

/// `@SET`, after a key.
pub(super) fn in_set(set: SetId) -> Vec<Expr> {
    vec![Expr::Lookup { set: set.name().into(), key: word(0), target: None, inverted: false }]
}

/// `ip saddr NET`
pub(super) fn source_in(family: Family, net: &IpNet) -> Vec<Expr> {
    in_net(source(family, 0), net)
}

/// `ip daddr NET`
pub(super) fn destination_in(family: Family, net: &IpNet) -> Vec<Expr> {
    in_net(address(family, 16, 24, 0), net)
}

/// `ip daddr != 127.0.0.0/8`, or `::1`
pub(super) fn not_to_loopback(family: Family) -> Vec<Expr> {
    let net = match family {
        Family::V4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::V6 => IpNet::from(family.loopback()),
    };
    let mut all = destination_in(family, &net);
    if let Some(Expr::Cmp { operator, .. }) = all.last_mut() {
        *operator = CmpOperator::NotEqual;
    }
    all
}

fn in_net(load: Expr, net: &IpNet) -> Vec<Expr> {
    let mask = octets(net.netmask());
    let xor = vec![0; mask.len()];
    vec![load, Expr::Bitwise { source: word(0), target: word(0), mask, xor }, equal(octets(net.network()))]
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// `iifname NAME`; a prefix matches all names that start with it.
pub(super) fn arrives_on(name: &str, prefix: bool) -> Vec<Expr> {
    let mut value = name.as_bytes().to_vec();
    if !prefix {
        value.resize(16, 0);
    }
    vec![Expr::Meta { key: MetaKey::Iifname, target: word(0) }, equal(value)]
}

/// `fib daddr type local`
pub(super) fn to_this_host() -> Vec<Expr> {
    vec![
        Expr::Fib { result: FibResult::Type, flags: fib::DADDR, target: word(0) },
        equal(address_type::LOCAL.to_ne_bytes().to_vec()),
    ]
}

/// `meta mark & BIT == BIT`
pub(super) fn marked(bit: u32) -> Vec<Expr> {
    let value = bit.to_ne_bytes().to_vec();
    vec![Expr::Meta { key: MetaKey::Mark, target: word(0) }, masked(bit), equal(value)]
}

/// `ct state new`
pub(super) fn new_connection() -> Vec<Expr> {
    connection_bits(CtKey::State, ct_state::NEW, CmpOperator::NotEqual)
}

/// `ct status ! dnat`
pub(super) fn not_redirected() -> Vec<Expr> {
    connection_bits(CtKey::Status, ct_status::DNAT, CmpOperator::Equal)
}

fn connection_bits(key: CtKey, bits: u32, operator: CmpOperator) -> Vec<Expr> {
    let compare = Expr::Cmp { source: word(0), operator, value: 0u32.to_ne_bytes().to_vec() };
    vec![Expr::Ct { key, direction: None, target: word(0) }, masked(bits), compare]
}

fn masked(bits: u32) -> Expr {
    let (mask, xor) = (bits.to_ne_bytes().to_vec(), vec![0; 4]);
    Expr::Bitwise { source: word(0), target: word(0), mask, xor }
}

/// `meta l4proto tcp reject with tcp reset`. An ICMP error for TCP would be rate-limited, and a client that misses it waits a second.
pub(super) fn reset() -> Vec<Expr> {
    const TCP: u8 = 6;
    let protocol = Expr::Meta { key: MetaKey::L4proto, target: word(0) };
    vec![protocol, equal(vec![TCP]), Expr::Reject(Reject::TcpReset)]
}

/// `reject`
pub(super) fn reject(family: Family) -> Vec<Expr> {
    vec![Expr::Reject(Reject::port_unreachable(kernel_family(family)))]
}

pub(super) fn drop() -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Drop)]
}

pub(super) fn back() -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Return)]
}

pub(super) fn jump(chain: &str) -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Jump(Name::from(chain)))]
}

pub(super) fn goto(chain: &str) -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Goto(Name::from(chain)))]
}

fn equal(value: Vec<u8>) -> Expr {
    Expr::Cmp { source: word(0), operator: CmpOperator::Equal, value }
}

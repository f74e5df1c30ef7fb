//! Builds the expressions of rules. Each function stands for a piece of nft syntax, which its comment shows; `rule!` joins them.

use std::net::IpAddr;

use ipnet::IpNet;
use portwarden_model::Family;
use portwarden_netlink::nftables::expr::{
    CmpOperator, CtKey, DynsetOperation, FibResult, MetaKey, NatKind, NumgenKind, PayloadBase, Reject,
    address_type, fib, nat,
};
use portwarden_netlink::nftables::{self, Expr, Name, Register, Verdict};

/// A word of the register file: four bytes.
const fn word(number: u8) -> Register {
    Register::word(number)
}

/// Joins expressions, and groups of them, into one rule.
macro_rules! rule {
    ($($part:expr),+ $(,)?) => {{
        let mut rule: Vec<portwarden_netlink::nftables::Expr> = Vec::new();
        $(rule.extend($crate::expressions::Part::from($part).0);)+
        rule
    }};
}

pub(crate) use rule;

/// A part of a rule: one expression or several.
pub(crate) struct Part(pub(crate) Vec<Expr>);

impl From<Expr> for Part {
    fn from(one: Expr) -> Self {
        Part(vec![one])
    }
}

impl From<Vec<Expr>> for Part {
    fn from(several: Vec<Expr>) -> Self {
        Part(several)
    }
}

/// Builds the expressions that differ between the families.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpressionBuilder {
    family: Family,
}

impl ExpressionBuilder {
    pub(crate) fn new(family: Family) -> Self {
        ExpressionBuilder { family }
    }

    /// How many words an address takes.
    fn address_words(self) -> u8 {
        match self.family {
            Family::V4 => 1,
            Family::V6 => 4,
        }
    }

    fn address(self, v4_offset: u32, v6_offset: u32, target: Register) -> Expr {
        let (offset, length) = match self.family {
            Family::V4 => (v4_offset, 4),
            Family::V6 => (v6_offset, 16),
        };
        Expr::Payload { base: PayloadBase::Network, offset, length, target }
    }

    /// `ip saddr`
    pub(crate) fn source(self, at: u8) -> Expr {
        self.address(12, 8, word(at))
    }

    /// `ip daddr`
    pub(crate) fn destination(self, at: u8) -> Expr {
        self.address(16, 24, word(at))
    }

    /// `ip daddr . meta l4proto . th dport` from word 0 on.
    pub(crate) fn frontend(self) -> Vec<Expr> {
        let next = self.address_words();
        let mut key = vec![self.destination(0)];
        key.extend(port_at(next));
        key
    }

    /// `ip daddr . meta l4proto . th dport . ip saddr` from word 0 on.
    pub(crate) fn frontend_and_source(self) -> Vec<Expr> {
        let mut key = self.frontend();
        key.push(self.source(self.address_words() + 2));
        key
    }

    /// `ip saddr . ip daddr . meta l4proto . th dport` from word 0 on.
    pub(crate) fn source_and_frontend(self) -> Vec<Expr> {
        let next = self.address_words();
        let mut key = vec![self.source(0), self.destination(next)];
        key.extend(port_at(next * 2));
        key
    }

    /// `ip saddr . meta priority & MASK` from word 0 on.
    pub(crate) fn client_key(self, mask: Option<u32>) -> Vec<Expr> {
        let next = self.address_words();
        let mut key = vec![self.source(0), Expr::Meta { key: MetaKey::Priority, target: word(next) }];
        key.extend(mask.map(|mask| bitwise(next, mask, 0)));
        key
    }

    /// The word for the value that belongs to [`ExpressionBuilder::client_key`]: the first one behind it where nft expects a value.
    pub(crate) fn client_value(self) -> u8 {
        match self.family {
            Family::V4 => 4,
            Family::V6 => 8,
        }
    }

    /// `dnat to` the address and port from word 0 on.
    pub(crate) fn translate(self) -> Expr {
        let family = match self.family {
            Family::V4 => nftables::Family::Ip,
            Family::V6 => nftables::Family::Ip6,
        };
        Expr::Nat {
            kind: NatKind::Destination,
            family,
            address: Some(word(0)),
            port: Some(word(self.address_words())),
            flags: 0,
        }
    }

    /// `ip saddr NET`, or `!=`
    pub(crate) fn source_in(self, net: &IpNet, matches: bool) -> Vec<Expr> {
        in_net(self.source(0), net, matches)
    }

    /// `ip daddr NET`, or `!=`
    pub(crate) fn destination_in(self, net: &IpNet, matches: bool) -> Vec<Expr> {
        in_net(self.destination(0), net, matches)
    }

    /// `reject`
    pub(crate) fn reject(self) -> Expr {
        Expr::Reject(match self.family {
            Family::V4 => Reject::ICMP_PORT_UNREACHABLE,
            Family::V6 => Reject::ICMPV6_PORT_UNREACHABLE,
        })
    }
}

/// Compares the address that `load` reads into word 0 with a range. Of a range that ends with a byte, only the first bytes are read, if the kernel has a fast
/// path for their number; otherwise the other bits are cleared first.
fn in_net(load: Expr, net: &IpNet, matches: bool) -> Vec<Expr> {
    let operator = if matches { CmpOperator::Equal } else { CmpOperator::NotEqual };
    let mut value = octets(net.network());
    let bytes = net.prefix_len() / 8;
    let mut expressions = match load {
        Expr::Payload { base, offset, target, .. }
            if net.prefix_len().is_multiple_of(8) && bytes.is_power_of_two() =>
        {
            value.truncate(bytes.into());
            vec![Expr::Payload { base, offset, length: bytes.into(), target }]
        }
        load => {
            let (mask, xor) = (octets(net.netmask()), vec![0; value.len()]);
            vec![load, Expr::Bitwise { source: word(0), target: word(0), mask, xor }]
        }
    };
    expressions.push(Expr::Cmp { source: word(0), operator, value });
    expressions
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// `meta l4proto . th dport` from a word on.
fn port_at(at: u8) -> [Expr; 2] {
    [
        Expr::Meta { key: MetaKey::L4proto, target: word(at) },
        Expr::Payload { base: PayloadBase::Transport, offset: 2, length: 2, target: word(at + 1) },
    ]
}

/// `meta l4proto . th dport` from word 0 on.
pub(crate) fn port() -> Vec<Expr> {
    port_at(0).to_vec()
}

/// `meta l4proto NUMBER`
pub(crate) fn protocol_is(number: u8) -> Vec<Expr> {
    vec![Expr::Meta { key: MetaKey::L4proto, target: word(0) }, equal(vec![number])]
}

/// `meta priority` into a word.
pub(crate) fn load_priority(at: u8) -> Expr {
    Expr::Meta { key: MetaKey::Priority, target: word(at) }
}

/// `meta priority set` the value in word 0.
pub(crate) fn set_priority() -> Expr {
    Expr::SetMeta { key: MetaKey::Priority, source: word(0) }
}

/// `meta priority & MASK` into word 0.
pub(crate) fn masked_priority(mask: u32) -> Vec<Expr> {
    vec![load_priority(0), bitwise(0, mask, 0)]
}

/// `meta priority set meta priority & MASK`
pub(crate) fn mask_priority(mask: u32) -> Vec<Expr> {
    rule![masked_priority(mask), set_priority()]
}

/// `meta priority set meta priority ^ BIT`
pub(crate) fn flip_priority(bit: u32) -> Vec<Expr> {
    vec![load_priority(0), bitwise(0, u32::MAX, bit), set_priority()]
}

/// `meta priority set 0`
pub(crate) fn clear_priority() -> Vec<Expr> {
    vec![Expr::Immediate { value: 0u32.to_ne_bytes().to_vec(), target: word(0) }, set_priority()]
}

/// `meta priority & MASK == VALUE`
pub(crate) fn priority_is(mask: u32, value: u32) -> Vec<Expr> {
    vec![load_priority(0), bitwise(0, mask, 0), equal(value.to_ne_bytes().to_vec())]
}

/// `meta priority & MASK vmap @MAP`
pub(crate) fn dispatch_priority(mask: u32, map: &str) -> Vec<Expr> {
    vec![load_priority(0), bitwise(0, mask, 0), verdict_map(map)]
}

/// `meta mark set meta mark | BIT`
pub(crate) fn set_mark(bit: u32) -> Vec<Expr> {
    change_mark(!bit, bit)
}

/// `meta mark set meta mark ^ BIT`
pub(crate) fn flip_mark(bit: u32) -> Vec<Expr> {
    change_mark(u32::MAX, bit)
}

fn change_mark(mask: u32, xor: u32) -> Vec<Expr> {
    let load = Expr::Meta { key: MetaKey::Mark, target: word(0) };
    vec![load, bitwise(0, mask, xor), Expr::SetMeta { key: MetaKey::Mark, source: word(0) }]
}

/// `meta mark & BIT == BIT`
pub(crate) fn mark_is_set(bit: u32) -> Vec<Expr> {
    let load = Expr::Meta { key: MetaKey::Mark, target: word(0) };
    vec![load, bitwise(0, bit, 0), equal(bit.to_ne_bytes().to_vec())]
}

/// `ct state new`
pub(crate) fn new_connection() -> Vec<Expr> {
    const NEW: u32 = 8;
    connection_bits(CtKey::State, NEW, CmpOperator::NotEqual)
}

const STATUS_DNAT: u32 = 0x20;

/// `ct status dnat`
pub(crate) fn translated() -> Vec<Expr> {
    connection_bits(CtKey::Status, STATUS_DNAT, CmpOperator::NotEqual)
}

/// `ct status ! dnat`
pub(crate) fn not_translated() -> Vec<Expr> {
    connection_bits(CtKey::Status, STATUS_DNAT, CmpOperator::Equal)
}

fn connection_bits(key: CtKey, bits: u32, to_none: CmpOperator) -> Vec<Expr> {
    let compare = Expr::Cmp { source: word(0), operator: to_none, value: 0u32.to_ne_bytes().to_vec() };
    vec![Expr::Ct { key, direction: None, target: word(0) }, bitwise(0, bits, 0), compare]
}

/// `fib saddr type local`
pub(crate) fn from_this_host() -> Vec<Expr> {
    address_is_local(fib::SADDR, CmpOperator::Equal)
}

/// `fib daddr type local`
pub(crate) fn to_this_host() -> Vec<Expr> {
    address_is_local(fib::DADDR, CmpOperator::Equal)
}

/// `fib daddr type != local`
pub(crate) fn not_to_this_host() -> Vec<Expr> {
    address_is_local(fib::DADDR, CmpOperator::NotEqual)
}

fn address_is_local(flags: u32, operator: CmpOperator) -> Vec<Expr> {
    let value = address_type::LOCAL.to_ne_bytes().to_vec();
    vec![
        Expr::Fib { result: FibResult::Type, flags, target: word(0) },
        Expr::Cmp { source: word(0), operator, value },
    ]
}

/// `iifname NAME`, or `!=`; a prefix matches all names that start like it.
pub(crate) fn arrives_on(name: &str, prefix: bool, matches: bool) -> Vec<Expr> {
    let mut value = name.as_bytes().to_vec();
    if !prefix {
        value.resize(16, 0);
    }
    let operator = if matches { CmpOperator::Equal } else { CmpOperator::NotEqual };
    vec![
        Expr::Meta { key: MetaKey::Iifname, target: word(0) },
        Expr::Cmp { source: word(0), operator, value },
    ]
}

/// `@SET`, with the key from word 0 on.
pub(crate) fn in_set(set: &str) -> Expr {
    Expr::Lookup { set: set.into(), key: word(0), target: None, inverted: false }
}

/// `!= @SET`, with the key from word 0 on.
pub(crate) fn not_in_set(set: &str) -> Expr {
    Expr::Lookup { set: set.into(), key: word(0), target: None, inverted: true }
}

/// `map @MAP`, with the key from word 0 on and the value there too.
pub(crate) fn map(map: &str) -> Expr {
    Expr::Lookup { set: map.into(), key: word(0), target: Some(word(0)), inverted: false }
}

/// `vmap @MAP`, with the key from word 0 on.
pub(crate) fn verdict_map(map: &str) -> Expr {
    Expr::Lookup { set: map.into(), key: word(0), target: Some(Register::VERDICT), inverted: false }
}

/// `numgen random mod MODULUS` into a word.
pub(crate) fn draw(modulus: u32, at: u8) -> Expr {
    Expr::Numgen { kind: NumgenKind::Random, modulus, offset: 0, target: word(at) }
}

/// `update @MAP { key : value }`, with the key from word 0 on.
pub(crate) fn update(map: &str, value: u8, timeout: std::time::Duration) -> Expr {
    dynset(map, DynsetOperation::Update, value, Some(timeout))
}

/// `delete @MAP { key : value }`, with the key from word 0 on.
pub(crate) fn delete(map: &str, value: u8) -> Expr {
    dynset(map, DynsetOperation::Delete, value, None)
}

fn dynset(map: &str, operation: DynsetOperation, value: u8, timeout: Option<std::time::Duration>) -> Expr {
    Expr::Dynset { set: map.into(), operation, key: word(0), data: Some(word(value)), timeout }
}

/// `masquerade fully-random`
pub(crate) fn masquerade() -> Expr {
    Expr::Masquerade { flags: nat::FULLY_RANDOM }
}

/// `reject with tcp reset`
pub(crate) fn reset() -> Expr {
    Expr::Reject(Reject::TcpReset)
}

/// `counter name NAME`
pub(crate) fn count(name: &str) -> Expr {
    Expr::NamedCounter(Name::from(name))
}

/// `drop`
pub(crate) fn drop() -> Expr {
    Expr::Verdict(Verdict::Drop)
}

/// `return`
pub(crate) fn back() -> Expr {
    Expr::Verdict(Verdict::Return)
}

/// `jump CHAIN`
pub(crate) fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(Name::from(chain)))
}

/// `goto CHAIN`
pub(crate) fn goto(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(Name::from(chain)))
}

fn bitwise(at: u8, mask: u32, xor: u32) -> Expr {
    Expr::Bitwise {
        source: word(at),
        target: word(at),
        mask: mask.to_ne_bytes().to_vec(),
        xor: xor.to_ne_bytes().to_vec(),
    }
}

fn equal(value: Vec<u8>) -> Expr {
    Expr::Cmp { source: word(0), operator: CmpOperator::Equal, value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::{Rule, TableId};

    fn text(family: Family, expressions: Vec<Expr>) -> String {
        let family = match family {
            Family::V4 => nftables::Family::Ip,
            Family::V6 => nftables::Family::Ip6,
        };
        Rule::new(&TableId::new(family, "t"), "c", expressions).to_string()
    }

    #[test]
    fn keys_are_built_in_the_order_of_their_sets() {
        let v4 = ExpressionBuilder::new(Family::V4);
        assert_eq!(
            text(Family::V4, rule![v4.frontend_and_source(), in_set("s"), drop()]),
            "ip daddr . meta l4proto . th dport . ip saddr @s drop"
        );
        let v6 = ExpressionBuilder::new(Family::V6);
        assert_eq!(
            text(Family::V6, rule![v6.source_and_frontend(), in_set("s"), masquerade()]),
            "ip6 saddr . ip6 daddr . meta l4proto . th dport @s masquerade fully-random"
        );
        assert_eq!(
            text(Family::V6, rule![v6.client_key(Some(0xffff_0000)), map("m"), set_priority()]),
            "meta priority set ip6 saddr . meta priority & ffff:0000 map @m"
        );
    }

    #[test]
    fn ranges_match_or_not() {
        let v4 = ExpressionBuilder::new(Family::V4);
        let net = "10.0.0.0/8".parse().unwrap();
        let host = "10.0.0.1/32".parse().unwrap();
        assert_eq!(text(Family::V4, v4.source_in(&net, true)), "ip saddr 10.0.0.0/8");
        assert_eq!(text(Family::V4, v4.source_in(&net, false)), "ip saddr != 10.0.0.0/8");
        assert_eq!(text(Family::V4, v4.destination_in(&host, true)), "ip daddr 10.0.0.1");
    }

    #[test]
    fn interfaces_match_by_name_or_prefix() {
        assert_eq!(text(Family::V4, arrives_on("cni0", false, true)), "iifname \"cni0\"");
        assert_eq!(text(Family::V4, arrives_on("veth", true, false)), "iifname != \"veth*\"");
    }

    /// Other programs use other bits of the mark.
    #[test]
    fn only_one_bit_of_the_mark_changes() {
        assert_eq!(text(Family::V4, set_mark(0x4000)), "meta mark set meta mark | 0x00004000");
        assert_eq!(text(Family::V4, flip_mark(0x4000)), "meta mark set meta mark ^ 0x00004000");
    }
}

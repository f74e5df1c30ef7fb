//! What a register holds, in nft's words.

use super::value;
use crate::nftables::expr::{CtKey, Direction, FibResult, MetaKey, PayloadBase, address_type, fib};
use crate::nftables::register::Register;
use crate::nftables::set::DataType;
use crate::nftables::table::Family;

/// The content of a register.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    /// How nft spells it.
    pub(super) text: String,
    /// How values compared with it are spelled.
    pub(super) kind: Kind,
    /// Four-byte registers it takes.
    pub(super) words: u8,
    /// The bits that were kept, if others were cleared.
    pub(super) mask: Option<Vec<u8>>,
}

/// How values are spelled.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// As nft's type has it.
    Typed(DataType),
    /// As names of bits, with a test for any of them written as the names alone.
    Bits(&'static [(u32, &'static str)]),
    /// As the name of an address kind.
    AddressType,
    /// A constant in network byte order.
    Literal(Vec<u8>),
    /// The value that a map holds.
    Mapped,
    /// As a hexadecimal number.
    Raw,
}

const CT_STATES: &[(u32, &str)] =
    &[(1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked")];

const CT_STATUSES: &[(u32, &str)] = &[
    (1, "expected"),
    (2, "seen-reply"),
    (4, "assured"),
    (8, "confirmed"),
    (0x10, "snat"),
    (0x20, "dnat"),
    (0x200, "dying"),
];

impl Symbol {
    fn new(text: impl Into<String>, kind: Kind, words: u8) -> Self {
        Self { text: text.into(), kind, words, mask: None }
    }

    fn typed(text: impl Into<String>, datatype: DataType) -> Self {
        let words = u8::try_from(datatype.length().div_ceil(4)).unwrap_or(1);
        Self::new(text, Kind::Typed(datatype), words)
    }

    /// Bytes of the packet; a field's first bytes alone serve to compare a prefix.
    pub(super) fn payload(family: Family, base: PayloadBase, offset: u32, length: u32) -> Self {
        let network = base == PayloadBase::Network;
        let (ip, ip6) = (family != Family::Ip6, family != Family::Ip);
        let ipv4 = |name| Self::typed(name, DataType::Ipv4Address);
        let ipv6 = |name| Self::typed(name, DataType::Ipv6Address);
        match (offset, length) {
            (12, 1..=4) if network && ip => ipv4("ip saddr"),
            (16, 1..=4) if network && ip => ipv4("ip daddr"),
            (8, 1..=16) if network && ip6 => ipv6("ip6 saddr"),
            (24, 1..=16) if network && ip6 => ipv6("ip6 daddr"),
            (9, 1) if network && family == Family::Ip => Self::typed("ip protocol", DataType::Protocol),
            (0, 2) if base == PayloadBase::Transport => Self::typed("th sport", DataType::Service),
            (2, 2) if base == PayloadBase::Transport => Self::typed("th dport", DataType::Service),
            _ => {
                let text = format!("@{base},{},{}", offset.saturating_mul(8), length.saturating_mul(8));
                Self::new(text, Kind::Raw, u8::try_from(length.div_ceil(4)).unwrap_or(u8::MAX))
            }
        }
    }

    /// What the kernel knows about the packet.
    pub(super) fn meta(key: MetaKey) -> Self {
        let text = format!("meta {key}");
        match key {
            MetaKey::Mark => Self::typed(text, DataType::Mark),
            MetaKey::Priority => Self::typed(text, DataType::ClassId),
            MetaKey::L4proto => Self::typed(text, DataType::Protocol),
            MetaKey::Iif | MetaKey::Oif => Self::typed(text, DataType::InterfaceIndex),
            MetaKey::Iifname | MetaKey::Oifname => Self::typed(key.to_string(), DataType::InterfaceName),
            MetaKey::Length | MetaKey::Skuid | MetaKey::Skgid | MetaKey::Cpu | MetaKey::Cgroup => {
                Self::typed(text, DataType::Integer)
            }
            _ => Self::new(text, Kind::Raw, 1),
        }
    }

    /// What the kernel knows about the connection.
    pub(super) fn ct(family: Family, key: CtKey, direction: Option<Direction>) -> Self {
        let text = match direction {
            Some(direction) => format!("ct {direction} {key}"),
            None => format!("ct {key}"),
        };
        match key {
            CtKey::State => Self::new(text, Kind::Bits(CT_STATES), 1),
            CtKey::Status => Self::new(text, Kind::Bits(CT_STATUSES), 1),
            CtKey::Mark => Self::typed(text, DataType::Mark),
            CtKey::Protocol => Self::typed(text, DataType::Protocol),
            CtKey::ProtoSource | CtKey::ProtoDestination => Self::typed(text, DataType::Service),
            CtKey::SourceIp | CtKey::DestinationIp => Self::typed(text, DataType::Ipv4Address),
            CtKey::SourceIp6 | CtKey::DestinationIp6 => Self::typed(text, DataType::Ipv6Address),
            CtKey::Source | CtKey::Destination if family == Family::Ip6 => {
                Self::typed(text, DataType::Ipv6Address)
            }
            CtKey::Source | CtKey::Destination => Self::typed(text, DataType::Ipv4Address),
            _ => Self::new(text, Kind::Raw, 1),
        }
    }

    /// What the routing table says.
    pub(super) fn fib(result: FibResult, flags: u32) -> Self {
        let names = [(fib::SADDR, "saddr"), (fib::DADDR, "daddr"), (fib::MARK, "mark"), (fib::IIF, "iif")];
        let mut keys: Vec<_> =
            names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
        if flags & fib::OIF != 0 {
            keys.push("oif");
        }
        let text = format!("fib {} {result}", keys.join(" . "));
        match result {
            FibResult::Type => Self::new(text, Kind::AddressType, 1),
            FibResult::Oifname => Self::typed(text, DataType::InterfaceName),
            _ => Self::typed(text, DataType::InterfaceIndex),
        }
    }

    /// A drawn number.
    pub(super) fn number(text: String) -> Self {
        Self::typed(text, DataType::Integer)
    }

    /// The value a map holds; it may fill all registers from its first on.
    pub(super) fn mapped(text: String) -> Self {
        Self::new(text, Kind::Mapped, u8::MAX)
    }

    /// A register that the rule does not load; the kernel refuses such a rule.
    pub(super) fn unloaded(register: Register) -> Self {
        let text =
            register.index().map_or_else(|| "[verdict]".to_owned(), |word| format!("[register {word}]"));
        Self::new(text, Kind::Raw, 1)
    }

    /// A constant in network byte order.
    pub(super) fn literal(bytes: &[u8]) -> Self {
        let words = u8::try_from(bytes.len().div_ceil(4)).unwrap_or(u8::MAX);
        Self::new(value::hexadecimal(bytes), Kind::Literal(bytes.to_vec()), words)
    }

    /// The symbol as a value of the given type, if it is a constant.
    pub(super) fn as_type(&self, datatype: DataType) -> String {
        match &self.kind {
            Kind::Literal(bytes) => value::single(datatype, bytes),
            _ => self.text.clone(),
        }
    }

    /// The symbol after `(symbol & mask) ^ xor`.
    pub(super) fn bitwise(mut self, mask: &[u8], xor: &[u8]) -> Self {
        let no_xor = xor.iter().all(|&byte| byte == 0);
        if no_xor && self.mask.is_none() {
            self.mask = Some(mask.to_vec());
            return self;
        }
        let whole = mask.iter().all(|&byte| byte == u8::MAX);
        let complement = mask.len() == xor.len() && mask.iter().zip(xor).all(|(mask, xor)| *mask == !*xor);
        let base = self.text_with_mask();
        self.text = match (whole, complement) {
            (true, _) => format!("{base} ^ {}", self.spell(xor)),
            (false, true) => format!("{base} | {}", self.spell(xor)),
            (false, false) => format!("{base} & {} ^ {}", self.spell(mask), self.spell(xor)),
        };
        self.mask = None;
        self
    }

    /// The symbol with the bits it was cut to.
    pub(super) fn text_with_mask(&self) -> String {
        match &self.mask {
            Some(mask) => format!("{} & {}", self.text, self.spell(mask)),
            None => self.text.clone(),
        }
    }

    /// A value of the symbol's kind.
    pub(super) fn spell(&self, bytes: &[u8]) -> String {
        match &self.kind {
            Kind::Typed(DataType::InterfaceName) if bytes.len() < 16 => {
                // The name's first bytes alone stand for all names that begin with them.
                value::quoted(&format!("{}*", String::from_utf8_lossy(bytes)))
            }
            Kind::Typed(datatype) => value::single(*datatype, bytes),
            Kind::Bits(names) => bit_names(names, bytes),
            Kind::AddressType => address_type_name(bytes),
            Kind::Literal(_) | Kind::Mapped | Kind::Raw => value::hexadecimal(bytes),
        }
    }

    /// A comparison with a value, `operator` being empty for equality.
    pub(super) fn compared(&self, operator: &str, bytes: &[u8]) -> String {
        let zero = bytes.iter().all(|&byte| byte == 0);
        match (&self.kind, &self.mask) {
            // Any of these bits is set.
            (Kind::Bits(names), Some(mask)) if zero && operator == "!= " => {
                format!("{} {}", self.text, bit_names(names, mask))
            }
            (Kind::Typed(datatype), _) if operator.len() != 2 => match self.prefix(*datatype, bytes) {
                Some(prefix) => format!("{} {operator}{prefix}", self.text),
                None => format!("{} {operator}{}", self.masked_for_comparison(operator), self.spell(bytes)),
            },
            _ => format!("{} {operator}{}", self.masked_for_comparison(operator), self.spell(bytes)),
        }
    }

    fn masked_for_comparison(&self, operator: &str) -> String {
        match (&self.mask, operator) {
            (Some(_), "") => format!("{} ==", self.text_with_mask()),
            _ => self.text_with_mask(),
        }
    }

    /// The prefix that a mask, or a load of the first bytes alone, compares.
    fn prefix(&self, datatype: DataType, bytes: &[u8]) -> Option<String> {
        if !matches!(datatype, DataType::Ipv4Address | DataType::Ipv6Address) {
            return None;
        }
        let mut whole = bytes.to_vec();
        whole.resize(datatype.length(), 0);
        let length = match &self.mask {
            Some(mask) => {
                let last: Vec<u8> = whole.iter().zip(mask).map(|(byte, mask)| byte | !mask).collect();
                value::prefix_length(&whole, &last)?
            }
            None if bytes.len() < datatype.length() => u32::try_from(bytes.len() * 8).ok()?,
            None => return None,
        };
        Some(format!("{}/{length}", value::single(datatype, &whole)))
    }
}

fn bit_names(names: &[(u32, &str)], bytes: &[u8]) -> String {
    let Ok(bytes) = <[u8; 4]>::try_from(bytes) else {
        return value::hexadecimal(bytes);
    };
    let mut rest = u32::from_ne_bytes(bytes);
    let mut found = Vec::new();
    for (bit, name) in names {
        if rest & bit != 0 {
            found.push((*name).to_owned());
            rest &= !bit;
        }
    }
    if rest != 0 || found.is_empty() {
        found.push(format!("{rest:#x}"));
    }
    found.join(",")
}

fn address_type_name(bytes: &[u8]) -> String {
    let Ok(bytes) = <[u8; 4]>::try_from(bytes) else {
        return value::hexadecimal(bytes);
    };
    match u32::from_ne_bytes(bytes) {
        address_type::UNICAST => "unicast".to_owned(),
        address_type::LOCAL => "local".to_owned(),
        address_type::BROADCAST => "broadcast".to_owned(),
        address_type::MULTICAST => "multicast".to_owned(),
        other => other.to_string(),
    }
}

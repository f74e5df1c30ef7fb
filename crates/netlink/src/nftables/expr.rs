//! Rules and the expressions they consist of.

use super::register::Register;
use super::table::{Family, Name, TableId};
use super::verdict::Verdict;
use std::time::Duration;

pub use super::keys::{
    CmpOperator, CtKey, Direction, DynsetOperation, FibResult, MetaKey, NatKind, NumgenKind, PayloadBase,
    address_type, ct_state, ct_status, fib, nat,
};

/// A rule: expressions that are evaluated in order until one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The table it belongs to.
    pub table: TableId,
    /// The chain it belongs to.
    pub chain: Name,
    /// What it does, from left to right, until one expression does not match.
    pub expressions: Vec<Expr>,
    /// A comment for people.
    pub comment: Option<String>,
}

impl Rule {
    /// A rule without comment.
    pub fn new(table: &TableId, chain: impl Into<Name>, expressions: Vec<Expr>) -> Self {
        Self { table: table.clone(), chain: chain.into(), expressions, comment: None }
    }

    /// The same with a comment.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        /// From where the offset counts.
        base: PayloadBase,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Where they go.
        target: Register,
    },
    /// Loads something the kernel knows about the packet.
    Meta {
        /// What to load.
        key: MetaKey,
        /// Where it goes.
        target: Register,
    },
    /// Changes something the kernel keeps with the packet.
    SetMeta {
        /// What to change.
        key: MetaKey,
        /// The new value.
        source: Register,
    },
    /// Loads something of the packet's connection.
    Ct {
        /// What to load.
        key: CtKey,
        /// Of which direction, for keys that need it.
        direction: Option<Direction>,
        /// Where it goes.
        target: Register,
    },
    /// Changes something of the packet's connection.
    SetCt {
        /// What to change.
        key: CtKey,
        /// Of which direction, for keys that need it.
        direction: Option<Direction>,
        /// The new value.
        source: Register,
    },
    /// Asks the routing table.
    Fib {
        /// What to ask for.
        result: FibResult,
        /// What to look up, a mask of [`fib`] values.
        flags: u32,
        /// Where the answer goes.
        target: Register,
    },
    /// Compares a register with a value.
    Cmp {
        /// The register that is compared.
        source: Register,
        /// How.
        operator: CmpOperator,
        /// The value, as it stands in registers.
        value: Vec<u8>,
    },
    /// Compares a register with a range.
    Range {
        /// The register that is compared.
        source: Register,
        /// Matches outside the range.
        inverted: bool,
        /// First value of the range.
        from: Vec<u8>,
        /// Last value of the range.
        to: Vec<u8>,
    },
    /// Computes `(source & mask) ^ xor`. `and`, `or` and `xor` with constants are all of this form.
    Bitwise {
        /// The register with the operand.
        source: Register,
        /// Where the result goes.
        target: Register,
        /// Bits to keep.
        mask: Vec<u8>,
        /// Bits to turn over.
        xor: Vec<u8>,
    },
    /// Searches a set; without a target the rule goes on if the key is (not) in it.
    Lookup {
        /// The set or map.
        set: Name,
        /// First register of the key.
        key: Register,
        /// Where a map's value goes, [`Register::VERDICT`] for verdict maps.
        target: Option<Register>,
        /// Matches keys that are not in the set.
        inverted: bool,
    },
    /// Adds, renews or deletes an element of a set from the packet path.
    Dynset {
        /// The set or map.
        set: Name,
        /// What to do.
        operation: DynsetOperation,
        /// First register of the key.
        key: Register,
        /// First register of a map's value.
        data: Option<Register>,
        /// The element's timeout, if it differs from the set's.
        timeout: Option<Duration>,
    },
    /// Draws a number.
    Numgen {
        /// How.
        kind: NumgenKind,
        /// The number is below this, before the offset is added.
        modulus: u32,
        /// Added to the number.
        offset: u32,
        /// Where it goes.
        target: Register,
    },
    /// Loads a constant.
    Immediate {
        /// The constant, as it stands in registers.
        value: Vec<u8>,
        /// Where it goes.
        target: Register,
    },
    /// Decides about the packet.
    Verdict(Verdict),
    /// Changes the connection's source or destination.
    Nat {
        /// Source or destination.
        kind: NatKind,
        /// Family of the address.
        family: Family,
        /// First register of the address.
        address: Option<Register>,
        /// Register of the port.
        port: Option<Register>,
        /// A mask of [`nat`] values.
        flags: u32,
    },
    /// Changes the connection's source to the outgoing interface's address.
    Masquerade {
        /// A mask of [`nat`] values.
        flags: u32,
    },
    /// Takes the packet out of connection tracking. Only chains before the tracking hook may have it.
    Notrack,
    /// Answers the packet with an error.
    Reject(Reject),
    /// Counts packets and bytes.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// Counts with a named counter of the table.
    NamedCounter(Name),
    /// Matches up to a rate.
    Limit {
        /// Packets per unit.
        rate: u64,
        /// The unit in seconds.
        per: Duration,
        /// Packets above the rate that may come at once.
        burst: u32,
        /// Matches above the rate.
        inverted: bool,
    },
    /// Writes a line to the kernel's log.
    Log {
        /// Text in front of the line.
        prefix: String,
    },
    /// An expression, or a form of one, that this program does not model; kept as it came.
    Unknown {
        /// The kernel's name for it.
        name: String,
        /// The undecoded bytes.
        attributes: Vec<u8>,
    },
}

/// How to answer a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// With an ICMP (table of family ip) or ICMPv6 (ip6) error of this code.
    Icmp(u8),
    /// With a TCP reset; the rule must match TCP before.
    TcpReset,
    /// With an error of the packet's family (tables of family inet and bridge).
    Icmpx(u8),
    /// A kind this program has no name for.
    Other {
        /// The kernel's number.
        kind: u32,
        /// The number that the kernel uses.
        code: u8,
    },
}

impl Reject {
    /// ICMP "port unreachable", what nft's plain `reject` means in family ip.
    pub const ICMP_PORT_UNREACHABLE: Self = Self::Icmp(3);
    /// ICMPv6 "port unreachable", what nft's plain `reject` means in family ip6.
    pub const ICMPV6_PORT_UNREACHABLE: Self = Self::Icmp(4);
    /// "Port unreachable" of either family, for tables of family inet.
    pub const ICMPX_PORT_UNREACHABLE: Self = Self::Icmpx(1);

    /// "Port unreachable" for a table of the given family.
    pub fn port_unreachable(family: Family) -> Self {
        match family {
            Family::Ip => Self::ICMP_PORT_UNREACHABLE,
            Family::Ip6 => Self::ICMPV6_PORT_UNREACHABLE,
            _ => Self::ICMPX_PORT_UNREACHABLE,
        }
    }

    /// The kernel's number and the code.
    pub(crate) fn parts(self) -> (u32, u8) {
        match self {
            Self::Icmp(code) => (0, code),
            Self::TcpReset => (1, 0),
            Self::Icmpx(code) => (2, code),
            Self::Other { kind, code } => (kind, code),
        }
    }

    /// The value for the kernel's number and code.
    pub(crate) fn from_parts(kind: u32, code: u8) -> Self {
        match kind {
            0 => Self::Icmp(code),
            1 => Self::TcpReset,
            2 => Self::Icmpx(code),
            kind => Self::Other { kind, code },
        }
    }
}

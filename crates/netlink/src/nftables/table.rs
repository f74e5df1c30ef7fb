//! Tables and chains.

use super::codes::codes;
use std::fmt;
use std::sync::Arc;

/// The name of a table, chain, set or object; cheap to clone.
pub type Name = Arc<str>;

codes! {
    /// The packets a table sees.
    Family {
        /// IPv4 and IPv6 together.
        Inet = 1 "inet",
        /// IPv4.
        Ip = 2 "ip",
        /// ARP.
        Arp = 3 "arp",
        /// One network device.
        Netdev = 5 "netdev",
        /// Bridges.
        Bridge = 7 "bridge",
        /// IPv6.
        Ip6 = 10 "ip6",
    }
}

impl Family {
    /// The number as it stands in message headers.
    pub(crate) fn byte(self) -> u8 {
        u8::try_from(self.code()).unwrap_or(0)
    }
}

/// What identifies a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId {
    /// The table's family.
    pub family: Family,
    /// The table's name.
    pub name: Name,
}

impl TableId {
    /// Names a table.
    pub fn new(family: Family, name: impl Into<Name>) -> Self {
        Self { family, name: name.into() }
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.family, self.name)
    }
}

/// A table: the namespace of chains, sets and objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What identifies it.
    pub id: TableId,
    /// A comment for people.
    pub comment: Option<String>,
}

impl Table {
    /// A table without comment.
    pub fn new(id: &TableId) -> Self {
        Self { id: id.clone(), comment: None }
    }

    /// The same with a comment.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// A chain: rules that are evaluated in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The table it belongs to.
    pub table: TableId,
    /// Unique within the table.
    pub name: Name,
    /// Where packets enter it; `None` for a chain that is only jumped to.
    pub base: Option<BaseChain>,
    /// A comment for people.
    pub comment: Option<String>,
}

impl Chain {
    /// A regular chain.
    pub fn new(table: &TableId, name: impl Into<Name>) -> Self {
        Self { table: table.clone(), name: name.into(), base: None, comment: None }
    }

    /// A base chain with policy accept.
    pub fn base(table: &TableId, name: impl Into<Name>, kind: ChainKind, hook: Hook, priority: i32) -> Self {
        let base = BaseChain { kind, hook, priority, policy: Policy::Accept };
        Self { base: Some(base), ..Self::new(table, name) }
    }

    /// The same with a comment.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// Where a base chain hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// What its rules may do.
    pub kind: ChainKind,
    /// The point in the packet's path.
    pub hook: Hook,
    /// The order among the chains of the same hook; lower runs first.
    pub priority: i32,
    /// What happens to packets that no rule decides.
    pub policy: Policy,
}

/// What the rules of a base chain may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// Any packet.
    Filter,
    /// The first packet of each connection, for address translation.
    Nat,
    /// Locally made packets, routed again if changed.
    Route,
    /// A kind this program has no name for.
    Other(String),
}

impl ChainKind {
    /// The kernel's name.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
            Self::Other(name) => name,
        }
    }

    /// The kind for the kernel's name.
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "filter" => Self::Filter,
            "nat" => Self::Nat,
            "route" => Self::Route,
            other => Self::Other(other.to_owned()),
        }
    }
}

codes! {
    /// A point in the packet's path (families ip, ip6 and inet).
    Hook {
        /// Arrived, not yet routed.
        Prerouting = 0 "prerouting",
        /// For this host.
        Input = 1 "input",
        /// For another host.
        Forward = 2 "forward",
        /// Made by this host.
        Output = 3 "output",
        /// About to leave.
        Postrouting = 4 "postrouting",
        /// Before prerouting; inet only.
        Ingress = 5 "ingress",
    }
}

codes! {
    /// What happens at the end of a base chain.
    Policy {
        /// The packet is lost.
        Drop = 0 "drop",
        /// The packet goes on.
        Accept = 1 "accept",
    }
}

/// An object as the kernel lists it, with the number the kernel gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    /// The listed object itself.
    pub object: T,
    /// The kernel's number for it, unique within its table.
    pub handle: u64,
}

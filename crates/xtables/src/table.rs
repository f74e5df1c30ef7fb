//! The tables that can hold chains of ours.

use std::fmt;

/// A table of the kernel's packet filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "iptables' own names")]
pub enum Table {
    Filter,
    Nat,
    Mangle,
}

impl Table {
    /// The name as in `iptables -t`.
    pub fn as_str(self) -> &'static str {
        match self {
            Table::Filter => "filter",
            Table::Nat => "nat",
            Table::Mangle => "mangle",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

//! The tables that hold our chains.

use std::fmt;

/// A table of the kernel's packet filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Decides what passes.
    Filter,
    /// Rewrites addresses.
    Nat,
    /// Ours only for the canary.
    Mangle,
}

impl Table {
    /// The name that iptables knows.
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

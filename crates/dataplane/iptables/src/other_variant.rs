//! Rules of this mode in the implementation of iptables that is not used.

use std::fs;

use portwarden_model::Family;
use portwarden_xtables::{Programs, Table, Variant};

use crate::names::SERVICES;

/// The other implementation, if it holds rules of this mode: they apply beside ours, and nothing we do changes them. Such rules stay
/// behind when a node moves from one to the other; [`crate::cleanup`] with that variant removes them.
pub fn other_rules(family: Family, used: Variant) -> Option<Variant> {
    let other = match used {
        Variant::Nft if has_legacy_tables(family) => Variant::Legacy,
        Variant::Legacy => Variant::Nft,
        Variant::Nft | Variant::Installed => return None,
    };
    // Often not installed; then it was not used here either.
    let saved = Programs::new(family, other).save(Table::Nat, |_| false).ok()?;
    saved.has_chain(SERVICES).then_some(other)
}

/// Running the legacy programs would create their tables, so this asks the kernel.
fn has_legacy_tables(family: Family) -> bool {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == Table::Nat.as_str()))
}

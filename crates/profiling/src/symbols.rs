//! From addresses to functions and lines.

use std::collections::{BTreeSet, HashMap};
use std::ptr::without_provenance_mut;

use object::read::ReadCache;
use object::{Object, ObjectSymbol};

use crate::modules::Module;

/// A function at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// The functions at an address: the innermost of those that were inlined there first, the one that was called last.
pub(crate) fn symbols(address: u64) -> Vec<Symbol> {
    let mut found = Vec::new();
    let Ok(address) = usize::try_from(address) else { return found };
    // The library expects where a call returns to, and looks one byte before it.
    backtrace::resolve(without_provenance_mut(address.saturating_add(1)), |symbol| {
        if let Some(name) = symbol.name() {
            found.push(Symbol {
                // Without the hash that the compiler appends.
                name: format!("{name:#}"),
                file: symbol.filename().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default(),
                line: symbol.lineno().unwrap_or(0),
            });
        }
    });
    found
}

/// The functions at addresses of this process, as far as they are known.
pub fn functions_at(addresses: impl Iterator<Item = u64>) -> Vec<(u64, String)> {
    let mut names = linker_names(&crate::modules::modules(), &addresses.collect());
    names.sort();
    names
}

/// The names of the functions that hold these addresses, as the linker knows them. Debugging information is kept small and often has only
/// the last part of a name (`poll` instead of `tokio::runtime::task::harness::Harness::poll`).
pub(crate) fn linker_names(modules: &[Module], addresses: &BTreeSet<u64>) -> Vec<(u64, String)> {
    let mut names = HashMap::new();
    for module in modules {
        let Some(file) = module.open() else { continue };
        let cache = ReadCache::new(file);
        let Ok(file) = object::File::parse(&cache) else { continue };
        let Some(base) = module.base(&file) else { continue };
        // Shared libraries often have only the names that others may use.
        for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.size() > 0) {
            let start = base.wrapping_add(symbol.address());
            for address in addresses.range(start..start.saturating_add(symbol.size())) {
                if let Ok(name) = symbol.name_bytes()
                    && module.range.contains(address)
                {
                    names
                        .entry(*address)
                        .or_insert_with(|| readable(format!("{:#}", backtrace::SymbolName::new(name))));
                }
            }
        }
    }
    names.into_iter().collect()
}

/// `Thing::method` of `<Thing as Trait>::method`: `pprof` cuts off everything in angle brackets, and `::method` alone says nothing.
fn readable(name: String) -> String {
    let Some(inner) = name.strip_prefix('<') else { return name };
    let (mut depth, mut kind) = (1, None);
    for (position, character) in inner.char_indices() {
        match character {
            '<' => depth += 1,
            // An arrow is no bracket.
            '>' if !inner[..position].ends_with('-') => depth -= 1,
            ' ' if depth == 1 && kind.is_none() && inner[position..].starts_with(" as ") => {
                kind = Some(&inner[..position]);
            }
            _ => {}
        }
        if depth == 0 {
            let kind = kind.unwrap_or(&inner[..position]);
            return format!("{kind}{}", &inner[position + 1..]);
        }
    }
    name
}

/// Gives back the memory that the library keeps between lookups: the debugging information of the whole program.
pub(crate) fn forget_symbols() {
    backtrace::clear_symbol_cache();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_with_what_they_are_about() {
        for (name, wanted) in [
            ("a::b", "a::b"),
            ("<a::B as c::D>::e", "a::B::e"),
            ("<a::B<c::D as e::F> as g::H<i>>::j::{{closure}}", "a::B<c::D as e::F>::j::{{closure}}"),
            ("<a::B>::c", "a::B::c"),
            ("<fn() -> a as b>::c", "fn() -> a::c"),
            ("<broken", "<broken"),
        ] {
            assert_eq!(readable(name.to_owned()), wanted, "{name}");
        }
    }
}

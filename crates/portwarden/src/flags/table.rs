//! Every flag.

mod groups;

use super::Program;
use super::value::Slot;

pub(super) use groups::GROUPS;

/// Flags of one subject, in the order of help.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) flags: &'static [Flag],
}

/// One flag.
pub(super) struct Flag {
    /// Its name without dashes in front.
    pub(super) name: &'static str,
    /// Its one-letter name.
    pub(super) short: Option<char>,
    /// Its type and the field it fills.
    pub(super) slot: Slot,
    /// Its default, as it is shown.
    pub(super) default: &'static str,
    /// What it does, in a sentence or a few.
    pub(super) help: &'static str,
    /// What to do instead, for a flag that should no longer be used.
    pub(super) deprecated: Option<&'static str>,
    /// Whether it counts even with a configuration file.
    pub(super) beside_file: bool,
    /// Whether kube-proxy does not have it.
    pub(super) own: bool,
}

impl Flag {
    const fn new(name: &'static str, slot: Slot, default: &'static str, help: &'static str) -> Self {
        Flag { name, short: None, slot, default, help, deprecated: None, beside_file: false, own: false }
    }

    const fn short(self, letter: char) -> Self {
        Flag { short: Some(letter), ..self }
    }

    const fn deprecated(self, instead: &'static str) -> Self {
        Flag { deprecated: Some(instead), ..self }
    }

    const fn beside_file(self) -> Self {
        Flag { beside_file: true, ..self }
    }

    const fn own(self) -> Self {
        Flag { own: true, beside_file: true, ..self }
    }
}

/// Every flag the program knows under this name.
pub(super) fn all(program: Program) -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags).filter(move |flag| visible(flag, program))
}

/// Whether the program knows the flag under this name.
pub(super) fn visible(flag: &Flag, program: Program) -> bool {
    !flag.own || program == Program::Portwarden
}

/// The flag of that name, with dashes or underscores.
pub(super) fn find(program: Program, name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    all(program).find(|flag| flag.name == name)
}

/// The flag of that letter.
pub(super) fn find_short(program: Program, letter: char) -> Option<&'static Flag> {
    all(program).find(|flag| flag.short == Some(letter))
}

#[cfg(test)]
mod tests;

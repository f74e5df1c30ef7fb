//! Every option once: its flag, its field in the file, its default, its rules, what a change of it needs.
//!
//! | file | what |
//! |---|---|
//! | `table.rs` | the options, one row each |
//! | `kind.rs` | the types of options: how flags and fields are read |
//! | `value.rs` | a value as written, and how it is shown |
//! | `rules.rs` | the final types, with the rules that belong to a type |
//!
//! A new option is a row in the table. Rules that involve other options are in `validate.rs`; what the program reads is in `typed.rs`.

mod kind;
mod rules;
mod table;
mod value;

use std::marker::PhantomData;

use super::reload::Effect;
use super::validate::Check;
use crate::modes::{Mode, Section};

pub(crate) use kind::Kind;
pub use rules::{FromValue, Notes};
pub(crate) use rules::{Positive, Within};
use table::Index;
pub use table::*;
pub use value::{VModule, Value, Values};

/// Identifies an option, and says which type its value has in the end.
#[derive(Debug)]
pub struct Key<T> {
    pub(crate) index: usize,
    typed: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    pub(crate) fn row(self) -> &'static Row {
        &TABLE[self.index]
    }

    const fn new(index: usize) -> Self {
        Key { index, typed: PhantomData }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

/// One option.
pub(crate) struct Row {
    /// The path in the file; empty for an option that only has a flag.
    pub(crate) field: &'static str,
    pub(crate) kind: Kind,
    /// The default as a flag would write it; empty means zero, or nothing.
    default: &'static str,
    /// The name of the flag; empty for an option that only has a field.
    pub(crate) flag: &'static str,
    pub(crate) letter: Option<char>,
    pub(crate) group: Group,
    pub(crate) help: &'static str,
    /// What to do instead, for a flag that should no longer be used.
    pub(crate) deprecated: Option<&'static str>,
    /// Whether the flag counts even with a configuration file.
    pub(crate) beside_file: bool,
    /// Whether kube-proxy does not have it.
    pub(crate) own: bool,
    /// The default of the flag, where it is not that of the field.
    flag_default: &'static str,
    /// The option whose flag sets this field as well.
    follows: Option<Index>,
    /// Whether a zero in the file differs from nothing.
    pub(crate) zero_counts: bool,
    pub(crate) scope: Scope,
    pub(crate) out_of_scope: OutOfScope,
    /// Whether a zero is not shown at all.
    pub(crate) hidden_if_zero: bool,
    /// Whether the default is not shown at all: kube-proxy does not know the field.
    pub(crate) hidden_if_default: bool,
    /// The name in messages, which kube-proxy builds from the names of types; empty means the field with capital letters.
    path: &'static str,
    /// Whether the rules hold even where the option has no effect.
    pub(crate) always_checked: bool,
    /// The rules of its type.
    pub(crate) rules: fn(Option<&Value>, &mut Notes),
    /// A rule that involves other options.
    pub(in crate::config) check: Option<fn(&mut Check<'_>)>,
    /// What a change needs.
    pub(crate) reload: &'static [Effect],
}

/// In which modes an option has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Always,
    Never,
    Only(Mode),
    /// The modes whose sync periods are in that section.
    Periods(Section),
    /// The modes whose masquerade settings are in that section.
    Masquerade(Section),
}

impl Scope {
    pub(crate) fn includes(self, mode: Mode) -> bool {
        match self {
            Scope::Always => true,
            Scope::Never => false,
            Scope::Only(only) => only == mode,
            Scope::Periods(section) => mode.entry().periods == section,
            Scope::Masquerade(section) => mode.entry().masquerade == section,
        }
    }
}

/// How an option is shown in a mode where it has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutOfScope {
    AsWritten,
    Zero,
    /// Not at all, and the file's field is unknown.
    Unknown,
}

/// The subjects by which help groups flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Actions,
    Sources,
    Dataplane,
    PodTraffic,
    Iptables,
    Ipvs,
    Userspace,
    Ebpf,
    Kernel,
    Servers,
    Logs,
}

impl Group {
    pub(crate) const TITLES: [(Group, &str); 11] = [
        (Group::Actions, "What to do"),
        (Group::Sources, "Where the configuration and the objects come from"),
        (Group::Dataplane, "The dataplane"),
        (Group::PodTraffic, "Pod traffic"),
        (Group::Iptables, "Mode iptables (and, where said, others)"),
        (Group::Ipvs, "Mode ipvs"),
        (Group::Userspace, "Mode userspace"),
        (Group::Ebpf, "Mode ebpf"),
        (Group::Kernel, "The node's kernel"),
        (Group::Servers, "Health, metrics, the live page and profiles"),
        (Group::Logs, "Logs"),
    ];
}

/// What an option is set to if nothing else is said.
impl Row {
    pub(crate) fn default_value(&self) -> Option<Value> {
        self.parse_default(self.default)
    }

    /// The flag's default, which differs from the field's in one case.
    pub(crate) fn flag_default_value(&self) -> Option<Value> {
        self.parse_default(if self.flag_default.is_empty() { self.default } else { self.flag_default })
    }

    fn parse_default(&self, text: &str) -> Option<Value> {
        if text.is_empty() { self.kind.zero() } else { self.kind.parse(text, None).ok().flatten() }
    }

    /// The flag's default in help and `/flagz`.
    pub(crate) fn shown_default(&self) -> String {
        match self.flag_default_value() {
            Some(value) => value.to_text(),
            None if self.kind == Kind::Texts => "[]".to_owned(),
            None => String::new(),
        }
    }

    /// The option whose flag sets this field, as its place in the table.
    pub(crate) fn set_by(&self, index: usize) -> usize {
        self.follows.map_or(index, |option| option as usize)
    }

    /// The name in messages.
    pub(crate) fn path(&self) -> String {
        if !self.path.is_empty() || self.field.starts_with("logging.") {
            return if self.path.is_empty() { self.field } else { self.path }.to_owned();
        }
        let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
        self.field.split('.').map(capital).collect::<Vec<_>>().join(".")
    }
}

impl Row {
    /// What holds unless a row says otherwise.
    const PLAIN: Row = Row {
        field: "",
        kind: Kind::Text,
        default: "",
        flag: "",
        letter: None,
        group: Group::Actions,
        help: "",
        deprecated: None,
        beside_file: false,
        own: false,
        flag_default: "",
        follows: None,
        zero_counts: false,
        scope: Scope::Always,
        out_of_scope: OutOfScope::AsWritten,
        hidden_if_zero: false,
        hidden_if_default: false,
        path: "",
        always_checked: false,
        rules: |_, _| (),
        check: None,
        reload: &[],
    };
}

fn rules_of<T: FromValue>(value: Option<&Value>, notes: &mut Notes) {
    T::from_value(value, notes);
}

/// The options of the configuration, with their places in the table.
pub(crate) fn rows() -> impl Iterator<Item = (usize, &'static Row)> {
    TABLE.iter().enumerate()
}

/// The options that the file has.
pub(crate) fn fields() -> impl Iterator<Item = (usize, &'static Row)> {
    rows().filter(|(_, row)| !row.field.is_empty())
}

/// The options that have a flag.
pub(crate) fn flags() -> impl Iterator<Item = (usize, &'static Row)> {
    rows().filter(|(_, row)| !row.flag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_can_be_read() {
        for (_, row) in rows() {
            for default in [row.default, row.flag_default].iter().filter(|default| !default.is_empty()) {
                let value = row.kind.parse(default, None);
                let shown = value.as_ref().ok().and_then(Option::as_ref).map(Value::to_text);
                assert_eq!(shown.as_deref(), Some(*default), "{} {}: {value:?}", row.field, row.flag);
            }
        }
    }

    #[test]
    fn fields_and_flags_are_there_once() {
        for (index, row) in rows() {
            assert!(!row.field.is_empty() || !row.flag.is_empty(), "row {index}");
            let same = |other: &Row| {
                (!row.field.is_empty() && other.field == row.field)
                    || (!row.flag.is_empty() && other.flag == row.flag)
            };
            assert_eq!(rows().filter(|(_, other)| same(other)).count(), 1, "{} {}", row.field, row.flag);
        }
    }
}

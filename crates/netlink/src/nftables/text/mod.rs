//! The ruleset in nft's syntax, for logs, goldens and reviews.

mod value;

use super::element::{Element, Value};
use super::set::{Set, SetKind};
use super::transaction::{Object, Operation, Verb};
use std::fmt;

impl fmt::Display for Verb {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Add => "add",
            Self::Create => "create",
            Self::Insert => "insert",
            Self::Replace => "replace",
            Self::Delete => "delete",
            Self::Destroy => "destroy",
            Self::Flush => "flush",
        })
    }
}

impl Operation {
    /// The operation in a few words for an error, with the element that it is about if known.
    pub fn describe(&self, element: Option<usize>) -> String {
        let verb = self.verb;
        match &self.object {
            Object::Table(table) => format!("{verb} table {}", table.id),
            Object::Chain(chain) => format!("{verb} chain {} {}", chain.table, chain.name),
            Object::Rule { rule, .. } => format!("{verb} rule {} {}", rule.table, rule.chain),
            Object::Set(set) => format!("{verb} {} {} {}", set.word(), set.table, set.name),
            Object::Counter(counter) => format!("{verb} counter {} {}", counter.table, counter.name),
            Object::Elements { set, elements } => {
                match element.and_then(|index| elements.iter().nth(index)) {
                    Some(element) => {
                        format!("{verb} element {} {} {{ {} }}", set.table, set.name, element.text(set))
                    }
                    None => format!("{verb} {} elements {} {}", elements.len(), set.table, set.name),
                }
            }
        }
    }
}

impl Element {
    /// The element in nft's syntax, given the set it belongs to.
    pub fn text(&self, set: &Set) -> String {
        let mut text = match &self.key_end {
            Some(end) => value::range(&set.key, &self.key, end),
            None => value::fields(&set.key, &self.key),
        };
        if let Some(timeout) = self.timeout {
            text.push_str(&format!(" timeout {}", value::duration(timeout)));
        }
        if let Some(expiration) = self.expiration {
            text.push_str(&format!(" expires {}", value::duration(expiration)));
        }
        if let Some(comment) = &self.comment {
            text.push_str(&format!(" comment {}", value::quoted(comment)));
        }
        match (&self.value, &set.kind) {
            (Some(Value::Data(data)), SetKind::Map(types)) => {
                text.push_str(&format!(" : {}", value::fields(types, data)));
            }
            (Some(Value::Data(data)), _) => text.push_str(&format!(" : {}", value::hexadecimal(data))),
            (Some(Value::Verdict(verdict)), _) => text.push_str(&format!(" : {verdict}")),
            (None, _) => {}
        }
        text
    }
}

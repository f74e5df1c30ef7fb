//! The ruleset in nft's syntax, for logs, goldens and reviews.

mod rule;
mod symbol;
mod value;

use super::element::{Element, Elements, Value};
use super::expr::Rule;
use super::set::{DataType, Set, SetFlags, SetKind};
use super::table::{Chain, Table};
use super::transaction::{Counter, Object, Operation, Transaction, Verb};
use std::fmt;

/// One command a line, as `nft -f` reads them. Elements stand on lines of their own.
impl fmt::Display for Transaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in self.operations() {
            writeln!(formatter, "{operation}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb;
        // To add or create takes the whole object, anything else only its name.
        let whole = matches!(verb, Verb::Add | Verb::Create | Verb::Insert | Verb::Replace);
        match &self.object {
            Object::Table(table) => {
                write!(formatter, "{verb} table {}", table.id)?;
                if whole { table_body(formatter, table) } else { Ok(()) }
            }
            Object::Chain(chain) => {
                write!(formatter, "{verb} chain {} {}", chain.table, chain.name)?;
                if whole { chain_body(formatter, chain) } else { Ok(()) }
            }
            Object::Rule { rule, handle } => {
                write!(formatter, "{verb} rule {} {}", rule.table, rule.chain)?;
                if let Some(handle) = handle {
                    write!(formatter, " handle {handle}")?;
                }
                if whole { write!(formatter, " {rule}") } else { Ok(()) }
            }
            Object::Set(set) => {
                write!(formatter, "{verb} {} {} {}", set.word(), set.table, set.name)?;
                if whole { set_body(formatter, set) } else { Ok(()) }
            }
            Object::Elements { set, elements } => elements_text(formatter, verb, set, elements),
            Object::Counter(counter) => {
                write!(formatter, "{verb} counter {} {}", counter.table, counter.name)?;
                if whole { counter_body(formatter, counter) } else { Ok(()) }
            }
        }
    }
}

/// What a rule says and its comment, without its place.
impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&rule::body(self))?;
        match &self.comment {
            Some(comment) => write!(formatter, " comment {}", value::quoted(comment)),
            None => Ok(()),
        }
    }
}

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

fn table_body(formatter: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    match &table.comment {
        Some(comment) => write!(formatter, " {{ comment {} ; }}", value::quoted(comment)),
        None => Ok(()),
    }
}

fn chain_body(formatter: &mut fmt::Formatter<'_>, chain: &Chain) -> fmt::Result {
    if chain.base.is_none() && chain.comment.is_none() {
        return Ok(());
    }
    formatter.write_str(" {")?;
    if let Some(base) = &chain.base {
        let kind = base.kind.as_str();
        write!(formatter, " type {kind} hook {} priority {} ;", base.hook, base.priority)?;
        write!(formatter, " policy {} ;", base.policy)?;
    }
    comment_in_body(formatter, chain.comment.as_deref())?;
    formatter.write_str(" }")
}

fn set_body(formatter: &mut fmt::Formatter<'_>, set: &Set) -> fmt::Result {
    let data: &[DataType] = match &set.kind {
        SetKind::Map(data) => data,
        _ => &[],
    };
    // An integer has no type of its own in nft's language, only the type of an expression.
    let spelled = set.key.contains(&DataType::Integer) || data.contains(&DataType::Integer);
    let fields = |fields: &[DataType]| {
        let spell = |field: &DataType| if spelled { spelling(*field) } else { field.to_string() };
        fields.iter().map(spell).collect::<Vec<_>>().join(" . ")
    };
    write!(formatter, " {{ {} {}", if spelled { "typeof" } else { "type" }, fields(&set.key))?;
    match &set.kind {
        SetKind::Set => {}
        SetKind::Map(data) => write!(formatter, " : {}", fields(data))?,
        SetKind::VerdictMap => formatter.write_str(" : verdict")?,
        SetKind::ObjectMap => formatter.write_str(" : object")?,
    }
    formatter.write_str(" ;")?;
    let names = [
        (SetFlags::CONSTANT, "constant"),
        (SetFlags::DYNAMIC, "dynamic"),
        (SetFlags::INTERVAL, "interval"),
        (SetFlags::TIMEOUT, "timeout"),
    ];
    let flags: Vec<_> =
        names.iter().filter(|(flag, _)| set.flags.contains(*flag)).map(|(_, name)| *name).collect();
    if !flags.is_empty() {
        write!(formatter, " flags {} ;", flags.join(","))?;
    }
    if let Some(size) = set.size {
        write!(formatter, " size {size} ;")?;
    }
    if let Some(timeout) = set.timeout {
        write!(formatter, " timeout {} ;", value::duration(timeout))?;
    }
    comment_in_body(formatter, set.comment.as_deref())?;
    formatter.write_str(" }")
}

/// An expression with the field's type.
fn spelling(field: DataType) -> String {
    match field {
        DataType::Integer => "numgen random mod 65536".to_owned(),
        DataType::Ipv4Address => "ip daddr".to_owned(),
        DataType::Ipv6Address => "ip6 daddr".to_owned(),
        DataType::Protocol => "meta l4proto".to_owned(),
        DataType::Service => "th dport".to_owned(),
        DataType::Mark => "meta mark".to_owned(),
        DataType::InterfaceIndex => "meta iif".to_owned(),
        DataType::ClassId => "meta priority".to_owned(),
        DataType::InterfaceName => "iifname".to_owned(),
        DataType::Other { .. } => field.to_string(),
    }
}

fn elements_text(
    formatter: &mut fmt::Formatter<'_>,
    verb: Verb,
    set: &Set,
    elements: &Elements,
) -> fmt::Result {
    if elements.is_empty() {
        return write!(formatter, "# {verb} no element {} {}", set.table, set.name);
    }
    write!(formatter, "{verb} element {} {} {{", set.table, set.name)?;
    let alone = elements.len() == 1;
    for element in elements.iter() {
        write!(
            formatter,
            "{}{}{}",
            if alone { " " } else { "\n\t" },
            element.text(set),
            if alone { "" } else { "," }
        )?;
    }
    formatter.write_str(if alone { " }" } else { "\n}" })
}

fn counter_body(formatter: &mut fmt::Formatter<'_>, counter: &Counter) -> fmt::Result {
    write!(formatter, " {{ packets {} bytes {} ;", counter.packets, counter.bytes)?;
    comment_in_body(formatter, counter.comment.as_deref())?;
    formatter.write_str(" }")
}

fn comment_in_body(formatter: &mut fmt::Formatter<'_>, comment: Option<&str>) -> fmt::Result {
    match comment {
        Some(comment) => write!(formatter, " comment {} ;", value::quoted(comment)),
        None => Ok(()),
    }
}

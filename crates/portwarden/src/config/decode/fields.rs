//! Reads the fields of a mapping one by one, and tells what was left over or had the wrong type.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::{Remark, TypeProblem};
use crate::config::document::FlushFrequency;
use crate::config::duration::GoDuration;
use crate::config::quantity::Quantity;
use crate::config::tree::{Node, Value};

/// What came up while reading.
#[derive(Default)]
pub(super) struct Report {
    pub(super) remarks: Vec<Remark>,
    pub(super) problems: Vec<TypeProblem>,
}

/// The fields of one mapping that nobody has read yet. `null` is the same as absent, for every type.
pub(super) struct Fields<'r> {
    path: String,
    unread: BTreeMap<String, Node>,
    report: &'r RefCell<Report>,
}

impl<'r> Fields<'r> {
    pub(super) fn open(path: String, node: Node, report: &'r RefCell<Report>) -> Self {
        let mut fields = Fields { path, unread: BTreeMap::new(), report };
        match node.value {
            Value::Map(entries) => {
                for (name, node) in entries {
                    let line = node.line;
                    if fields.unread.insert(name.clone(), node).is_some() {
                        let path = fields.child(&name);
                        report.borrow_mut().remarks.push(Remark::Repeated { path, line });
                    }
                }
            }
            Value::Null => {}
            other => fields.problem(
                fields.path.clone(),
                node.line,
                format!("expected a mapping, found {}", other.describe()),
            ),
        }
        fields
    }

    pub(super) fn close(self) {
        for (name, node) in &self.unread {
            let path = self.child(name);
            self.report.borrow_mut().remarks.push(Remark::Unknown { path, line: node.line });
        }
    }

    fn child(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn problem(&self, path: String, line: u64, message: String) {
        self.report.borrow_mut().problems.push(TypeProblem { path, line, message });
    }

    /// Reads a field with a function that explains itself when the value does not suit it.
    fn read<T>(&mut self, name: &str, read: impl FnOnce(&Value) -> Result<T, String>) -> Option<T> {
        let node = self.unread.remove(name)?;
        if matches!(node.value, Value::Null) {
            return None;
        }
        read(&node.value).map_err(|message| self.problem(self.child(name), node.line, message)).ok()
    }

    pub(super) fn section<T: Default>(&mut self, name: &str, read: impl FnOnce(&mut Fields<'r>) -> T) -> T {
        let Some(node) = self.unread.remove(name) else { return T::default() };
        let mut fields = Fields::open(self.child(name), node, self.report);
        let section = read(&mut fields);
        fields.close();
        section
    }

    pub(super) fn list<T>(&mut self, name: &str, read: impl Fn(&mut Fields<'r>) -> T) -> Vec<T> {
        let Some(items) = self.read(name, items) else { return Vec::new() };
        let mut list = Vec::with_capacity(items.len());
        for (index, node) in items.into_iter().enumerate() {
            let mut fields = Fields::open(format!("{}[{index}]", self.child(name)), node, self.report);
            list.push(read(&mut fields));
            fields.close();
        }
        list
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.read(name, text)
    }

    pub(super) fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        let items = self.read(name, items)?;
        let mut list = Vec::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            match &node.value {
                Value::Null => list.push(String::new()),
                value => match text(value) {
                    Ok(text) => list.push(text),
                    Err(message) => {
                        self.problem(format!("{}[{index}]", self.child(name)), node.line, message);
                    }
                },
            }
        }
        Some(list)
    }

    pub(super) fn switch(&mut self, name: &str) -> Option<bool> {
        self.read(name, switch)
    }

    pub(super) fn switches(&mut self, name: &str) -> Option<BTreeMap<String, bool>> {
        let node = self.unread.remove(name)?;
        if matches!(node.value, Value::Null) {
            return None;
        }
        let mut fields = Fields::open(self.child(name), node, self.report);
        let names: Vec<_> = fields.unread.keys().cloned().collect();
        Some(names.into_iter().map(|name| (name.clone(), fields.switch(&name).unwrap_or_default())).collect())
    }

    pub(super) fn number<T: TryFrom<i128>>(&mut self, name: &str) -> Option<T> {
        self.read(name, |value| {
            let number = whole(value)?;
            T::try_from(number).map_err(|_| format!("{number} is out of range"))
        })
    }

    pub(super) fn fraction(&mut self, name: &str) -> Option<f32> {
        self.read(name, |value| match value {
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what a 32-bit field asks for")]
            Value::Float(number) => Ok(*number as f32),
            Value::Integer(number) => Ok(*number as f32),
            other => Err(format!("expected a number, found {}", other.describe())),
        })
    }

    pub(super) fn duration(&mut self, name: &str) -> Option<GoDuration> {
        self.read(name, |value| match value {
            Value::Text(text) => GoDuration::parse(text).map_err(|error| error.to_string()),
            other => Err(format!("expected a duration such as \"30s\", found {}", other.describe())),
        })
    }

    pub(super) fn flush_frequency(&mut self, name: &str) -> Option<FlushFrequency> {
        self.read(name, |value| match value {
            Value::Text(text) => {
                let duration = GoDuration::parse(text).map_err(|error| error.to_string())?;
                Ok(FlushFrequency { duration, as_number: false })
            }
            other => {
                let number = whole(other).map_err(|_| {
                    format!(
                        "expected a duration such as \"5s\" or a number of nanoseconds, found {}",
                        other.describe()
                    )
                })?;
                let nanoseconds = i64::try_from(number).map_err(|_| format!("{number} is out of range"))?;
                Ok(FlushFrequency { duration: GoDuration::from_nanos(nanoseconds), as_number: true })
            }
        })
    }

    pub(super) fn quantity(&mut self, name: &str) -> Option<Quantity> {
        self.read(name, |value| match value {
            Value::Text(text) => Quantity::parse(text.trim()).map_err(|error| error.to_string()),
            Value::Integer(number) => Quantity::parse(&number.to_string()).map_err(|error| error.to_string()),
            Value::Float(number) => Quantity::parse(&number.to_string()).map_err(|error| error.to_string()),
            other => Err(format!("expected a quantity such as \"64Ki\", found {}", other.describe())),
        })
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        other @ (Value::Bool(_) | Value::Integer(_) | Value::Float(_)) => {
            Err(format!("expected text, found {} (put it in quotes)", other.describe()))
        }
        other => Err(format!("expected text, found {}", other.describe())),
    }
}

fn switch(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(switch) => Ok(*switch),
        other => Err(format!("expected true or false, found {}", other.describe())),
    }
}

fn items(value: &Value) -> Result<Vec<Node>, String> {
    match value {
        Value::List(items) => Ok(items.clone()),
        other => Err(format!("expected a list, found {}", other.describe())),
    }
}

/// A whole number; YAML's `5.0` is one.
fn whole(value: &Value) -> Result<i128, String> {
    match value {
        Value::Integer(number) => Ok(*number),
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 64 bits, by the guard")]
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e18 => Ok(*number as i128),
        other => Err(format!("expected a whole number, found {}", other.describe())),
    }
}

//! The value of an option as it was written, and a value for every option.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{FromValue, Key, Notes, TABLE};
use crate::config::duration::GoDuration;
use crate::config::quantity::Quantity;
use crate::flags::VersionRequest;
use crate::flags::text::join_with_commas;

/// One value; only its type has been checked.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Switch(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction, such as `clientConnection.qps`.
    Number(f32),
    /// A duration in Go's notation.
    Duration(GoDuration),
    /// A duration that remembers whether it was written as a bare number of nanoseconds.
    Flush {
        /// The longest time a log line may wait.
        duration: GoDuration,
        /// Whether it was written as a bare number.
        as_number: bool,
    },
    /// Text, a name, an address or a path.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// Feature gates.
    Gates(BTreeMap<String, bool>),
    /// Verbosity by source file.
    VModule(Vec<VModule>),
    /// An amount of bytes.
    Quantity(Quantity),
    /// What `--version` asks for.
    Version(VersionRequest),
}

/// One `pattern=N` of `vmodule`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VModule {
    /// A source file's name without its ending, with `*` and `?`.
    pub file_pattern: String,
    /// How much it logs.
    pub verbosity: u32,
}

impl Value {
    /// Whether kube-proxy does not distinguish the value from an absent one.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Value::Switch(value) => !value,
            Value::Int(value) => *value == 0,
            Value::Number(value) => *value == 0.0,
            Value::Duration(duration) | Value::Flush { duration, .. } => *duration == GoDuration::ZERO,
            Value::Text(text) => text.is_empty(),
            Value::Texts(_) | Value::Version(_) => false,
            Value::Gates(gates) => gates.is_empty(),
            Value::VModule(items) => items.is_empty(),
            Value::Quantity(quantity) => quantity.value() == 0,
        }
    }

    /// This value of a flag on top of the file's.
    pub(crate) fn over(self, below: Option<&Value>) -> Value {
        match (self, below) {
            (Value::VModule(mut items), Some(Value::VModule(below))) => {
                items.extend(below.iter().cloned());
                Value::VModule(items)
            }
            (Value::Flush { duration, .. }, Some(Value::Flush { as_number, .. })) => {
                Value::Flush { duration, as_number: *as_number }
            }
            (value, _) => value,
        }
    }

    /// As `/flagz` shows it.
    pub(crate) fn to_text(&self) -> String {
        let pairs = |pairs: Vec<String>| pairs.join(",");
        match self {
            Value::Switch(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Number(value) => value.to_string(),
            Value::Duration(duration) | Value::Flush { duration, .. } => duration.to_string(),
            Value::Text(text) => text.clone(),
            Value::Texts(items) => format!("[{}]", join_with_commas(items)),
            Value::Gates(gates) => pairs(gates.iter().map(|(name, on)| format!("{name}={on}")).collect()),
            Value::VModule(items) => {
                pairs(items.iter().map(|item| format!("{}={}", item.file_pattern, item.verbosity)).collect())
            }
            Value::Quantity(quantity) => quantity.to_string(),
            Value::Version(request) => request.to_string(),
        }
    }

    /// As `/configz` shows it.
    pub(crate) fn to_json(&self) -> Json {
        match self {
            Value::Switch(value) => json!(value),
            Value::Int(value) => json!(value),
            Value::Number(value) => number(*value),
            Value::Flush { duration, as_number: true } => json!(duration.as_nanos()),
            Value::Texts(items) => json!(items),
            Value::Gates(gates) => json!(gates),
            Value::VModule(items) => items
                .iter()
                .map(|item| json!({"filePattern": item.file_pattern, "verbosity": item.verbosity}))
                .collect(),
            Value::Duration(_)
            | Value::Flush { .. }
            | Value::Text(_)
            | Value::Quantity(_)
            | Value::Version(_) => json!(self.to_text()),
        }
    }
}

/// Whole numbers without a decimal point, others with as few digits as distinguish them, both as Go prints them.
fn number(number: f32) -> Json {
    // The largest whole number below which every f32 prints alike in both languages.
    const PLAIN: f32 = 1e15;
    if number.fract() == 0.0 && number.abs() < PLAIN {
        #[expect(clippy::cast_possible_truncation, reason = "whole and small, by the condition")]
        return json!(number as i64);
    }
    // Widening 0.1f32 directly would print 0.10000000149011612.
    json!(number.to_string().parse().unwrap_or(f64::from(number)))
}

/// A value for each option that has one: what flags or a file say, or both together.
#[derive(Debug, Clone, PartialEq)]
pub struct Values(Vec<Option<Value>>);

impl Default for Values {
    fn default() -> Self {
        Values(vec![None; TABLE.len()])
    }
}

impl Values {
    /// The value of an option, as written.
    pub fn value<T>(&self, key: Key<T>) -> Option<&Value> {
        self.at(key.index)
    }

    /// Sets or clears the value of an option.
    pub fn set<T>(&mut self, key: Key<T>, value: Option<Value>) {
        self.set_at(key.index, value);
    }

    /// The value of an option in its final type. What breaks the rules of that type is replaced by a harmless value; validation reports it.
    pub fn get<T: FromValue>(&self, key: Key<T>) -> T {
        T::from_value(self.value(key), &mut Notes::default())
    }

    pub(crate) fn text<T>(&self, key: Key<T>) -> &str {
        match self.value(key) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Sets what has a value in `other`.
    pub(crate) fn overlay(&mut self, other: &Values) {
        for (place, value) in self.0.iter_mut().zip(&other.0) {
            if value.is_some() {
                place.clone_from(value);
            }
        }
    }

    pub(crate) fn at(&self, index: usize) -> Option<&Value> {
        self.0.get(index).and_then(Option::as_ref)
    }

    pub(crate) fn set_at(&mut self, index: usize, value: Option<Value>) {
        if let Some(place) = self.0.get_mut(index) {
            *place = value;
        }
    }
}

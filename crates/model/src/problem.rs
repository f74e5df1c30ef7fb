//! What is wrong with an object: reported once, never fatal.

use std::fmt;

/// One part of an object that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Kind and name of the object, for example `Service demo/web`.
    pub object: String,
    /// The path of the field, for example `spec.externalIPs[2]`.
    pub field: String,
    /// What is wrong and what happens instead.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.field, self.text)
    }
}

/// Collects what is wrong with one object while it is read.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    object: String,
    found: Vec<Problem>,
}

impl Problems {
    /// For the object with this kind and name.
    pub(crate) fn of(kind: &str, name: impl fmt::Display) -> Self {
        Problems { object: format!("{kind} {name}"), found: Vec::new() }
    }

    /// Notes a problem.
    pub(crate) fn add(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.found.push(Problem { object: self.object.clone(), field: field.into(), text: text.into() });
    }

    /// All that was found.
    pub(crate) fn into_vec(self) -> Vec<Problem> {
        self.found
    }
}

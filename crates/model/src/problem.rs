//! Problems of objects: reported once, never fatal.

use std::fmt;

/// A field of an object that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Kind and name of the object, for example `Service demo/web`.
    pub object: String,
    /// The path of the field, for example `spec.externalIPs[2]`.
    pub field: String,
    /// What is wrong, and what Portwarden does instead.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.field, self.text)
    }
}

/// Collects the problems of one object while it is parsed.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    object: String,
    found: Vec<Problem>,
}

impl Problems {
    /// Starts a collection for the object of this kind and name.
    pub(crate) fn of(kind: &str, name: impl fmt::Display) -> Self {
        Problems { object: format!("{kind} {name}"), found: Vec::new() }
    }

    /// Records a problem.
    pub(crate) fn add(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.found.push(Problem { object: self.object.clone(), field: field.into(), text: text.into() });
    }

    /// The recorded problems, in order.
    pub(crate) fn into_vec(self) -> Vec<Problem> {
        self.found
    }
}

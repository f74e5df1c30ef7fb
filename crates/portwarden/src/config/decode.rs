//! From the bytes of a configuration file to the values of options.
//!
//! Unknown and repeated fields are remarks, as they are for kube-proxy (it decodes strictly first, leniently after that);
//! a value of the wrong type is an error, and all of them are reported at once.

use std::collections::HashMap;
use std::fmt;

use super::document::{API_VERSION, KIND};
use super::options::{Kind, OutOfScope, Row, VModule, Value, Values, fields};
use super::tree::{self, Node, Value as Tree};
use crate::modes::Mode;

/// A decoded file and what is odd about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// What the file says.
    pub document: Values,
    /// What strict decoding would have refused; empty for a clean file.
    pub remarks: Vec<Remark>,
}

/// A field that is probably a mistake but does not stop the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    path: String,
    /// Counted from 1.
    line: u64,
    /// Set more than once, so that this line counts; otherwise unknown.
    repeated: bool,
}

/// Why a file is not a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not text.
    #[error("failed to decode: the file is not UTF-8 text (first bad byte at offset {0})")]
    Encoding(usize),
    /// Neither YAML nor JSON.
    #[error("failed to decode: the file is neither YAML nor JSON: {0}")]
    Syntax(String),
    /// YAML, but nothing with fields.
    #[error(
        "failed to decode: expected a mapping with `apiVersion: {API_VERSION}` and `kind: {KIND}`, found {0}"
    )]
    NotAMapping(String),
    /// `kind` or `apiVersion` is missing.
    #[error(
        "failed to decode: the file has no `{0}` (a configuration needs `apiVersion: {API_VERSION}` and `kind: {KIND}`)"
    )]
    NoIdentity(&'static str),
    /// Another kind of object.
    #[error(
        "failed to decode: no kind {kind:?} is registered for version {version:?} (expected `apiVersion: {API_VERSION}` and `kind: {KIND}`)"
    )]
    OtherObject {
        /// The `kind` found.
        kind: String,
        /// The `apiVersion` found.
        version: String,
    },
    /// Values of the wrong type.
    #[error("failed to decode: {}", listed(.0))]
    Types(Vec<TypeProblem>),
}

/// A value of the wrong type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeProblem {
    path: String,
    line: u64,
    message: String,
}

/// Decodes the first YAML document, or the JSON object, in a file.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|error| DecodeError::Encoding(error.valid_up_to()))?;
    if text.trim().is_empty() {
        return Err(DecodeError::NotAMapping("an empty file".to_owned()));
    }
    let root = tree::parse(text).map_err(DecodeError::Syntax)?;
    if !matches!(root.value, Tree::Map(_)) {
        return Err(DecodeError::NotAMapping(root.value.describe()));
    }
    let mut decoder = Decoder::default();
    let entries = decoder.mapping("", root);
    let text = |name: &str| match entries.iter().find(|(field, _)| field == name).map(|(_, node)| &node.value)
    {
        Some(Tree::Text(text)) => text.as_str(),
        _ => "",
    };
    identity(text("kind"), text("apiVersion"))?;
    decoder.mode = Mode::from_name(text("mode")).unwrap_or(Mode::DEFAULT);
    decoder.section("", entries);
    let Decoder { document, mut remarks, mut problems, .. } = decoder;
    remarks.sort_by_key(|remark| remark.line);
    problems.sort_by_key(|problem| problem.line);
    if problems.is_empty() { Ok(Decoded { document, remarks }) } else { Err(DecodeError::Types(problems)) }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Remark { path, line, repeated } = self;
        if *repeated {
            write!(f, "field {path:?} is set more than once, line {line} counts")
        } else {
            write!(f, "unknown field {path:?} on line {line}")
        }
    }
}

impl fmt::Display for TypeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.path, self.message)
    }
}

fn listed(problems: &[TypeProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn identity(kind: &str, version: &str) -> Result<(), DecodeError> {
    match (kind, version) {
        (KIND, API_VERSION) => Ok(()),
        ("", _) => Err(DecodeError::NoIdentity("kind")),
        (_, "") => Err(DecodeError::NoIdentity("apiVersion")),
        _ => Err(DecodeError::OtherObject { kind: kind.to_owned(), version: version.to_owned() }),
    }
}

/// Fills a document, and notes what is unknown, repeated or of the wrong type.
#[derive(Default)]
struct Decoder {
    mode: Mode,
    document: Values,
    remarks: Vec<Remark>,
    problems: Vec<TypeProblem>,
}

impl Decoder {
    /// The entries of a mapping in the order of the file; of repeated ones, the last counts.
    fn mapping(&mut self, path: &str, node: Node) -> Vec<(String, Node)> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut places = HashMap::new();
        match node.value {
            Tree::Map(map) => {
                for (name, node) in map {
                    let place = *places.entry(name.clone()).or_insert(entries.len());
                    match entries.get_mut(place) {
                        None => entries.push((name, node)),
                        Some((_, earlier)) => {
                            let path = join(path, &name);
                            self.remarks.push(Remark { path, line: node.line, repeated: true });
                            *earlier = node;
                        }
                    }
                }
            }
            Tree::Null => {}
            other => {
                let message = format!("expected a mapping, found {}", other.describe());
                self.problem(path, node.line, message);
            }
        }
        entries
    }

    fn section(&mut self, prefix: &str, entries: Vec<(String, Node)>) {
        for (name, node) in entries {
            let path = join(prefix, &name);
            // Fields of our own are unknown, as they are to kube-proxy, where they have no effect.
            let known = |row: &Row| row.out_of_scope != OutOfScope::Unknown || row.scope.includes(self.mode);
            if prefix.is_empty() && matches!(name.as_str(), "kind" | "apiVersion") {
                continue;
            }
            if name.contains('.') {
                self.remarks.push(Remark { path, line: node.line, repeated: false });
            } else if let Some((index, row)) = fields().find(|(_, row)| row.field == path && known(row)) {
                let empty =
                    matches!(node.value, Tree::Null) && row.kind == Kind::Duration && !row.zero_counts;
                if empty {
                    self.problem(
                        &path,
                        node.line,
                        "expected a duration such as \"30s\", found nothing".to_owned(),
                    );
                }
                let value = self.value(row.kind, &path, node);
                self.document.set_at(index, value);
            } else if is_section(&path) {
                let entries = self.mapping(&path, node);
                self.section(&path, entries);
            } else {
                self.remarks.push(Remark { path, line: node.line, repeated: false });
            }
        }
    }

    /// `null` is the same as absent, for every type but durations that kube-proxy cannot leave out.
    fn value(&mut self, kind: Kind, path: &str, node: Node) -> Option<Value> {
        match kind {
            _ if matches!(node.value, Tree::Null) => None,
            Kind::Texts => {
                let text = |decoder: &mut Self, (path, node): (String, Node)| match node.value {
                    Tree::Null => Some(String::new()),
                    _ => decoder.text(&path, node),
                };
                let items = self.items(path, node)?;
                Some(Value::Texts(items.into_iter().filter_map(|item| text(self, item)).collect()))
            }
            Kind::Gates => {
                let entries = self.mapping(path, node).into_iter();
                let gate = |(gate, node): (String, Node)| {
                    let on = self.value(Kind::Switch, &join(path, &gate), node);
                    (gate, on == Some(Value::Switch(true)))
                };
                Some(Value::Gates(entries.map(gate).collect()))
            }
            Kind::VModule => {
                let items = self.items(path, node)?.into_iter();
                Some(Value::VModule(items.map(|(path, node)| self.vmodule(&path, node)).collect()))
            }
            kind => match kind.decode(&node.value) {
                Ok(value) => Some(value),
                Err(message) => {
                    self.problem(path, node.line, message);
                    None
                }
            },
        }
    }

    fn text(&mut self, path: &str, node: Node) -> Option<String> {
        match self.value(Kind::Text, path, node) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn vmodule(&mut self, path: &str, node: Node) -> VModule {
        let mut item = VModule::default();
        for (name, node) in self.mapping(path, node) {
            let path = join(path, &name);
            match name.as_str() {
                "filePattern" => item.file_pattern = self.text(&path, node).unwrap_or_default(),
                "verbosity" => {
                    if let Some(Value::Int(level)) = self.value(Kind::Level, &path, node) {
                        item.verbosity = u32::try_from(level).unwrap_or_default();
                    }
                }
                _ => self.remarks.push(Remark { path, line: node.line, repeated: false }),
            }
        }
        item
    }

    /// The items of a list with their paths.
    fn items(&mut self, path: &str, node: Node) -> Option<Vec<(String, Node)>> {
        match node.value {
            Tree::List(items) => {
                let item = |(index, node)| (format!("{path}[{index}]"), node);
                Some(items.into_iter().enumerate().map(item).collect())
            }
            other => {
                self.problem(path, node.line, format!("expected a list, found {}", other.describe()));
                None
            }
        }
    }

    fn problem(&mut self, path: &str, line: u64, message: String) {
        self.problems.push(TypeProblem { path: path.to_owned(), line, message });
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn is_section(path: &str) -> bool {
    fields().any(|(_, row)| row.field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

#[cfg(test)]
mod tests;

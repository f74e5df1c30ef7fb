//! A parsed YAML or JSON document that still knows its lines and its repeated keys.
//!
//! A repeated or unknown key is no more than a remark in this file format, so neither may stop the parser; and a value of the
//! wrong type should be reported together with all others. Both need the tree before the types.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{NonFiniteFloatPolicy, Spanned};

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Counted from 1.
    pub(super) line: u64,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file, with repetitions.
    Map(Vec<(String, Node)>),
}

impl Value {
    /// What to call such a value in a message.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("the boolean {value}"),
            Value::Integer(value) => format!("the number {value}"),
            Value::Float(value) => format!("the number {value}"),
            Value::Text(value) => format!("the text {value:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Parses the first document of a file.
pub(super) fn parse(text: &str) -> Result<Node, String> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        // Merged below, as kube-proxy's parser does it: at the place of the key.
        merge_keys: MergeKeyPolicy::AsOrdinary,
        // As kube-proxy's parser reads them: `yes` is a boolean and `010` is eight.
        strict_booleans: false,
        legacy_octal_numbers: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    let spanned: Spanned<Value> = serde_saphyr::from_str_with_options(first_document(text), options)
        .map_err(|error| error.to_string())?;
    Ok(spanned.into())
}

/// The text up to the second document, which is ignored.
///
/// A line that starts with `---` or `...` ends a document wherever it stands, so no parsing is needed to find it.
fn first_document(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut begun = false;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let marker = |marker: &str| {
            line.strip_prefix(marker)
                .is_some_and(|rest| rest.trim_start().len() < rest.len() || rest.is_empty())
        };
        let content = line.trim_start();
        if marker("...") || (begun && marker("---")) {
            return &text[..offset];
        }
        begun = begun || marker("---") || !(content.is_empty() || content.starts_with(['#', '%']));
        offset += line.len();
    }
    text
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Node { line: spanned.referenced.line(), value: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            list.push(item.into());
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, Spanned<Value>>()? {
            let node: Node = value.into();
            if key == "<<" {
                merge(&mut map, node.value).map_err(A::Error::custom)?;
            } else {
                map.push((key, node));
            }
        }
        Ok(Value::Map(map))
    }
}

/// Adds the entries of a merged map. They count like any others: later ones win. Of several maps the first wins.
fn merge(map: &mut Vec<(String, Node)>, merged: Value) -> Result<(), &'static str> {
    const WRONG: &str = "map merge requires a map or a list of maps as the value";
    match merged {
        Value::Map(entries) => map.extend(entries),
        Value::List(items) => {
            for item in items.into_iter().rev() {
                let Value::Map(entries) = item.value else { return Err(WRONG) };
                map.extend(entries);
            }
        }
        _ => return Err(WRONG),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_document_counts() {
        for (text, first) in [
            ("a: 1\n", "a: 1\n"),
            ("a: 1\n---\n]]]", "a: 1\n"),
            ("# note\n\n---\na: 1\n--- \nb", "# note\n\n---\na: 1\n"),
            ("%YAML 1.1\n---\na: 1\n...\n---\nb", "%YAML 1.1\n---\na: 1\n"),
            ("---\na: |\n  text\n  --- more\n---x: 1\n", "---\na: |\n  text\n  --- more\n---x: 1\n"),
            ("\u{feff}a: 1", "a: 1"),
            ("", ""),
        ] {
            assert_eq!(first_document(text), first, "{text:?}");
        }
    }

    #[test]
    fn scalars_are_read_as_kube_proxy_reads_them() {
        let Value::Map(entries) =
            parse("a: yes\nb: 010\nc: \"010\"\nd: 0x1f\ne: ~\nf: 1.5\ng: off\nh: ::0\ni: -7\nj: .inf")
                .unwrap()
                .value
        else {
            panic!("not a mapping");
        };
        let described: Vec<_> = entries.iter().map(|(_, node)| node.value.describe()).collect();
        assert_eq!(
            described,
            [
                "the boolean true",
                "the number 8",
                "the text \"010\"",
                "the number 31",
                "nothing",
                "the number 1.5",
                "the boolean false",
                "the text \"::0\"",
                "the number -7",
                "the number inf",
            ]
        );
    }

    #[test]
    fn repeated_keys_and_lines_survive() {
        let Value::Map(entries) = parse("a: 1\nb: 2\na:\n  c: 3\n  c: 4\n").unwrap().value else {
            panic!("not a mapping");
        };
        let keys: Vec<_> = entries.iter().map(|(key, node)| (key.as_str(), node.line)).collect();
        assert_eq!(keys, [("a", 1), ("b", 2), ("a", 4)]);
        let Value::Map(inner) = &entries[2].1.value else { panic!("not a mapping") };
        assert_eq!(inner.len(), 2);
    }

    #[test]
    fn json_with_tabs_is_yaml_too() {
        let text = "{\n\t\"a\": {\n\t\t\"b\": [1, 2,\t3], \"c\": \"\\u00e9\\/\"\n\t}\n}\n";
        let Value::Map(entries) = parse(text).unwrap().value else { panic!("not a mapping") };
        let Value::Map(inner) = &entries[0].1.value else { panic!("not a mapping") };
        assert!(matches!(&inner[1].1.value, Value::Text(text) if text == "é/"), "{inner:?}");
    }
}

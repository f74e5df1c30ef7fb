//! YAML as JSON: the same steps by which kubectl reads a manifest. The types of objects are then read from one format only, which keeps
//! the program small.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_path_to_error::{Path, Segment};
use serde_saphyr::Spanned;

/// A document as JSON. Fields that are null are left out, as if they were not there.
pub(super) fn to_json(document: &str) -> Result<Vec<u8>, serde_saphyr::Error> {
    let mut out = Vec::with_capacity(document.len());
    serde_saphyr::with_deserializer_from_str_with_options(document, options(), |yaml| {
        Transcoder { out: &mut out, before: &[], leave_out_null: false }.deserialize(yaml)
    })?;
    Ok(out)
}

/// The line of a field, counted from the start of the document; that of the innermost one on the way to it that is there.
pub(super) fn line(document: &str, path: &Path) -> Option<u64> {
    let tree: Spanned<Tree> = serde_saphyr::from_str_with_options(document, options()).ok()?;
    let mut here = &tree;
    for segment in path {
        let next = match (segment, &here.value) {
            (Segment::Seq { index }, Tree::List(items)) => items.get(*index),
            (Segment::Map { key }, Tree::Map(fields)) => {
                fields.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        };
        let Some(next) = next else { break };
        here = next;
    }
    Some(here.referenced.line())
}

/// The defaults stop at a quarter of a million nodes; a file with all endpoints of a large cluster has more.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_events: 100_000_000, max_nodes: 50_000_000, max_total_scalar_bytes: 1 << 30 },
        // A pod may be called `n` or `off`.
        strict_booleans: true,
        with_snippet: false,
    }
}

/// Writes a value. Returns whether it wrote anything.
struct Transcoder<'a> {
    out: &'a mut Vec<u8>,
    /// What stands before the value: its name.
    before: &'a [u8],
    leave_out_null: bool,
}

impl Transcoder<'_> {
    fn write<E: Error>(self, value: impl Serialize) -> Result<bool, E> {
        self.out.extend_from_slice(self.before);
        serde_json::to_writer(self.out, &value).map_err(E::custom)?;
        Ok(true)
    }
}

impl<'de> DeserializeSeed<'de> for Transcoder<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Transcoder<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<bool, E> {
        self.write(value)
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        if self.leave_out_null { Ok(false) } else { self.write(()) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        self.out.extend_from_slice(self.before);
        self.out.push(b'[');
        let mut before: &[u8] = &[];
        while items
            .next_element_seed(Transcoder { out: &mut *self.out, before, leave_out_null: false })?
            .is_some()
        {
            before = b",";
        }
        self.out.push(b']');
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<bool, A::Error> {
        self.out.extend_from_slice(self.before);
        self.out.push(b'{');
        let mut any = false;
        while let Some(name) = fields.next_key::<String>()? {
            let mut before = if any { vec![b','] } else { Vec::new() };
            serde_json::to_writer(&mut before, &name).map_err(A::Error::custom)?;
            before.push(b':');
            any |= fields.next_value_seed(Transcoder {
                out: &mut *self.out,
                before: &before,
                leave_out_null: true,
            })?;
        }
        self.out.push(b'}');
        Ok(true)
    }
}

/// The shape of a document, with the place of each value.
enum Tree {
    Leaf,
    List(Vec<Spanned<Tree>>),
    Map(Vec<(String, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Tree, A::Error> {
        let mut map = Vec::new();
        while let Some(field) = fields.next_entry()? {
            map.push(field);
        }
        Ok(Tree::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        String::from_utf8(to_json(text).expect("it is YAML")).expect("JSON is UTF-8")
    }

    #[test]
    fn values_keep_their_types() {
        let text = "a: 1\nb: -2\nc: 1.5\nd: \"1\"\ne: [x, true, null, {}]\nf: 'it''s \"ü\"'\n7: None\n";
        assert_eq!(
            json(text),
            r#"{"a":1,"b":-2,"c":1.5,"d":"1","e":["x",true,null,{}],"f":"it's \"ü\"","7":"None"}"#
        );
        assert_eq!(json("18446744073709551615"), "18446744073709551615");
        assert_eq!(json("text"), "\"text\"");
        assert_eq!(
            json("[n, off, yes, true, 1e3, 0x10, 2026-11-17, 1.2.3.4, ::1]"),
            r#"["n","off","yes",true,1000.0,16,"2026-11-17","1.2.3.4","::1"]"#
        );
    }

    #[test]
    fn fields_without_a_value_are_left_out() {
        assert_eq!(json("a:\nb: 1\nc: ~\nd: {e: null}\n"), r#"{"b":1,"d":{}}"#);
    }

    #[test]
    fn aliases_are_resolved() {
        assert_eq!(json("a: &x {b: 1}\nc: *x\n"), r#"{"a":{"b":1},"c":{"b":1}}"#);
    }
}

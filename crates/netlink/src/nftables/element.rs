//! Elements of sets and maps.

use super::codes::{LIST_ELEMENT, data, element as code};
use super::expr_encode::milliseconds;
use super::userdata;
use super::verdict::Verdict;
use crate::wire::{Attribute, Attributes, Malformed, Writer, align};
use std::time::Duration;

/// An element, owned: what is read from the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// The key, as it stands in registers.
    pub key: Vec<u8>,
    /// The last key of a range, for sets of concatenated ranges.
    pub key_end: Option<Vec<u8>>,
    /// What a map holds for the key.
    pub value: Option<Value>,
    /// Ends a range that another element began, for sets of ranges with one field.
    pub interval_end: bool,
    /// How long it stays, if that differs from the set's timeout.
    pub timeout: Option<Duration>,
    /// How long it still stays.
    pub expiration: Option<Duration>,
    /// A comment for people.
    pub comment: Option<String>,
}

impl Element {
    /// The element as borrowed parts, for [`Elements::push`].
    pub fn parts(&self) -> ElementParts<'_> {
        ElementParts {
            key: &self.key,
            key_end: self.key_end.as_deref(),
            value: self.value.as_ref().map(Value::as_ref),
            interval_end: self.interval_end,
            timeout: self.timeout,
            expiration: self.expiration,
            comment: self.comment.as_deref(),
        }
    }

    /// Reads an element from its nest.
    pub(crate) fn decode(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let mut element = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                code::KEY => element.key = decode_value(&attribute)?.unwrap_or_default(),
                code::KEY_END => element.key_end = decode_value(&attribute)?,
                code::DATA => element.value = Value::decode(&attribute)?,
                code::FLAGS => element.interval_end = attribute.u32()? & code::FLAG_INTERVAL_END != 0,
                code::TIMEOUT => element.timeout = Some(Duration::from_millis(attribute.u64()?)),
                code::EXPIRATION => element.expiration = Some(Duration::from_millis(attribute.u64()?)),
                code::USERDATA => element.comment = userdata::read_comment(attribute.payload),
                _ => {}
            }
        }
        Ok(element)
    }
}

/// What a map holds for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes as they stand in registers.
    Data(Vec<u8>),
    /// The value of a verdict map's element.
    Verdict(Verdict),
}

impl Value {
    /// The value borrowed.
    pub fn as_ref(&self) -> ValueParts<'_> {
        match self {
            Self::Data(bytes) => ValueParts::Data(bytes),
            Self::Verdict(verdict) => ValueParts::Verdict(verdict),
        }
    }

    /// Reads a data nest.
    pub(crate) fn decode(nest: &Attribute<'_>) -> Result<Option<Self>, Malformed> {
        for attribute in nest.nested() {
            let attribute = attribute?;
            match attribute.kind {
                data::VALUE => return Ok(Some(Self::Data(attribute.payload.to_vec()))),
                data::VERDICT => return Ok(Some(Self::Verdict(Verdict::decode(&attribute)?))),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// An element as borrowed parts, so that writing one allocates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElementParts<'a> {
    /// The key, as it stands in registers.
    pub key: &'a [u8],
    /// The last key of a range, for sets of concatenated ranges.
    pub key_end: Option<&'a [u8]>,
    /// What a map holds for the key.
    pub value: Option<ValueParts<'a>>,
    /// Ends a range that another element began, for sets of ranges with one field.
    pub interval_end: bool,
    /// How long it stays, if that differs from the set's timeout.
    pub timeout: Option<Duration>,
    /// How long it still stays, to restore an element with its age.
    pub expiration: Option<Duration>,
    /// A comment for people.
    pub comment: Option<&'a str>,
}

/// What a map holds for a key, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueParts<'a> {
    /// Bytes as they stand in registers.
    Data(&'a [u8]),
    /// The value of a verdict map's element.
    Verdict(&'a Verdict),
}

/// Many elements in one buffer, kept in the form in which they are sent.
///
/// Adding an element copies its bytes and allocates nothing; committing copies the buffer. Iterate to read
/// the elements back.
#[derive(Clone, Debug, Default)]
pub struct Elements {
    bytes: Vec<u8>,
    count: usize,
}

impl Elements {
    /// No element yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for `count` elements whose keys and values together take `payload` bytes each.
    pub fn with_capacity(count: usize, payload: usize) -> Self {
        // Five attribute headers: element, key and its value, data and its value.
        Self { bytes: Vec::with_capacity(count.saturating_mul(align(payload) + 20)), count: 0 }
    }

    /// Makes room for `count` more elements, as [`Elements::with_capacity`] does.
    pub fn reserve(&mut self, count: usize, payload: usize) {
        self.bytes.reserve_exact(count.saturating_mul(align(payload) + 20));
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets all elements and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    /// Adds a key of a set, or a key to delete.
    pub fn push_key(&mut self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        let key_length = 8 + align(key.len());
        self.header(4 + key_length, LIST_ELEMENT | NESTED);
        self.value(code::KEY, key);
        self.count += 1;
    }

    /// Adds a key and value of a map.
    pub fn push_data(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.header(4 + 8 + align(key.len()) + 8 + align(value.len()), LIST_ELEMENT | NESTED);
        self.value(code::KEY, key);
        self.value(code::DATA, value);
        self.count += 1;
    }

    /// Adds a key and verdict of a verdict map.
    pub fn push_verdict(&mut self, key: impl AsRef<[u8]>, verdict: &Verdict) {
        let value = Some(ValueParts::Verdict(verdict));
        self.push(&ElementParts { key: key.as_ref(), value, ..ElementParts::default() });
    }

    /// Adds an element with anything an element can have.
    pub fn push(&mut self, element: &ElementParts<'_>) {
        let mut writer = Writer::from_bytes(std::mem::take(&mut self.bytes));
        writer.nest(LIST_ELEMENT, |writer| encode(element, writer));
        self.bytes = writer.into_bytes();
        self.count += 1;
    }

    /// Adds all elements of another list.
    pub fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.count += other.count;
    }

    /// The same elements in groups of at most `size`, each a copy.
    pub fn groups(&self, size: usize) -> impl Iterator<Item = Elements> + '_ {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (mut length, mut count) = (0, 0);
            while count < size.max(1)
                && let Some(&[low, high, ..]) = rest.get(length..)
            {
                // Each element is an attribute, which begins with its length.
                length += align(usize::from(u16::from_ne_bytes([low, high])).max(4));
                count += 1;
            }
            let (group, others) = rest.split_at_checked(length)?;
            rest = others;
            (count > 0).then(|| Elements { bytes: group.to_vec(), count })
        })
    }

    /// The elements, decoded one by one.
    pub fn iter(&self) -> impl Iterator<Item = Element> + '_ {
        // The bytes were written above, so they are well formed; `flatten` only satisfies the types.
        Attributes::new(&self.bytes).flatten().flat_map(|nest| Element::decode(nest.nested()))
    }

    /// The encoded elements, a list of attributes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn header(&mut self, length: usize, kind: u16) {
        // Keys and values take at most 64 bytes each in the kernel. Longer ones saturate here, which makes
        // the kernel refuse the element for its length.
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        let mut header = [0; 4];
        header[..2].copy_from_slice(&length.to_ne_bytes());
        header[2..].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&header);
    }

    fn value(&mut self, kind: u16, value: &[u8]) {
        self.header(8 + align(value.len()), kind | NESTED);
        self.header(4 + value.len(), data::VALUE);
        self.bytes.extend_from_slice(value);
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

impl PartialEq for Elements {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Elements {}

impl<'a> FromIterator<ElementParts<'a>> for Elements {
    fn from_iter<I: IntoIterator<Item = ElementParts<'a>>>(elements: I) -> Self {
        let mut all = Self::new();
        for element in elements {
            all.push(&element);
        }
        all
    }
}

const NESTED: u16 = 0x8000;

fn encode(element: &ElementParts<'_>, writer: &mut Writer) {
    writer.nest(code::KEY, |writer| writer.attribute(data::VALUE, element.key));
    if let Some(key_end) = element.key_end {
        writer.nest(code::KEY_END, |writer| writer.attribute(data::VALUE, key_end));
    }
    match element.value {
        Some(ValueParts::Data(value)) => {
            writer.nest(code::DATA, |writer| writer.attribute(data::VALUE, value));
        }
        Some(ValueParts::Verdict(verdict)) => writer.nest(code::DATA, |writer| verdict.encode(writer)),
        None => {}
    }
    if element.interval_end {
        writer.u32(code::FLAGS, code::FLAG_INTERVAL_END);
    }
    if let Some(timeout) = element.timeout {
        writer.u64(code::TIMEOUT, milliseconds(timeout));
    }
    if let Some(expiration) = element.expiration {
        writer.u64(code::EXPIRATION, milliseconds(expiration));
    }
    if let Some(comment) = element.comment {
        userdata::write_comment(writer, code::USERDATA, comment);
    }
}

fn decode_value(nest: &Attribute<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    match Value::decode(nest)? {
        Some(Value::Data(bytes)) => Ok(Some(bytes)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_ways_write_what_the_long_way_writes() {
        let mut short = Elements::new();
        short.push_key([10, 0, 0, 1]);
        short.push_data([10, 0, 0, 1, 6], [7, 8]);
        let long: Elements = [
            ElementParts { key: &[10, 0, 0, 1], ..ElementParts::default() },
            ElementParts {
                key: &[10, 0, 0, 1, 6],
                value: Some(ValueParts::Data(&[7, 8])),
                ..ElementParts::default()
            },
        ]
        .into_iter()
        .collect();
        assert_eq!(short, long);
        assert_eq!(short.len(), 2);
    }

    #[test]
    fn groups_together_are_the_whole() {
        let mut elements = Elements::new();
        for number in 0..10u8 {
            elements.push_data([10, 0, 0, number], [number]);
            elements.push(&ElementParts {
                key: &[number],
                comment: Some("a comment"),
                ..ElementParts::default()
            });
        }
        for (size, expected) in [(1, 20), (3, 7), (20, 1), (100, 1)] {
            let groups: Vec<Elements> = elements.groups(size).collect();
            assert_eq!(groups.len(), expected);
            assert!(groups.iter().all(|group| group.iter().count() == group.len() && group.len() <= size));
            let mut whole = Elements::new();
            groups.iter().for_each(|group| whole.append(group));
            assert_eq!((&whole, whole.len()), (&elements, 20));
        }
        assert_eq!(Elements::new().groups(5).count(), 0);
    }

    #[test]
    fn elements_are_read_back() {
        let element = Element {
            key: vec![1, 2, 3, 4],
            key_end: Some(vec![1, 2, 3, 9]),
            value: Some(Value::Verdict(Verdict::Goto("there".into()))),
            interval_end: false,
            timeout: Some(Duration::from_secs(30)),
            expiration: Some(Duration::from_secs(20)),
            comment: Some("ns/name".to_owned()),
        };
        let mut elements = Elements::new();
        elements.push(&element.parts());
        assert_eq!(elements.iter().collect::<Vec<_>>(), [element]);
    }
}

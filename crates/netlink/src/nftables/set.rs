//! Sets, maps and the types of their keys and values.

use super::codes::set as code;
use super::table::{Name, TableId};
use super::userdata;
use crate::wire::{Writer, align};
use std::fmt;
use std::time::Duration;

/// A set, map or verdict map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The table it belongs to.
    pub table: TableId,
    /// Unique within the table, among sets and maps.
    pub name: Name,
    /// The fields of its key; several make a concatenation.
    pub key: Vec<DataType>,
    /// What an element means.
    pub kind: SetKind,
    /// Properties.
    pub flags: SetFlags,
    /// Most elements it takes. With a size the kernel chooses a hash table of fixed width, which loads faster.
    pub size: Option<u32>,
    /// How long elements stay unless they say otherwise; needs [`SetFlags::TIMEOUT`].
    pub timeout: Option<Duration>,
    /// A comment for people.
    pub comment: Option<String>,
}

impl Set {
    /// A set of keys.
    pub fn new(table: &TableId, name: impl Into<Name>, key: impl Into<Vec<DataType>>) -> Self {
        Self {
            table: table.clone(),
            name: name.into(),
            key: key.into(),
            kind: SetKind::Set,
            flags: SetFlags::NONE,
            size: None,
            timeout: None,
            comment: None,
        }
    }

    /// A map from keys to values.
    pub fn map(
        table: &TableId,
        name: impl Into<Name>,
        key: impl Into<Vec<DataType>>,
        data: impl Into<Vec<DataType>>,
    ) -> Self {
        Self { kind: SetKind::Map(data.into()), ..Self::new(table, name, key) }
    }

    /// A map from keys to verdicts.
    pub fn verdict_map(table: &TableId, name: impl Into<Name>, key: impl Into<Vec<DataType>>) -> Self {
        Self { kind: SetKind::VerdictMap, ..Self::new(table, name, key) }
    }

    /// The same with these properties added.
    pub fn flags(mut self, flags: SetFlags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }

    /// The same with a maximal number of elements.
    pub fn size(mut self, size: u32) -> Self {
        self.size = Some(size);
        self
    }

    /// The same with elements that time out.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.flags = self.flags.with(SetFlags::TIMEOUT);
        self.timeout = Some(timeout);
        self
    }

    /// The same with a comment.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Bytes of a key.
    pub fn key_length(&self) -> usize {
        register_length(&self.key)
    }

    /// nft's word for it: `set` or `map`.
    pub fn word(&self) -> &'static str {
        match self.kind {
            SetKind::Set => "set",
            SetKind::Map(_) | SetKind::VerdictMap | SetKind::ObjectMap => "map",
        }
    }

    /// The kernel's flags.
    pub(crate) fn kernel_flags(&self) -> u32 {
        let kind = match self.kind {
            SetKind::Set => 0,
            SetKind::Map(_) | SetKind::VerdictMap => code::FLAG_MAP,
            SetKind::ObjectMap => code::FLAG_OBJECT,
        };
        let concatenation =
            if self.flags.contains(SetFlags::INTERVAL) && self.key.len() > 1 { code::FLAG_CONCAT } else { 0 };
        self.flags.0 | kind | concatenation
    }

    /// Writes the attributes that declare the set.
    pub(crate) fn encode(&self, writer: &mut Writer, id: u32) {
        writer.string(code::TABLE, &self.table.name);
        writer.string(code::NAME, &self.name);
        writer.u32(code::FLAGS, self.kernel_flags());
        writer.u32(code::KEY_TYPE, type_code(&self.key));
        writer.u32(code::KEY_LENGTH, length_code(&self.key));
        match &self.kind {
            SetKind::Map(data) => {
                writer.u32(code::DATA_TYPE, type_code(data));
                writer.u32(code::DATA_LENGTH, length_code(data));
            }
            SetKind::VerdictMap => {
                writer.u32(code::DATA_TYPE, code::TYPE_VERDICT);
                writer.u32(code::DATA_LENGTH, 0);
            }
            SetKind::Set | SetKind::ObjectMap => {}
        }
        writer.u32(code::ID, id);
        self.encode_description(writer);
        if let Some(timeout) = self.timeout {
            writer.u64(code::TIMEOUT, super::expr_encode::milliseconds(timeout));
        }
        let data = match &self.kind {
            SetKind::Map(data) => Some(data.as_slice()),
            _ => None,
        };
        writer.attribute(code::USERDATA, &userdata::of_set(&self.key, data, self.comment.as_deref()));
    }

    fn encode_description(&self, writer: &mut Writer) {
        let ranges = self.kernel_flags() & code::FLAG_CONCAT != 0;
        if self.size.is_none() && !ranges {
            return;
        }
        writer.nest(code::DESCRIPTION, |writer| {
            if let Some(size) = self.size {
                writer.u32(code::DESCRIPTION_SIZE, size);
            }
            if ranges {
                writer.nest(code::DESCRIPTION_CONCAT, |writer| {
                    for field in &self.key {
                        writer.nest(super::codes::LIST_ELEMENT, |writer| {
                            writer.u32(code::FIELD_LENGTH, u32::try_from(field.length()).unwrap_or(u32::MAX));
                        });
                    }
                });
            }
        });
    }
}

/// What an element of a set means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// Its key is in the set.
    Set,
    /// Its key has a value of these fields.
    Map(Vec<DataType>),
    /// Its key has a verdict.
    VerdictMap,
    /// Its key refers to a named object; only ever read from the kernel.
    ObjectMap,
}

/// Properties of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFlags(pub(crate) u32);

impl SetFlags {
    /// No property.
    pub const NONE: Self = Self(0);
    /// Without a name of its own, made for one rule.
    pub const ANONYMOUS: Self = Self(0x1);
    /// Never changes while a rule uses it.
    pub const CONSTANT: Self = Self(0x2);
    /// Keys are ranges.
    pub const INTERVAL: Self = Self(code::FLAG_INTERVAL);
    /// Elements can time out.
    pub const TIMEOUT: Self = Self(0x10);
    /// Rules add elements from the packet path.
    pub const DYNAMIC: Self = Self(0x20);

    /// Both properties.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of the other's properties are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The type of one field of a key or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// A 32-bit number in host byte order, such as what `numgen` draws.
    Integer,
    /// An IPv4 address.
    Ipv4Address,
    /// An IPv6 address.
    Ipv6Address,
    /// A transport protocol number.
    Protocol,
    /// A transport port; nft calls it `inet_service`.
    Service,
    /// A packet or connection mark.
    Mark,
    /// The index of an interface.
    InterfaceIndex,
    /// A traffic class: the type of `meta priority`.
    ClassId,
    /// The name of an interface.
    InterfaceName,
    /// A type this program has no name for.
    Other {
        /// nft's number of the type.
        id: u8,
        /// Bytes of the field; 0 if the kernel did not say.
        length: u16,
    },
}

impl DataType {
    const KNOWN: [Self; 9] = [
        Self::Integer,
        Self::Ipv4Address,
        Self::Ipv6Address,
        Self::Protocol,
        Self::Service,
        Self::Mark,
        Self::InterfaceIndex,
        Self::ClassId,
        Self::InterfaceName,
    ];

    /// nft's number of the type.
    pub const fn id(self) -> u8 {
        match self {
            Self::Integer => 4,
            Self::Ipv4Address => 7,
            Self::Ipv6Address => 8,
            Self::Protocol => 12,
            Self::Service => 13,
            Self::Mark => 19,
            Self::InterfaceIndex => 20,
            Self::ClassId => 23,
            Self::InterfaceName => 41,
            Self::Other { id, .. } => id,
        }
    }

    /// Bytes of the field without padding.
    pub const fn length(self) -> usize {
        match self {
            Self::Protocol => 1,
            Self::Service => 2,
            Self::Integer | Self::Ipv4Address | Self::Mark | Self::InterfaceIndex | Self::ClassId => 4,
            Self::Ipv6Address | Self::InterfaceName => 16,
            Self::Other { length, .. } => length as usize,
        }
    }

    /// The type of an address of this family of addresses.
    pub const fn address(address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(_) => Self::Ipv4Address,
            std::net::IpAddr::V6(_) => Self::Ipv6Address,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Integer => "integer",
            Self::Ipv4Address => "ipv4_addr",
            Self::Ipv6Address => "ipv6_addr",
            Self::Protocol => "inet_proto",
            Self::Service => "inet_service",
            Self::Mark => "mark",
            Self::InterfaceIndex => "iface_index",
            Self::ClassId => "classid",
            Self::InterfaceName => "ifname",
            Self::Other { id, .. } => return write!(formatter, "type-{id}"),
        })
    }
}

/// Bits of one type in the number of a concatenation.
const TYPE_BITS: u32 = 6;

/// Bytes the fields take in registers; a single field is not padded.
pub(crate) fn register_length(fields: &[DataType]) -> usize {
    match fields {
        [field] => field.length(),
        fields => fields.iter().map(|field| align(field.length())).sum(),
    }
}

fn length_code(fields: &[DataType]) -> u32 {
    u32::try_from(register_length(fields)).unwrap_or(u32::MAX)
}

/// nft's number for a field or a concatenation of fields.
pub(crate) fn type_code(fields: &[DataType]) -> u32 {
    fields.iter().fold(0, |code, field| code << TYPE_BITS | u32::from(field.id()))
}

/// The fields of nft's number, given the bytes they take in registers.
pub(crate) fn fields_of(mut type_code: u32, length: u32) -> Vec<DataType> {
    let mut ids = Vec::new();
    while type_code != 0 {
        // Masked to six bits.
        ids.push(u8::try_from(type_code & ((1 << TYPE_BITS) - 1)).unwrap_or(0));
        type_code >>= TYPE_BITS;
    }
    let mut fields: Vec<_> = ids
        .iter()
        .rev()
        .map(|&id| {
            let known = DataType::KNOWN.into_iter().find(|known| known.id() == id);
            known.unwrap_or(DataType::Other { id, length: 0 })
        })
        .collect();
    // What the known fields leave over belongs to the unknown one, if there is just one.
    let known = register_length(&fields);
    let mut unknown = fields.iter_mut().filter(|field| matches!(field, DataType::Other { .. }));
    if let (Some(DataType::Other { length: missing, .. }), None) = (unknown.next(), unknown.next()) {
        let total = usize::try_from(length).unwrap_or(usize::MAX);
        *missing = u16::try_from(total.saturating_sub(known)).unwrap_or(0);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenations_have_nfts_numbers() {
        use DataType::*;
        let key = [Ipv4Address, Protocol, Service, Integer];
        assert_eq!((type_code(&key), register_length(&key)), (0x1c_c344, 16));
        let key = [Ipv6Address, Protocol, Service, Integer];
        assert_eq!((type_code(&key), register_length(&key)), (0x20_c344, 28));
        assert_eq!(
            (type_code(&[Ipv4Address, Service]), register_length(&[Ipv4Address, Service])),
            (0x1cd, 8)
        );
        assert_eq!(register_length(&[Service]), 2);
    }

    #[test]
    fn fields_are_found_again() {
        use DataType::*;
        for key in [vec![Service], vec![Ipv6Address, Protocol, Service, ClassId], vec![InterfaceName, Mark]] {
            let length = u32::try_from(register_length(&key)).unwrap();
            assert_eq!(fields_of(type_code(&key), length), key);
        }
        let unknown = Other { id: 33, length: 8 };
        assert_eq!(fields_of(type_code(&[Mark, unknown]), 12), [Mark, unknown]);
    }
}

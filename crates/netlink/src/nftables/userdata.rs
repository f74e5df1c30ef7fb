//! Userdata: bytes the kernel keeps for user space. nft stores comments there, and how the fields of a set
//! are spelled. A record is a type, a length and that many bytes.

use super::set::DataType;
use crate::wire::Writer;

/// Longest comment that nft accepts and shows.
pub const COMMENT_MAX: usize = 128;

/// Record type of comments on tables, chains, rules and elements.
const COMMENT: u8 = 0;

/// Records of a set.
mod set_record {
    pub(super) const KEY_BYTE_ORDER: u8 = 0;
    pub(super) const DATA_BYTE_ORDER: u8 = 1;
    pub(super) const KEY_TYPEOF: u8 = 3;
    pub(super) const DATA_TYPEOF: u8 = 4;
    pub(super) const COMMENT: u8 = 7;
}

/// nft's numbers of the expressions that fields are spelled with.
mod spelling {
    pub(super) const PAYLOAD: u32 = 7;
    pub(super) const META: u32 = 9;
    pub(super) const CONCATENATION: u32 = 13;
    pub(super) const NUMGEN: u32 = 23;
}

/// Writes a comment on a table, chain, rule or element; on the stack, as there are many elements.
pub(crate) fn write_comment(writer: &mut Writer, attribute: u16, text: &str) {
    let text = cut(text);
    // Type, length, text, zero.
    let mut record = [0; COMMENT_MAX + 3];
    record[0] = COMMENT;
    record[1] = length_with_zero(text);
    for (place, byte) in record[2..].iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    writer.attribute(attribute, &record[..text.len() + 3]);
}

/// Reads the comment of a table, chain, rule or element.
pub(crate) fn read_comment(bytes: &[u8]) -> Option<String> {
    read_text(bytes, COMMENT)
}

/// The userdata of a set: byte orders, spelling if a field needs it, comment.
pub(crate) fn of_set(key: &[DataType], data: Option<&[DataType]>, comment: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_number(&mut bytes, set_record::KEY_BYTE_ORDER, byte_order(key));
    if let Some(data) = data {
        push_number(&mut bytes, set_record::DATA_BYTE_ORDER, byte_order(data));
    }
    // An integer has no fixed width in nft's type language; without a spelling nft 1.0.6 aborts on it.
    let spelled = |fields: &[DataType]| fields.contains(&DataType::Integer);
    if spelled(key) || data.is_some_and(spelled) {
        push_typeof(&mut bytes, set_record::KEY_TYPEOF, key);
        if let Some(data) = data {
            push_typeof(&mut bytes, set_record::DATA_TYPEOF, data);
        }
    }
    if let Some(comment) = comment {
        push_comment(&mut bytes, set_record::COMMENT, comment);
    }
    bytes
}

/// Reads the comment of a set.
pub(crate) fn read_set_comment(bytes: &[u8]) -> Option<String> {
    read_text(bytes, set_record::COMMENT)
}

/// Cuts a comment to what nft accepts, at a character boundary.
pub(crate) fn cut(text: &str) -> &str {
    let mut end = text.len().min(COMMENT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

fn push_comment(bytes: &mut Vec<u8>, kind: u8, text: &str) {
    let text = cut(text);
    bytes.extend_from_slice(&[kind, length_with_zero(text)]);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
}

/// At most 129, see [`cut`].
fn length_with_zero(cut_text: &str) -> u8 {
    u8::try_from(cut_text.len() + 1).unwrap_or(0)
}

fn push_number(bytes: &mut Vec<u8>, kind: u8, number: u32) {
    bytes.extend_from_slice(&[kind, 4]);
    bytes.extend_from_slice(&number.to_ne_bytes());
}

fn push_nest(bytes: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&[kind, 0]);
    body(bytes);
    let length = u8::try_from(bytes.len() - start - 2).unwrap_or(0);
    if let Some(place) = bytes.get_mut(start + 1) {
        *place = length;
    }
}

fn push_typeof(bytes: &mut Vec<u8>, kind: u8, fields: &[DataType]) {
    push_nest(bytes, kind, |bytes| match fields {
        [field] => push_spelling(bytes, *field),
        fields => push_expression(bytes, spelling::CONCATENATION, |bytes| {
            for (index, field) in (0..).zip(fields) {
                push_nest(bytes, index, |bytes| push_spelling(bytes, *field));
            }
        }),
    });
}

/// Spells a field with an expression that has the field's type; nft only shows it.
fn push_spelling(bytes: &mut Vec<u8>, field: DataType) {
    const TRANSPORT: u32 = 11;
    const IP: u32 = 12;
    const IP6: u32 = 13;
    let payload = |bytes: &mut Vec<u8>, header, field| {
        push_expression(bytes, spelling::PAYLOAD, |bytes| {
            push_number(bytes, 0, header);
            push_number(bytes, 1, field);
        });
    };
    let meta = |bytes: &mut Vec<u8>, key| {
        push_expression(bytes, spelling::META, |bytes| push_number(bytes, 0, key));
    };
    match field {
        DataType::Ipv4Address => payload(bytes, IP, 12),
        DataType::Ipv6Address => payload(bytes, IP6, 9),
        DataType::Service => payload(bytes, TRANSPORT, 2),
        DataType::Protocol => meta(bytes, 16),
        DataType::Mark => meta(bytes, 3),
        DataType::ClassId => meta(bytes, 2),
        DataType::InterfaceIndex => meta(bytes, 4),
        DataType::InterfaceName => meta(bytes, 6),
        DataType::Integer | DataType::Other { .. } => {
            push_expression(bytes, spelling::NUMGEN, |bytes| {
                push_number(bytes, 0, 1);
                push_number(bytes, 1, 65_536);
                push_number(bytes, 2, 0);
            });
        }
    }
}

fn push_expression(bytes: &mut Vec<u8>, expression: u32, body: impl FnOnce(&mut Vec<u8>)) {
    push_number(bytes, 0, expression);
    push_nest(bytes, 1, body);
}

/// nft's byte order of a field: none for concatenations, host for numbers, network for the rest.
fn byte_order(fields: &[DataType]) -> u32 {
    match fields {
        [DataType::Mark | DataType::ClassId | DataType::Integer | DataType::InterfaceIndex]
        | [DataType::InterfaceName | DataType::Protocol] => 1,
        [_] => 2,
        _ => 0,
    }
}

fn read_text(bytes: &[u8], wanted: u8) -> Option<String> {
    let mut rest = bytes;
    while let [kind, length, after @ ..] = rest {
        let (value, next) = after.split_at_checked(usize::from(*length))?;
        if *kind == wanted {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        rest = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spelled_map_has_the_bytes_that_nft_writes() {
        // What nft 1.0.6 sends for: map { typeof ip daddr . meta l4proto . th dport . numgen random mod
        // 65536 : ip daddr . th dport; comment "hello" }, without its record 6 (data is an interval: no).
        let expected = "000400000000 010400000000 0360 00040d000000 0158 \
            0014 000407000000 010c 00040c000000 01040c000000 \
            010e 000409000000 0106 000410000000 \
            0214 000407000000 010c 00040b000000 010402000000 \
            031a 000417000000 0112 000401000000 010400000100 020400000000 \
            0434 00040d000000 012c 0014 000407000000 010c 00040c000000 01040c000000 \
            0114 000407000000 010c 00040b000000 010402000000 070668656c6c6f00";
        let key = [DataType::Ipv4Address, DataType::Protocol, DataType::Service, DataType::Integer];
        let data = [DataType::Ipv4Address, DataType::Service];
        let actual: String =
            of_set(&key, Some(&data), Some("hello")).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(actual, expected.replace([' ', '\n'], ""));
    }

    #[test]
    fn comments_are_cut_and_read_back() {
        let mut writer = Writer::new();
        write_comment(&mut writer, 7, &"ä".repeat(100));
        let attribute = crate::wire::Attributes::new(writer.bytes()).next().unwrap().unwrap();
        assert_eq!(read_comment(attribute.payload), Some("ä".repeat(64)));
        assert_eq!(
            read_set_comment(&of_set(&[DataType::Ipv4Address], None, Some("x"))).as_deref(),
            Some("x")
        );
        assert_eq!(read_comment(&[0, 9, b'x']), None);
    }
}

//! Values of keys, maps and comparisons.

use crate::family::address;
use crate::nftables::set::DataType;
use crate::wire::align;
use std::fmt::Write;
use std::time::Duration;

/// Fields joined as nft joins a concatenation.
pub(crate) fn fields(types: &[DataType], bytes: &[u8]) -> String {
    let mut text = String::new();
    for (datatype, field) in split(types, bytes) {
        join(&mut text, &single(datatype, field));
    }
    text
}

/// Two keys as a range, field by field: prefixes where the bounds make one.
pub(crate) fn range(types: &[DataType], from: &[u8], to: &[u8]) -> String {
    let mut text = String::new();
    for ((datatype, from), (_, to)) in split(types, from).zip(split(types, to)) {
        join(&mut text, &range_of_one(datatype, from, to));
    }
    text
}

/// One value of a type.
pub(crate) fn single(datatype: DataType, bytes: &[u8]) -> String {
    match (datatype, bytes) {
        (DataType::Ipv4Address | DataType::Ipv6Address, bytes) => {
            address(bytes).map_or_else(|| hexadecimal(bytes), |address| address.to_string())
        }
        (DataType::Protocol, &[protocol]) => protocol_name(protocol),
        (DataType::Service, &[high, low]) => u16::from_be_bytes([high, low]).to_string(),
        (DataType::Integer | DataType::InterfaceIndex, &[a, b, c, d]) => {
            u32::from_ne_bytes([a, b, c, d]).to_string()
        }
        (DataType::Mark, &[a, b, c, d]) => format!("{:#010x}", u32::from_ne_bytes([a, b, c, d])),
        (DataType::ClassId, &[a, b, c, d]) => class(u32::from_ne_bytes([a, b, c, d])),
        (DataType::InterfaceName, name) => interface(name),
        (_, bytes) => hexadecimal(bytes),
    }
}

/// Bytes as one hexadecimal number in network byte order.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A comment or name in quotes, without what nft cannot read inside them.
pub(crate) fn quoted(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c == '"' || c.is_control() { '?' } else { c }).collect();
    format!("\"{plain}\"")
}

/// A time in nft's units.
pub(crate) fn duration(duration: Duration) -> String {
    let mut text = String::new();
    let mut seconds = duration.as_secs();
    for (unit, size) in [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)] {
        if seconds >= size {
            let _ = write!(text, "{}{unit}", seconds / size);
            seconds %= size;
        }
    }
    match duration.subsec_millis() {
        0 if text.is_empty() => text.push_str("0s"),
        0 => {}
        milliseconds => {
            let _ = write!(text, "{milliseconds}ms");
        }
    }
    text
}

/// The name of a transport protocol as nft prints it.
pub(crate) fn protocol_name(protocol: u8) -> String {
    match protocol {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "ipv6-icmp".to_owned(),
        132 => "sctp".to_owned(),
        other => other.to_string(),
    }
}

fn join(text: &mut String, field: &str) {
    if !text.is_empty() {
        text.push_str(" . ");
    }
    text.push_str(field);
}

/// The fields of a register image; what does not fit the types is one last field of its own.
fn split<'a>(types: &'a [DataType], bytes: &'a [u8]) -> impl Iterator<Item = (DataType, &'a [u8])> {
    let mut rest = Some(bytes);
    types.iter().map_while(move |&datatype| {
        let bytes = rest.take()?;
        let length = datatype.length();
        match bytes.get(..length) {
            Some(field) if length > 0 => {
                rest = bytes.get(align(length)..).filter(|bytes| !bytes.is_empty());
                Some((datatype, field))
            }
            _ => Some((DataType::Other { id: 0, length: 0 }, bytes)),
        }
    })
}

fn range_of_one(datatype: DataType, from: &[u8], to: &[u8]) -> String {
    if from == to {
        return single(datatype, from);
    }
    match prefix_length(from, to) {
        Some(length) if matches!(datatype, DataType::Ipv4Address | DataType::Ipv6Address) => {
            format!("{}/{length}", single(datatype, from))
        }
        _ => format!("{}-{}", single(datatype, from), single(datatype, to)),
    }
}

/// The length of the prefix whose first and last address these are.
pub(crate) fn prefix_length(from: &[u8], to: &[u8]) -> Option<u32> {
    if from.len() != to.len() || from.len() > 16 {
        return None;
    }
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |number, &byte| number << 8 | u128::from(byte));
    let difference = number(from) ^ number(to);
    let host_bits = 128 - difference.leading_zeros();
    // A prefix covers all values of its host bits: zeros in the first, ones in the last address.
    let whole = difference.count_ones() == host_bits && number(from) & difference == 0;
    let bits = u32::try_from(from.len() * 8).ok()?;
    whole.then(|| bits - host_bits)
}

fn class(number: u32) -> String {
    match number {
        0 => "none".to_owned(),
        0xffff_ffff => "root".to_owned(),
        number => format!("{:04x}:{:04x}", number >> 16, number & 0xffff),
    }
}

fn interface(name: &[u8]) -> String {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    quoted(&String::from_utf8_lossy(name.get(..end).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spelled_in_nfts_units() {
        assert_eq!(duration(Duration::ZERO), "0s");
        assert_eq!(duration(Duration::from_secs(10_800)), "3h");
        assert_eq!(duration(Duration::from_millis(90_061_500)), "1d1h1m1s500ms");
    }

    #[test]
    fn ranges_are_prefixes_where_they_can_be() {
        assert_eq!(prefix_length(&[10, 0, 0, 0], &[10, 255, 255, 255]), Some(8));
        assert_eq!(prefix_length(&[0; 4], &[255; 4]), Some(0));
        assert_eq!(prefix_length(&[10, 0, 0, 1], &[10, 0, 0, 2]), None);
        assert_eq!(prefix_length(&[10, 0, 0, 1], &[10, 0, 0, 3]), None);
        assert_eq!(prefix_length(&[0; 16], &[255; 16]), Some(0));
        let types = [DataType::Ipv4Address, DataType::Service];
        let text = range(&types, &[10, 0, 0, 1, 0, 80, 0, 0], &[10, 0, 0, 9, 0, 90, 0, 0]);
        assert_eq!(text, "10.0.0.1-10.0.0.9 . 80-90");
    }

    #[test]
    fn bytes_that_do_not_fit_the_type_are_still_shown() {
        assert_eq!(fields(&[DataType::Ipv4Address, DataType::Service], &[10, 0, 0, 1, 7]), "10.0.0.1 . 0x07");
        assert_eq!(fields(&[DataType::Protocol], &[]), "0x");
        assert_eq!(single(DataType::ClassId, &0x0001_0002_u32.to_ne_bytes()), "0001:0002");
        assert_eq!(quoted("say \"hi\"\n"), "\"say ?hi??\"");
    }
}

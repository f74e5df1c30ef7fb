//! The order of endpoints: that of the text `ip:port`, found without writing the text where that is easy.

use std::net::{SocketAddr, SocketAddrV4};

/// Sorts by the text of an address. What has the same address stays in its order.
pub(super) fn sort<T>(all: &mut [T], address: impl Fn(&T) -> SocketAddr) {
    let v4 = |one: &T| match address(one) {
        SocketAddr::V4(v4) => Some(v4),
        SocketAddr::V6(_) => None,
    };
    if all.iter().all(|one| v4(one).is_some()) {
        all.sort_by_cached_key(|one| v4(one).map(V4Key::new));
    } else {
        all.sort_by_cached_key(|one| TextKey::new(address(one)));
    }
}

/// An IPv4 address and port, a word for each octet and two for the port. A word holds the digits and the separator behind them from its
/// first byte on, so words compare as the text does: no number with its separator begins another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct V4Key([u32; 6]);

impl V4Key {
    fn new(address: SocketAddrV4) -> Self {
        const INNER: [u32; 256] = words(b'.');
        const LAST: [u32; 256] = words(b':');
        let [a, b, c, d] = address.ip().octets().map(usize::from);
        let [p, q, r, s, t, ..] = digits(address.port());
        let (port, rest) = (u32::from_be_bytes([p, q, r, s]), u32::from(t));
        V4Key([INNER[a], INNER[b], INNER[c], LAST[d], port, rest])
    }
}

/// The word of each octet.
const fn words(separator: u8) -> [u32; 256] {
    let mut words = [0; 256];
    let mut octet = 0;
    while octet < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "it is below 256")]
        let [a, b, c, ..] = digits(octet as u16);
        words[octet] = u32::from_be_bytes(match octet {
            0..10 => [a, separator, 0, 0],
            10..100 => [a, b, separator, 0],
            _ => [a, b, c, separator],
        });
        octet += 1;
    }
    words
}

/// A number in digits, without leading zeros.
const fn digits(number: u16) -> [u8; 5] {
    let mut digits = [0; 5];
    let (mut power, mut length) = (10_000, 0);
    while power > 0 {
        if number >= power || power == 1 {
            digits[length] = b'0' + (number / power % 10).to_le_bytes()[0];
            length += 1;
        }
        power /= 10;
    }
    digits
}

/// The text itself, on the stack: the longest is `[ffff:...:255.255.255.255]:65535`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TextKey([u8; 56]);

impl TextKey {
    fn new(address: SocketAddr) -> Self {
        use std::io::Write;
        let mut text = [0u8; 56];
        write!(&mut text[..], "{address}").expect("56 bytes hold every address and port");
        TextKey(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers of every length, close to each other.
    fn numbers() -> impl Strategy<Value = u16> {
        prop_oneof![0u16..30, 95u16..130, 195u16..=255]
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        let octet = || numbers().prop_map(|number| number.to_le_bytes()[0]);
        let port = prop_oneof![numbers(), any::<u16>(), Just(8080), Just(808), Just(65_535)];
        ([octet(), octet(), octet(), octet()], port).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_the_text(mut all in proptest::collection::vec(address(), 0..40)) {
            let mut texts: Vec<String> = all.iter().map(ToString::to_string).collect();
            texts.sort();
            sort(&mut all, |address| *address);
            prop_assert_eq!(all.iter().map(ToString::to_string).collect::<Vec<_>>(), texts);
        }
    }
}

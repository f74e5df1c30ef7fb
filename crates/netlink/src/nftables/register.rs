//! Registers and the values they hold.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One of the sixteen four-byte registers of a rule, or the verdict.
///
/// The kernel numbers the same storage twice: four registers of sixteen bytes and sixteen of four. Here a
/// register is always named by its first four-byte word, so that equal storage compares equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(u8);

impl Register {
    /// The register whose value decides what happens to the packet.
    pub const VERDICT: Self = Self(u8::MAX);

    /// The register that starts at the given four-byte word, 0 to 15.
    pub const fn word(index: u8) -> Self {
        Self(index)
    }

    /// The first word, `None` for the verdict.
    pub fn index(self) -> Option<u8> {
        (self != Self::VERDICT).then_some(self.0)
    }

    /// The kernel's number, chosen as the kernel does when it lists a rule.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::VERDICT => 0,
            Self(word) if word % 4 == 0 => 1 + u32::from(word / 4),
            Self(word) => 8 + u32::from(word),
        }
    }

    /// The register for a kernel number.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        match u8::try_from(code).ok()? {
            0 => Some(Self::VERDICT),
            code @ 1..=4 => Some(Self((code - 1) * 4)),
            code @ 8..=23 => Some(Self(code - 8)),
            _ => None,
        }
    }
}

/// Largest key or value the kernel takes, in bytes.
pub const IMAGE_MAX: usize = 64;

/// A key or value as it stands in registers: each field starts at a four-byte word. Built without allocation.
///
/// A value of one field keeps that field's own length, one of several is padded at the end too, as the
/// kernel wants it.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    bytes: [u8; IMAGE_MAX],
    length: u8,
    fields: u8,
}

impl Image {
    /// No field yet.
    pub const fn new() -> Self {
        Self { bytes: [0; IMAGE_MAX], length: 0, fields: 0 }
    }

    /// Adds bytes as they are. Past 64 bytes the image becomes and stays empty, which the kernel refuses.
    #[must_use]
    pub fn bytes(mut self, field: &[u8]) -> Self {
        const POISONED: u8 = u8::MAX;
        if self.fields == POISONED {
            return self;
        }
        let start = crate::wire::align(usize::from(self.length));
        let end = start + field.len();
        match (self.bytes.get_mut(start..end), u8::try_from(end)) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(field);
                self.length = length;
                self.fields += 1;
            }
            _ => self = Self { length: 0, fields: POISONED, ..Self::new() },
        }
        self
    }

    /// Adds an address in network byte order.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.ipv4(address),
            IpAddr::V6(address) => self.ipv6(address),
        }
    }

    /// Adds an IPv4 address.
    #[must_use]
    pub fn ipv4(self, address: Ipv4Addr) -> Self {
        self.bytes(&address.octets())
    }

    /// Adds an IPv6 address.
    #[must_use]
    pub fn ipv6(self, address: Ipv6Addr) -> Self {
        self.bytes(&address.octets())
    }

    /// Adds a layer 4 protocol number.
    #[must_use]
    pub fn protocol(self, protocol: u8) -> Self {
        self.bytes(&[protocol])
    }

    /// Adds a port in network byte order.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.bytes(&port.to_be_bytes())
    }

    /// Adds a number in host byte order: marks, priorities and what `numgen` draws.
    #[must_use]
    pub fn number(self, number: u32) -> Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// Adds an interface name, padded with zeros.
    #[must_use]
    pub fn interface(self, name: &str) -> Self {
        let mut field = [0; 16];
        for (place, byte) in field.iter_mut().zip(name.bytes().take(15)) {
            *place = byte;
        }
        self.bytes(&field)
    }

    /// The bytes as the kernel wants them.
    pub fn as_bytes(&self) -> &[u8] {
        let length = usize::from(self.length);
        let length = if self.fields > 1 { crate::wire::align(length) } else { length };
        self.bytes.get(..length).unwrap_or_default()
    }
}

impl Default for Image {
    fn default() -> Self {
        Self::new()
    }
}

impl AsRef<[u8]> for Image {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl From<Image> for Vec<u8> {
    fn from(image: Image) -> Self {
        image.as_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_that_share_storage_are_equal() {
        for code in [0, 1, 2, 3, 4, 9, 10, 11, 13, 23] {
            let register = Register::from_code(code).unwrap();
            assert_eq!(register.code(), code);
        }
        assert_eq!(Register::from_code(8), Register::from_code(1));
        assert_eq!(Register::from_code(12), Register::from_code(2));
        assert_eq!(Register::from_code(5), None);
        assert_eq!(Register::from_code(24), None);
    }

    #[test]
    fn fields_start_at_words_and_one_field_keeps_its_length() {
        assert_eq!(Image::new().port(80).as_bytes(), [0, 80]);
        let image = Image::new().ipv4([10, 0, 0, 1].into()).protocol(6).port(80);
        assert_eq!(image.as_bytes(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
    }

    #[test]
    fn an_image_that_is_too_long_is_empty() {
        let image = (0..5).fold(Image::new(), |image, _| image.ipv6(Ipv6Addr::LOCALHOST));
        assert_eq!(image.as_bytes(), []);
        assert_eq!(image.port(1).as_bytes(), []);
    }
}

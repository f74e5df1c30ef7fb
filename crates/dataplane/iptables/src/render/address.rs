//! An endpoint's address as text, without an allocation: there are very many of them.

use std::fmt::{self, Write};
use std::net::{SocketAddr, SocketAddrV4};

/// `[` + the longest IPv6 address + `]:` + five digits, and room for a scope.
const CAPACITY: usize = 64;

/// `ip:port` or `[ip]:port`.
pub(super) struct AddressText {
    bytes: [u8; CAPACITY],
    length: usize,
    /// Where the address ends and the port begins.
    colon: usize,
}

impl AddressText {
    pub(super) fn new(address: SocketAddr) -> Self {
        let mut text = AddressText { bytes: [0; CAPACITY], length: 0, colon: 0 };
        match address {
            SocketAddr::V4(address) => text.push_v4(address),
            SocketAddr::V6(address) => {
                write!(text, "[{}]", address.ip()).expect("an IPv6 address has at most 45 characters");
                text.push_port(address.port());
            }
        }
        text
    }

    pub(super) fn as_str(&self) -> &str {
        self.slice(0, self.length)
    }

    /// The address alone.
    pub(super) fn ip(&self) -> &str {
        let bracket = usize::from(self.bytes[0] == b'[');
        self.slice(bracket, self.colon - bracket)
    }

    fn slice(&self, from: usize, to: usize) -> &str {
        std::str::from_utf8(&self.bytes[from..to]).expect("addresses are ASCII")
    }

    fn push_v4(&mut self, address: SocketAddrV4) {
        let [a, b, c, d] = address.ip().octets();
        self.push_number(a.into());
        for octet in [b, c, d] {
            self.push(b'.');
            self.push_number(octet.into());
        }
        self.push_port(address.port());
    }

    fn push_port(&mut self, port: u16) {
        self.colon = self.length;
        self.push(b':');
        self.push_number(port);
    }

    fn push_number(&mut self, number: u16) {
        let mut unit = [10_000, 1000, 100, 10].into_iter().find(|unit| *unit <= number).unwrap_or(1);
        while unit > 0 {
            let digit = number / unit % 10;
            self.push(b"0123456789"[usize::from(digit)]);
            unit /= 10;
        }
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }
}

impl Write for AddressText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_what_the_standard_library_prints(ip: std::net::IpAddr, port: u16) {
            let text = AddressText::new(SocketAddr::new(ip, port));
            prop_assert_eq!(text.as_str(), SocketAddr::new(ip, port).to_string());
            prop_assert_eq!(text.ip(), ip.to_string());
        }
    }
}

//! Addresses and CIDRs as Kubernetes writes them.
//!
//! The API accepts text that Rust's own parsers refuse: zero-padded IPv4 octets and IPv4-mapped IPv6. Both are
//! normalised here, so that nothing else compares or prints the text that a user typed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// One of the two IP families. Each has a desired state and a sync of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// 32-bit addresses.
    V4,
    /// 128-bit addresses.
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The family of a CIDR.
    pub fn of_net(net: &IpNet) -> Family {
        match net {
            IpNet::V4(_) => Family::V4,
            IpNet::V6(_) => Family::V6,
        }
    }

    /// The other family.
    pub fn other(self) -> Family {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }

    /// The loopback address, which stands in for an unknown node address.
    pub fn loopback(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }

    /// The name Kubernetes uses: `IPv4` or `IPv6`.
    pub fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One value per IP family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// The value for IPv4.
    pub v4: T,
    /// The value for IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// Builds both values from one function.
    pub fn from_fn(mut make: impl FnMut(Family) -> T) -> Self {
        PerFamily { v4: make(Family::V4), v6: make(Family::V6) }
    }

    /// Both values with their family, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (Family, &T)> {
        [(Family::V4, &self.v4), (Family::V6, &self.v6)].into_iter()
    }
}

impl<T> std::ops::Index<Family> for PerFamily<T> {
    type Output = T;
    fn index(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

impl<T> std::ops::IndexMut<Family> for PerFamily<T> {
    fn index_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// Parses an address: leading zeros are decimal, IPv4-mapped IPv6 is IPv4, zones and blanks are refused.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    Some(normalise(parse_raw(text)?))
}

/// Parses `address/prefix`; host bits are cleared, and an IPv4-mapped network becomes an IPv4 one.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let prefix = prefix.bytes().try_fold(0u8, |n, b| n.checked_mul(10)?.checked_add(b - b'0'))?;
    match parse_raw(address)? {
        IpAddr::V4(ip) => Some(Ipv4Net::new(ip, prefix).ok()?.trunc().into()),
        IpAddr::V6(ip) => {
            let net = Ipv6Net::new(ip, prefix).ok()?.trunc();
            match (net.addr().to_ipv4_mapped(), prefix.checked_sub(96)) {
                (Some(mapped), Some(prefix)) => Some(Ipv4Net::new(mapped, prefix).ok()?.into()),
                _ => Some(net.into()),
            }
        }
    }
}

/// An IPv4-mapped IPv6 address is IPv4 everywhere.
pub fn normalise(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

fn parse_raw(text: &str) -> Option<IpAddr> {
    if text.contains(':') { parse_v6(text).map(IpAddr::V6) } else { parse_v4(text).map(IpAddr::V4) }
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = u8::try_from(digits(parts.next()?, 10, 0xff)?).ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// The groups before and after `::`, with an optional dotted IPv4 tail.
fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    let (head, tail) = match text.split_once("::") {
        Some((_, tail)) if tail.contains("::") => return None,
        Some((head, tail)) => (groups(head)?, Some(groups(tail)?)),
        None => (groups(text)?, None),
    };
    let mut all = [0u16; 8];
    match tail {
        None if head.len() == 8 => all.copy_from_slice(&head),
        Some(tail) if head.len() + tail.len() < 8 && !ends_in_ipv4(text, &head, &tail) => {
            all[..head.len()].copy_from_slice(&head);
            all[8 - tail.len()..].copy_from_slice(&tail);
        }
        _ => return None,
    }
    Some(Ipv6Addr::from(all))
}

/// A dotted tail must be the end of the address: `1.2.3.4::` is not one.
fn ends_in_ipv4(text: &str, head: &[u16], tail: &[u16]) -> bool {
    tail.is_empty() && !head.is_empty() && text.contains('.')
}

fn groups(text: &str) -> Option<Vec<u16>> {
    let mut groups = Vec::with_capacity(8);
    if text.is_empty() {
        return Some(groups);
    }
    let mut parts = text.split(':').peekable();
    while let Some(part) = parts.next() {
        if part.contains('.') && parts.peek().is_none() {
            let [a, b, c, d] = parse_v4(part)?.octets();
            groups.extend([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
        } else {
            groups.push(u16::try_from(digits(part, 16, 0xffff)?).ok()?);
        }
        if groups.len() > 8 {
            return None;
        }
    }
    Some(groups)
}

fn digits(text: &str, radix: u32, max: u32) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.chars().try_fold(0u32, |n, c| Some(n * radix + c.to_digit(radix)?).filter(|n| *n <= max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<String> {
        parse_ip(text).map(|ip| ip.to_string())
    }

    fn cidr(text: &str) -> Option<String> {
        parse_cidr(text).map(|net| net.to_string())
    }

    #[test]
    fn padded_and_mapped_addresses_are_normalised() {
        assert_eq!(ip("010.001.0.9").as_deref(), Some("10.1.0.9"));
        assert_eq!(ip("172.30.0.041").as_deref(), Some("172.30.0.41"));
        assert_eq!(ip("::ffff:5.6.7.8").as_deref(), Some("5.6.7.8"));
        assert_eq!(ip("::ffff:102:304").as_deref(), Some("1.2.3.4"));
        assert_eq!(ip("fd00::0001").as_deref(), Some("fd00::1"));
        assert_eq!(ip("fd00::000001").as_deref(), Some("fd00::1"));
        assert_eq!(ip("FD00:0:0:0:0:0:0:1").as_deref(), Some("fd00::1"));
        assert_eq!(ip("64:ff9b::1.2.3.4").as_deref(), Some("64:ff9b::102:304"));
        assert_eq!(ip("::").as_deref(), Some("::"));
        assert_eq!(ip("1::").as_deref(), Some("1::"));
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in [
            "",
            " ",
            " 1.1.1.1",
            "1.1.1.1 ",
            "1.1.1",
            "1.1.1.1.1",
            "256.1.1.1",
            "1..1.1",
            "fe80::1%eth0",
            "::1::",
            "1:2:3",
            "1:2:3:4:5:6:7:8:9",
            "1:2:3:4:5:6:7:8::",
            "12345::",
            "g::",
            "1.2.3.4::",
            "1.2.3.4:1::",
            ":1",
            "1:",
            ":::",
            "+1.2.3.4",
        ] {
            assert_eq!(ip(text), None, "{text:?}");
        }
    }

    #[test]
    fn host_bits_are_cleared_and_mapped_networks_are_ipv4() {
        assert_eq!(cidr("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(cidr("001.002.003.000/024").as_deref(), Some("1.2.3.0/24"));
        assert_eq!(cidr("203.0.113.000/025").as_deref(), Some("203.0.113.0/25"));
        assert_eq!(cidr("::ffff:10.1.2.3/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(cidr("fd00::1/8").as_deref(), Some("fd00::/8"));
        assert_eq!(cidr("1.2.3.4/0").as_deref(), Some("0.0.0.0/0"));
    }

    #[test]
    fn what_is_not_a_cidr_is_refused() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "fd00::/129",
            "bad/8",
            "/8",
            "10.0.0.0/8 ",
        ] {
            assert_eq!(cidr(text), None, "{text:?}");
        }
    }
}

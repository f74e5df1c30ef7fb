//! Single values: text, numbers and durations to their final types.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use portwarden_model::{Family, NodePortRange, parse_cidr, parse_ip};

use crate::config::duration::GoDuration;
use crate::config::host_port;
use crate::config::problems::{ProblemKind, Problems};

/// A number within bounds; the least of them stands in for one outside.
pub(super) fn within<T: TryFrom<i32> + Default>(
    problems: &mut Problems,
    path: &str,
    value: Option<i32>,
    range: RangeInclusive<i32>,
) -> T {
    let value = value.unwrap_or_default();
    if !range.contains(&value) {
        let message = if *range.end() == i32::MAX {
            format!("must be greater than or equal to {}", range.start())
        } else {
            format!("must be within the range [{}, {}]", range.start(), range.end())
        };
        problems.invalid(path, value, message);
    }
    T::try_from(value).unwrap_or_default()
}

/// A duration that is not negative.
pub(super) fn not_negative(problems: &mut Problems, path: &str, value: Option<GoDuration>) -> Duration {
    let value = value.unwrap_or_default();
    value.to_std().unwrap_or_else(|| {
        problems.invalid_text(path, &value.to_string(), "must be greater than or equal to 0");
        Duration::ZERO
    })
}

/// A duration that is more than nothing.
pub(super) fn positive(
    problems: &mut Problems,
    path: &str,
    value: Option<GoDuration>,
    message: &str,
) -> Duration {
    let value = value.unwrap_or_default();
    value.to_std().filter(|duration| !duration.is_zero()).unwrap_or_else(|| {
        problems.invalid_text(path, &value.to_string(), message);
        Duration::ZERO
    })
}

/// An address.
pub(super) fn address(problems: &mut Problems, path: &str, text: &str) -> IpAddr {
    parse_ip(text).unwrap_or_else(|| {
        problems.invalid_text(path, text, "not a valid textual representation of an IP address");
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    })
}

/// An address with a port.
pub(super) fn socket_address(problems: &mut Problems, path: &str, text: &str) -> SocketAddr {
    let wildcard = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let Some((host, port)) = host_port::split(text) else {
        problems.invalid_text(path, text, "must be IP:port");
        return SocketAddr::new(wildcard, 0);
    };
    let ip = parse_ip(host).unwrap_or_else(|| {
        problems.invalid_text(path, host, "must be a valid IP");
        wildcard
    });
    let port = port.parse::<u16>().ok().filter(|port| *port > 0).unwrap_or_else(|| {
        problems.invalid_text(path, port, "must be a valid port");
        0
    });
    SocketAddr::new(ip, port)
}

/// A list of ranges.
pub(super) fn cidrs(problems: &mut Problems, path: &str, texts: &[String]) -> Vec<IpNet> {
    let mut nets = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        match parse_cidr(text) {
            Some(net) => nets.push(net),
            None => problems.invalid_text(&format!("{path}[{index}]"), text, "must be a valid CIDR"),
        }
    }
    nets
}

/// One range, or one of each family.
pub(super) fn cidr_pair(problems: &mut Problems, path: &str, texts: &[String]) -> Vec<IpNet> {
    const ONE_OR_PAIR: &str = "must be either a single CIDR or a dual-stack pair of CIDRs (such as 10.100.0.0/16,fde4:8dba:82e1::/48)";
    let shown = || format!("{texts:?}");
    if texts.len() > 2 {
        problems.field(path, ProblemKind::Invalid, shown(), ONE_OR_PAIR);
        return Vec::new();
    }
    let mut nets = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        match parse_cidr(text) {
            Some(net) => nets.push(net),
            None => {
                let message = "must be a valid CIDR block (such as 10.100.0.0/16 or fde4:8dba:82e1::/48)";
                problems.invalid_text(&format!("{path}[{index}]"), text, message);
            }
        }
    }
    if let [first, second] = nets.as_slice()
        && Family::of_net(first) == Family::of_net(second)
    {
        problems.field(path, ProblemKind::Invalid, shown(), ONE_OR_PAIR);
    }
    nets
}

/// Ranges and keywords, each keyword once.
pub(super) fn node_port_addresses(
    problems: &mut Problems,
    path: &str,
    texts: &[String],
) -> Vec<NodePortRange> {
    let mut ranges = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let keyword = match text.as_str() {
            "primary" => NodePortRange::Primary,
            "localhost" => NodePortRange::Localhost,
            "all" => NodePortRange::All,
            text => {
                match parse_cidr(text) {
                    Some(net) => ranges.push(NodePortRange::Cidr(net)),
                    None => {
                        let message =
                            "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'";
                        problems.invalid_text(&path, text, message);
                    }
                }
                continue;
            }
        };
        if ranges.contains(&keyword) {
            problems.field(&path, ProblemKind::Duplicate, format!("{text:?}"), "");
        }
        ranges.push(keyword);
    }
    ranges
}

/// An interface's name or the start of one.
pub(super) fn interface(problems: &mut Problems, path: &str, text: &str) -> String {
    if text.is_empty() {
        problems.invalid_text(path, text, "must not be empty");
    }
    text.to_owned()
}

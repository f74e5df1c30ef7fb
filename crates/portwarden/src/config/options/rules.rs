//! The rules that belong to a type: reading a value into it notes what is wrong.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use portwarden_model::{NodePortRange, parse_cidr, parse_ip};

use super::value::{VModule, Value};
use crate::config::duration::GoDuration;
use crate::config::host_port;
use crate::config::problems::ProblemKind;
use crate::config::typed::{ExcludedRanges, LogFormat, Notrack};
use crate::flags::{KUBERNETES_MINOR, VersionRequest};

/// A type that an option can have in the end.
pub trait FromValue: Sized {
    /// Notes everything that is wrong; the result then is a harmless stand-in.
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self;
}

/// What is wrong with one value.
#[derive(Debug, Default)]
pub struct Notes(pub(crate) Vec<Note>);

#[derive(Debug)]
pub(crate) struct Note {
    /// Which item of a list it is about.
    pub(crate) index: Option<usize>,
    pub(crate) kind: ProblemKind,
    pub(crate) value: String,
    pub(crate) message: String,
}

impl Notes {
    fn invalid(&mut self, index: Option<usize>, value: String, message: impl Into<String>) {
        self.0.push(Note { index, kind: ProblemKind::Invalid, value, message: message.into() });
    }

    fn invalid_text(&mut self, index: Option<usize>, text: &str, message: impl Into<String>) {
        self.invalid(index, format!("{text:?}"), message);
    }
}

fn text(value: Option<&Value>) -> &str {
    if let Some(Value::Text(text)) = value { text } else { "" }
}

fn texts(value: Option<&Value>) -> &[String] {
    if let Some(Value::Texts(items)) = value { items } else { &[] }
}

fn duration(value: Option<&Value>) -> GoDuration {
    match value {
        Some(Value::Duration(duration) | Value::Flush { duration, .. }) => *duration,
        _ => GoDuration::ZERO,
    }
}

fn int(value: Option<&Value>) -> i64 {
    if let Some(Value::Int(number)) = value { *number } else { 0 }
}

impl FromValue for bool {
    fn from_value(value: Option<&Value>, _: &mut Notes) -> Self {
        matches!(value, Some(Value::Switch(true)))
    }
}

impl FromValue for String {
    fn from_value(value: Option<&Value>, _: &mut Notes) -> Self {
        text(value).to_owned()
    }
}

impl FromValue for VersionRequest {
    fn from_value(value: Option<&Value>, _: &mut Notes) -> Self {
        if let Some(Value::Version(request)) = value { request.clone() } else { VersionRequest::Off }
    }
}

impl FromValue for BTreeMap<String, bool> {
    fn from_value(value: Option<&Value>, _: &mut Notes) -> Self {
        if let Some(Value::Gates(gates)) = value { gates.clone() } else { BTreeMap::new() }
    }
}

impl FromValue for f32 {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let number = if let Some(Value::Number(number)) = value { *number } else { 0.0 };
        if !number.is_finite() {
            notes.invalid(None, number.to_string(), "must be a finite number");
        }
        number
    }
}

const HIGHEST: i64 = i32::MAX as i64;

impl FromValue for u32 {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let number = int(value);
        if number < 0 {
            notes.invalid(None, number.to_string(), "must be greater than or equal to 0");
        } else if number > HIGHEST {
            notes.invalid(None, number.to_string(), format!("must be less than or equal to {HIGHEST}"));
        }
        u32::try_from(number).unwrap_or(0)
    }
}

/// A number within bounds.
#[derive(Debug, Clone, Copy)]
pub struct Within<const LEAST: i32, const MOST: i32>(pub(crate) i32);

impl<const LEAST: i32, const MOST: i32> FromValue for Within<LEAST, MOST> {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let number = int(value);
        match i32::try_from(number) {
            Ok(number) if (LEAST..=MOST).contains(&number) => Within(number),
            _ => {
                let message = format!("must be within the range [{LEAST}, {MOST}]");
                notes.invalid(None, number.to_string(), message);
                Within(LEAST)
            }
        }
    }
}

impl FromValue for Duration {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let duration = duration(value);
        duration.to_std().unwrap_or_else(|| {
            notes.invalid_text(None, &duration.to_string(), "must be greater than or equal to 0");
            Duration::ZERO
        })
    }
}

/// A duration of more than zero.
#[derive(Debug, Clone, Copy)]
pub struct Positive(pub(crate) Duration);

impl FromValue for Positive {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let written = duration(value);
        let positive = written.to_std().filter(|duration| !duration.is_zero());
        Positive(positive.unwrap_or_else(|| {
            // The two libraries that validate it for kube-proxy differ in this word.
            let zero = if matches!(value, Some(Value::Flush { .. })) { "zero" } else { "0" };
            notes.invalid_text(None, &written.to_string(), format!("must be greater than {zero}"));
            Duration::ZERO
        }))
    }
}

impl FromValue for usize {
    fn from_value(value: Option<&Value>, _: &mut Notes) -> Self {
        let size = if let Some(Value::Quantity(size)) = value { size.value() } else { 0 };
        usize::try_from(size).unwrap_or(0)
    }
}

impl FromValue for IpAddr {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        parse_ip(text(value)).unwrap_or_else(|| {
            notes.invalid_text(None, text(value), "not a valid textual representation of an IP address");
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        })
    }
}

impl FromValue for SocketAddr {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let wildcard = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let Some((host, port)) = host_port::split(text(value)) else {
            notes.invalid_text(None, text(value), "must be IP:port");
            return SocketAddr::new(wildcard, 0);
        };
        let ip = parse_ip(host).unwrap_or_else(|| {
            notes.invalid_text(None, host, "must be a valid IP");
            wildcard
        });
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).unwrap_or_else(|| {
            notes.invalid_text(None, port, "must be a valid port");
            0
        });
        SocketAddr::new(ip, port)
    }
}

/// The empty text turns a server off.
impl FromValue for Option<SocketAddr> {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        (!text(value).is_empty()).then(|| SocketAddr::from_value(value, notes))
    }
}

impl FromValue for ExcludedRanges {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let mut ranges = ExcludedRanges::default();
        for (index, text) in texts(value).iter().enumerate() {
            match parse_cidr(text) {
                Some(cidr) => ranges.cidrs.push(cidr),
                None => {
                    notes.invalid_text(Some(index), text, "must be a valid CIDR");
                    ranges.invalid.push(text.clone());
                }
            }
        }
        ranges
    }
}

impl FromValue for Notrack {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        match text(value) {
            "disabled" | "" => Notrack::Disabled,
            "enabled" => Notrack::Enabled,
            "force" => Notrack::Force,
            other => {
                notes.invalid_text(None, other, "must be disabled, enabled or force");
                Notrack::Disabled
            }
        }
    }
}

/// Each keyword may be there once.
impl FromValue for Vec<NodePortRange> {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let mut ranges = Vec::new();
        for (index, text) in texts(value).iter().enumerate() {
            let keyword = match text.as_str() {
                "primary" => NodePortRange::Primary,
                "localhost" => NodePortRange::Localhost,
                "all" => NodePortRange::All,
                text => {
                    ranges.extend(parse_cidr(text).map(NodePortRange::Cidr).or_else(|| {
                        let message =
                            "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'";
                        notes.invalid_text(Some(index), text, message);
                        None
                    }));
                    continue;
                }
            };
            if ranges.contains(&keyword) {
                let (kind, value) = (ProblemKind::Duplicate, format!("{text:?}"));
                notes.0.push(Note { index: Some(index), kind, value, message: String::new() });
            }
            ranges.push(keyword);
        }
        ranges
    }
}

/// `clusterCIDR`: ranges separated by commas. How many there may be, and whether they must be valid, depends on `detectLocalMode`.
#[derive(Debug, Clone, Default)]
pub struct ClusterCidrs(pub(crate) Vec<String>);

impl ClusterCidrs {
    /// All of them, or none if one of them is invalid.
    pub(crate) fn all_or_none(&self) -> Vec<IpNet> {
        self.0.iter().map(|text| parse_cidr(text)).collect::<Option<_>>().unwrap_or_default()
    }
}

impl FromValue for ClusterCidrs {
    fn from_value(value: Option<&Value>, _: &mut Notes) -> Self {
        ClusterCidrs(value.iter().flat_map(|_| text(value).split(',')).map(str::to_owned).collect())
    }
}

/// The Node's name, in lower case.
#[derive(Debug)]
pub struct NodeName(pub(crate) Option<String>);

impl FromValue for NodeName {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let (name, trimmed) = (text(value), text(value).trim());
        if trimmed.is_empty() && !name.is_empty() {
            notes.invalid_text(None, name, "must not be blank");
        }
        NodeName((!trimmed.is_empty()).then(|| trimmed.to_lowercase()))
    }
}

/// Whether metrics that this release hides are shown.
#[derive(Debug)]
pub struct HiddenMetrics(pub(crate) bool);

impl FromValue for HiddenMetrics {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let (version, previous) = (text(value), format!("1.{}", KUBERNETES_MINOR - 1));
        if !version.is_empty() && version != previous {
            let message = format!("only the previous minor version, {previous}, is allowed");
            notes.invalid_text(None, version, message);
        }
        HiddenMetrics(!version.is_empty())
    }
}

impl FromValue for LogFormat {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        match text(value) {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            other => {
                notes.invalid_text(None, other, "unsupported log format (text and json are known)");
                LogFormat::Text
            }
        }
    }
}

impl FromValue for Vec<VModule> {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let items = if let Some(Value::VModule(items)) = value { items.clone() } else { Vec::new() };
        for (index, item) in items.iter().enumerate() {
            let index = Some(index);
            if item.file_pattern.is_empty() {
                let message = "the file pattern must not be empty".to_owned();
                notes.0.push(Note { index, kind: ProblemKind::Required, value: String::new(), message });
            }
            if item.file_pattern.contains(['=', ',']) {
                let message = "the file pattern must not contain an equals sign or a comma";
                notes.invalid_text(index, &item.file_pattern, message);
            }
            if i64::from(item.verbosity) > HIGHEST {
                let message = format!("must be less than or equal to {HIGHEST}");
                notes.invalid(index, item.verbosity.to_string(), message);
            }
        }
        items
    }
}

/// The ports of mode userspace; `None` means any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRange(pub(crate) Option<RangeInclusive<u16>>);

impl FromValue for PortRange {
    fn from_value(value: Option<&Value>, notes: &mut Notes) -> Self {
        let written = text(value).trim();
        let port = |text: &str| text.trim().parse::<u16>().ok();
        let range = match (written.split_once('-'), written.split_once('+')) {
            _ if written.is_empty() => Some(0..=0),
            (Some((first, last)), _) => port(first).zip(port(last)).map(|(first, last)| first..=last),
            (None, Some((first, more))) => {
                port(first).zip(port(more)).and_then(|(first, more)| Some(first..=first.checked_add(more)?))
            }
            (None, None) => port(written).map(|port| port..=port),
        };
        match range.filter(|range| range.start() <= range.end()) {
            Some(range) => PortRange((*range.end() != 0).then_some(range)),
            None => {
                notes.invalid_text(None, written, "must be a valid port range (e.g. 300-2000)");
                PortRange(None)
            }
        }
    }
}

//! The types of options: how the text of a flag and a value of the file are read.

use portwarden_model::parse_ip;

use super::value::{VModule, Value};
use crate::config::duration::GoDuration;
use crate::config::host_port;
use crate::config::quantity::Quantity;
use crate::config::tree;
use crate::flags::VersionRequest;
use crate::flags::text::{boolean, comma_separated, float32, int32};

/// The type of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Switch,
    Text,
    /// Text that help calls a path.
    Path,
    /// Text that help calls a name; which names are known is a matter of validation.
    Name,
    Int,
    Number,
    Duration,
    /// A duration; in a file also a number of nanoseconds.
    Flush,
    /// An address; the empty text changes nothing.
    Ip,
    /// An address with or without a port; the empty text changes nothing.
    IpPort,
    /// The same, but the empty text is a value: it turns a server off.
    IpPortOrOff,
    /// Comma-separated; further uses append.
    Texts,
    /// `A=true,B=false`; further uses merge.
    Gates,
    Level,
    /// `pattern=N,...`; further uses append.
    VModule,
    Quantity,
    Version,
}

impl Kind {
    /// The value of a flag that is given without one, if that is allowed.
    pub(crate) fn alone(self) -> Option<&'static str> {
        matches!(self, Kind::Switch | Kind::Version).then_some("true")
    }

    /// What stands for the value in help.
    pub(crate) fn placeholder(self) -> &'static str {
        match self {
            Kind::Switch => "",
            Kind::Text => "TEXT",
            Kind::Path => "PATH",
            Kind::Name => "NAME",
            Kind::Int => "INT",
            Kind::Number => "NUMBER",
            Kind::Duration | Kind::Flush => "DURATION",
            Kind::Ip => "IP",
            Kind::IpPort | Kind::IpPortOrOff => "IP[:PORT]",
            Kind::Texts => "ITEM,...",
            Kind::Gates => "GATE=BOOL,...",
            Kind::Level => "LEVEL",
            Kind::VModule => "PATTERN=N,...",
            Kind::Quantity => "QUANTITY",
            Kind::Version => "[=raw|=vX.Y.Z]",
        }
    }

    /// The value that is shown where an option has no effect; none for text, which is then empty, and for lists.
    pub(crate) fn zero(self) -> Option<Value> {
        match self {
            Kind::Switch => Some(Value::Switch(false)),
            Kind::Int | Kind::Level => Some(Value::Int(0)),
            Kind::Number => Some(Value::Number(0.0)),
            Kind::Duration => Some(Value::Duration(GoDuration::ZERO)),
            Kind::Flush => Some(Value::Flush { duration: GoDuration::ZERO, as_number: false }),
            Kind::Quantity => Some(Value::Quantity(Quantity::ZERO)),
            Kind::Gates => Some(Value::Gates(Default::default())),
            Kind::VModule => Some(Value::VModule(Vec::new())),
            Kind::Version => Some(Value::Version(VersionRequest::Off)),
            Kind::Text | Kind::Path | Kind::Name | Kind::Ip | Kind::Texts => None,
            Kind::IpPort | Kind::IpPortOrOff => None,
        }
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Kind::Text | Kind::Path | Kind::Name | Kind::Ip | Kind::IpPort | Kind::IpPortOrOff)
    }

    /// Reads the text of a flag that may have been given before.
    pub(crate) fn parse(self, text: &str, before: Option<Value>) -> Result<Option<Value>, String> {
        Ok(Some(match (self, before) {
            (Kind::Switch, _) => Value::Switch(boolean(text)?),
            (Kind::Text | Kind::Path | Kind::Name, _) => Value::Text(text.to_owned()),
            (Kind::Int, _) => Value::Int(int32(text)?.into()),
            (Kind::Number, _) => Value::Number(float32(text)?),
            (Kind::Duration, _) => Value::Duration(duration(text)?),
            (Kind::Flush, _) => Value::Flush { duration: duration(text)?, as_number: false },
            (Kind::Ip | Kind::IpPort, before) if text.is_empty() => return Ok(before),
            (Kind::Ip, _) => Value::Text(ip(text)?.to_owned()),
            (Kind::IpPortOrOff, _) if text.is_empty() => Value::Text(String::new()),
            (Kind::IpPort | Kind::IpPortOrOff, _) => Value::Text(ip_port(text)?.to_owned()),
            (Kind::Texts, Some(Value::Texts(mut items))) => {
                items.extend(comma_separated(text)?);
                Value::Texts(items)
            }
            (Kind::Texts, _) => Value::Texts(comma_separated(text)?),
            (Kind::Gates, Some(Value::Gates(mut all))) => {
                all.extend(gates(text)?);
                Value::Gates(all)
            }
            (Kind::Gates, _) => Value::Gates(gates(text)?.into_iter().collect()),
            (Kind::Level, _) => Value::Int(level(text)?.into()),
            (Kind::VModule, Some(Value::VModule(mut items))) => {
                items.extend(vmodule(text)?);
                Value::VModule(items)
            }
            (Kind::VModule, _) => Value::VModule(vmodule(text)?),
            (Kind::Quantity, _) => Value::Quantity(quantity(text)?),
            (Kind::Version, _) => Value::Version(VersionRequest::parse(text)?),
        }))
    }

    /// Reads a value of the file that has no parts of its own.
    pub(in crate::config) fn decode(self, value: &tree::Value) -> Result<Value, String> {
        use tree::Value as Tree;
        let expected = |what: &str| Err(format!("expected {what}, found {}", value.describe()));
        match (self, value) {
            (Kind::Switch, Tree::Bool(switch)) => Ok(Value::Switch(*switch)),
            (Kind::Switch, _) => expected("true or false"),
            (Kind::Int, _) => {
                i32::try_from(whole(value)?).map(|n| Value::Int(n.into())).or(out_of_range(value))
            }
            (Kind::Level, _) => {
                u32::try_from(whole(value)?).map(|n| Value::Int(n.into())).or(out_of_range(value))
            }
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what a 32-bit field asks for")]
            (Kind::Number, Tree::Float(number)) => Ok(Value::Number(*number as f32)),
            (Kind::Number, Tree::Integer(number)) => Ok(Value::Number(*number as f32)),
            (Kind::Number, _) => expected("a number"),
            (Kind::Duration, Tree::Text(text)) => Ok(Value::Duration(duration(text)?)),
            (Kind::Duration, _) => expected("a duration such as \"30s\""),
            (Kind::Flush, Tree::Text(text)) => {
                Ok(Value::Flush { duration: duration(text)?, as_number: false })
            }
            (Kind::Flush, _) => {
                let Ok(number) = whole(value) else {
                    return expected("a duration such as \"5s\" or a number of nanoseconds");
                };
                let nanoseconds = i64::try_from(number).map_err(|_| format!("{number} is out of range"))?;
                Ok(Value::Flush { duration: GoDuration::from_nanos(nanoseconds), as_number: true })
            }
            (Kind::Quantity, Tree::Text(text)) => Ok(Value::Quantity(quantity(text.trim())?)),
            (Kind::Quantity, Tree::Integer(number)) => Ok(Value::Quantity(quantity(&number.to_string())?)),
            (Kind::Quantity, Tree::Float(number)) => Ok(Value::Quantity(quantity(&number.to_string())?)),
            (Kind::Quantity, _) => expected("a quantity such as \"64Ki\""),
            (_, Tree::Text(text)) => Ok(Value::Text(text.clone())),
            (_, Tree::Bool(_) | Tree::Integer(_) | Tree::Float(_)) => {
                expected("text").map_err(|message: String| format!("{message} (put it in quotes)"))
            }
            _ => expected("text"),
        }
    }
}

fn out_of_range(value: &tree::Value) -> Result<Value, String> {
    whole(value).and_then(|number| Err(format!("{number} is out of range")))
}

/// A whole number; YAML's `5.0` is one.
fn whole(value: &tree::Value) -> Result<i128, String> {
    match value {
        tree::Value::Integer(number) => Ok(*number),
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 64 bits, by the guard")]
        tree::Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e18 => Ok(*number as i128),
        other => Err(format!("expected a whole number, found {}", other.describe())),
    }
}

fn duration(text: &str) -> Result<GoDuration, String> {
    GoDuration::parse(text).map_err(|error| error.to_string())
}

fn quantity(text: &str) -> Result<Quantity, String> {
    Quantity::parse(text).map_err(|error| error.to_string())
}

fn ip(text: &str) -> Result<&str, String> {
    parse_ip(text).map(|_| text).ok_or_else(|| format!("{text:?} is not a valid IP address"))
}

fn ip_port(text: &str) -> Result<&str, String> {
    if parse_ip(text).is_some() {
        return Ok(text);
    }
    let (host, port) = host_port::split(text).ok_or_else(|| {
        format!("{text:?} is neither an IP address nor IP:port (write IPv6 as [::1]:10256)")
    })?;
    ip(host)?;
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    if digits && port.parse::<u16>().is_ok() {
        Ok(text)
    } else {
        Err(format!("{port:?} is not a valid port number"))
    }
}

fn gates(text: &str) -> Result<Vec<(String, bool)>, String> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or("malformed pair, expect string=bool")?;
            let (name, value) = (name.trim(), value.trim());
            let value = boolean(value).map_err(|error| format!("invalid value of {name}: {error}"))?;
            Ok((name.to_owned(), value))
        })
        .collect()
}

fn level(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let level = text.parse::<u32>().ok().filter(|level| digits && *level <= i32::MAX.unsigned_abs());
    level.ok_or_else(|| format!("{text:?} is not a level (a whole number from 0 to {})", i32::MAX))
}

fn vmodule(text: &str) -> Result<Vec<VModule>, String> {
    let items = text.split(',').filter(|item| !item.is_empty());
    items
        .map(|item| {
            let form = || format!("{item:?} does not have the form pattern=N");
            let (pattern, verbosity) = item.split_once('=').ok_or_else(form)?;
            if pattern.is_empty() || verbosity.is_empty() || verbosity.contains('=') {
                return Err(form());
            }
            let verbosity = level(verbosity).map_err(|error| format!("{error} in {item:?}"))?;
            Ok(VModule { file_pattern: pattern.to_owned(), verbosity })
        })
        .collect()
}

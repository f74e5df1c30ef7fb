//! One flag's value: where it goes, how it is read, how it is shown.

use std::collections::BTreeMap;

use portwarden_model::parse_ip;

use super::text;
use super::version::VersionRequest;
use super::written::Flags;
use crate::config::document::VModule;
use crate::config::duration::GoDuration;
use crate::config::host_port;
use crate::config::quantity::Quantity;

type At<T> = fn(&mut Flags) -> &mut Option<T>;

/// The type of a flag together with the field it fills.
#[derive(Clone, Copy)]
pub(crate) enum Slot {
    Switch(At<bool>),
    Text(At<String>),
    /// A path; only help tells it from text.
    Path(At<String>),
    /// A proxy mode or a way to tell pod traffic: any text, judged with everything else.
    Choice(At<String>),
    Int32(At<i32>),
    Float32(At<f32>),
    Duration(At<GoDuration>),
    /// An address; the empty text changes nothing.
    Ip(At<String>),
    /// An address with or without a port; the empty text changes nothing.
    IpPort(At<String>),
    /// Comma-separated; further uses append.
    Strings(At<Vec<String>>),
    /// `A=true,B=false`; further uses merge.
    Gates(At<BTreeMap<String, bool>>),
    Level(At<u32>),
    /// `pattern=N,...`; further uses append.
    VModule(At<Vec<VModule>>),
    Quantity(At<Quantity>),
    Version(At<VersionRequest>),
}

impl Slot {
    /// The value that a flag without one stands for, if it may stand alone.
    pub(super) fn alone(self) -> Option<&'static str> {
        matches!(self, Slot::Switch(_) | Slot::Version(_)).then_some("true")
    }

    /// What to put in the place of the value in help.
    pub(super) fn placeholder(self) -> &'static str {
        match self {
            Slot::Switch(_) => "",
            Slot::Text(_) => "TEXT",
            Slot::Path(_) => "PATH",
            Slot::Choice(_) => "NAME",
            Slot::Int32(_) => "INT",
            Slot::Float32(_) => "NUMBER",
            Slot::Duration(_) => "DURATION",
            Slot::Ip(_) => "IP",
            Slot::IpPort(_) => "IP[:PORT]",
            Slot::Strings(_) => "ITEM,...",
            Slot::Gates(_) => "GATE=BOOL,...",
            Slot::Level(_) => "LEVEL",
            Slot::VModule(_) => "PATTERN=N,...",
            Slot::Quantity(_) => "QUANTITY",
            Slot::Version(_) => "[=raw|=vX.Y.Z]",
        }
    }

    /// Reads a value into its field.
    pub(super) fn set(self, flags: &mut Flags, value: &str) -> Result<(), String> {
        match self {
            Slot::Switch(at) => *at(flags) = Some(text::boolean(value)?),
            Slot::Text(at) | Slot::Path(at) | Slot::Choice(at) => *at(flags) = Some(value.to_owned()),
            Slot::Int32(at) => *at(flags) = Some(text::int32(value)?),
            Slot::Float32(at) => *at(flags) = Some(text::float32(value)?),
            Slot::Duration(at) => {
                *at(flags) = Some(GoDuration::parse(value).map_err(|error| error.to_string())?);
            }
            Slot::Ip(at) => set_unless_empty(at(flags), value, ip)?,
            Slot::IpPort(at) => set_unless_empty(at(flags), value, ip_port)?,
            Slot::Strings(at) => at(flags).get_or_insert_default().extend(text::comma_separated(value)?),
            Slot::Gates(at) => at(flags).get_or_insert_default().extend(gates(value)?),
            Slot::Level(at) => *at(flags) = Some(level(value)?),
            Slot::VModule(at) => at(flags).get_or_insert_default().extend(vmodule(value)?),
            Slot::Quantity(at) => {
                *at(flags) = Some(Quantity::parse(value).map_err(|error| error.to_string())?);
            }
            Slot::Version(at) => *at(flags) = Some(VersionRequest::parse(value)?),
        }
        Ok(())
    }

    /// The value that was given, if any, as it is shown.
    pub(super) fn show(self, flags: &mut Flags) -> Option<String> {
        match self {
            Slot::Switch(at) => at(flags).map(|value| value.to_string()),
            Slot::Text(at) | Slot::Path(at) | Slot::Choice(at) | Slot::Ip(at) | Slot::IpPort(at) => {
                at(flags).clone()
            }
            Slot::Int32(at) => at(flags).map(|value| value.to_string()),
            Slot::Float32(at) => at(flags).map(|value| value.to_string()),
            Slot::Duration(at) => at(flags).map(|value| value.to_string()),
            Slot::Strings(at) => {
                at(flags).as_ref().map(|items| format!("[{}]", text::join_with_commas(items)))
            }
            Slot::Gates(at) => at(flags).as_ref().map(|gates| {
                gates.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
            }),
            Slot::Level(at) => at(flags).map(|value| value.to_string()),
            Slot::VModule(at) => at(flags).as_ref().map(|items| {
                let item = |item: &VModule| format!("{}={}", item.file_pattern, item.verbosity);
                items.iter().map(item).collect::<Vec<_>>().join(",")
            }),
            Slot::Quantity(at) => at(flags).map(|value| value.to_string()),
            Slot::Version(at) => at(flags).as_ref().map(ToString::to_string),
        }
    }
}

fn set_unless_empty(
    field: &mut Option<String>,
    value: &str,
    check: fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    if !value.is_empty() {
        check(value)?;
        *field = Some(value.to_owned());
    }
    Ok(())
}

fn ip(value: &str) -> Result<(), String> {
    parse_ip(value).map(|_| ()).ok_or_else(|| format!("{value:?} is not a valid IP address"))
}

fn ip_port(value: &str) -> Result<(), String> {
    if parse_ip(value).is_some() {
        return Ok(());
    }
    let (host, port) = host_port::split(value).ok_or_else(|| {
        format!("{value:?} is neither an IP address nor IP:port (write IPv6 as [::1]:10256)")
    })?;
    ip(host)?;
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    if digits && port.parse::<u16>().is_ok() {
        Ok(())
    } else {
        Err(format!("{port:?} is not a valid port number"))
    }
}

fn gates(value: &str) -> Result<Vec<(String, bool)>, String> {
    let pairs = value.split(',').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or("malformed pair, expect string=bool")?;
            let (name, value) = (name.trim(), value.trim());
            let value = text::boolean(value).map_err(|error| format!("invalid value of {name}: {error}"))?;
            Ok((name.to_owned(), value))
        })
        .collect()
}

fn level(value: &str) -> Result<u32, String> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    let level = value.parse::<u32>().ok().filter(|level| digits && *level <= i32::MAX.unsigned_abs());
    level.ok_or_else(|| format!("{value:?} is not a level (a whole number from 0 to {})", i32::MAX))
}

fn vmodule(value: &str) -> Result<Vec<VModule>, String> {
    let items = value.split(',').filter(|item| !item.is_empty());
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

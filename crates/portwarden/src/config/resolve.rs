//! Which source wins: file or flags, what counts beside a file, and what depends on the mode.

use std::net::IpAddr;

use portwarden_model::parse_ip;

use super::host_port;
use super::options::{
    BIND_ADDRESS, CONNTRACK_MAX_PER_CORE, CONNTRACK_MIN, DETECT_LOCAL_MODE, HEALTHZ_BIND_ADDRESS,
    HEALTHZ_PORT, HOSTNAME_OVERRIDE, Key, METRICS_BIND_ADDRESS, METRICS_PORT, MODE, NODE_PORT_ADDRESSES,
    OutOfScope, PAGE_BIND_ADDRESS, TABLE, Value, Values, fields,
};
use super::problems::Problems;
use super::typed::{Defaulted, periods};
use crate::flags::{Action, Flags};
use crate::modes::Mode;

/// The port of a page address that has none. It is near those of kube-proxy; no component of Kubernetes uses it, and it is neither a node port
/// nor a port that the kernel gives to clients.
const PAGE_PORT: i64 = 10266;

/// A configuration with nothing left out, not yet validated.
pub(super) struct Resolved {
    pub(super) document: Values,
    pub(super) defaulted: Defaulted,
}

/// A file replaces every flag but a few; without one, flags lie on top of the defaults.
pub(super) fn resolve(flags: &Flags, file: Option<&Values>, problems: &mut Problems) -> Resolved {
    let mut document = match file {
        Some(file) => from_file(file),
        None => from_flags(flags),
    };
    flags_beside_file(flags, &mut document, problems);
    let mode = document.mode();
    let (_, min_sync_period) = periods(mode);
    let min_sync_period_given = match file {
        Some(file) => file.value(min_sync_period).is_some_and(|value| !value.is_zero()),
        None => flags.values.at(min_sync_period.row().set_by(min_sync_period.index)).is_some(),
    };
    let conntrack = [CONNTRACK_MAX_PER_CORE, CONNTRACK_MIN];
    let conntrack_max_given = match file {
        Some(file) => conntrack.iter().any(|key| file.value(*key).is_some()),
        None => conntrack.iter().any(|key| flags.values.value(*key).is_some()),
    };
    let defaulted = Defaulted {
        mode: document.text(MODE).is_empty(),
        min_sync_period: !min_sync_period_given,
        conntrack_max: !conntrack_max_given,
    };
    apply_mode(&mut document, mode);
    Resolved { document, defaulted }
}

/// Fills in what the file leaves out. For most options, kube-proxy does not distinguish a zero from nothing.
fn from_file(file: &Values) -> Values {
    let mut document = Values::default();
    for (index, row) in fields() {
        let written = file.at(index).filter(|value| row.zero_counts || !value.is_zero()).cloned();
        document.set_at(index, written.or_else(|| row.default_value()));
    }
    let ipv4 = matches!(parse_ip(document.text(BIND_ADDRESS)), Some(IpAddr::V4(_)));
    server_address(&mut document, HEALTHZ_BIND_ADDRESS, default_port(HEALTHZ_PORT), |address| {
        if ipv4 || !file.text(HEALTHZ_BIND_ADDRESS).is_empty() { address } else { "::" }
    });
    server_address(&mut document, METRICS_BIND_ADDRESS, default_port(METRICS_PORT), |address| {
        if ipv4 || !file.text(METRICS_BIND_ADDRESS).is_empty() { address } else { "::1" }
    });
    server_address(&mut document, PAGE_BIND_ADDRESS, PAGE_PORT, |address| address);
    document
}

fn from_flags(flags: &Flags) -> Values {
    let mut document = Values::default();
    for (index, row) in fields() {
        let source = row.set_by(index);
        let given = flags.values.at(source).filter(|_| !row.beside_file).cloned();
        document.set_at(index, given.or_else(|| TABLE[source].flag_default_value()));
    }
    // The old port flags: zero turns a server off, another value is the port of an address that has none.
    let writing = matches!(flags.action(), Action::WriteConfig(_));
    let port = |key: Key<u32>| match flags.values.value(key) {
        Some(Value::Int(port)) if !writing => *port,
        _ => default_port(key),
    };
    server_address(&mut document, HEALTHZ_BIND_ADDRESS, port(HEALTHZ_PORT), |address| address);
    server_address(&mut document, METRICS_BIND_ADDRESS, port(METRICS_PORT), |address| address);
    server_address(&mut document, PAGE_BIND_ADDRESS, PAGE_PORT, |address| address);
    document
}

fn default_port(key: Key<u32>) -> i64 {
    if let Some(Value::Int(port)) = key.row().default_value() { port } else { 0 }
}

fn server_address<T>(document: &mut Values, key: Key<T>, port: i64, address: impl Fn(&str) -> &str) {
    let text = address(document.text(key));
    let text = if port == 0 { String::new() } else { host_port::with_port(text, port) };
    document.set(key, Some(Value::Text(text)));
}

fn flags_beside_file(flags: &Flags, document: &mut Values, problems: &mut Problems) {
    for (index, _) in fields().filter(|(index, row)| row.beside_file && *index != HOSTNAME_OVERRIDE.index) {
        if let Some(given) = flags.values.at(index) {
            let value = given.clone().over(document.at(index));
            document.set_at(index, Some(value));
        }
    }
    match flags.values.text(HOSTNAME_OVERRIDE) {
        "" => {}
        given if given.trim().is_empty() => {
            problems.complete("empty hostname-override is invalid".to_owned());
        }
        given => document.set(HOSTNAME_OVERRIDE, Some(Value::Text(given.trim().to_lowercase()))),
    }
}

/// Fills in what depends on the mode, and hides what has no effect in it.
fn apply_mode(document: &mut Values, mode: Mode) {
    if document.text(MODE).is_empty() {
        document.set(MODE, Some(Value::Text(Mode::DEFAULT.to_string())));
    }
    if document.text(DETECT_LOCAL_MODE).is_empty() {
        document.set(DETECT_LOCAL_MODE, Some(Value::Text("ClusterCIDR".to_owned())));
    }
    let addresses = mode.entry().node_port_addresses;
    let none = !matches!(document.value(NODE_PORT_ADDRESSES), Some(Value::Texts(given)) if !given.is_empty());
    if none && !addresses.is_empty() {
        let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
        document.set(NODE_PORT_ADDRESSES, Some(Value::Texts(addresses)));
    }
    for (index, row) in fields() {
        if row.out_of_scope != OutOfScope::AsWritten && !row.scope.includes(mode) {
            document.set_at(index, row.kind.zero());
        }
    }
}

#[cfg(test)]
mod tests;

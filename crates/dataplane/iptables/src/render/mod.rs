//! From the desired state to rules, as text for `iptables-restore`. Pure.
//!
//! A Service contributes lines to chains that all Services share ([`SharedLines`]) and has chains of its own ([`OwnChains`]). Both
//! depend on nothing but the Service and the [`Context`], so one changed Service renders alone.

mod address;
mod endpoints;
mod fixed;
mod frontends;
mod own;

#[cfg(test)]
mod tests;

use portwarden_model::{Family, PodTraffic, PortName, ProxiedPort, Verdict};

use crate::names::{PortChains, Role};

pub(crate) use fixed::{FixedRules, InvalidPackets, Mark};
pub(crate) use frontends::{SharedChain, SharedLines};
pub(crate) use own::{OwnChains, own_chain_names};

/// What the rules of every Service depend on, besides the Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    /// The family of all rules.
    pub(crate) family: Family,
    /// How pod traffic is identified, such as `-s 10.244.0.0/16`.
    pub(crate) pods: Option<String>,
    /// Count packets to node ports on loopback addresses.
    pub(crate) count_loopback: bool,
    /// Leave out the comments of endpoint rules: there are very many of them.
    pub(crate) large: bool,
}

impl Context {
    /// Whether unchanged Services must be rendered again. The size of the cluster alone is no reason, as in kube-proxy:
    /// chains with and without comments stand side by side.
    pub(crate) fn differs_for_all(&self, other: &Context) -> bool {
        Context { large: self.large, ..other.clone() } != *self
    }
}

/// How pod traffic is identified, if it can be.
pub(crate) fn pod_match(traffic: &PodTraffic) -> Option<String> {
    match traffic {
        PodTraffic::Unknown => None,
        PodTraffic::From(range) => Some(format!("-s {range}")),
        PodTraffic::Interface(name) => Some(format!("-i {name}")),
        PodTraffic::InterfacePrefix(prefix) => Some(format!("-i {prefix}+")),
    }
}

/// Whether the name can stand in a rule. The API server admits no other names, but manifests in files did not pass it.
pub(crate) fn is_safe_name(name: &PortName) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/' | ':');
    name.service.as_str().chars().chain(name.port.as_str().chars()).all(safe)
}

/// One service port with what its rules are made of.
struct Port<'a> {
    port: &'a ProxiedPort,
    /// `namespace/name` or `namespace/name:port`.
    name: String,
    chains: PortChains,
    protocol: &'static str,
    context: &'a Context,
}

impl<'a> Port<'a> {
    fn new(port: &'a ProxiedPort, context: &'a Context) -> Self {
        let name = port.name.to_string();
        let chains = PortChains::new(&port.name, &name);
        Port { port, name, chains, protocol: port.protocol().as_lower(), context }
    }

    /// Whether only some sources may use the load-balancer addresses.
    fn has_firewall(&self) -> bool {
        self.port.has_endpoints && self.port.source_ranges.is_some()
    }

    /// Where load-balancer addresses lead.
    fn load_balancer_role(&self) -> Role {
        if self.has_firewall() { Role::Firewall } else { Role::External }
    }
}

/// What becomes of traffic without an endpoint: why, and the target that does it. `None` for traffic that is forwarded.
fn refusal(verdict: Verdict) -> Option<(&'static str, &'static str)> {
    match verdict {
        Verdict::Forward(_) => None,
        Verdict::Reject => Some(("has no endpoints", "REJECT")),
        Verdict::Drop => Some(("has no local endpoints", "DROP")),
    }
}

/// Appends the parts one after the other; several times faster than formatting.
fn push(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
}

/// Appends one line, written like `format!`.
macro_rules! rule {
    ($out:expr, $($template:tt)*) => {{
        use std::fmt::Write;
        writeln!($out, $($template)*).expect("writing to a string cannot fail");
    }};
}
use rule;

//! What happens to new connections at an address, in terms that a desired state and a kernel have in common: so that they can be compared.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::desired::{Frontend, Masquerade, ProxiedPort, Verdict};
use crate::name::Protocol;

/// Identifies a frontend in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// `None` for a node port.
    pub ip: Option<IpAddr>,
    /// The Service's port, or the node port.
    pub port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
}

/// What happens to new connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Treatment {
    /// Nothing is known about the address.
    NotServed,
    /// They are refused at once.
    Rejected,
    /// They are dropped.
    Dropped,
    /// They go to one of these endpoints.
    Forwarded(BTreeSet<SocketAddr>),
    /// They go to a proxy on this node, which chooses an endpoint. The kernel does not know which.
    Proxied,
}

/// What happens at one frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedFrontend {
    /// To connections that start on this node.
    pub from_node: Treatment,
    /// To all other connections.
    pub from_elsewhere: Treatment,
    /// Which of them are masqueraded; `None` if that is not known.
    pub masquerade: Option<Masquerade>,
    /// Where this was read, such as elements of sets or rules; empty for a desired state.
    pub evidence: Vec<String>,
}

impl FrontendKey {
    /// The key of a frontend of this port.
    pub fn of(port: &ProxiedPort, frontend: &Frontend) -> Self {
        FrontendKey { ip: frontend.ip, port: frontend.port, protocol: port.protocol() }
    }
}

impl ObservedFrontend {
    /// Nothing is known about the address.
    pub fn not_served() -> Self {
        ObservedFrontend {
            from_node: Treatment::NotServed,
            from_elsewhere: Treatment::NotServed,
            masquerade: None,
            evidence: Vec::new(),
        }
    }

    /// What should happen at a frontend.
    pub fn desired(port: &ProxiedPort, frontend: &Frontend) -> Self {
        if !frontend.is_active() {
            return ObservedFrontend::not_served();
        }
        let treatment = |verdict| match verdict {
            Verdict::Forward(kind) => {
                Treatment::Forwarded(port.pool(kind).iter().map(|backend| backend.address()).collect())
            }
            Verdict::Reject => Treatment::Rejected,
            Verdict::Drop => Treatment::Dropped,
        };
        ObservedFrontend {
            from_node: treatment(frontend.from_node),
            from_elsewhere: treatment(frontend.from_elsewhere),
            masquerade: Some(frontend.masquerade),
            evidence: Vec::new(),
        }
    }

    /// The differences from what should be, one sentence each.
    pub fn differences(&self, desired: &ObservedFrontend) -> Vec<String> {
        self.compare(desired, &SHOULD)
    }

    /// The differences from what would be, one sentence each.
    pub fn changes_to(&self, after: &ObservedFrontend) -> Vec<String> {
        self.compare(after, &WOULD)
    }

    fn compare(&self, desired: &ObservedFrontend, words: &Words) -> Vec<String> {
        let mut found = Vec::new();
        let mut side = |which, seen, wanted| found.extend(difference(which, seen, wanted, words));
        if self.from_node == self.from_elsewhere && desired.from_node == desired.from_elsewhere {
            side("connections", &self.from_node, &desired.from_node);
        } else {
            side("connections from this node", &self.from_node, &desired.from_node);
            side("connections from elsewhere", &self.from_elsewhere, &desired.from_elsewhere);
        }
        // Without endpoints there is nothing to masquerade.
        let forwards = matches!(self.from_elsewhere, Treatment::Forwarded(_))
            && matches!(desired.from_elsewhere, Treatment::Forwarded(_));
        if let (Some(seen), Some(wanted)) = (self.masquerade, desired.masquerade)
            && forwards
            && seen != wanted
        {
            let verb = words.verb;
            found.push(format!("masqueraded are {}; it {verb} be {}", whose(seen), whose(wanted)));
        }
        found
    }
}

/// How a difference is put into words.
struct Words {
    verb: &'static str,
    missing: &'static str,
    extra: &'static str,
}

const SHOULD: Words = Words { verb: "should", missing: "do not reach", extra: "still reach" };
const WOULD: Words = Words { verb: "would", missing: "would also reach", extra: "would no longer reach" };

fn difference(which: &str, seen: &Treatment, wanted: &Treatment, words: &Words) -> Option<String> {
    // What a proxy does with connections cannot be read, so it is no difference.
    if seen == wanted || matches!((seen, wanted), (Treatment::Proxied, Treatment::Forwarded(_))) {
        return None;
    }
    if let (Treatment::Forwarded(seen), Treatment::Forwarded(wanted)) = (seen, wanted) {
        let list = |endpoints: Vec<&SocketAddr>| {
            endpoints.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let missing: Vec<_> = wanted.difference(seen).collect();
        let extra: Vec<_> = seen.difference(wanted).collect();
        let mut parts = Vec::new();
        if !missing.is_empty() {
            parts.push(format!("{} {}", words.missing, list(missing)));
        }
        if !extra.is_empty() {
            parts.push(format!("{} {}", words.extra, list(extra)));
        }
        return Some(format!("{which} {}", parts.join(" and ")));
    }
    Some(format!("{which} are {seen}; they {} be {wanted}", words.verb))
}

fn whose(masquerade: Masquerade) -> &'static str {
    match masquerade {
        Masquerade::Never => "none",
        Masquerade::NotFromPods => "all but those of pods",
        Masquerade::FromHost => "those of processes on this node",
        Masquerade::Always => "all",
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => write!(f, "{}/{}", SocketAddr::new(ip, self.port), self.protocol),
            None => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Treatment::NotServed => f.write_str("not served"),
            Treatment::Rejected => f.write_str("rejected"),
            Treatment::Dropped => f.write_str("dropped"),
            Treatment::Forwarded(endpoints) => {
                let all: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
                write!(f, "forwarded to {}", all.join(", "))
            }
            Treatment::Proxied => f.write_str("redirected to the proxy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(endpoints: &[&str]) -> Treatment {
        Treatment::Forwarded(endpoints.iter().map(|one| one.parse().expect("an endpoint")).collect())
    }

    fn observed(from_node: Treatment, from_elsewhere: Treatment) -> ObservedFrontend {
        ObservedFrontend { from_node, from_elsewhere, masquerade: None, evidence: Vec::new() }
    }

    #[test]
    fn differences_name_the_endpoints_and_the_traffic() {
        let both = |treatment: Treatment| observed(treatment.clone(), treatment);
        let (one, two) = (forwarded(&["10.0.0.1:80"]), forwarded(&["10.0.0.1:80", "10.0.0.2:80"]));
        assert_eq!(both(one.clone()).differences(&both(one.clone())), Vec::<String>::new());
        assert_eq!(
            both(one.clone()).differences(&both(two.clone())),
            ["connections do not reach 10.0.0.2:80"]
        );
        assert_eq!(
            both(two.clone()).differences(&both(one.clone())),
            ["connections still reach 10.0.0.2:80"]
        );
        assert_eq!(
            both(Treatment::NotServed).differences(&both(one.clone())),
            ["connections are not served; they should be forwarded to 10.0.0.1:80"]
        );
        let local = observed(two.clone(), one);
        assert_eq!(
            observed(two, Treatment::Dropped).differences(&local),
            ["connections from elsewhere are dropped; they should be forwarded to 10.0.0.1:80"]
        );
    }

    #[test]
    fn masquerading_counts_where_it_is_known() {
        let mut seen = observed(forwarded(&["10.0.0.1:80"]), forwarded(&["10.0.0.1:80"]));
        let wanted = ObservedFrontend { masquerade: Some(Masquerade::Always), ..seen.clone() };
        assert!(seen.differences(&wanted).is_empty());
        seen.masquerade = Some(Masquerade::NotFromPods);
        assert_eq!(seen.differences(&wanted), ["masqueraded are all but those of pods; it should be all"]);
    }
}

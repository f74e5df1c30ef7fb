//! Names of chains and counters: the fixed ones, and those made from a hash of what they stand for.

use std::fmt;

use data_encoding::BASE32;
use portwarden_model::PortName;
use portwarden_xtables::Change;
use sha2::{Digest, Sha256};

/// Dispatches by address; exists in filter (addresses without endpoints) and nat (all others).
pub(crate) const SERVICES: &str = "KUBE-SERVICES";
/// Refuses external traffic that has no endpoint.
pub(crate) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
/// Lets forwarded service traffic pass.
pub(crate) const FORWARD: &str = "KUBE-FORWARD";
/// Dispatches by node port (nat); accepts health checks of load balancers (filter).
pub(crate) const NODE_PORTS: &str = "KUBE-NODEPORTS";
/// Drops what a load balancer's source ranges do not allow.
pub(crate) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// Shared with the kubelet: protects loopback addresses.
pub(crate) const FIREWALL: &str = "KUBE-FIREWALL";
/// Masquerades what was marked.
pub(crate) const POSTROUTING: &str = "KUBE-POSTROUTING";
/// Marks for masquerading.
pub(crate) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// Empty; its absence shows that another process flushed the tables.
pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";

/// The nfacct object that counts packets to node ports on loopback addresses.
pub(crate) const LOOPBACK_COUNTER: &str = "localhost_nps_accepted_pkts";
/// The nfacct object that counts packets dropped because conntrack could not make sense of them.
pub(crate) const INVALID_COUNTER: &str = "ct_state_invalid_dropped_pkts";

/// What a chain of a service port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Chooses among endpoints anywhere.
    Cluster,
    /// Chooses among endpoints on this node.
    Local,
    /// Takes traffic that did not come for the cluster address.
    External,
    /// Lets only certain sources reach load-balancer addresses.
    Firewall,
    /// Leads to one endpoint.
    Endpoint,
}

impl Role {
    const ALL: [Role; 5] = [Role::Cluster, Role::Local, Role::External, Role::Firewall, Role::Endpoint];

    /// How the names of such chains start.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Role::Cluster => "KUBE-SVC-",
            Role::Local => "KUBE-SVL-",
            Role::External => "KUBE-EXT-",
            Role::Firewall => "KUBE-FW-",
            Role::Endpoint => "KUBE-SEP-",
        }
    }
}

/// The name of a chain that belongs to one service port, all in the nat table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServiceChain {
    text: [u8; LONGEST_PREFIX + HASH_LENGTH],
    length: u8,
}

/// `KUBE-SVC-`.
const LONGEST_PREFIX: usize = 9;
/// The kernel limits chain names to 28 characters, so a hash is cut to this length.
const HASH_LENGTH: usize = 16;
/// Bytes of SHA-256 that base32 turns into [`HASH_LENGTH`] characters.
const HASH_BYTES: usize = 10;

impl ServiceChain {
    fn new(role: Role, hash: [u8; HASH_LENGTH]) -> Self {
        let prefix = role.prefix().as_bytes();
        let mut text = [0; LONGEST_PREFIX + HASH_LENGTH];
        let length = prefix.len() + HASH_LENGTH;
        text[..prefix.len()].copy_from_slice(prefix);
        text[prefix.len()..length].copy_from_slice(&hash);
        ServiceChain { text, length: u8::try_from(length).expect("a name has at most 25 characters") }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.length)]).expect("prefixes and base32 are ASCII")
    }
}

/// Whether a chain of the nat table was made for a service port, by this program or by kube-proxy.
pub(crate) fn is_service_chain(name: &str) -> bool {
    Role::ALL.into_iter().any(|role| name.starts_with(role.prefix()))
}

/// How far a chain of the nat table is from the endpoints: it leads only to chains of lower levels.
pub fn chain_level(chain: &str) -> u8 {
    match chain {
        SERVICES => 6,
        NODE_PORTS => 5,
        _ if chain.starts_with(Role::Firewall.prefix()) => 4,
        _ if chain.starts_with(Role::External.prefix()) => 3,
        _ if chain.starts_with(Role::Cluster.prefix()) || chain.starts_with(Role::Local.prefix()) => 2,
        _ if chain.starts_with(Role::Endpoint.prefix()) => 1,
        _ => 0,
    }
}

/// Whether this change of a chain, or of a rule in it, is ours alone to make. The kubelet adds rules to one of our chains, so there
/// only what is removed matters.
pub(crate) fn is_ours(chain: &str, change: Change) -> bool {
    const FIXED: [&str; 8] =
        [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL, POSTROUTING, MARK_MASQ, CANARY];
    FIXED.contains(&chain) || is_service_chain(chain) || (change == Change::Gone && chain == FIREWALL)
}

impl fmt::Display for ServiceChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ServiceChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Makes all the chain names of one service port.
#[derive(Debug, Clone)]
pub(crate) struct PortChains {
    /// The hash so far: endpoints are hashed with the port's name in front.
    state: Sha256,
    hash: [u8; HASH_LENGTH],
}

impl PortChains {
    /// For the service port with this printed name (`namespace/name` or `namespace/name:port`).
    pub(crate) fn new(port: &PortName, printed: &str) -> Self {
        let state = Sha256::new().chain_update(printed).chain_update(port.protocol.as_lower());
        let hash = finish(state.clone());
        PortChains { state, hash }
    }

    /// The port's chain with this role; endpoints have [`PortChains::endpoint`].
    pub(crate) fn chain(&self, role: Role) -> ServiceChain {
        ServiceChain::new(role, self.hash)
    }

    /// The chain of one endpoint, given as `ip:port` or `[ip]:port`.
    pub(crate) fn endpoint(&self, address: &str) -> ServiceChain {
        ServiceChain::new(Role::Endpoint, finish(self.state.clone().chain_update(address)))
    }
}

fn finish(state: Sha256) -> [u8; HASH_LENGTH] {
    let digest = state.finalize();
    let mut hash = [0; HASH_LENGTH];
    BASE32.encode_mut(&digest[..HASH_BYTES], &mut hash);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_model::{Name, NamespacedName, Protocol};

    fn chains(service: &str, port: &str, protocol: Protocol) -> PortChains {
        let service = NamespacedName::new("demo", service);
        let port = PortName { service, port: Name::from(port), protocol };
        PortChains::new(&port, &port.to_string())
    }

    #[test]
    fn one_hash_serves_all_chains_of_a_port() {
        let web = chains("web", "http", Protocol::Tcp);
        assert_eq!(web.chain(Role::Cluster).to_string(), "KUBE-SVC-XRY76EGRC3BSCIIJ");
        assert_eq!(web.chain(Role::Local).to_string(), "KUBE-SVL-XRY76EGRC3BSCIIJ");
        assert_eq!(web.chain(Role::External).to_string(), "KUBE-EXT-XRY76EGRC3BSCIIJ");
        assert_eq!(web.chain(Role::Firewall).to_string(), "KUBE-FW-XRY76EGRC3BSCIIJ");
    }

    #[test]
    fn an_unnamed_port_has_no_colon_and_the_protocol_counts() {
        let np = chains("np", "", Protocol::Tcp);
        assert_eq!(np.chain(Role::Cluster).to_string(), "KUBE-SVC-3FI5PGKAZJQCM3EG");
        let dns = chains("dns", "dns", Protocol::Udp);
        assert_eq!(dns.chain(Role::Cluster).to_string(), "KUBE-SVC-IXHL676EY46F5RLS");
    }

    #[test]
    fn endpoints_are_hashed_with_their_port_and_ipv6_in_brackets() {
        let web = chains("web", "http", Protocol::Tcp);
        let endpoint = web.endpoint("10.244.0.11:8080");
        assert_eq!(endpoint.to_string(), "KUBE-SEP-QRUEL26JRDPVFLID");
        let six = chains("six", "http", Protocol::Tcp);
        let endpoint = six.endpoint("[fd00:10:244::24]:8080");
        assert_eq!(endpoint.to_string(), "KUBE-SEP-UZAQBLS5OCRWV5E7");
    }

    #[test]
    fn service_chains_are_identified_by_their_prefix() {
        for name in ["KUBE-SVC-X", "KUBE-SVL-X", "KUBE-EXT-X", "KUBE-FW-X", "KUBE-SEP-X"] {
            assert!(is_service_chain(name), "{name}");
        }
        for name in ["KUBE-SERVICES", "KUBE-FIREWALL", "KUBE-MARK-MASQ", "CILIUM-KUBE-SVC-X", "INPUT"] {
            assert!(!is_service_chain(name), "{name}");
        }
    }
}

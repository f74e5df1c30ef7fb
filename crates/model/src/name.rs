//! Names: short shared strings, and the identities built from them.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// A shared, immutable string: node, zone, port or interface name. It is one pointer wide, because every endpoint has one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<Box<str>>);

impl Name {
    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Name(Arc::new(Box::from(text)))
    }
}

impl Default for Name {
    fn default() -> Self {
        Name::from("")
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self.0, f)
    }
}

/// Gives equal strings the same allocation: a cluster has thousands of endpoints but few node and port names.
#[derive(Debug, Default)]
pub struct Interner {
    names: HashSet<Name>,
}

impl Interner {
    /// The shared form of `text`.
    pub fn name(&mut self, text: &str) -> Name {
        if let Some(known) = self.names.get(text) {
            return known.clone();
        }
        let name = Name::from(text);
        self.names.insert(name.clone());
        name
    }

    /// Drops names that nothing else uses.
    pub fn prune(&mut self) {
        self.names.retain(|name| Arc::strong_count(&name.0) > 1);
    }

    /// How many names are held.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no name is held.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// `namespace/name`, the identity of a namespaced object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName(Arc<str>);

impl NamespacedName {
    /// Joins the two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        NamespacedName(format!("{namespace}/{name}").into())
    }

    /// The part before the slash.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The part after the slash.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A transport protocol that Services can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// IP protocol 6.
    Tcp,
    /// IP protocol 17.
    Udp,
    /// IP protocol 132.
    Sctp,
}

impl Protocol {
    /// Every protocol, each once.
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Parses Kubernetes' spelling. An empty text means TCP, the API's default.
    pub fn parse(text: &str) -> Option<Protocol> {
        match text {
            "TCP" | "" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            _ => None,
        }
    }

    /// Kubernetes' spelling: `TCP`, `UDP` or `SCTP`.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }

    /// The spelling of kernel tools: `tcp`, `udp` or `sctp`.
    pub fn as_lower(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// The IP protocol number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol with this IP protocol number.
    pub fn from_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The identity of one port of a Service: its number is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    /// The Service that has the port.
    pub service: NamespacedName,
    /// Empty for the only port of a Service, which needs no name.
    pub port: Name,
    /// Two ports may differ in nothing but this.
    pub protocol: Protocol,
}

/// `namespace/name`, or `namespace/name:port` for a named port; the protocol is not printed.
impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.service.as_str())?;
        if self.port.as_str().is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_forgotten() {
        let mut interner = Interner::default();
        let a = interner.name("node-a");
        assert!(Arc::ptr_eq(&a.0, &interner.name("node-a").0));
        interner.name("gone");
        interner.prune();
        assert_eq!(interner.len(), 1);
    }

    #[test]
    fn a_port_without_name_prints_as_the_service() {
        let service = NamespacedName::new("demo", "web");
        let mut port = PortName { service, port: Name::from("http"), protocol: Protocol::Tcp };
        assert_eq!(port.to_string(), "demo/web:http");
        port.port = Name::default();
        assert_eq!(port.to_string(), "demo/web");
        assert_eq!((port.service.namespace(), port.service.name()), ("demo", "web"));
    }
}

//! Short texts with a meaning of their own: senders, targets, sources, names.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::probe::Transport;

/// Who sends: `pod-0`, or with one of its addresses `outside 203.0.113.11`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// A host of the topology.
    pub host: String,
    /// The address it speaks from, if not its usual one.
    pub ip: Option<IpAddr>,
}

/// Where to: `10.96.0.10:80`, or `udp 10.96.0.10:53`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// TCP or UDP.
    pub transport: Transport,
    /// Address and port.
    pub address: SocketAddr,
}

/// One name or a list of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range(pub IpNet);

/// What endpoints see as source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceContent {
    /// The client's own address.
    Client,
    /// The node's primary address.
    Node,
    /// This address.
    Address(IpAddr),
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.ip.map_or(Ok(()), |ip| write!(f, " {ip}"))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.transport, self.address)
    }
}

impl FromStr for Sender {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Sender> {
        let mut words = text.split_whitespace();
        let host = words.next().context("no sender; expected a host such as pod-0")?.to_owned();
        let ip = words.next().map(|ip| ip.parse().with_context(|| format!("{ip:?} is not an address")));
        match words.next() {
            None => Ok(Sender { host, ip: ip.transpose()? }),
            Some(_) => bail!("{text:?} is too long; expected a host and perhaps its address"),
        }
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Target> {
        let (transport, address) = match text.split_once(' ') {
            None => (Transport::Tcp, text),
            Some(("udp", address)) => (Transport::Udp, address),
            Some(("tcp", address)) => (Transport::Tcp, address),
            Some(("sctp", address)) => (Transport::Sctp, address),
            Some((other, _)) => bail!("{other:?} is none of tcp, udp and sctp"),
        };
        let address = address.trim().parse().with_context(|| {
            format!("{address:?} is not an address with a port, such as 10.96.0.10:80 or [::1]:80")
        })?;
        Ok(Target { transport, address })
    }
}

impl FromStr for Range {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Range> {
        text.parse().map(Range).with_context(|| format!("{text:?} is not a range such as 203.0.113.0/24"))
    }
}

impl FromStr for SourceContent {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<SourceContent> {
        match text {
            "client" => Ok(SourceContent::Client),
            "node" => Ok(SourceContent::Node),
            ip => ip
                .parse()
                .map(SourceContent::Address)
                .with_context(|| format!("{ip:?} is none of client, node or an address")),
        }
    }
}

/// Deserializes from text by `FromStr`, so that errors keep their place in the file.
macro_rules! from_text {
    ($($type:ty),+) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(|error| de::Error::custom(format!("{error:#}")))
            }
        }
    )+};
}

from_text!(Range, Sender, SourceContent, Target);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Names;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a host, or a list of them")
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<Names, E> {
                Ok(Names(vec![name.to_owned()]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, names: A) -> Result<Names, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(names)).map(Names)
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

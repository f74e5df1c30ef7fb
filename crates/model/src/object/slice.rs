//! EndpointSlices, in a form that costs about as many bytes as the addresses themselves.
//!
//! A cluster has few Services but up to hundreds of thousands of endpoints, so an endpoint is its address, two bytes and a pointer to
//! its node's name; hints are kept once per slice.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::ip::{Family, parse_ip};
use crate::manifest::{self, ANNOTATION_TRIGGER_TIME, LABEL_HEADLESS, LABEL_SERVICE_NAME};
use crate::name::{Interner, Name, NamespacedName, Protocol};
use crate::problem::{Problem, Problems};
use crate::timestamp::Timestamp;

/// The conditions of an endpoint as the slice states them; no condition is derived from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conditions {
    /// Accepts new connections.
    pub ready: bool,
    /// Answers requests, possibly while terminating.
    pub serving: bool,
    /// Being shut down.
    pub terminating: bool,
}

/// Zones and nodes that should use an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// Zones; empty when there is no zone hint.
    pub zones: Box<[Name]>,
    /// Nodes; empty when there is no node hint.
    pub nodes: Box<[Name]>,
}

/// A port that every endpoint of a slice has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// Matches the name of a Service's port.
    pub name: Name,
    /// Matches the protocol of a Service's port.
    pub protocol: Protocol,
    /// The number on the endpoints.
    pub port: NonZeroU16,
}

impl SlicePort {
    /// Whether this is the target of a Service's port: name and protocol are equal.
    pub fn is_target_of(&self, name: &Name, protocol: Protocol) -> bool {
        self.name == *name && self.protocol == protocol
    }
}

/// One endpoint of a slice, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// The first address of the endpoint; others are not read.
    pub ip: IpAddr,
    /// Decides whether the endpoint is used.
    pub conditions: Conditions,
    /// The node it runs on, if known.
    pub node: Option<&'a Name>,
    /// An index into [`EndpointSlice::hints`].
    pub hints: Option<usize>,
}

/// An EndpointSlice of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The identity of the slice; decides between slices that disagree.
    pub name: NamespacedName,
    /// The Service named by the label.
    pub service: NamespacedName,
    /// The ports that every endpoint of the slice has.
    pub ports: Box<[SlicePort]>,
    /// When the change that led to this content happened, if annotated.
    pub trigger_time: Option<Timestamp>,
    addresses: Addresses,
    nodes: Box<[Option<Name>]>,
    details: Box<[Detail]>,
    hints: Box<[Hints]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Addresses {
    V4(Box<[[u8; 4]]>),
    V6(Box<[[u8; 16]]>),
}

/// Conditions in the low bits, above them the index of the hints, or [`NO_HINTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Detail(u16);

const READY: u16 = 1;
const SERVING: u16 = 2;
const TERMINATING: u16 = 4;
const HINTS_SHIFT: u32 = 3;
const NO_HINTS: u16 = u16::MAX >> HINTS_SHIFT;

impl EndpointSlice {
    /// Parses a slice. `None` if it must not be used: headless, without a Service, or of neither IP family.
    pub fn from_manifest(
        from: &manifest::EndpointSlice,
        names: &mut Interner,
    ) -> (Option<EndpointSlice>, Vec<Problem>) {
        let name = NamespacedName::new(&from.metadata.namespace, &from.metadata.name);
        let mut problems = Problems::of("EndpointSlice", &name);
        let slice = parse(from, name, names, &mut problems);
        (slice, problems.into_vec())
    }

    /// The family of all its endpoints.
    pub fn family(&self) -> Family {
        match self.addresses {
            Addresses::V4(_) => Family::V4,
            Addresses::V6(_) => Family::V6,
        }
    }

    /// The number of endpoints.
    pub fn len(&self) -> usize {
        self.details.len()
    }

    /// Whether the slice has no endpoint.
    pub fn is_empty(&self) -> bool {
        self.details.is_empty()
    }

    /// The endpoints, in the slice's order.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint<'_>> {
        self.details.iter().zip(&self.nodes).enumerate().map(|(index, (detail, node))| Endpoint {
            ip: match &self.addresses {
                Addresses::V4(all) => IpAddr::from(all[index]),
                Addresses::V6(all) => IpAddr::from(all[index]),
            },
            conditions: detail.conditions(),
            node: node.as_ref(),
            hints: detail.hints(),
        })
    }

    /// The distinct hints of its endpoints.
    pub fn hints(&self) -> &[Hints] {
        &self.hints
    }
}

impl Detail {
    fn new(given: manifest::EndpointConditions, hints: u16) -> Self {
        let flag = |on: Option<bool>, absent: bool, bit: u16| if on.unwrap_or(absent) { bit } else { 0 };
        Detail(
            flag(given.ready, true, READY)
                | flag(given.serving, true, SERVING)
                | flag(given.terminating, false, TERMINATING)
                | (hints << HINTS_SHIFT),
        )
    }

    fn conditions(self) -> Conditions {
        Conditions {
            ready: self.0 & READY != 0,
            serving: self.0 & SERVING != 0,
            terminating: self.0 & TERMINATING != 0,
        }
    }

    fn hints(self) -> Option<usize> {
        let number = self.0 >> HINTS_SHIFT;
        (number != NO_HINTS).then_some(usize::from(number))
    }
}

fn parse(
    from: &manifest::EndpointSlice,
    name: NamespacedName,
    names: &mut Interner,
    problems: &mut Problems,
) -> Option<EndpointSlice> {
    if from.metadata.labels.contains_key(LABEL_HEADLESS) {
        return None;
    }
    let family = match from.address_type.as_str() {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        other => {
            problems.add("addressType", format!("{other:?} endpoints cannot be proxied; slice left out"));
            return None;
        }
    };
    if from.metadata.namespace.is_empty() || from.metadata.name.is_empty() {
        problems.add("metadata", "name or namespace is missing; slice left out");
        return None;
    }
    let service = from.metadata.labels.get(LABEL_SERVICE_NAME).filter(|service| !service.is_empty());
    let Some(service) = service else {
        problems.add(format!("metadata.labels[{LABEL_SERVICE_NAME}]"), "no Service is named; slice left out");
        return None;
    };
    let mut packed = Packer::new(family, from.endpoints.len());
    for (index, endpoint) in from.endpoints.iter().enumerate() {
        if let Err((field, text)) = packed.push(endpoint, names) {
            problems.add(format!("endpoints[{index}]{field}"), text);
        }
    }
    let ports = ports(from, names, problems);
    let trigger_time = from.metadata.annotations.get(ANNOTATION_TRIGGER_TIME).and_then(|text| {
        let time = Timestamp::parse(text);
        if time.is_none() {
            problems.add(
                format!("metadata.annotations[{ANNOTATION_TRIGGER_TIME}]"),
                format!("{text:?} is not an RFC 3339 time; ignored"),
            );
        }
        time
    });
    Some(EndpointSlice {
        service: NamespacedName::new(&from.metadata.namespace, service),
        name,
        ports,
        trigger_time,
        addresses: packed.addresses(),
        nodes: packed.nodes.into(),
        details: packed.details.into(),
        hints: packed.hints.into(),
    })
}

fn ports(from: &manifest::EndpointSlice, names: &mut Interner, problems: &mut Problems) -> Box<[SlicePort]> {
    let mut ports = Vec::with_capacity(from.ports.len());
    for (index, port) in from.ports.iter().enumerate() {
        let protocol = Protocol::parse(port.protocol.as_deref().unwrap_or_default());
        let number = port.port.and_then(|number| u16::try_from(number).ok()).and_then(NonZeroU16::new);
        match (&port.name, protocol, number) {
            (Some(name), Some(protocol), Some(port)) => {
                ports.push(SlicePort { name: names.name(name), protocol, port });
            }
            (None, _, _) => problems.add(format!("ports[{index}].name"), "missing; port left out"),
            (_, None, _) => {
                problems.add(format!("ports[{index}].protocol"), "not TCP, UDP or SCTP; port left out");
            }
            (_, _, None) => problems.add(format!("ports[{index}].port"), "not a port number; port left out"),
        }
    }
    ports.into()
}

/// Packs endpoints, keeping each distinct hint once.
struct Packer {
    family: Family,
    v4: Vec<[u8; 4]>,
    v6: Vec<[u8; 16]>,
    nodes: Vec<Option<Name>>,
    details: Vec<Detail>,
    hints: Vec<Hints>,
    hint_numbers: HashMap<Hints, u16>,
}

type Fault = (&'static str, String);

impl Packer {
    fn new(family: Family, count: usize) -> Self {
        let (v4, v6) = match family {
            Family::V4 => (count, 0),
            Family::V6 => (0, count),
        };
        Packer {
            family,
            v4: Vec::with_capacity(v4),
            v6: Vec::with_capacity(v6),
            nodes: Vec::with_capacity(count),
            details: Vec::with_capacity(count),
            hints: Vec::new(),
            hint_numbers: HashMap::new(),
        }
    }

    fn push(&mut self, endpoint: &manifest::Endpoint, names: &mut Interner) -> Result<(), Fault> {
        let text = endpoint.addresses.first().ok_or((".addresses", "empty; endpoint left out".to_owned()))?;
        let ip = parse_ip(text).filter(|ip| Family::of(*ip) == self.family);
        let ip = ip.ok_or_else(|| {
            (".addresses[0]", format!("{text:?} is not an {} address; endpoint left out", self.family))
        })?;
        let hints = match &endpoint.hints {
            Some(hints) => self.hint(hints, names)?,
            None => NO_HINTS,
        };
        match ip {
            IpAddr::V4(ip) => self.v4.push(ip.octets()),
            IpAddr::V6(ip) => self.v6.push(ip.octets()),
        }
        self.nodes.push(endpoint.node_name.as_deref().map(|node| names.name(node)));
        self.details.push(Detail::new(endpoint.conditions.unwrap_or_default(), hints));
        Ok(())
    }

    fn hint(&mut self, from: &manifest::EndpointHints, names: &mut Interner) -> Result<u16, Fault> {
        let mut list = |hints: &[manifest::Hint]| hints.iter().map(|hint| names.name(&hint.name)).collect();
        let hints = Hints { zones: list(&from.for_zones), nodes: list(&from.for_nodes) };
        if hints.zones.is_empty() && hints.nodes.is_empty() {
            return Ok(NO_HINTS);
        }
        if let Some(number) = self.hint_numbers.get(&hints) {
            return Ok(*number);
        }
        let number = u16::try_from(self.hints.len()).ok().filter(|number| *number < NO_HINTS);
        let number = number.ok_or_else(|| {
            (".hints", format!("more than {NO_HINTS} different hints in one slice; endpoint left out"))
        })?;
        self.hints.push(hints.clone());
        self.hint_numbers.insert(hints, number);
        Ok(number)
    }

    fn addresses(&mut self) -> Addresses {
        match self.family {
            Family::V4 => Addresses::V4(std::mem::take(&mut self.v4).into()),
            Family::V6 => Addresses::V6(std::mem::take(&mut self.v6).into()),
        }
    }
}

//! Reads back what the kernel does with connections to a frontend, by following the same maps as a packet.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portwarden_model::{Family, FrontendKey, Masquerade, ObservedFrontend, Protocol, Treatment};
use portwarden_netlink::nftables::{Element, Image, Value};

use crate::dataplane::TABLE;
use crate::error::Error;
use crate::kernel::{Found, Kernel};
use crate::route::{KIND_MASK, Kind, LIST_MASK, ListId, STICKY_LIST_MASK};
use crate::sets::{SetId, Sets};

/// No list is longer, so a loop over slots ends even if the kernel answers nonsense.
const MOST_SLOTS: u32 = 1 << 17;

/// The table of one family, as the kernel has it.
#[derive(Debug)]
pub struct ReadBack {
    family: Family,
    kernel: Kernel,
    owner: Owner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Missing,
    Ours,
    Other,
}

/// A frontend's route into the lists of endpoints.
struct Route {
    list: ListId,
    kind: u32,
}

impl ReadBack {
    /// Connects to the kernel in the network namespace of the calling thread. Nothing is changed.
    pub fn open(family: Family) -> Result<Self, Error> {
        let mut kernel = Kernel::open(family, TABLE).map_err(|source| Error::Open { family, source })?;
        let sets = Sets::new(kernel.table(), family);
        let owner = match kernel.inspect(&sets).map_err(|source| Error::Read { family, source })? {
            Found::Nothing => Owner::Missing,
            Found::Ours { .. } => Owner::Ours,
            Found::Other => Owner::Other,
        };
        Ok(ReadBack { family, kernel, owner })
    }

    /// The name of the table, if another program wrote it, such as kube-proxy in its nftables mode. Nothing can be read from it.
    pub fn table_of_another_program(&self) -> Option<&'static str> {
        (self.owner == Owner::Other).then_some(TABLE)
    }

    /// What the kernel does with connections to a frontend.
    pub fn frontend(&mut self, key: &FrontendKey) -> Result<ObservedFrontend, Error> {
        let mut observed = ObservedFrontend::not_served();
        match self.owner {
            Owner::Missing => {
                observed.evidence.push(format!("there is no table {TABLE} for {}", self.family));
            }
            Owner::Other => {
                observed
                    .evidence
                    .push(format!("another program wrote the table {TABLE} for {}", self.family));
            }
            Owner::Ours => self.follow(key, &mut observed)?,
        }
        Ok(observed)
    }

    /// Every frontend in the kernel.
    pub fn frontends(&mut self) -> Result<BTreeSet<FrontendKey>, Error> {
        let mut keys = BTreeSet::new();
        if self.owner != Owner::Ours {
            return Ok(keys);
        }
        for set in [SetId::Frontends, SetId::Unserved, SetId::NodePorts, SetId::UnservedNodePorts] {
            let table = self.kernel.table().clone();
            let listed = self.kernel.client.elements(&table, set.name());
            let listed = listed.map_err(|source| Error::Read { family: self.family, source })?;
            keys.extend(listed.iter().filter_map(|element| frontend_key(&element.key)));
        }
        Ok(keys)
    }

    fn follow(&mut self, key: &FrontendKey, observed: &mut ObservedFrontend) -> Result<(), Error> {
        let (routes, unserved, dropped) = match key.ip {
            Some(_) => (SetId::Frontends, SetId::Unserved, SetId::Dropped),
            None => (SetId::NodePorts, SetId::UnservedNodePorts, SetId::DroppedNodePorts),
        };
        let image = image_of(key);
        if let Some(route) = self.route(routes, image)? {
            observed.evidence.push(format!("{}: {key} leads to {}", routes.name(), list_name(route.list)));
            observed.masquerade = masquerade_of(route.kind);
            let elsewhere = self.endpoints(route.list, &mut observed.evidence)?;
            observed.from_node = forwarded(elsewhere.clone());
            observed.from_elsewhere = forwarded(elsewhere);
            if route.kind == Kind::SplitByOrigin as u32 {
                observed.from_node = Treatment::NotServed;
                let from_node = self.route(SetId::NodeRoutes, Image::new().number(route.list.key()))?;
                if let Some(Route { list, .. }) = from_node {
                    let line = format!(
                        "{}: traffic that starts here uses {}",
                        SetId::NodeRoutes.name(),
                        list_name(list)
                    );
                    observed.evidence.push(line);
                    observed.from_node = forwarded(self.endpoints(list, &mut observed.evidence)?);
                }
            }
        }
        if self.element(unserved, image)?.is_some() {
            observed.evidence.push(format!("{}: {key}", unserved.name()));
            let treatment = if self.element(dropped, image)?.is_some() {
                observed.evidence.push(format!("{}: {key}", dropped.name()));
                Treatment::Dropped
            } else {
                Treatment::Rejected
            };
            for side in [&mut observed.from_node, &mut observed.from_elsewhere] {
                if *side == Treatment::NotServed {
                    *side = treatment.clone();
                }
            }
        }
        if observed.evidence.is_empty() {
            observed.evidence.push(format!("no set of table {TABLE} has {key}"));
        }
        Ok(())
    }

    fn route(&mut self, set: SetId, key: Image) -> Result<Option<Route>, Error> {
        let Some(number) = self.element(set, key)?.as_ref().and_then(|found| number(data(found)?)) else {
            return Ok(None);
        };
        let list = match ListId::from_sticky_key(number & STICKY_LIST_MASK) {
            Some(sticky) => sticky,
            None => ListId::from_ordinary_key(number & LIST_MASK),
        };
        Ok(Some(Route { list, kind: number & KIND_MASK }))
    }

    /// The endpoints of a list, which fill its slots without gaps.
    fn endpoints(&mut self, list: ListId, evidence: &mut Vec<String>) -> Result<BTreeSet<SocketAddr>, Error> {
        let mut endpoints = BTreeSet::new();
        for slot in 0..MOST_SLOTS {
            let key = Image::new().number(list.key()).number(slot);
            let found = if list.is_sticky() {
                let entry = self.element(SetId::StickySlots, key)?;
                match entry.as_ref().and_then(|entry| number(data(entry)?)) {
                    Some(entry) => self.element(SetId::StickyEndpoints, Image::new().number(entry))?,
                    None => None,
                }
            } else {
                self.element(SetId::Endpoints, key)?
            };
            let Some(endpoint) = found.as_ref().and_then(|found| endpoint(data(found)?)) else { break };
            evidence.push(format!("{}, slot {slot}: {endpoint}", list_name(list)));
            endpoints.insert(endpoint);
        }
        Ok(endpoints)
    }

    fn element(&mut self, set: SetId, key: Image) -> Result<Option<Element>, Error> {
        let table = self.kernel.table().clone();
        let found = self.kernel.client.element(&table, set.name(), key.as_bytes());
        found.map_err(|source| Error::Read { family: self.family, source })
    }
}

fn forwarded(endpoints: BTreeSet<SocketAddr>) -> Treatment {
    if endpoints.is_empty() { Treatment::NotServed } else { Treatment::Forwarded(endpoints) }
}

fn masquerade_of(kind: u32) -> Option<Masquerade> {
    let all = [
        (Kind::MasqueradeOthers, Masquerade::NotFromPods),
        (Kind::MasqueradeAll, Masquerade::Always),
        (Kind::SplitByOrigin, Masquerade::FromHost),
        (Kind::MasqueradeNone, Masquerade::Never),
    ];
    all.into_iter().find(|(known, _)| *known as u32 == kind).map(|(_, masquerade)| masquerade)
}

fn list_name(list: ListId) -> String {
    let kind = if list.is_sticky() { "sticky list" } else { "list" };
    format!("{kind} {}", list.number())
}

fn image_of(key: &FrontendKey) -> Image {
    let image = key.ip.map_or(Image::new(), |ip| Image::new().address(ip));
    image.protocol(key.protocol.number()).port(key.port)
}

/// Each field fills whole registers of four bytes.
fn frontend_key(key: &[u8]) -> Option<FrontendKey> {
    let (address, rest) = key.split_at_checked(key.len().checked_sub(8)?)?;
    let ip = match address.len() {
        0 => None,
        _ => Some(ip(address)?),
    };
    let protocol = Protocol::ALL.into_iter().find(|protocol| Some(&protocol.number()) == rest.first())?;
    Some(FrontendKey { ip, port: u16::from_be_bytes([*rest.get(4)?, *rest.get(5)?]), protocol })
}

fn endpoint(value: &[u8]) -> Option<SocketAddr> {
    let (address, port) = value.split_at_checked(value.len().checked_sub(4)?)?;
    Some(SocketAddr::new(ip(address)?, u16::from_be_bytes([*port.first()?, *port.get(1)?])))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}

fn data(element: &Element) -> Option<&[u8]> {
    match element.value.as_ref()? {
        Value::Data(data) => Some(data),
        Value::Verdict(_) => None,
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

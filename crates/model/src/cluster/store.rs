//! Stores objects. Slices are stored with their Service, so that one Service can be resolved by itself.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use crate::ip::Family;
use crate::name::{Name, NamespacedName};
use crate::object::{EndpointSlice, Node, Service, ServiceCidr};

#[derive(Debug, Default)]
pub(super) struct Store {
    /// Boxed, because a hash table keeps a good part of its slots empty.
    services: HashMap<NamespacedName, Box<Entry>>,
    /// The Service of each slice: its label may change, and a delete does not contain it.
    slices: HashMap<NamespacedName, SliceRecord>,
    node: Option<(Node, u32)>,
    service_cidrs: BTreeMap<Name, (ServiceCidr, u32)>,
}

/// A Service, its slices, or both: either can arrive first. Slices are sorted by name.
#[derive(Debug, Default)]
struct Entry {
    service: Option<Service>,
    seen: u32,
    slices: Vec<EndpointSlice>,
}

#[derive(Debug)]
struct SliceRecord {
    service: NamespacedName,
    seen: u32,
}

/// What applying a slice did.
pub(super) struct SliceOutcome {
    /// The slice differs from the stored one.
    pub(super) changed: bool,
    /// The Service or family that the slice belonged to before and does not any more.
    pub(super) left: Option<(NamespacedName, Family)>,
}

impl Store {
    pub(super) fn apply_service(&mut self, service: Service, seen: u32) -> bool {
        let entry = self.services.entry(service.name.clone()).or_default();
        entry.seen = seen;
        let changed = entry.service.as_ref() != Some(&service);
        if changed {
            entry.service = Some(service);
        }
        changed
    }

    pub(super) fn delete_service(&mut self, name: &NamespacedName) -> bool {
        let Some(entry) = self.services.get_mut(name) else { return false };
        let changed = entry.service.take().is_some();
        self.drop_if_empty(name);
        changed
    }

    pub(super) fn apply_slice(&mut self, mut slice: EndpointSlice, seen: u32) -> SliceOutcome {
        if let Some((known, _)) = self.services.get_key_value(&slice.service) {
            // All slices of a Service share one allocation of its name.
            slice.service = known.clone();
        }
        let record = SliceRecord { service: slice.service.clone(), seen };
        let left = match self.slices.insert(slice.name.clone(), record) {
            Some(old) if old.service != slice.service => self.remove_slice(&old.service, &slice.name),
            _ => None,
        };
        let entry = self.services.entry(slice.service.clone()).or_default();
        match entry.slices.binary_search_by(|other| other.name.cmp(&slice.name)) {
            Ok(index) if entry.slices[index] == slice => SliceOutcome { changed: false, left },
            Ok(index) => {
                let old = std::mem::replace(&mut entry.slices[index], slice);
                let moved = old.family() != entry.slices[index].family();
                SliceOutcome { changed: true, left: moved.then(|| (old.service.clone(), old.family())) }
            }
            Err(index) => {
                // Most Services have one slice: spare capacity would take more memory than the slice's own header.
                entry.slices.reserve_exact(1);
                entry.slices.insert(index, slice);
                SliceOutcome { changed: true, left }
            }
        }
    }

    /// Returns the Service and family that lost the slice.
    pub(super) fn delete_slice(&mut self, name: &NamespacedName) -> Option<(NamespacedName, Family)> {
        let record = self.slices.remove(name)?;
        self.remove_slice(&record.service, name)
    }

    fn remove_slice(
        &mut self,
        service: &NamespacedName,
        name: &NamespacedName,
    ) -> Option<(NamespacedName, Family)> {
        let entry = self.services.get_mut(service)?;
        let index = entry.slices.binary_search_by(|slice| slice.name.cmp(name)).ok()?;
        let slice = entry.slices.remove(index);
        self.drop_if_empty(service);
        Some((slice.service.clone(), slice.family()))
    }

    fn drop_if_empty(&mut self, name: &NamespacedName) {
        if self.services.get(name).is_some_and(|entry| entry.service.is_none() && entry.slices.is_empty()) {
            self.services.remove(name);
        }
    }

    pub(super) fn apply_node(&mut self, node: Node, seen: u32) -> bool {
        let changed = self.node() != Some(&node);
        self.node = Some((node, seen));
        changed
    }

    pub(super) fn forget_node(&mut self) {
        self.node = None;
    }

    /// Returns whether there was an eligible Node.
    pub(super) fn retain_node_as_ineligible(&mut self) -> bool {
        self.node.as_mut().is_some_and(|(node, _)| std::mem::replace(&mut node.eligible, false))
    }

    pub(super) fn apply_service_cidr(&mut self, cidr: ServiceCidr, seen: u32) -> bool {
        let changed = self.service_cidrs.get(&cidr.name).is_none_or(|(old, _)| *old != cidr);
        self.service_cidrs.insert(cidr.name.clone(), (cidr, seen));
        changed
    }

    pub(super) fn delete_service_cidr(&mut self, name: &Name) -> bool {
        self.service_cidrs.remove(name).is_some()
    }

    pub(super) fn service(&self, name: &NamespacedName) -> Option<&Service> {
        self.services.get(name)?.service.as_ref()
    }

    pub(super) fn slices(&self, name: &NamespacedName) -> &[EndpointSlice] {
        self.services.get(name).map_or(&[], |entry| &entry.slices)
    }

    pub(super) fn service_names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.iter().filter(|(_, entry)| entry.service.is_some()).map(|(name, _)| name)
    }

    pub(super) fn node(&self) -> Option<&Node> {
        self.node.as_ref().map(|(node, _)| node)
    }

    pub(super) fn service_cidrs(&self) -> impl Iterator<Item = &IpNet> {
        self.service_cidrs.values().flat_map(|(cidr, _)| cidr.cidrs.iter())
    }

    pub(super) fn unseen_services(&self, generation: u32) -> Vec<NamespacedName> {
        let unseen = |entry: &Entry| entry.service.is_some() && entry.seen != generation;
        self.services.iter().filter(|(_, entry)| unseen(entry)).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn unseen_slices(&self, generation: u32) -> Vec<NamespacedName> {
        self.slices
            .iter()
            .filter(|(_, record)| record.seen != generation)
            .map(|(name, _)| name.clone())
            .collect()
    }

    pub(super) fn node_unseen(&self, generation: u32) -> bool {
        self.node.as_ref().is_some_and(|(_, seen)| *seen != generation)
    }

    pub(super) fn unseen_service_cidrs(&self, generation: u32) -> Vec<Name> {
        self.service_cidrs
            .iter()
            .filter(|(_, (_, seen))| *seen != generation)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

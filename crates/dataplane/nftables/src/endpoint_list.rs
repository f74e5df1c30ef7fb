//! A list of endpoints in the kernel.
//!
//! The slots of a list of N endpoints are 0 to N-1. Adding or removing one endpoint changes one or two elements, whatever the list's
//! length.

mod slots;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;

use portwarden_model::{Backend, Pool};
use portwarden_netlink::nftables::Image;

use crate::affinity_entries::AffinityEntries;
use crate::plan::ElementChanges;
use crate::route::ListId;
use crate::sets::SetId;
use slots::{Position, SlotChanges, Slots};

/// A list as the kernel has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndpointList {
    pub(crate) id: ListId,
    pub(crate) pool: Pool,
    /// `None` while an ordinary list is in the pool's own order, as most are.
    layout: Option<Box<Layout>>,
}

/// The slots and entries of a pool's endpoints, in the pool's order.
#[derive(Debug, Clone, PartialEq)]
struct Layout {
    slots: Slots,
    /// Only lists with session affinity have entries.
    sticky: Option<Box<StickyEntries>>,
}

#[derive(Debug, Clone, PartialEq)]
struct StickyEntries {
    entries: Box<[u16]>,
    /// The entry that was assigned last.
    last: u16,
}

impl EndpointList {
    /// A sticky list that an earlier process left: only the entries of its endpoints matter.
    pub(crate) fn recovered(id: ListId, mut found: Vec<(u16, Backend)>) -> Self {
        found.sort_by_key(|(_, backend)| *backend);
        let (entries, backends): (Vec<u16>, Vec<Backend>) = found.into_iter().unzip();
        let last = entries.iter().copied().max().unwrap_or(0);
        let sticky = StickyEntries { entries: entries.into(), last };
        EndpointList { id, pool: Pool::new(&backends), layout: layout(Vec::new(), Some(sticky)) }
    }

    /// A list whose endpoints have the slots of their order in the pool. Only a sticky list has entries.
    pub(crate) fn in_order(id: ListId, pool: &Pool, entries: Option<&AffinityEntries>) -> Self {
        let sticky = entries.map(|entries| StickyEntries::new(pool, entries));
        EndpointList { id, pool: pool.clone(), layout: layout(Vec::new(), sticky) }
    }

    /// Brings the list to `pool`.
    pub(crate) fn update(
        &self,
        pool: &Pool,
        entries: Option<&AffinityEntries>,
        changes: &mut impl ElementChanges,
    ) -> EndpointList {
        if self.pool == *pool && entries.is_none_or(|entries| entries.last() == self.last_entry()) {
            return self.clone();
        }
        let old: HashMap<SocketAddr, Position> =
            self.positions().map(|(backend, position)| (backend.address(), position)).collect();
        let mut slot_changes = SlotChanges::compute(old, pool);
        let sticky = entries.map(|entries| StickyEntries::new(pool, entries));
        let layout = layout(std::mem::take(&mut slot_changes.slots), sticky);
        let next = EndpointList { id: self.id, pool: pool.clone(), layout };
        for position in &slot_changes.emptied {
            changes.delete(next.slot_set(), slot_key(self.id, position.slot));
        }
        for entry in slot_changes.removed.iter().filter_map(|position| position.entry) {
            changes.delete(SetId::StickyEndpoints, entry_key(self.id, entry));
        }
        for index in slot_changes.filled {
            next.add_slot(index, changes);
        }
        next.add_entries(slot_changes.added, changes);
        next
    }

    /// Adds all elements of the list.
    pub(crate) fn write(&self, changes: &mut impl ElementChanges) {
        for index in 0..self.pool.len() {
            self.add_slot(index, changes);
        }
        self.add_entries(0..self.pool.len(), changes);
    }

    /// Deletes all elements of the list.
    pub(crate) fn remove(&self, changes: &mut impl ElementChanges) {
        for (_, position) in self.positions() {
            changes.delete(self.slot_set(), slot_key(self.id, position.slot));
            if let Some(entry) = position.entry {
                changes.delete(SetId::StickyEndpoints, entry_key(self.id, entry));
            }
        }
    }

    /// The entry of each endpoint; nothing if the list is not sticky.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SocketAddr, u16)> + '_ {
        self.positions().filter_map(|(backend, position)| Some((backend.address(), position.entry?)))
    }

    /// The entry that was assigned last.
    pub(crate) fn last_entry(&self) -> u16 {
        self.sticky().map_or(0, |sticky| sticky.last)
    }

    fn positions(&self) -> impl Iterator<Item = (Backend, Position)> + '_ {
        self.pool.iter().enumerate().map(|(index, backend)| {
            let slot = self.slot(index);
            (backend, Position { slot, entry: self.entry(index) })
        })
    }

    fn slot(&self, index: usize) -> u32 {
        let identity = u32::try_from(index).unwrap_or(u32::MAX);
        self.layout.as_ref().and_then(|layout| layout.slots.get(index)).unwrap_or(identity)
    }

    fn entry(&self, index: usize) -> Option<u16> {
        self.sticky()?.entries.get(index).copied()
    }

    fn sticky(&self) -> Option<&StickyEntries> {
        self.layout.as_ref()?.sticky.as_deref()
    }

    fn slot_set(&self) -> SetId {
        if self.id.is_sticky() { SetId::StickySlots } else { SetId::Endpoints }
    }

    fn add_slot(&self, index: usize, changes: &mut impl ElementChanges) {
        let key = slot_key(self.id, self.slot(index));
        match self.entry(index) {
            Some(entry) => changes.add(SetId::StickySlots, key, Image::new().number(self.id.entry(entry))),
            None => changes.add(SetId::Endpoints, key, self.endpoint(index)),
        }
    }

    fn add_entries(&self, indices: impl IntoIterator<Item = usize>, changes: &mut impl ElementChanges) {
        for index in indices {
            if let Some(entry) = self.entry(index) {
                changes.add(SetId::StickyEndpoints, entry_key(self.id, entry), self.endpoint(index));
            }
        }
    }

    fn endpoint(&self, index: usize) -> Image {
        match self.pool.get(index) {
            Some(backend) => Image::new().address(backend.ip).port(backend.port),
            None => Image::new(),
        }
    }
}

impl StickyEntries {
    fn new(pool: &Pool, entries: &AffinityEntries) -> StickyEntries {
        let numbers = pool.iter().map(|backend| entries.get(backend.address())).collect();
        StickyEntries { entries: numbers, last: entries.last() }
    }
}

fn layout(slots: Vec<u32>, sticky: Option<StickyEntries>) -> Option<Box<Layout>> {
    let slots = Slots::new(slots);
    let trivial = slots == Slots::InOrder && sticky.is_none();
    (!trivial).then(|| Box::new(Layout { slots, sticky: sticky.map(Box::new) }))
}

fn slot_key(list: ListId, slot: u32) -> Image {
    Image::new().number(list.key()).number(slot)
}

fn entry_key(list: ListId, entry: u16) -> Image {
    Image::new().number(list.entry(entry))
}

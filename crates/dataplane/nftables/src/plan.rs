//! A plan: what one transaction changes, and whose wish each element is.

use portwarden_model::NamespacedName;
use portwarden_netlink::error::Place;
use portwarden_netlink::nftables::{ElementParts, Elements, Image, Transaction, ValueParts, Verdict};

use crate::ports::Item;
use crate::sets::{SetId, Sets};

/// Takes changes of elements.
pub(crate) trait ElementChanges {
    /// An element that is not there, or is deleted by the same plan.
    fn add(&mut self, set: SetId, key: Image, value: Image);
    /// An element that is there.
    fn delete(&mut self, set: SetId, key: Image);
}

/// Elements to delete and to add, set by set.
#[derive(Debug)]
pub(crate) struct Plan {
    changes: Vec<SetChanges>,
    /// The Services of this plan; elements refer to them by index.
    services: Vec<NamespacedName>,
    /// Which operation of the transaction is about which set, and whether it adds.
    operations: Vec<(usize, SetId, bool)>,
}

#[derive(Debug, Default)]
struct SetChanges {
    add: Elements,
    add_owners: Vec<u32>,
    delete: Elements,
    delete_owners: Vec<u32>,
}

impl Plan {
    pub(crate) fn new() -> Self {
        let changes = SetId::ALL.iter().map(|_| SetChanges::default()).collect();
        Plan { changes, services: Vec::new(), operations: Vec::new() }
    }

    /// Makes room once for all that a full load adds to a set, instead of step by step. Key and value of an element take
    /// `payload` bytes.
    pub(crate) fn reserve(&mut self, set: SetId, count: usize, payload: usize) {
        let changes = &mut self.changes[set as usize];
        changes.add.reserve(count, payload);
        changes.add_owners.reserve_exact(count);
    }

    /// What follows is this Service's wish.
    pub(crate) fn begin(&mut self, service: &NamespacedName) {
        self.services.push(service.clone());
    }

    /// Adds an element with a comment.
    pub(crate) fn add_item(&mut self, item: &Item, comment: Option<&str>) {
        let owner = self.owner();
        let changes = &mut self.changes[item.set as usize];
        let value = item.value.as_bytes();
        changes.add.push(&ElementParts {
            key: item.key.as_bytes(),
            key_end: item.end.as_ref().map(|end| end.as_bytes()),
            value: (!value.is_empty()).then_some(ValueParts::Data(value)),
            comment,
            ..ElementParts::default()
        });
        changes.add_owners.push(owner);
    }

    /// Deletes an element.
    pub(crate) fn delete_item(&mut self, item: &Item) {
        let owner = self.owner();
        let changes = &mut self.changes[item.set as usize];
        let end = item.end.as_ref().map(|end| end.as_bytes());
        changes.delete.push(&ElementParts {
            key: item.key.as_bytes(),
            key_end: end,
            ..ElementParts::default()
        });
        changes.delete_owners.push(owner);
    }

    /// Adds an element of a verdict map.
    pub(crate) fn add_verdict(&mut self, set: SetId, key: Image, verdict: &Verdict) {
        let owner = self.owner();
        let changes = &mut self.changes[set as usize];
        changes.add.push_verdict(key, verdict);
        changes.add_owners.push(owner);
    }

    /// Adds a class of routes.
    pub(crate) fn add_class(&mut self, bits: u32, verdict: &Verdict) {
        self.add_verdict(SetId::Classes, Image::new().number(bits), verdict);
    }

    /// Adds the plan to a transaction: everything is deleted before anything is added, so that an element can change its value or its
    /// Service.
    pub(crate) fn append_to(&mut self, transaction: &mut Transaction, sets: &Sets) {
        for adds in [false, true] {
            for (id, changes) in SetId::ALL.into_iter().zip(&mut self.changes) {
                let elements = std::mem::take(if adds { &mut changes.add } else { &mut changes.delete });
                if elements.is_empty() {
                    continue;
                }
                self.operations.push((transaction.len(), id, adds));
                if adds {
                    transaction.add_elements(sets.get(id), elements);
                } else {
                    transaction.delete_elements(sets.get(id), elements);
                }
            }
        }
    }

    /// How many elements are added to a set.
    pub(crate) fn additions(&self, set: SetId) -> usize {
        self.changes[set as usize].add_owners.len()
    }

    /// How many elements are deleted and added.
    pub(crate) fn len(&self) -> usize {
        self.changes.iter().map(|changes| changes.add_owners.len() + changes.delete_owners.len()).sum()
    }

    /// How many operations of the transaction are about elements.
    pub(crate) fn operation_count(&self) -> usize {
        self.operations.len()
    }

    /// Whose wish the kernel refused, if the place of the failure tells.
    pub(crate) fn culprit(&self, place: &Place) -> Option<&NamespacedName> {
        let Place::Operation { index, element: Some(element), .. } = place else { return None };
        let (_, id, adds) = self.operations.iter().find(|(operation, ..)| operation == index)?;
        let changes = &self.changes[*id as usize];
        let owners = if *adds { &changes.add_owners } else { &changes.delete_owners };
        self.services.get(*owners.get(*element)? as usize)
    }

    fn owner(&self) -> u32 {
        // Elements of no Service in particular have an owner that does not exist.
        u32::try_from(self.services.len()).unwrap_or(u32::MAX).wrapping_sub(1)
    }
}

impl ElementChanges for Plan {
    fn add(&mut self, set: SetId, key: Image, value: Image) {
        let owner = self.owner();
        let changes = &mut self.changes[set as usize];
        if value.as_bytes().is_empty() {
            changes.add.push_key(key);
        } else {
            changes.add.push_data(key, value);
        }
        changes.add_owners.push(owner);
    }

    fn delete(&mut self, set: SetId, key: Image) {
        let owner = self.owner();
        let changes = &mut self.changes[set as usize];
        changes.delete.push_key(key);
        changes.delete_owners.push(owner);
    }
}

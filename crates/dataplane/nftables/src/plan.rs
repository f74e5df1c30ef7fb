//! The elements that one transaction changes, and the Service that each belongs to.

use portwarden_model::NamespacedName;
use portwarden_netlink::error::FailedPart;
use portwarden_netlink::nftables::{
    Element, ElementParts, Elements, Image, Transaction, ValueParts, Verdict,
};

use crate::port_elements::PortElement;
use crate::sets::{SetId, Sets};

/// Receives changes of elements.
pub(crate) trait ElementChanges {
    /// Adds an element that does not exist, or that the same plan deletes.
    fn add(&mut self, set: SetId, key: Image, value: Image);
    /// Deletes an element that exists.
    fn delete(&mut self, set: SetId, key: Image);
}

/// Elements to delete and to add, set by set.
#[derive(Debug)]
pub(crate) struct Plan {
    changes: Vec<SetChanges>,
    /// The Services of this plan; elements refer to them by index.
    services: Vec<NamespacedName>,
    /// The operations of the transaction, each with its set and whether it adds.
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

    /// Reserves memory for all elements that a full load adds to a set. Key and value of an element take `payload` bytes.
    pub(crate) fn reserve(&mut self, set: SetId, count: usize, payload: usize) {
        let changes = &mut self.changes[set as usize];
        changes.add.reserve(count, payload);
        changes.add_owners.reserve_exact(count);
    }

    /// The changes from here on belong to this Service.
    pub(crate) fn begin(&mut self, service: &NamespacedName) {
        self.services.push(service.clone());
    }

    pub(crate) fn add_element(&mut self, element: &PortElement, comment: Option<&str>) {
        let owner = self.owner();
        let changes = &mut self.changes[element.set as usize];
        let value = element.value.as_bytes();
        changes.add.push(&ElementParts {
            key: element.key.as_bytes(),
            key_end: element.end.as_ref().map(|end| end.as_bytes()),
            value: (!value.is_empty()).then_some(ValueParts::Data(value)),
            comment,
            ..ElementParts::default()
        });
        changes.add_owners.push(owner);
    }

    pub(crate) fn delete_element(&mut self, element: &PortElement) {
        let owner = self.owner();
        let changes = &mut self.changes[element.set as usize];
        let end = element.end.as_ref().map(|end| end.as_bytes());
        changes.delete.push(&ElementParts {
            key: element.key.as_bytes(),
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

    /// The elements that are added to a set.
    pub(crate) fn added(&self, set: SetId) -> &Elements {
        &self.changes[set as usize].add
    }

    /// Takes the elements that are added to a set out of the plan, so that they can be written before the rest.
    pub(crate) fn take_added(&mut self, set: SetId) -> Elements {
        std::mem::take(&mut self.changes[set as usize].add)
    }

    /// Brings an element from what the kernel has to what it should have.
    pub(crate) fn replace(&mut self, set: SetId, found: Option<&Element>, wanted: Option<&Element>) {
        let same = |found: &Element, wanted: &Element| {
            found.value == wanted.value && found.key_end == wanted.key_end
        };
        if let (Some(found), Some(wanted)) = (found, wanted)
            && same(found, wanted)
        {
            return;
        }
        let owner = self.owner();
        let changes = &mut self.changes[set as usize];
        if let Some(found) = found {
            let key_end = found.key_end.as_deref();
            changes.delete.push(&ElementParts { key: &found.key, key_end, ..ElementParts::default() });
            changes.delete_owners.push(owner);
        }
        if let Some(wanted) = wanted {
            changes.add.push(&wanted.parts());
            changes.add_owners.push(owner);
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

    /// How many operations of the transaction change elements.
    pub(crate) fn operation_count(&self) -> usize {
        self.operations.len()
    }

    /// The Service of the element that the kernel refused, if the failure identifies one.
    pub(crate) fn service_at(&self, part: &FailedPart) -> Option<&NamespacedName> {
        let FailedPart::Operation { index, element: Some(element), .. } = part else { return None };
        let (_, id, adds) = self.operations.iter().find(|(operation, ..)| operation == index)?;
        let changes = &self.changes[*id as usize];
        let owners = if *adds { &changes.add_owners } else { &changes.delete_owners };
        self.services.get(*owners.get(*element)? as usize)
    }

    fn owner(&self) -> u32 {
        // Elements that belong to no Service have an index that does not exist.
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

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::nftables::{Family, TableId, Verb};

    fn key(number: u32) -> Image {
        Image::new().number(number)
    }

    fn planned() -> (Plan, Transaction) {
        let table = TableId::new(Family::Ip, "kube-proxy");
        let sets = Sets::new(&table, portwarden_model::Family::V4);
        let (mut plan, mut transaction) = (Plan::new(), Transaction::new());
        plan.add(SetId::NodeAddresses, key(9), Image::new());
        plan.begin(&NamespacedName::new("demo", "first"));
        plan.add(SetId::NodeRoutes, key(1), key(1));
        plan.begin(&NamespacedName::new("demo", "second"));
        plan.add(SetId::NodeRoutes, key(2), key(2));
        plan.delete(SetId::NodeRoutes, key(2));
        plan.append_to(&mut transaction, &sets);
        (plan, transaction)
    }

    /// An element can change its value, or move to another Service, within one transaction.
    #[test]
    fn everything_is_deleted_before_anything_is_added() {
        let (plan, transaction) = planned();
        let verbs: Vec<Verb> = transaction.operations().iter().map(|operation| operation.verb).collect();
        assert_eq!(verbs, [Verb::Delete, Verb::Add, Verb::Add]);
        assert_eq!((plan.len(), plan.operation_count(), plan.additions(SetId::NodeRoutes)), (4, 3, 2));
    }

    #[test]
    fn a_refused_element_identifies_its_service() {
        let (plan, transaction) = planned();
        let service = |index: usize, element: Option<usize>| {
            let description = transaction.operations()[index].describe(element);
            plan.service_at(&FailedPart::Operation { index, element, description }).map(ToString::to_string)
        };
        assert_eq!(service(0, Some(0)).as_deref(), Some("demo/second"));
        assert_eq!(service(1, Some(0)).as_deref(), Some("demo/first"));
        assert_eq!(service(1, Some(1)).as_deref(), Some("demo/second"));
        assert_eq!(service(2, Some(0)), None, "a node address belongs to no Service");
        assert_eq!(service(1, None), None);
        assert_eq!(plan.service_at(&FailedPart::Whole), None);
    }
}

//! Which Service needs which objects of the kernel (elements of sets, rules), so that a change costs work in proportion to its Service. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use portwarden_model::NamespacedName;

/// The objects that the kernel has acknowledged.
#[derive(Debug)]
pub(crate) struct Ledger<O> {
    /// Those that follow from the node as a whole.
    node: Vec<O>,
    services: HashMap<NamespacedName, Vec<O>>,
    /// How many Services need an object: several may have the same cluster address.
    owners: BTreeMap<O, usize>,
}

/// What Services and the node should have after a write; `None` removes a Service.
#[derive(Debug)]
pub(crate) struct Draft<'a, O> {
    pub(crate) node: Vec<O>,
    pub(crate) services: Vec<(&'a NamespacedName, Option<Vec<O>>)>,
}

/// What has to be written.
#[derive(Debug)]
pub(crate) struct Difference<O> {
    pub(crate) added: BTreeSet<O>,
    pub(crate) gone: BTreeSet<O>,
    /// How many owners objects have after the write, for those that gain or lose any.
    owners: BTreeMap<O, usize>,
    everything: bool,
}

impl<O: Ord + Clone> Ledger<O> {
    pub(crate) fn new() -> Self {
        Ledger { node: Vec::new(), services: HashMap::new(), owners: BTreeMap::new() }
    }

    /// All objects of a draft, as if the kernel had none.
    pub(crate) fn everything(draft: &Draft<'_, O>) -> Difference<O> {
        let mut owners = BTreeMap::new();
        for object in draft.services.iter().filter_map(|(_, objects)| objects.as_ref()).flatten() {
            *owners.entry(object.clone()).or_default() += 1;
        }
        let added = owners.keys().chain(&draft.node).cloned().collect();
        Difference { added, gone: BTreeSet::new(), owners, everything: true }
    }

    /// What differs from what the kernel has.
    pub(crate) fn difference(&self, draft: &Draft<'_, O>) -> Difference<O> {
        let mut owners: BTreeMap<O, usize> = BTreeMap::new();
        let before = |object: &O| self.owners.get(object).copied().unwrap_or(0);
        for (name, objects) in &draft.services {
            for object in self.services.get(*name).into_iter().flatten() {
                *owners.entry(object.clone()).or_insert_with(|| before(object)) -= 1;
            }
            for object in objects.iter().flatten() {
                *owners.entry(object.clone()).or_insert_with(|| before(object)) += 1;
            }
        }
        let gone = owners.iter().filter(|(object, count)| **count == 0 && before(object) > 0);
        let added = owners.iter().filter(|(object, count)| **count > 0 && before(object) == 0);
        let node_gone = self.node.iter().filter(|object| !draft.node.contains(object));
        let node_added = draft.node.iter().filter(|object| !self.node.contains(object));
        let gone = gone.map(|(object, _)| object).chain(node_gone).cloned().collect();
        let added = added.map(|(object, _)| object).chain(node_added).cloned().collect();
        Difference { added, gone, owners, everything: false }
    }

    /// All objects that the kernel has once `difference` is written.
    pub(crate) fn after<'a>(&'a self, difference: &'a Difference<O>) -> impl Iterator<Item = &'a O> {
        let kept = self.owners.keys().chain(&self.node);
        let kept = kept.filter(|object| !difference.everything && !difference.gone.contains(*object));
        kept.chain(&difference.added)
    }

    /// Takes over what the kernel acknowledged.
    pub(crate) fn accept(&mut self, draft: Draft<'_, O>, difference: Difference<O>) {
        if difference.everything {
            self.services.clear();
            self.owners.clear();
        }
        for (object, count) in difference.owners {
            match count {
                0 => self.owners.remove(&object),
                count => self.owners.insert(object, count),
            };
        }
        for (name, objects) in draft.services {
            match objects {
                Some(objects) => self.services.insert(name.clone(), objects),
                None => self.services.remove(name),
            };
        }
        self.node = draft.node;
    }
}

impl<O: Ord + Clone> Difference<O> {
    /// What is left to write of all objects if the kernel has these already.
    pub(crate) fn beyond(mut self, present: &BTreeSet<O>) -> Self {
        self.gone = present.difference(&self.added).cloned().collect();
        self.added.retain(|object| !present.contains(object));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> [NamespacedName; 2] {
        ["a", "b"].map(|name| NamespacedName::new("demo", name))
    }

    #[test]
    fn an_object_of_two_services_goes_with_the_second() {
        let [a, b] = names();
        let mut ledger = Ledger::new();
        let draft = Draft { node: vec![9], services: vec![(&a, Some(vec![1, 2])), (&b, Some(vec![2]))] };
        let first = Ledger::everything(&draft);
        assert_eq!(first.added, [1, 2, 9].into());
        ledger.accept(draft, first);

        let draft = Draft { node: vec![9], services: vec![(&a, None)] };
        let second = ledger.difference(&draft);
        assert_eq!((&second.added, &second.gone), (&[].into(), &[1].into()));
        assert_eq!(ledger.after(&second).copied().collect::<BTreeSet<_>>(), [2, 9].into());
        ledger.accept(draft, second);

        let draft = Draft { node: vec![8], services: vec![(&b, Some(vec![3]))] };
        let third = ledger.difference(&draft);
        assert_eq!((&third.added, &third.gone), (&[3, 8].into(), &[2, 9].into()));
        ledger.accept(draft, third);
        let again = ledger.difference(&Draft { node: vec![8], services: vec![(&b, Some(vec![3]))] });
        assert!(again.added.is_empty() && again.gone.is_empty());
    }
}

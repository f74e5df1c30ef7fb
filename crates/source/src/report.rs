//! Tells each problem once, however often the object comes again.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use portwarden_model::Problem;

/// Remembers which problems of which objects were told. Holds nothing for objects without problems.
#[derive(Debug)]
pub(crate) struct Reported<K> {
    told: HashMap<K, Told>,
    hasher: RandomState,
    list: u64,
}

#[derive(Debug)]
struct Told {
    hashes: HashSet<u64>,
    /// The last list that brought the object.
    list: u64,
}

impl<K> Default for Reported<K> {
    fn default() -> Self {
        Reported { told: HashMap::new(), hasher: RandomState::new(), list: 0 }
    }
}

impl<K: Eq + std::hash::Hash> Reported<K> {
    /// Those of an object's present problems that were not told yet. What the object no longer has is forgotten.
    pub(crate) fn fresh(&mut self, object: impl FnOnce() -> K, problems: Vec<Problem>) -> Vec<Problem> {
        // Most objects of most clusters have no problem, and should cost nothing.
        if problems.is_empty() && self.told.is_empty() {
            return problems;
        }
        let object = object();
        if problems.is_empty() {
            self.told.remove(&object);
            return problems;
        }
        let hashes = problems.iter().map(|problem| self.hasher.hash_one(problem)).collect();
        let now = Told { hashes, list: self.list };
        let Some(before) = self.told.insert(object, now) else { return problems };
        let hasher = &self.hasher;
        problems.into_iter().filter(|problem| !before.hashes.contains(&hasher.hash_one(problem))).collect()
    }

    /// A new list begins.
    pub(crate) fn list_started(&mut self) {
        self.list += 1;
    }

    /// The list is whole: objects that it did not bring are forgotten.
    pub(crate) fn list_done(&mut self) {
        self.told.retain(|_, told| told.list == self.list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Problem {
        Problem { object: "Service demo/web".into(), field: "spec".into(), text: text.into() }
    }

    #[test]
    fn a_problem_is_told_once_until_it_was_gone() {
        let mut reported = Reported::default();
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), [problem("a")]);
        assert_eq!(reported.fresh(|| "web", vec![problem("a"), problem("b")]), [problem("b")]);
        assert_eq!(reported.fresh(|| "web", vec![problem("b")]), []);
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), [problem("a")]);
        reported.fresh(|| "web", vec![]);
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), [problem("a")]);
    }

    #[test]
    fn a_list_forgets_what_it_did_not_bring() {
        let mut reported = Reported::default();
        reported.fresh(|| "web", vec![problem("a")]);
        reported.fresh(|| "gone", vec![problem("a")]);
        reported.list_started();
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), []);
        reported.list_done();
        assert_eq!(reported.told.len(), 1);
    }
}

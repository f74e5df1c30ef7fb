//! Filters repeated problems: each is reported once, however often its object is read.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use portwarden_model::Problem;

/// The reported problems of each object. Objects without problems have no entry.
#[derive(Debug)]
pub(crate) struct ReportedProblems<K> {
    entries: HashMap<K, Entry>,
    hasher: RandomState,
    list: u64,
}

#[derive(Debug)]
struct Entry {
    hashes: HashSet<u64>,
    /// The last list that contained the object.
    list: u64,
}

impl<K> Default for ReportedProblems<K> {
    fn default() -> Self {
        ReportedProblems { entries: HashMap::new(), hasher: RandomState::new(), list: 0 }
    }
}

impl<K: Eq + std::hash::Hash> ReportedProblems<K> {
    /// The problems of an object that were not reported yet. Problems that it no longer has are forgotten.
    pub(crate) fn fresh(&mut self, object: impl FnOnce() -> K, problems: Vec<Problem>) -> Vec<Problem> {
        // Most objects of most clusters have no problem, and should cost nothing.
        if problems.is_empty() && self.entries.is_empty() {
            return problems;
        }
        let object = object();
        if problems.is_empty() {
            self.entries.remove(&object);
            return problems;
        }
        let hashes = problems.iter().map(|problem| self.hasher.hash_one(problem)).collect();
        let now = Entry { hashes, list: self.list };
        let Some(before) = self.entries.insert(object, now) else { return problems };
        let hasher = &self.hasher;
        problems.into_iter().filter(|problem| !before.hashes.contains(&hasher.hash_one(problem))).collect()
    }

    /// A new list begins.
    pub(crate) fn list_started(&mut self) {
        self.list += 1;
    }

    /// The list is complete: objects that it did not contain are forgotten.
    pub(crate) fn list_done(&mut self) {
        self.entries.retain(|_, entry| entry.list == self.list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Problem {
        Problem { object: "Service demo/web".into(), field: "spec".into(), text: text.into() }
    }

    #[test]
    fn a_problem_is_reported_once_until_it_was_gone() {
        let mut reported = ReportedProblems::default();
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), [problem("a")]);
        assert_eq!(reported.fresh(|| "web", vec![problem("a"), problem("b")]), [problem("b")]);
        assert_eq!(reported.fresh(|| "web", vec![problem("b")]), []);
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), [problem("a")]);
        reported.fresh(|| "web", vec![]);
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), [problem("a")]);
    }

    #[test]
    fn a_list_forgets_objects_that_it_does_not_contain() {
        let mut reported = ReportedProblems::default();
        reported.fresh(|| "web", vec![problem("a")]);
        reported.fresh(|| "gone", vec![problem("a")]);
        reported.list_started();
        assert_eq!(reported.fresh(|| "web", vec![problem("a")]), []);
        reported.list_done();
        assert_eq!(reported.entries.len(), 1);
    }
}

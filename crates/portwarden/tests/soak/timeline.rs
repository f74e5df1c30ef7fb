//! What an object was when, and which of its versions the kernel may have acted on at a moment.

use std::time::Instant;

/// All versions of an object that may matter.
#[derive(Debug)]
pub(crate) struct Timeline<T> {
    versions: Vec<Version<T>>,
    written: u64,
}

/// An object between two writes.
#[derive(Debug)]
pub(crate) struct Version<T> {
    /// Different for each version of one object.
    pub(crate) number: u64,
    pub(crate) value: T,
    /// No request before this moment can have met it.
    from: Instant,
    /// The kernel acts on a later one since then, at the latest.
    until: Option<Instant>,
}

impl<T: PartialEq> Timeline<T> {
    pub(crate) fn new(value: T) -> Timeline<T> {
        let mut timeline = Timeline { versions: Vec::new(), written: 0 };
        timeline.write(value);
        timeline
    }

    /// Records a version that is about to be written.
    pub(crate) fn write(&mut self, value: T) {
        if self.versions.last().is_some_and(|last| last.value == value) {
            return;
        }
        self.written += 1;
        self.versions.push(Version { number: self.written, value, from: Instant::now(), until: None });
    }

    /// The last version is known to be in the kernel.
    pub(crate) fn confirm(&mut self, now: Instant) {
        if let Some((_, earlier)) = self.versions.split_last_mut() {
            earlier.iter_mut().for_each(|version| version.until = version.until.or(Some(now)));
        }
    }

    /// Versions that some moment of this time may have been about.
    pub(crate) fn during(&self, start: Instant, end: Instant) -> impl Iterator<Item = &Version<T>> + Clone {
        self.versions
            .iter()
            .filter(move |version| version.from <= end && version.until.is_none_or(|until| until >= start))
    }

    /// The last version.
    pub(crate) fn now(&self) -> Option<&Version<T>> {
        self.versions.last()
    }

    /// When a version was about to be written.
    pub(crate) fn written(&self, number: u64) -> Option<Instant> {
        self.versions.iter().find(|version| version.number == number).map(|version| version.from)
    }

    /// Drops versions that ended before this moment.
    pub(crate) fn forget(&mut self, before: Instant) {
        self.versions.retain(|version| version.until.is_none_or(|until| until >= before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_counts_until_a_later_one_is_confirmed() {
        let mut timeline = Timeline::new('a');
        let first = Instant::now();
        timeline.write('b');
        let second = Instant::now();
        let values = |timeline: &Timeline<char>, start, end| -> String {
            timeline.during(start, end).map(|version| version.value).collect()
        };
        assert_eq!(values(&timeline, first, first), "a");
        assert_eq!(values(&timeline, second, second), "ab");
        timeline.confirm(Instant::now());
        timeline.write('b');
        let third = Instant::now();
        assert_eq!(values(&timeline, third, third), "b");
        assert_eq!(values(&timeline, first, third), "ab");
        timeline.forget(third);
        assert_eq!(values(&timeline, first, third), "b");
    }
}

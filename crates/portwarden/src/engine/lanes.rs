//! The families together, and the change from one set of dataplanes to another without a gap.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use portwarden_model::{Changes, Cluster, Dataplane, Family, PacerConfig, PerFamily};
use tracing::info;

use super::clock::Moment;
use super::lane::{Lane, Outcome};
use super::{Replacement, Retire};

/// All lanes. During a change of mode the new ones run beside the old ones until they have installed everything.
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    incoming: Vec<Lane>,
    retire: Option<Retire>,
}

impl Lanes {
    pub(super) fn new(
        dataplanes: Vec<Box<dyn Dataplane>>,
        pacing: PacerConfig,
        retire: Option<Retire>,
        now: Instant,
    ) -> Self {
        Lanes { lanes: make(dataplanes, pacing, now), incoming: Vec::new(), retire }
    }

    /// The families that are served.
    pub(super) fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = self.all().map(Lane::family).collect();
        families.sort_unstable();
        families.dedup();
        families
    }

    /// The modes in use: two during a change.
    pub(super) fn modes(&self) -> Vec<&'static str> {
        let mut modes: Vec<&'static str> = self.all().map(|lane| lane.dataplane().mode()).collect();
        modes.dedup();
        modes
    }

    pub(super) fn set_pacing(&mut self, pacing: PacerConfig) {
        self.all_mut().for_each(|lane| lane.set_pacing(pacing));
    }

    pub(super) fn request(&mut self, family: Family, now: Instant) {
        self.all_mut().filter(|lane| lane.family() == family).for_each(|lane| lane.request(now));
    }

    /// Puts other dataplanes in place of the present ones: beside them until they are installed, if they write other objects.
    pub(super) fn replace(&mut self, replacement: Replacement, pacing: PacerConfig, now: Instant) {
        let fresh = make(replacement.dataplanes, pacing, now);
        if replacement.retire.is_some() {
            self.incoming = fresh;
            self.retire = replacement.retire;
        } else {
            self.lanes = fresh;
            self.incoming.clear();
        }
    }

    /// Adds what the model worked out.
    pub(super) fn add(&mut self, changes: &PerFamily<Changes>) {
        for lane in self.all_mut() {
            lane.add(changes[lane.family()].clone());
        }
    }

    /// Whether any lane is due.
    pub(super) fn wake(&mut self, now: Instant) -> bool {
        let mut due = false;
        for lane in self.all_mut() {
            if lane.is_due(now) {
                lane.wake(now);
                due = true;
            }
        }
        due
    }

    /// Syncs the lanes that are due, and tells what came of it.
    pub(super) fn sync(
        &mut self,
        cluster: &Cluster,
        clock: &dyn Fn() -> Moment,
        mut tell: impl FnMut(&'static str, Family, Outcome),
    ) {
        for lane in self.all_mut() {
            if lane.is_due(clock().instant) {
                let outcome = lane.sync(cluster.desired(lane.family()), clock);
                tell(lane.dataplane().mode(), lane.family(), outcome);
            }
        }
    }

    /// Lets the old ones go once the new ones have installed everything.
    pub(super) fn retire(&mut self) {
        let newest = if self.incoming.is_empty() { &self.lanes } else { &self.incoming };
        if !newest.iter().all(Lane::is_installed) {
            return;
        }
        if !self.incoming.is_empty() {
            self.lanes = std::mem::take(&mut self.incoming);
            info!(mode = self.modes().join(","), "The new mode is in force");
        }
        if let Some(retire) = self.retire.take() {
            retire();
        }
    }

    /// What somebody else changed, and whether that is news.
    pub(super) fn look_for_tampering(&mut self, now: Instant) -> Vec<(Family, String, bool)> {
        self.all_mut()
            .filter_map(|lane| {
                let (what, news) = lane.look_for_tampering(now)?;
                Some((lane.family(), what, news))
            })
            .collect()
    }

    pub(super) fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.all().filter_map(|lane| lane.dataplane().watch_fd()).collect()
    }

    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.all().filter_map(|lane| lane.next(now)).min()
    }

    fn all(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().chain(&self.incoming)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().chain(&mut self.incoming)
    }
}

fn make(dataplanes: Vec<Box<dyn Dataplane>>, pacing: PacerConfig, now: Instant) -> Vec<Lane> {
    dataplanes.into_iter().map(|dataplane| Lane::new(dataplane, pacing, now)).collect()
}

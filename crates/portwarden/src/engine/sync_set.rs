//! The dataplanes of the mode in force, and the change to those of another mode without a gap.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use portwarden_model::{
    Changes, Cluster, Dataplane, Family, NamespacedName, Notification, PacerConfig, PerFamily,
};
use tracing::info;

use super::clock::Moment;
use super::family_sync::{FamilySync, Outcome};
use super::{ModeWords, RemoveLeftovers, Replacement};

/// All dataplanes. During a change of mode the new ones run beside the old ones until they have installed everything.
pub(super) struct SyncSet {
    current: ModeSync,
    incoming: Option<ModeSync>,
    remove_leftovers: Option<RemoveLeftovers>,
}

/// The dataplanes of one mode.
struct ModeSync {
    words: ModeWords,
    dataplanes: Vec<DataplaneSync>,
}

struct DataplaneSync {
    dataplane: Box<dyn Dataplane>,
    families: Vec<FamilySync>,
}

impl SyncSet {
    pub(super) fn new(
        words: ModeWords,
        dataplanes: Vec<Box<dyn Dataplane>>,
        pacing: PacerConfig,
        remove_leftovers: Option<RemoveLeftovers>,
        now: Instant,
    ) -> Self {
        SyncSet { current: ModeSync::new(words, dataplanes, pacing, now), incoming: None, remove_leftovers }
    }

    /// The families that are served.
    pub(super) fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> =
            self.all().flat_map(ModeSync::families).map(FamilySync::family).collect();
        families.sort_unstable();
        families.dedup();
        families
    }

    /// Whether the kernel has had everything once, in every family of the mode in force.
    pub(super) fn is_installed(&self) -> bool {
        self.current.families().all(FamilySync::is_installed)
    }

    /// Whether the kernel refuses a Service in a family.
    pub(super) fn is_refused(&self, family: Family, service: &NamespacedName) -> bool {
        let mut of_family = self.all().flat_map(ModeSync::families).filter(|sync| sync.family() == family);
        of_family.any(|sync| sync.is_refused(service))
    }

    /// The modes in use: two during a change.
    pub(super) fn modes(&self) -> impl Iterator<Item = ModeWords> {
        self.all().map(|mode| mode.words)
    }

    pub(super) fn set_pacing(&mut self, pacing: PacerConfig) {
        self.families_mut().for_each(|family| family.set_pacing(pacing));
    }

    pub(super) fn request(&mut self, family: Family, now: Instant) {
        self.of(family).for_each(|sync| sync.request(now));
    }

    /// Replaces the dataplanes. If the new ones write other objects, they run beside the old ones until everything is installed.
    pub(super) fn replace(&mut self, replacement: Replacement, pacing: PacerConfig, now: Instant) {
        let mut fresh = ModeSync::new(replacement.words, replacement.dataplanes, pacing, now);
        // A frontend that is gone is named once: if its sync has not succeeded yet, the new dataplanes must know of it.
        for sync in fresh.dataplanes.iter_mut().flat_map(|one| &mut one.families) {
            let before = self.current.families().find(|before| before.family() == sync.family());
            before.into_iter().for_each(|before| sync.add(before.pending()));
        }
        if replacement.remove_leftovers.is_some() {
            self.incoming = Some(fresh);
            self.remove_leftovers = replacement.remove_leftovers;
        } else {
            self.current = fresh;
            self.incoming = None;
        }
    }

    /// Adds resolved changes.
    pub(super) fn add(&mut self, changes: &PerFamily<Changes>) {
        for sync in self.families_mut() {
            sync.add(changes[sync.family()].clone());
        }
    }

    /// Whether a family is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.all().flat_map(ModeSync::families).any(|sync| sync.is_due(now))
    }

    /// Syncs the families that are due, and passes on the outcome of each.
    pub(super) fn sync(
        &mut self,
        cluster: &Cluster,
        clock: &dyn Fn() -> Moment,
        mut handle: impl FnMut(ModeWords, Family, Outcome),
    ) {
        for mode in self.all_mut() {
            let words = mode.words;
            for DataplaneSync { dataplane, families } in &mut mode.dataplanes {
                for sync in families {
                    // A family may become due while another one is synced: what is due for it is only known here.
                    let now = clock().instant;
                    if sync.is_due(now) {
                        let desired = cluster.desired(sync.family());
                        sync.wake(dataplane.full_sync_interval(desired), now);
                        let outcome = sync.sync(dataplane.as_mut(), words.name, desired, clock);
                        handle(words, sync.family(), outcome);
                    }
                }
            }
        }
    }

    /// Drops the old mode once the new one has installed everything, and removes leftovers. Returns whether everything is installed.
    pub(super) fn finish_change(&mut self) -> bool {
        let newest = self.incoming.as_ref().unwrap_or(&self.current);
        if !newest.families().all(FamilySync::is_installed) {
            return false;
        }
        if let Some(incoming) = self.incoming.take() {
            self.current = incoming;
            info!(mode = self.current.words.name, "The new mode is in force");
        }
        if let Some(remove) = self.remove_leftovers.take() {
            remove();
        }
        true
    }

    /// The notifications of all dataplanes.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Notification> {
        self.dataplanes_mut().flat_map(|one| one.dataplane.poll(now)).collect()
    }

    /// The work of all dataplanes for one family.
    pub(super) fn of(&mut self, family: Family) -> impl Iterator<Item = &mut FamilySync> {
        self.families_mut().filter(move |sync| sync.family() == family)
    }

    pub(super) fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.dataplanes().flat_map(|one| one.dataplane.watch_fds()).collect()
    }

    /// When a dataplane wants to be polled.
    pub(super) fn next_poll(&self) -> Option<Instant> {
        self.dataplanes().filter_map(|one| one.dataplane.next_deadline()).min()
    }

    /// When a family has something to do.
    pub(super) fn next_sync(&self, now: Instant) -> Option<Instant> {
        self.all().flat_map(ModeSync::families).filter_map(|sync| sync.next(now)).min()
    }

    fn all(&self) -> impl Iterator<Item = &ModeSync> {
        std::iter::once(&self.current).chain(&self.incoming)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut ModeSync> {
        std::iter::once(&mut self.current).chain(&mut self.incoming)
    }

    fn dataplanes(&self) -> impl Iterator<Item = &DataplaneSync> {
        self.all().flat_map(|mode| &mode.dataplanes)
    }

    fn dataplanes_mut(&mut self) -> impl Iterator<Item = &mut DataplaneSync> {
        self.all_mut().flat_map(|mode| &mut mode.dataplanes)
    }

    fn families_mut(&mut self) -> impl Iterator<Item = &mut FamilySync> {
        self.dataplanes_mut().flat_map(|one| &mut one.families)
    }
}

impl ModeSync {
    fn new(words: ModeWords, dataplanes: Vec<Box<dyn Dataplane>>, pacing: PacerConfig, now: Instant) -> Self {
        let start = |dataplane: Box<dyn Dataplane>| {
            let families = dataplane.families().iter().map(|family| FamilySync::new(*family, pacing, now));
            DataplaneSync { families: families.collect(), dataplane }
        };
        ModeSync { words, dataplanes: dataplanes.into_iter().map(start).collect() }
    }

    fn families(&self) -> impl Iterator<Item = &FamilySync> {
        self.dataplanes.iter().flat_map(|one| &one.families)
    }
}

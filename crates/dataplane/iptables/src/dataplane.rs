//! The dataplane: hands each family's syncs to a thread of its own, and does not wait long for any of them.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use portwarden_model::{
    Changes, Dataplane, Desired, FULL_SYNC_INTERVAL, Family, Notification, Report, SyncError,
};
use portwarden_xtables::Programs;

use crate::error::Error;
use crate::family_rules::{FamilyRules, is_large};
use crate::family_worker::FamilyWorker;
use crate::options::Options;

/// Programs the rules of one or both families through the iptables programs.
#[derive(Debug)]
pub struct IptablesDataplane {
    families: Vec<Family>,
    workers: Vec<FamilyWorker>,
}

impl IptablesDataplane {
    /// In the network namespace of the calling thread. Changes nothing yet.
    pub fn new(families: &[Family], options: &Options) -> Result<Self, Error> {
        let programs = families.iter().map(|family| Programs::new(*family, options.variant));
        IptablesDataplane::with_programs(programs.collect(), options)
    }

    /// The same with programs of the caller's choice, for each family that is served. They are killed when the dataplane is
    /// dropped.
    pub fn with_programs(programs: Vec<Programs>, options: &Options) -> Result<Self, Error> {
        let worker =
            |programs| Ok(FamilyWorker::new(FamilyRules::new(options, programs)?, options.sync_wait));
        let workers = programs.into_iter().map(worker).collect::<Result<Vec<_>, Error>>()?;
        Ok(IptablesDataplane { families: workers.iter().map(FamilyWorker::family).collect(), workers })
    }
}

impl Dataplane for IptablesDataplane {
    fn families(&self) -> &[Family] {
        &self.families
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        let mut result = Err(Error::NotServed(desired.family).into());
        for worker in self.workers.iter_mut().filter(|worker| worker.family() == desired.family) {
            result = worker.sync(desired, changes, now);
        }
        if result.as_ref().is_ok_and(|report| report.missed_notifications) {
            // Notifications are paused for the whole process.
            let others = self.workers.iter_mut().filter(|worker| worker.family() != desired.family);
            others.for_each(FamilyWorker::notifications_were_paused);
        }
        result
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.workers.iter().filter_map(FamilyWorker::fd).collect()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.workers.iter().filter_map(FamilyWorker::deadline).min()
    }

    fn poll(&mut self, now: Instant) -> Vec<Notification> {
        self.workers.iter_mut().flat_map(|worker| worker.poll(now)).collect()
    }

    fn full_sync_interval(&self, desired: &Desired) -> Option<Duration> {
        (!is_large(desired)).then_some(FULL_SYNC_INTERVAL)
    }
}

//! Several dataplanes that form one mode: nftables with a proxy for loopback addresses, eBPF over nftables.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::changes::Changes;
use crate::dataplane::{Dataplane, Notification, Report, SyncError};
use crate::desired::Desired;
use crate::ip::Family;

/// Dataplanes that are synced one after the other, in the order given.
///
/// If a layer fails, the following layers are synced nevertheless. The whole sync then fails, its report contains everything that was applied, and
/// the engine repeats it for all layers; those that succeeded write nothing the second time.
pub struct Layers {
    layers: Vec<Box<dyn Dataplane>>,
    families: Vec<Family>,
}

impl Layers {
    /// Stacks dataplanes. The families are those of the first one.
    pub fn new(base: Box<dyn Dataplane>, above: Vec<Box<dyn Dataplane>>) -> Self {
        let families = base.families().to_vec();
        let mut layers = vec![base];
        layers.extend(above);
        Layers { layers, families }
    }
}

impl Dataplane for Layers {
    fn families(&self) -> &[Family] {
        &self.families
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        let mut whole: Option<Report> = None;
        let mut failed: Option<SyncError> = None;
        for layer in &mut self.layers {
            if !layer.families().contains(&desired.family) {
                continue;
            }
            let report = match layer.sync(desired, changes, now) {
                Ok(report) => report,
                Err(mut error) => {
                    let report = std::mem::take(&mut error.report);
                    // Later layers often fail because of the first one.
                    failed.get_or_insert(error);
                    report
                }
            };
            match &mut whole {
                Some(whole) => whole.merge(report),
                None => whole = Some(report),
            }
        }
        let report = whole.unwrap_or_default();
        match failed {
            Some(error) => Err(SyncError { report, ..error }),
            None => Ok(report),
        }
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.layers.iter().flat_map(|layer| layer.watch_fds()).collect()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.layers.iter().filter_map(|layer| layer.next_deadline()).min()
    }

    fn poll(&mut self, now: Instant) -> Vec<Notification> {
        self.layers.iter_mut().flat_map(|layer| layer.poll(now)).collect()
    }

    fn full_sync_interval(&self, desired: &Desired) -> Option<Duration> {
        self.layers.iter().filter_map(|layer| layer.full_sync_interval(desired)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::settings::Settings;

    struct Layer {
        families: Vec<Family>,
        outcome: Result<usize, &'static str>,
    }

    impl Dataplane for Layer {
        fn families(&self) -> &[Family] {
            &self.families
        }

        fn sync(&mut self, _: &Desired, changes: &Changes, _: Instant) -> Result<Report, SyncError> {
            let report = |written| Report { full: changes.full, written, ..Report::default() };
            match self.outcome {
                Ok(written) => Ok(report(written)),
                Err(text) => {
                    let source = std::io::Error::other(text);
                    Err(SyncError { report: report(100), ..SyncError::from(source) })
                }
            }
        }
    }

    fn sync(outcomes: &[(Family, Result<usize, &'static str>)]) -> Result<Report, SyncError> {
        let mut layers = outcomes.iter().map(|(family, outcome)| -> Box<dyn Dataplane> {
            Box::new(Layer { families: vec![*family], outcome: *outcome })
        });
        let base = layers.next().unwrap();
        let mut layers = Layers::new(base, layers.collect());
        let cluster = Cluster::new(Settings::new("node-a"));
        layers.sync(cluster.desired(Family::V4), &Changes::everything(), Instant::now())
    }

    #[test]
    fn reports_are_added_up() {
        let report = sync(&[(Family::V4, Ok(1)), (Family::V4, Ok(2))]).unwrap();
        assert_eq!((report.full, report.written), (true, 3));
    }

    #[test]
    fn a_layer_that_fails_does_not_stop_the_others() {
        let error =
            sync(&[(Family::V4, Err("first")), (Family::V4, Ok(2)), (Family::V4, Err("third"))]).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.report.written), ("first", 202));
    }

    #[test]
    fn a_layer_of_the_other_family_is_left_out() {
        let report = sync(&[(Family::V4, Ok(1)), (Family::V6, Err("not called"))]).unwrap();
        assert_eq!(report.written, 1);
    }
}

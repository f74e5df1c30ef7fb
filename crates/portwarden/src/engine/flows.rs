//! Schedules the removal of stale flows after syncs, with retries.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portwarden_model::{Changes, Cluster, Desired, Family, GoneFrontend, PerFamily};
use tracing::{debug, error};

use super::clock::Moment;
use crate::metrics::Metrics;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Why stale flows could not be removed.
pub type FlowsError = Box<dyn std::error::Error + Send + Sync>;

/// Removes stale flows of one family from the kernel.
pub trait Flows: Send {
    /// Removes flows that are stale after these changes, on a host with these addresses. Returns how many there were.
    fn clean(&mut self, desired: &Desired, changes: &Changes, host: &[IpAddr]) -> Result<usize, FlowsError>;
}

/// The pending removal of one family.
pub(super) struct Cleanup {
    flows: Box<dyn Flows>,
    families: PerFamily<Wanted>,
}

#[derive(Debug, Default)]
struct Wanted {
    /// When it is due; `None` if nothing is pending.
    at: Option<Instant>,
    /// Rules may have been missing for a while.
    full: bool,
    gone: BTreeSet<GoneFrontend>,
    failures: u32,
}

impl Cleanup {
    pub(super) fn new(flows: Box<dyn Flows>) -> Self {
        Cleanup { flows, families: PerFamily::default() }
    }

    /// A sync changed what flows may go to.
    pub(super) fn request(&mut self, family: Family, full: bool, gone: BTreeSet<GoneFrontend>, now: Instant) {
        let wanted = &mut self.families[family];
        wanted.full |= full;
        wanted.gone.extend(gone);
        wanted.at = Some(now);
    }

    /// When there is something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        self.families.iter().filter_map(|(_, wanted)| wanted.at).min()
    }

    /// Removes stale flows if that is due. A failure is retried.
    pub(super) fn run(
        &mut self,
        family: Family,
        cluster: &Cluster,
        metrics: &Metrics,
        clock: &dyn Fn() -> Moment,
    ) {
        let started = clock().instant;
        let wanted = &mut self.families[family];
        if wanted.at.is_none_or(|at| started < at) {
            return;
        }
        let changes =
            Changes { udp: true, full: wanted.full, gone: wanted.gone.clone(), ..Changes::default() };
        let result = self.flows.clean(cluster.desired(family), &changes, cluster.host_addresses());
        let ended = clock().instant;
        let took = ended.saturating_duration_since(started);
        match result {
            Ok(deleted) => {
                *wanted = Wanted::default();
                metrics.flows.cleaned(family, deleted, took);
                debug!(ipFamily = %family, deleted, elapsed = ?took, "Stale flows removed");
            }
            Err(error) => {
                let wait = FIRST_RETRY.saturating_mul(1 << wanted.failures.min(6)).min(LAST_RETRY);
                wanted.failures = wanted.failures.saturating_add(1);
                wanted.at = Some(ended + wait);
                metrics.own.flow_failures.with_label_values(&[family.as_str()]).inc();
                error!(
                    ipFamily = %family, err = crate::logging::chain(error.as_ref()), retryingTime = ?wait,
                    "Cannot remove stale flows; UDP clients may keep sending to endpoints that are gone"
                );
            }
        }
    }
}

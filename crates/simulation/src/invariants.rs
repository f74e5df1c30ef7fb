//! What must hold after every step, and what must hold when all faults have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portwarden_model::{Cluster, Desired, FULL_SYNC_INTERVAL, Family, HealthCheck, NamespacedName, Protocol};

use crate::dataplane::{STUCK, is_same};
use crate::kernel::{Place, Table, Unnoticed};
use crate::world::World;

/// Undisturbed, a change is in the kernel after at most one gathering of changes (1 s) and the syncs of both families.
const UNDISTURBED: Duration = Duration::from_secs(3);
/// After a fault, within the longest retry (30 s), one more if the first gathers, and the undisturbed time.
const AFTER_FAULT: Duration = Duration::from_secs(34);
/// How long after a fault the engine may still be in its growing retry intervals.
const RECOVERY: Duration = Duration::from_secs(65);
/// Comparisons and repairs are spread by this many times the longest full sync.
const SPREAD: u32 = 20;

/// Since when the kernel lacks something that the engine wants.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    late: BTreeMap<(Place, String), Instant>,
    /// Since when a family waits for a sync that the engine knows of.
    waiting: BTreeMap<Family, Instant>,
}

impl World {
    /// What must hold at any time.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if let Some(violation) = self.kernel.lock().violations.first() {
            return Err(violation.clone());
        }
        let (kernel, places) = (self.kernel.clone(), self.configuration.places());
        let Some(process) = &mut self.process else { return Ok(()) };
        let (ready, differences) = process.inspect(move |cluster| {
            let mut kernel = kernel.lock();
            let mut all = BTreeSet::new();
            for place in places {
                let pending = cluster.pending(place.1) > 0;
                all.extend(pending.then(|| (place, "(events)".to_owned())));
                let names = differences(kernel.table(place), cluster.desired(place.1));
                all.extend(names.into_iter().map(|name| (place, name)));
            }
            (cluster.is_synced(), all)
        });
        if !ready {
            return Ok(());
        }
        self.check_lateness(&differences)?;
        self.check_late_health(&differences)
    }

    /// Nothing is late for longer than its bound.
    fn check_lateness(&mut self, differences: &BTreeSet<(Place, String)>) -> Result<(), String> {
        let now = self.time.now();
        self.lateness.late.retain(|key, _| differences.contains(key));
        let mut kernel = self.kernel.lock();
        for (place, name) in differences {
            let since = *self.lateness.late.entry((*place, name.clone())).or_insert(now);
            if is_refused(&kernel.refusing, place.1, name) {
                kernel.disturb(*place, now);
                continue;
            }
            let disturbed = kernel.disturbed.get(place).copied();
            let calm = disturbed.is_none_or(|at| now.saturating_duration_since(at) > RECOVERY);
            let spread = kernel.slowest_full.values().max().copied().unwrap_or_default() * SPREAD;
            let bound = match kernel.table(*place).unnoticed {
                Some(Unnoticed::Lost) => place.0.mode().full_sync_interval() + AFTER_FAULT + spread,
                Some(Unnoticed::Suspected) => AFTER_FAULT + spread,
                None if calm && since > disturbed.unwrap_or(since) + RECOVERY => UNDISTURBED,
                None => AFTER_FAULT + spread,
            };
            // The first sync waits for the Node for up to 30 seconds.
            let bound = if self.api.node().is_none() { bound + Duration::from_secs(30) } else { bound };
            let start = since.max(disturbed.unwrap_or(since));
            if now.saturating_duration_since(start) > bound {
                return Err(format!(
                    "{name} of {place:?} differs from what is wanted for {:?}, more than {bound:?}",
                    now - start
                ));
            }
        }
        Ok(())
    }

    /// A change that waits for two sync periods makes the proxy unhealthy.
    fn check_late_health(&mut self, differences: &BTreeSet<(Place, String)>) -> Result<(), String> {
        let now = self.time.now();
        let kernel = self.kernel.lock();
        if kernel.changing_mode {
            self.lateness.waiting.clear();
            return Ok(());
        }
        let known = |(place, name): &(Place, String)| {
            let unnoticed = kernel.tables.get(place).is_some_and(|table| table.unnoticed.is_some());
            let refused = [&kernel.refusing, &kernel.accepted_again];
            let refused = refused.into_iter().any(|refused| is_refused(refused, place.1, name));
            (!unnoticed && !refused).then_some(place.1)
        };
        let waiting: BTreeSet<Family> = differences.iter().filter_map(known).collect();
        drop(kernel);
        self.lateness.waiting.retain(|family, _| waiting.contains(family));
        let Some(process) = &self.process else { return Ok(()) };
        let healthy = process.health.report(now).0.healthy;
        for family in waiting {
            let since = *self.lateness.waiting.entry(family).or_insert(now);
            let limit = STUCK + AFTER_FAULT;
            if healthy && now.saturating_duration_since(since) > limit {
                return Err(format!("{family} waits for {:?}, and health does not report it", now - since));
            }
        }
        Ok(())
    }

    /// Ends all faults and lets the engine recover. Then everything must be as if nothing had happened.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let now = self.time.now();
        let lost = {
            let mut kernel = self.kernel.lock();
            kernel.faults.clear();
            kernel.flow_faults.clear();
            kernel.refusing.clear();
            kernel.refused_late.clear();
            kernel.disturb_all(now);
            kernel.tables.values().any(|table| table.unnoticed.is_some())
        };
        self.start();
        self.connect(false)?;
        let spread = self.kernel.lock().slowest_full.values().max().copied().unwrap_or_default() * SPREAD;
        let hour = if lost { FULL_SYNC_INTERVAL } else { Duration::ZERO };
        self.pass(hour + 2 * RECOVERY + spread)?;
        self.check_settled()?;
        self.check_quiet()
    }

    fn check_settled(&mut self) -> Result<(), String> {
        let Some(process) = &mut self.process else { return Err("no process runs".to_owned()) };
        let wanted = self.api.cluster(self.configuration.settings(), process.known_node.as_ref());
        let (report, _) = process.health.report(self.time.now());
        if !report.healthy {
            return Err("everything is settled, and the proxy is unhealthy".to_owned());
        }
        let published = process.receivers.health_checks.borrow().clone();
        for family in self.configuration.families() {
            let desired = wanted.desired(*family);
            let ports: BTreeMap<NamespacedName, HealthCheck> = desired
                .services()
                .filter_map(|(name, service)| Some((name.clone(), service.health_check?)))
                .collect();
            if published[*family].ports != ports {
                return Err(format!(
                    "health-check ports of {family}: {:?}, not {ports:?}",
                    published[*family].ports
                ));
            }
        }
        let mut kernel = self.kernel.lock();
        for place in self.configuration.places() {
            let found = differences(kernel.table(place), wanted.desired(place.1));
            if !found.is_empty() {
                return Err(format!("settled, but {place:?} differs in {found:?}"));
            }
        }
        for layer in self.configuration.mode.other().layers() {
            for family in Family::BOTH {
                if !kernel.table((*layer, family)).services.is_empty() {
                    return Err(format!("settled, but {layer:?} {family} of the other mode is still there"));
                }
            }
        }
        drop(kernel);
        self.check_flows(&wanted)
    }

    /// No flow leads to an endpoint that does not serve.
    fn check_flows(&self, wanted: &Cluster) -> Result<(), String> {
        for tracked in &self.kernel.lock().flows {
            let flow = &tracked.flow;
            let family = Family::of(flow.destination.ip());
            let mut ports = wanted.desired(family).ports().filter(|port| port.protocol() == Protocol::Udp);
            let port = ports.find(|port| {
                port.active_frontends().any(|frontend| {
                    frontend.ip == Some(flow.destination.ip()) && frontend.port == flow.destination.port()
                })
            });
            let stale = match port {
                Some(port) => !port
                    .endpoints
                    .iter()
                    .any(|backend| backend.conditions.serving && backend.address() == flow.reply_source),
                // A process that starts knows those of the tables. What others removed from them, nothing names.
                None => tracked.known,
            };
            if stale {
                return Err(format!("settled, but the flow {flow:?} is stale"));
            }
        }
        Ok(())
    }

    /// Without events nothing is called but the periodic full sync.
    fn check_quiet(&mut self) -> Result<(), String> {
        let before = self.kernel.lock().calls;
        self.pass(FULL_SYNC_INTERVAL + Duration::from_secs(60))?;
        let after = self.kernel.lock().calls;
        let places = self.configuration.places().len() as u64;
        let times = FULL_SYNC_INTERVAL.as_secs() / self.configuration.mode.full_sync_interval().as_secs();
        let (full, partial) = (after.full - before.full, after.partial - before.partial);
        if partial > 0 || full < places * times || full > places * (times + 1) {
            return Err(format!("a quiet hour had {partial} syncs and {full} full ones for {places} tables"));
        }
        Ok(())
    }
}

/// What a table lacks, or has too much.
fn differences(table: &Table, desired: &Desired) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    if table.node.as_ref() != Some(&desired.node) {
        names.push("(node)".to_owned());
    }
    let wanted =
        desired.services().filter(|(name, service)| !is_same(table.services.get(name), Some(service)));
    names.extend(wanted.map(|(name, _)| name.to_string()));
    let extra = table.services.keys().filter(|name| desired.service(name).is_none());
    names.extend(extra.map(ToString::to_string));
    names
}

fn is_refused(refusing: &BTreeSet<(Family, NamespacedName)>, family: Family, name: &str) -> bool {
    refusing.iter().any(|(of, refused)| *of == family && refused.to_string() == name)
}

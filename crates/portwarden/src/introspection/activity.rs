//! What the process did lately, in bounded memory: written by the engine and the application, read by the introspection server.
//!
//! Every method takes a lock for a short time and does no IO, so that the engine is not slowed.

mod samples;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portwarden_model::{Desired, Family, NamespacedName, PerFamily, Problem, RefusedService, Timestamp};

use super::api::{self, Level, TimelineKind};
use crate::engine::Moment;

pub(super) use samples::SAMPLE_INTERVAL;
use samples::Samples;

/// Syncs that are kept.
const SYNCS: usize = 40;

/// Entries of the time line that are kept.
const TIMELINE: usize = 400;

/// Refused Services that are listed.
const REFUSED: usize = 100;

/// Refused Services that have entries of their own in the time line; more are one entry with a count.
const REFUSED_ENTRIES: usize = 20;

/// Problems of objects that have entries of their own in the time line, for the same reason.
const PROBLEM_ENTRIES: u64 = 50;

/// The recent past of the process. Cheap to clone; all clones share it.
#[derive(Clone)]
pub struct Activity(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    mode: String,
    next_mode: Option<String>,
    families: PerFamily<FamilyState>,
    syncs: VecDeque<SyncRecord>,
    totals: api::Totals,
    refused: BTreeMap<(NamespacedName, Family), (String, Timestamp)>,
    sources: BTreeMap<String, (Option<String>, Timestamp)>,
    timeline: VecDeque<Entry>,
    timeline_version: u64,
    samples: Samples,
}

#[derive(Default)]
struct FamilyState {
    served: bool,
    installed: bool,
    services: usize,
    endpoints: usize,
    last_sync: Option<Timestamp>,
    failures: u32,
    /// Since when rules that another process changed wait for their repair.
    damaged: Option<Instant>,
}

struct Entry {
    at: Timestamp,
    last: Timestamp,
    count: u32,
    kind: TimelineKind,
    family: Option<Family>,
    text: String,
}

/// One attempt to sync a family.
#[derive(Debug, Clone)]
pub struct SyncRecord {
    /// When it ended.
    pub at: Moment,
    /// The family that was synced.
    pub family: Family,
    /// The mode that wrote.
    pub mode: &'static str,
    /// Whether everything was written or compared.
    pub full: bool,
    /// How long it took.
    pub took: Duration,
    /// From the arrival of the oldest change to the kernel's acknowledgement.
    pub change_to_kernel: Option<Duration>,
    /// Objects or rules written or removed.
    pub written: usize,
    /// Services that changed.
    pub services: usize,
    /// Why it failed.
    pub error: Option<String>,
}

/// The part of a status that this file knows.
pub(super) struct Report {
    pub(super) mode: String,
    pub(super) next_mode: Option<String>,
    pub(super) families: Vec<(Family, api::FamilyStatus)>,
    pub(super) syncs: Vec<api::Sync>,
    pub(super) totals: api::Totals,
    pub(super) refused: api::Refused,
    pub(super) sources: Vec<api::SourcePart>,
    pub(super) timeline_version: u64,
}

impl Default for Activity {
    fn default() -> Self {
        Activity(Arc::new(Mutex::new(State::default())))
    }
}

impl Activity {
    /// The families that are served, and the modes in use: two during a change.
    pub fn modes(&self, families: &[Family], modes: &[&'static str], now: Moment) {
        let mut state = self.state();
        for family in Family::BOTH {
            state.families[family].served = families.contains(&family);
        }
        let [current, next @ ..] = modes else { return };
        let next = next.first().map(|name| (*name).to_owned());
        if state.mode == *current && state.next_mode == next {
            return;
        }
        if !state.mode.is_empty() && state.mode != *current {
            let text = format!("Mode {current} is in force; it replaces mode {}", state.mode);
            state.add(TimelineKind::ModeChanged, None, text, now.wall);
        }
        (state.mode, state.next_mode) = ((*current).to_owned(), next);
    }

    /// Changes of objects arrived.
    pub fn changed(&self, count: usize) {
        let mut state = self.state();
        state.totals.changes += count as u64;
        state.samples.changed(count);
    }

    /// Parts of objects could not be used.
    pub fn problems(&self, problems: &[Problem], now: Moment) {
        let mut state = self.state();
        for problem in problems {
            let text = match state.totals.problems < PROBLEM_ENTRIES {
                true => problem.to_string(),
                false => "More objects have fields that cannot be used; the log names them".to_owned(),
            };
            state.totals.problems += 1;
            state.add(TimelineKind::ObjectProblem, None, text, now.wall);
        }
    }

    /// A sync succeeded; `desired` is in force now.
    pub fn synced(&self, record: SyncRecord, desired: &Desired) {
        let mut state = self.state();
        let (family, at, full) = (record.family, record.at, record.full);
        state.totals.syncs += 1;
        state.totals.written += record.written as u64;
        state.samples.synced(record.took, record.change_to_kernel);
        let of_family = &mut state.families[family];
        let first = !std::mem::replace(&mut of_family.installed, true);
        let failures = std::mem::take(&mut of_family.failures);
        (of_family.services, of_family.endpoints) = (desired.services().len(), desired.totals().endpoints);
        of_family.last_sync = Some(at.wall);
        let damaged = if full { of_family.damaged.take() } else { None };
        let (services, endpoints) = (of_family.services, of_family.endpoints);
        if first {
            let text =
                format!("{} in force, with {}", counted(services, "Service"), counted(endpoints, "endpoint"));
            state.add(TimelineKind::Installed, Some(family), text, at.wall);
        }
        if failures > 0 {
            let text = format!("Syncs succeed again after {}", counted(failures as usize, "failure"));
            state.add(TimelineKind::SyncRecovered, Some(family), text, at.wall);
        }
        if let Some(since) = damaged {
            state.totals.repairs += 1;
            let millis = at.instant.saturating_duration_since(since).as_millis();
            let text = format!("Repaired in {millis} ms; {} written", counted(record.written, "object"));
            state.add(TimelineKind::Repaired, Some(family), text, at.wall);
        }
        state.remember(record);
    }

    /// A sync failed.
    pub fn sync_failed(&self, record: SyncRecord) {
        let mut state = self.state();
        state.totals.failed_syncs += 1;
        state.totals.written += record.written as u64;
        state.samples.synced(record.took, None);
        state.families[record.family].failures += 1;
        let text = format!("A sync failed: {}", record.error.as_deref().unwrap_or("unknown reason"));
        state.add(TimelineKind::SyncFailed, Some(record.family), text, record.at.wall);
        state.remember(record);
    }

    /// Another process changed our objects in the kernel.
    pub fn tampered(&self, family: Family, what: &str, now: Moment) {
        let mut state = self.state();
        state.families[family].damaged.get_or_insert(now.instant);
        let text = format!("Another process changed our rules: {what}");
        state.add(TimelineKind::Tampered, Some(family), text, now.wall);
    }

    /// The kernel refuses a Service.
    pub fn refused(&self, family: Family, refused: &RefusedService, now: Moment) {
        let mut state = self.state();
        let text = match state.refused.len() < REFUSED_ENTRIES {
            true => format!("The kernel refuses Service {}: {}", refused.service, refused.reason),
            false => "The kernel refuses more Services".to_owned(),
        };
        state.add(TimelineKind::ServiceRefused, Some(family), text, now.wall);
        state.refused.insert((refused.service.clone(), family), (refused.reason.clone(), now.wall));
    }

    /// The kernel accepts a Service that it had refused, or the Service is gone.
    pub fn accepted(&self, family: Family, service: &NamespacedName, now: Moment) {
        let mut state = self.state();
        if state.refused.remove(&(service.clone(), family)).is_some() {
            let text = match state.refused.len() < REFUSED_ENTRIES {
                true => format!("The kernel no longer refuses Service {service}"),
                false => "The kernel refuses fewer Services".to_owned(),
            };
            state.add(TimelineKind::ServiceAccepted, Some(family), text, now.wall);
        }
    }

    /// A part of the source works (`None`), or fails for this reason.
    pub fn source(&self, part: &str, error: Option<&str>, now: Moment) {
        let mut state = self.state();
        let known = state.sources.get(part).map(|(error, _)| error.clone());
        let error = error.map(str::to_owned);
        match (&known, &error) {
            (Some(before), now) if before == now => return,
            (_, Some(why)) => {
                let text = format!("{part}: changes cannot be followed: {why}");
                state.add(TimelineKind::SourceFailing, None, text, now.wall);
            }
            (Some(Some(_)), None) => {
                let text = format!("{part}: changes are followed again");
                state.add(TimelineKind::SourceFollowing, None, text, now.wall);
            }
            (_, None) => {}
        }
        state.sources.insert(part.to_owned(), (error, now.wall));
    }

    /// Something else happened.
    pub fn happened(&self, kind: TimelineKind, text: impl Into<String>, now: Moment) {
        self.state().add(kind, None, text.into(), now.wall);
    }

    /// Closes an interval of the series for plots.
    pub(super) fn sample(&self, at: Timestamp, memory: u64) {
        self.state().samples.close(at, memory);
    }

    /// The series for plots; with `after`, only what was added since that time.
    pub(super) fn series(&self, after: Option<f64>) -> api::Series {
        self.state().samples.series(after)
    }

    /// The Services that the kernel refuses, sorted; one that is refused in both families is there twice.
    pub(super) fn refused_services(&self) -> Vec<NamespacedName> {
        self.state().refused.keys().map(|(service, _)| service.clone()).collect()
    }

    /// Why the kernel refuses a Service.
    pub(super) fn refusals_of(&self, service: &NamespacedName) -> Vec<api::RefusedService> {
        let state = self.state();
        let of_service = state.refused.range((service.clone(), Family::V4)..=(service.clone(), Family::V6));
        of_service.map(refused).collect()
    }

    /// The time line, newest entry first.
    pub(super) fn timeline(&self) -> api::Timeline {
        let state = self.state();
        api::Timeline {
            version: state.timeline_version,
            entries: state.timeline.iter().rev().map(Entry::shown).collect(),
        }
    }

    /// The mode in force, by name; empty before the engine has reported it.
    pub(super) fn mode(&self) -> String {
        self.state().mode.clone()
    }

    /// What a status shows.
    pub(super) fn report(&self) -> Report {
        let state = self.state();
        let families = state.families.iter().filter(|(_, family)| family.served);
        Report {
            mode: state.mode.clone(),
            next_mode: state.next_mode.clone(),
            families: families.map(|(family, known)| (family, known.shown(family))).collect(),
            syncs: state.syncs.iter().rev().map(SyncRecord::shown).collect(),
            totals: state.totals.clone(),
            refused: api::Refused {
                count: state.refused.len(),
                services: state.refused.iter().take(REFUSED).map(refused).collect(),
            },
            sources: state
                .sources
                .iter()
                .map(|(part, (error, since))| api::SourcePart {
                    part: part.clone(),
                    following: error.is_none(),
                    since: since.to_string(),
                    error: error.clone(),
                })
                .collect(),
            timeline_version: state.timeline_version,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `1 Service`, `2 Services`.
fn counted(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn refused(
    ((service, family), (reason, since)): (&(NamespacedName, Family), &(String, Timestamp)),
) -> api::RefusedService {
    api::RefusedService {
        service: service.to_string(),
        family: family.to_string(),
        reason: reason.clone(),
        since: since.to_string(),
    }
}

impl State {
    fn remember(&mut self, record: SyncRecord) {
        if self.syncs.len() == SYNCS {
            self.syncs.pop_front();
        }
        self.syncs.push_back(record);
    }

    /// Adds to the time line. What repeats is one entry with a count, so that a lasting failure does not push everything else out.
    fn add(&mut self, kind: TimelineKind, family: Option<Family>, text: String, at: Timestamp) {
        self.timeline_version += 1;
        let repeats = |entry: &&mut Entry| entry.kind == kind && entry.family == family && entry.text == text;
        // Another family may fail in turn.
        if let Some(entry) = self.timeline.iter_mut().rev().take(2).find(repeats) {
            entry.last = at;
            entry.count = entry.count.saturating_add(1);
            return;
        }
        if self.timeline.len() == TIMELINE {
            self.timeline.pop_front();
        }
        self.timeline.push_back(Entry { at, last: at, count: 1, kind, family, text });
    }
}

impl FamilyState {
    fn shown(&self, family: Family) -> api::FamilyStatus {
        api::FamilyStatus {
            family: family.to_string(),
            installed: self.installed,
            services: self.services,
            endpoints: self.endpoints,
            last_sync: self.last_sync.map(|at| at.to_string()),
            oldest_pending: None,
            failures: self.failures,
        }
    }
}

impl SyncRecord {
    fn shown(&self) -> api::Sync {
        api::Sync {
            at: self.at.wall.to_string(),
            family: self.family.to_string(),
            mode: self.mode.to_owned(),
            full: self.full,
            duration: self.took.as_secs_f64(),
            change_to_kernel: self.change_to_kernel.map(|waited| waited.as_secs_f64()),
            written: self.written,
            services: self.services,
            error: self.error.clone(),
        }
    }
}

impl Entry {
    fn shown(&self) -> api::TimelineEntry {
        let level: Level = self.kind.level();
        api::TimelineEntry {
            at: self.at.to_string(),
            last: self.last.to_string(),
            count: self.count,
            kind: self.kind,
            level,
            family: self.family.map(|family| family.to_string()),
            text: self.text.clone(),
        }
    }
}

//! A dataplane of the modelled kernel. It keeps the contract of [`Dataplane`] and relies on everything that the engine promises: it writes what
//! `changes` names and nothing else, remembers what the kernel acknowledged, and compares everything only in full syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portwarden::health::SharedHealth;
use portwarden_model::{
    Changes, Dataplane, Desired, FULL_SYNC_INTERVAL, Family, NamespacedName, NodeView, Notification,
    PerFamily, ProxiedService, RefusedService, Report, Retry, SyncError,
};

use crate::kernel::{Kernel, LOWER_INTERVAL, Place, SharedKernel, Time, Unnoticed};
use crate::schedule::{Fault, Layer};

/// How long an undisturbed call takes.
const COST: Duration = Duration::from_millis(1);
/// How long health may wait before it must report an engine that is stuck: two sync periods.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// One dataplane.
pub(crate) struct ModelledDataplane {
    layer: Layer,
    families: Vec<Family>,
    memory: PerFamily<Memory>,
    kernel: SharedKernel,
    time: Time,
    health: SharedHealth,
}

/// What a dataplane remembers of one family.
#[derive(Default)]
struct Memory {
    node: Option<NodeView>,
    /// What the kernel has acknowledged.
    installed: BTreeMap<NamespacedName, Arc<ProxiedService>>,
    /// Services that were written without an acknowledgement: the next call must not rely on what it remembers of them.
    unknown: BTreeSet<NamespacedName>,
    seen_edits: u64,
    /// What is wanted for Services that are refused.
    refused: BTreeMap<NamespacedName, Option<Arc<ProxiedService>>>,
    background: Option<Background>,
    /// A full sync has succeeded.
    complete: bool,
}

struct Background {
    until: Instant,
    silent: bool,
}

/// What is left of a fault while a call writes.
struct Budget {
    writes: usize,
    end: End,
}

enum End {
    Success { missed: bool },
    Error { missed: bool },
    Kill,
}

impl ModelledDataplane {
    pub(crate) fn new(
        layer: Layer,
        families: &[Family],
        kernel: &SharedKernel,
        time: &Time,
        health: &SharedHealth,
    ) -> Self {
        let mut locked = kernel.lock();
        let memory = PerFamily::from_fn(|family| {
            locked.full_causes.insert((layer.mode(), family));
            Memory { seen_edits: locked.table((layer, family)).reported_edits, ..Memory::default() }
        });
        drop(locked);
        let (kernel, time, health) = (kernel.clone(), time.clone(), health.clone());
        ModelledDataplane { layer, families: families.to_vec(), memory, kernel, time, health }
    }

    /// Consumes time, and watches health while the engine cannot do anything else.
    fn spend(&self, time: Duration, kernel: &mut Kernel) {
        let end = self.time.now() + time;
        while self.time.now() < end {
            self.time.pass((end - self.time.now()).min(Duration::from_secs(5)));
            let now = self.time.now();
            let stuck = kernel.busy_since.is_some_and(|since| now - since >= STUCK);
            if stuck && self.health.report(now).0.healthy {
                kernel.violation(
                    "a call hangs for more than two sync periods, and health does not report it".to_owned(),
                );
                return;
            }
        }
    }

    /// Takes the next fault of a family. An error ends the call before anything is written.
    fn fault(&mut self, place: Place, full: bool, kernel: &mut Kernel) -> Result<Budget, SyncError> {
        let now = self.time.now();
        let fault = kernel.faults.entry(place).or_default().pop_front();
        if fault.is_some() {
            kernel.disturb(place, now);
        }
        let success = Budget { writes: usize::MAX, end: End::Success { missed: false } };
        Ok(match fault {
            None => success,
            Some(Fault::Nothing) => return Err(failure("EBUSY")),
            Some(Fault::Dump) if full => return Err(failure("the dump was interrupted")),
            Some(Fault::Dump) => success,
            Some(Fault::Part { writes, missed }) => {
                Budget { writes: writes.into(), end: End::Error { missed } }
            }
            Some(Fault::Unacknowledged) => Budget { writes: usize::MAX, end: End::Error { missed: false } },
            Some(Fault::Kill { writes }) => Budget { writes: writes.into(), end: End::Kill },
            Some(Fault::Missed) => Budget { writes: usize::MAX, end: End::Success { missed: true } },
            Some(Fault::Hang { seconds }) => {
                self.spend(Duration::from_secs(seconds.into()), kernel);
                kernel.disturb_all(self.time.now());
                success
            }
            Some(Fault::Background { seconds, silent }) => {
                let until = now + Duration::from_secs(seconds.into());
                kernel.disturb(place, until);
                // The engine counts the time in the background, and up to a sync period until it asks.
                let slowest = kernel.slowest_full.entry(place.1).or_default();
                *slowest += Duration::from_secs(u64::from(seconds) + 30);
                self.memory[place.1].background = Some(Background { until, silent });
                return Err(SyncError { retry: Retry::OnNotification, ..failure("still running") });
            }
        })
    }

    /// Writes what `changes` names, and returns what could not be written.
    fn write(
        &mut self,
        kernel: &mut Kernel,
        desired: &Desired,
        changes: &Changes,
        budget: &Budget,
    ) -> (Report, bool) {
        let place = (self.layer, desired.family);
        let memory = &mut self.memory[desired.family];
        let mut names: BTreeSet<NamespacedName> = changes.services.clone();
        if changes.full {
            let table = kernel.table(place);
            (memory.node, memory.installed) = (table.node.clone(), table.services.clone());
            table.unnoticed = None;
            memory.unknown.clear();
            names.extend(memory.installed.keys().cloned());
            names.extend(desired.services().map(|(name, _)| name.clone()));
        }
        let mut report = Report { full: changes.full, ..Report::default() };
        if (changes.full || changes.node) && memory.node.as_ref() != Some(&desired.node) {
            if report.written == budget.writes {
                return (report, false);
            }
            kernel.table(place).node = Some(desired.node.clone());
            memory.node = Some(desired.node.clone());
            report.written += 1;
        }
        for name in names {
            let wanted = desired.service(&name);
            if is_same(memory.installed.get(&name), wanted) && !memory.unknown.contains(&name) {
                // What was refused before is no longer wanted.
                memory.refused.remove(&name);
                continue;
            }
            if report.written == budget.writes {
                return (report, false);
            }
            if !kernel.write(place, &name, wanted) {
                memory.refused.insert(name.clone(), wanted.cloned());
                report.refused.push(RefusedService { service: name, reason: "EINVAL".to_owned() });
                continue;
            }
            report.written += 1;
            memory.refused.remove(&name);
            memory.unknown.remove(&name);
            match (&budget.end, wanted) {
                // Acknowledgements are lost with the error.
                (End::Error { .. }, _) if budget.writes == usize::MAX => drop(memory.unknown.insert(name)),
                (_, Some(service)) => drop(memory.installed.insert(name, service.clone())),
                (_, None) => drop(memory.installed.remove(&name)),
            }
        }
        (report, true)
    }

    fn check_call(&self, kernel: &mut Kernel, desired: &Desired, changes: &Changes) {
        let (mode, now) = ((self.layer.mode(), desired.family), self.time.now());
        if !kernel.listed {
            kernel.violation("a sync before Services and EndpointSlices were listed".to_owned());
        }
        if changes.full {
            kernel.calls.full += 1;
            // The first layer stands for all.
            if self.layer != Layer::Upper {
                let recent =
                    kernel.last_full.get(&mode).is_some_and(|last| now - *last < mode.0.full_sync_interval());
                let first = !self.memory[desired.family].complete;
                if !kernel.full_causes.remove(&mode) && recent && !first {
                    kernel.violation(format!("a full sync of {mode:?} without a cause"));
                }
            }
        } else {
            kernel.calls.partial += 1;
        }
    }
}

impl Dataplane for ModelledDataplane {
    fn families(&self) -> &[Family] {
        &self.families
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, started: Instant) -> Result<Report, SyncError> {
        let shared = self.kernel.clone();
        let kernel = &mut *shared.lock();
        let place = (self.layer, desired.family);
        let mode = (self.layer.mode(), desired.family);
        self.check_call(kernel, desired, changes);
        if let Some(background) = &self.memory[desired.family].background {
            if self.time.now() < background.until {
                kernel.full_causes.insert(mode);
                return Err(SyncError { retry: Retry::OnNotification, ..failure("still running") });
            }
            self.memory[desired.family].background = None;
        }
        let budget = self.fault(place, changes.full, kernel).inspect_err(|_| {
            kernel.full_causes.insert(mode);
        })?;
        self.spend(COST, kernel);
        let (mut report, finished) = self.write(kernel, desired, changes, &budget);
        report.missed_notifications =
            matches!(budget.end, End::Success { missed: true } | End::Error { missed: true });
        if report.missed_notifications {
            remove_first(kernel, place);
            kernel.disturb(place, self.time.now());
        }
        if report.missed_notifications || !matches!(budget.end, End::Success { .. }) {
            kernel.full_causes.insert(mode);
        }
        match budget.end {
            End::Success { .. } => {
                debug_assert!(finished, "only errors limit writes");
                if changes.full {
                    self.memory[desired.family].complete = true;
                    kernel.last_full.insert(mode, self.time.now());
                    let took = self.time.now() - started;
                    let slowest = kernel.slowest_full.entry(desired.family).or_default();
                    *slowest = took.max(*slowest);
                }
                Ok(report)
            }
            End::Error { .. } => {
                let source = Box::new(io::Error::other("ENOBUFS"));
                Err(SyncError { source, report, retry: Retry::Backoff })
            }
            End::Kill => {
                kernel.killed = true;
                Err(SyncError { report, ..failure("killed") })
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let kernel = self.kernel.lock();
        let reports = |family: &Family| {
            let memory = &self.memory[*family];
            let background = memory.background.as_ref().filter(|background| !background.silent);
            let accepted = kernel.announce_accepted && accepted(&kernel, memory, *family).next().is_some();
            [background.map(|background| background.until), accepted.then(|| self.time.now())]
        };
        self.families.iter().flat_map(reports).flatten().min()
    }

    fn full_sync_interval(&self, _: &Desired) -> Option<Duration> {
        Some(if self.layer == Layer::Lower { LOWER_INTERVAL } else { FULL_SYNC_INTERVAL })
    }

    fn poll(&mut self, now: Instant) -> Vec<Notification> {
        let shared = self.kernel.clone();
        let kernel = &mut *shared.lock();
        let mut notifications = Vec::new();
        for family in self.families.clone() {
            let (place, memory) = ((self.layer, family), &mut self.memory[family]);
            let reported = kernel.table(place).reported_edits;
            if reported > memory.seen_edits {
                memory.seen_edits = reported;
                // During a change of mode, the engine repairs both.
                let mode = self.layer.mode();
                kernel.full_causes.extend([(mode, family), (mode.other(), family)]);
                notifications.push(Notification::Tampered { family, what: "changed".to_owned() });
            }
            if memory.background.as_ref().is_some_and(|background| background.until <= now) {
                let silent = memory.background.take().is_some_and(|background| background.silent);
                notifications.extend((!silent).then_some(Notification::Ready { family }));
            }
            for service in refused_late(kernel, memory, family) {
                kernel.table(place).services.remove(&service);
                let wanted = memory.installed.remove(&service);
                memory.refused.entry(service.clone()).or_insert(wanted);
                let refused = RefusedService { service, reason: "address in use".to_owned() };
                notifications.push(Notification::Refused { family, refused });
            }
            if kernel.announce_accepted {
                let accepted: Vec<NamespacedName> = accepted(kernel, memory, family).cloned().collect();
                for service in accepted {
                    if let Some(Some(wanted)) = memory.refused.remove(&service) {
                        kernel.write(place, &service, Some(&wanted));
                        // No sync follows: the dataplane removes flows itself, as the contract says.
                        kernel.forget_flows(&wanted);
                        memory.installed.insert(service.clone(), wanted);
                    }
                    notifications.push(Notification::Accepted { family, service });
                }
            }
        }
        notifications
    }
}

/// Services that this dataplane had installed and that fail now.
fn refused_late(kernel: &Kernel, memory: &Memory, family: Family) -> Vec<NamespacedName> {
    let late =
        kernel.refused_late.iter().filter(|(of, name)| *of == family && memory.installed.contains_key(name));
    late.map(|(_, name)| name.clone()).collect()
}

fn accepted<'a>(
    kernel: &Kernel,
    memory: &'a Memory,
    family: Family,
) -> impl Iterator<Item = &'a NamespacedName> {
    memory.refused.keys().filter(move |name| !kernel.refusing.contains(&(family, (*name).clone())))
}

/// Another process removes a Service while nothing is reported.
fn remove_first(kernel: &mut Kernel, place: Place) {
    let table = kernel.table(place);
    if let Some(name) = table.services.keys().next().cloned() {
        table.services.remove(&name);
        table.unnoticed.get_or_insert(Unnoticed::Suspected);
    }
}

/// Whether both are the same; equal pointers save the comparison.
pub(crate) fn is_same(one: Option<&Arc<ProxiedService>>, other: Option<&Arc<ProxiedService>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        (None, None) => true,
        _ => false,
    }
}

fn failure(text: &'static str) -> SyncError {
    io::Error::other(text).into()
}

//! An engine on a test bench: a dataplane that records and fails on demand, and a clock that a test moves.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portwarden_model::{
    Changes, Dataplane, Desired, Event, FULL_SYNC_INTERVAL, Family, Kind, NamespacedName, Notification,
    PacerConfig, RefusedService, Report, Retry, Settings, SyncError, Timestamp, manifest,
};
use portwarden_testkit::build::{self, ToEvent};

use super::super::*;
use crate::metrics::BuildInfo;

/// A clock that stands still.
#[derive(Clone)]
pub(super) struct Time {
    start: Instant,
    passed: Arc<Mutex<Duration>>,
}

impl Time {
    pub(super) fn now(&self) -> Moment {
        let passed = *self.passed.lock().unwrap();
        Moment {
            instant: self.start + passed,
            wall: Timestamp::from_nanos(1_000_000_000_000 + i64::try_from(passed.as_nanos()).unwrap()),
        }
    }

    pub(super) fn pass(&self, time: Duration) {
        *self.passed.lock().unwrap() += time;
    }
}

/// What a fake was asked to do.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) mode: &'static str,
    pub(super) changes: Changes,
    pub(super) services: usize,
}

/// What a fake answers; after the last answer everything succeeds.
pub(super) enum Reply {
    Fail(&'static str),
    /// Fails after a write without notifications.
    FailWithMissedNotifications(&'static str),
    Refuse(Vec<RefusedService>),
    /// Works, but without notifications.
    MissedNotifications,
    /// Fails, and will say when to try again.
    FailUntilReady(&'static str),
}

/// Controls a fake.
#[derive(Clone, Default)]
pub(super) struct Strings {
    pub(super) calls: Arc<Mutex<Vec<Call>>>,
    pub(super) replies: Arc<Mutex<VecDeque<Reply>>>,
    pub(super) notifications: Arc<Mutex<Vec<Notification>>>,
    /// An interval of its own for full syncs.
    pub(super) full_sync_interval: Arc<Mutex<Option<Duration>>>,
}

impl Strings {
    /// Takes the calls so far.
    pub(super) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    pub(super) fn reply(&self, reply: Reply) {
        self.replies.lock().unwrap().push_back(reply);
    }

    pub(super) fn notify(&self, notification: Notification) {
        self.notifications.lock().unwrap().push(notification);
    }

    pub(super) fn tamper(&self, what: &str) {
        self.notify(Notification::Tampered { family: Family::V4, what: what.to_owned() });
    }
}

/// A dataplane that records.
pub(super) struct Fake {
    pub(super) family: Family,
    pub(super) mode: &'static str,
    pub(super) strings: Strings,
    pub(super) time: Time,
    pub(super) cost: Duration,
}

impl Dataplane for Fake {
    fn families(&self) -> &[Family] {
        std::slice::from_ref(&self.family)
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, _: Instant) -> Result<Report, SyncError> {
        self.time.pass(self.cost);
        self.strings.calls.lock().unwrap().push(Call {
            mode: self.mode,
            changes: changes.clone(),
            services: desired.services().len(),
        });
        let report = Report { full: changes.full, written: changes.services.len(), ..Report::default() };
        match self.strings.replies.lock().unwrap().pop_front() {
            Some(Reply::Fail(why)) => Err(std::io::Error::other(why).into()),
            Some(Reply::FailUntilReady(why)) => {
                Err(SyncError { retry: Retry::OnNotification, ..std::io::Error::other(why).into() })
            }
            Some(Reply::FailWithMissedNotifications(why)) => {
                let report = Report { missed_notifications: true, ..report };
                Err(SyncError { report, ..std::io::Error::other(why).into() })
            }
            Some(Reply::Refuse(refused)) => Ok(Report { refused, ..report }),
            Some(Reply::MissedNotifications) => Ok(Report { missed_notifications: true, ..report }),
            None => Ok(report),
        }
    }

    fn full_sync_interval(&self, _: &Desired) -> Option<Duration> {
        Some(self.strings.full_sync_interval.lock().unwrap().unwrap_or(FULL_SYNC_INTERVAL))
    }

    fn poll(&mut self, _: Instant) -> Vec<Notification> {
        std::mem::take(&mut self.strings.notifications.lock().unwrap())
    }
}

/// Flows that are asked for and fail on demand.
#[derive(Clone, Default)]
pub(super) struct FakeFlows {
    pub(super) asked: Arc<Mutex<Vec<(Family, Changes)>>>,
    pub(super) failures: Arc<Mutex<u32>>,
}

impl Flows for FakeFlows {
    fn clean(&mut self, desired: &Desired, changes: &Changes, _: &[IpAddr]) -> Result<usize, FlowsError> {
        self.asked.lock().unwrap().push((desired.family, changes.clone()));
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err("no room".into());
        }
        Ok(1)
    }
}

/// Everything around an engine.
pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) time: Time,
    pub(super) v4: Strings,
    pub(super) v6: Strings,
    pub(super) flows: FakeFlows,
    pub(super) metrics: Metrics,
    pub(super) health: SharedHealth,
    pub(super) receivers: EngineReceivers,
    pub(super) retired: Arc<Mutex<u32>>,
}

impl Bench {
    pub(super) fn new() -> Self {
        Bench::with(Settings::new("here"), NodeWait::NONE)
    }

    pub(super) fn with(settings: Settings, node_wait: NodeWait) -> Self {
        let time = Time { start: Instant::now(), passed: Arc::default() };
        let (v4, v6, flows) = (Strings::default(), Strings::default(), FakeFlows::default());
        let metrics = Metrics::new(&BuildInfo::default()).unwrap();
        let health = SharedHealth::new(Duration::from_secs(30));
        let (outputs, receivers) = EngineOutputs::new(10);
        let retired = Arc::new(Mutex::new(0));
        let counted = retired.clone();
        let clock = time.clone();
        let engine = Engine::new(EngineParts {
            settings,
            words: words("first"),
            dataplanes: vec![
                fake(Family::V4, "first", &v4, &time, Duration::from_millis(1)),
                fake(Family::V6, "first", &v6, &time, Duration::from_millis(1)),
            ],
            pacing: PacerConfig::default(),
            node_wait,
            remove_leftovers: Some(Box::new(move || *counted.lock().unwrap() += 1)),
            check: Box::new(|_| Ok(())),
            flows: Box::new(flows.clone()),
            health: health.clone(),
            metrics: metrics.clone(),
            outputs,
            activity: Default::default(),
            heartbeat: Heartbeat::new(time.start),
            clock: Box::new(move || clock.now()),
        });
        Bench { engine, time, v4, v6, flows, metrics, health, receivers, retired }
    }

    /// A bench whose lists are in and which has made its first syncs.
    pub(super) fn synced(events: Vec<Event>) -> Self {
        let mut bench = Bench::new();
        bench.list(events);
        bench.turn();
        bench.v4.calls();
        bench.v6.calls();
        bench
    }

    /// Sends these objects as complete lists.
    pub(super) fn list(&mut self, objects: Vec<Event>) {
        let mut events: Vec<Event> = Kind::ALL.into_iter().map(Event::ListStarted).collect();
        events.extend(objects);
        events.extend(Kind::ALL.into_iter().map(Event::ListDone));
        self.engine.apply(events);
    }

    /// Does what is due, and returns how long until the next thing is.
    pub(super) fn turn(&mut self) -> Option<Duration> {
        let next = self.engine.turn().expect("the engine goes on");
        next.map(|at| at.saturating_duration_since(self.time.now().instant))
    }

    /// Lets time pass, doing what is due on the way.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.time.now().instant + time;
        loop {
            let wait = self.turn().unwrap_or(time);
            let left = end.saturating_duration_since(self.time.now().instant);
            if left.is_zero() {
                return;
            }
            self.time.pass(wait.clamp(Duration::from_micros(1), left));
        }
    }

    /// The value of a metric.
    pub(super) fn metric(&self, series: &str) -> Option<String> {
        let text = self.metrics.text();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).map(str::to_owned)
    }
}

pub(super) fn words(name: &'static str) -> ModeWords {
    ModeWords { name, sync_failed: "a sync failed", counters: &[] }
}

pub(super) fn fake(
    family: Family,
    mode: &'static str,
    strings: &Strings,
    time: &Time,
    cost: Duration,
) -> Box<dyn Dataplane> {
    Box::new(Fake { family, mode, strings: strings.clone(), time: time.clone(), cost })
}

pub(super) fn name(name: &str) -> NamespacedName {
    NamespacedName::new("demo", name)
}

/// A Service with one port at 10.96.0.N.
pub(super) fn service(
    name: &str,
    n: u8,
    protocol: &'static str,
    change: impl FnOnce(&mut manifest::Service),
) -> Event {
    let port = build::port(80).name("p").protocol(protocol);
    let mut service = build::service(name).cluster_ip(format!("10.96.0.{n}")).port(port).build();
    change(&mut service);
    service.event()
}

/// The slice of a Service with one endpoint at 10.1.0.N on this node.
pub(super) fn slice(
    service: &str,
    n: u8,
    protocol: &'static str,
    change: impl FnOnce(&mut manifest::EndpointSlice),
) -> Event {
    let slice = build::slice(service, &format!("{service}-1"));
    let slice = slice.port(build::port(8080).name("p").protocol(protocol));
    let mut slice = slice.endpoint(build::endpoint(format!("10.1.0.{n}")).on("here")).build();
    change(&mut slice);
    slice.event()
}

/// The Node with an address.
pub(super) fn node(change: impl FnOnce(&mut manifest::Node)) -> Event {
    let mut node = build::node("here").ip("192.168.0.2").build();
    change(&mut node);
    node.event()
}

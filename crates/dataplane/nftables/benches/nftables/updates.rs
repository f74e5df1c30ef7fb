//! How long it takes until the kernel has acknowledged a full load, one endpoint, a thousand services.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use portwarden_model::{Changes, Dataplane, Event, Family};
use portwarden_nftables::{Nftables, Options};
use portwarden_testkit::Namespace;

use crate::kube_proxy::{KubeProxy, Load};
use crate::measure::{self, Dice, Spent, Times};
use crate::report::{Figure, Report, Side};
use crate::workload::{Filled, Shape, Workload};
use crate::{Effort, SHAPES};

const FULL: &str = "full load into an empty kernel: resolve, render, encode, commit";
const ONE: &str = "one endpoint added or removed: event to acknowledgement";
const MANY: &str = "1000 services of 10 endpoints changed at once";
pub(crate) const MEMORY: &str = "memory";

/// How many services change at once, and how many endpoints each has.
const MANY_SERVICES: usize = 1_000;
const MANY_ENDPOINTS: usize = 10;

/// What kube-proxy's layout loads in one transaction within a bearable time: that grows with the square of the services. Above it, load
/// in parts of [`PART`], which is faster than kube-proxy can be.
const AT_ONCE: usize = 5_000;
const PART: usize = 1_000;

pub(crate) fn run(effort: Effort, report: &mut Report) -> Result<()> {
    for shape in SHAPES {
        for family in Family::BOTH {
            let workload = Workload::new(shape, family);
            report.begin(&format!("loading and changing {}", workload.subject()));
            ours(effort, &workload, report)?;
            let affordable = effort == Effort::Full || family == Family::V4;
            if shape.services <= AT_ONCE && affordable {
                let namespace = Namespace::new("bench-baseline")?;
                baseline(effort, &KubeProxy::new(&namespace, &workload), &workload, report)?;
            }
        }
        goals(shape, report);
    }
    Ok(())
}

/// What a quiet machine should reach.
fn goals(shape: Shape, report: &mut Report) {
    for family in Family::BOTH {
        let subject = Workload::new(shape, family).subject();
        let load = match (shape.services, shape.endpoints) {
            (5_000, 50) => Some(900),
            (30_000, 4) => Some(700),
            _ => None,
        };
        if let Some(load) = load {
            report.goal(FULL, &subject, "time", Figure::milliseconds(Duration::from_millis(load)));
        }
        report.goal(ONE, &subject, "p50", Figure::microseconds(Duration::from_micros(200)));
        report.goal(ONE, &subject, "p99", Figure::microseconds(Duration::from_millis(1)));
        report.goal(MANY, &subject, "all replaced", Figure::milliseconds(Duration::from_millis(60)));
    }
}

fn ours(effort: Effort, workload: &Workload, report: &mut Report) -> Result<()> {
    let mut loads = Vec::new();
    let mut node = None;
    for _ in 0..effort.choose(3, 7) {
        // The one before is gone, and its kernel memory with it.
        drop(node.take());
        let (load, loaded) = LoadedNode::load(workload)?;
        loads.push(load);
        node = Some(loaded);
    }
    let subject = workload.subject();
    let times = |time: fn(&FullLoad) -> Duration| -> Times { loads.iter().map(time).collect() };
    for (metric, time) in [
        ("time", times(|load| load.all.wall).median()),
        ("best time", times(|load| load.all.wall).min()),
        ("cpu", times(|load| load.all.cpu).median()),
        ("cpu of resolve", times(|load| load.resolve.cpu).median()),
    ] {
        report.record(FULL, &subject, metric, Side::Ours, Figure::milliseconds(time));
    }
    let mut node = node.context("loaded at least once")?;
    one_endpoint(effort, &mut node, workload, report)?;
    many_services(effort, &mut node, workload, report)
}

fn one_endpoint(
    effort: Effort,
    node: &mut LoadedNode,
    workload: &Workload,
    report: &mut Report,
) -> Result<()> {
    let (mut wall, mut cpu, mut dice) = (Times::default(), Times::default(), Dice::new());
    for _ in 0..effort.choose(500, 2_000) {
        let number = dice.roll(workload.shape.services);
        let count = workload.shape.endpoints;
        for endpoints in [0..count + 1, 0..count] {
            let event = workload.slice(number, endpoints, &mut node.filled.names);
            let spent = node.change([event])?;
            wall.push(spent.wall);
            cpu.push(spent.cpu);
        }
    }
    let subject = workload.subject();
    for (metric, time) in
        [("p50", wall.median()), ("p99", wall.percentile(99)), ("max", wall.max()), ("cpu", cpu.median())]
    {
        report.record(ONE, &subject, metric, Side::Ours, Figure::microseconds(time));
    }
    Ok(())
}

fn many_services(
    effort: Effort,
    node: &mut LoadedNode,
    workload: &Workload,
    report: &mut Report,
) -> Result<()> {
    let (mut replaced, mut replaced_cpu, mut grown) = (Times::default(), Times::default(), Times::default());
    for round in 0..effort.choose(3, 9) {
        let first = (round % 2) * 2 * MANY_ENDPOINTS;
        let ten = first..first + MANY_ENDPOINTS;
        let spent = node.change_many(workload, &ten)?;
        // The first round comes from whatever number of endpoints the services were loaded with.
        if round > 0 {
            replaced.push(spent.wall);
            replaced_cpu.push(spent.cpu);
        }
        grown.push(node.change_many(workload, &(ten.start..ten.end + 1))?.wall);
        node.change_many(workload, &ten)?;
    }
    let subject = workload.subject();
    report.record(MANY, &subject, "all replaced", Side::Ours, Figure::milliseconds(replaced.median()));
    report.record(
        MANY,
        &subject,
        "all replaced, cpu",
        Side::Ours,
        Figure::milliseconds(replaced_cpu.median()),
    );
    report.record(MANY, &subject, "one more each", Side::Ours, Figure::milliseconds(grown.median()));
    Ok(())
}

/// Measures kube-proxy's layout in a namespace. Leaves it loaded.
pub(crate) fn baseline(
    effort: Effort,
    kube_proxy: &KubeProxy,
    workload: &Workload,
    report: &mut Report,
) -> Result<()> {
    let shape = workload.shape;
    let Load { spent, kernel } = kube_proxy.load(if shape.services <= AT_ONCE { AT_ONCE } else { PART })?;
    // Measured with pods, it stands for the same number of endpoints that are elsewhere.
    let subject = &Workload::new(shape, workload.family).subject();
    report.record(FULL, subject, "time", Side::Baseline, Figure::milliseconds(spent.wall));
    report.record(FULL, subject, "cpu", Side::Baseline, Figure::milliseconds(spent.cpu));
    report.record(MEMORY, subject, "kernel", Side::Baseline, Figure::bytes(kernel));
    if shape.services <= AT_ONCE {
        // Programs started before were smaller.
        report.record(
            MEMORY,
            subject,
            "peak of the process",
            Side::Baseline,
            Figure::bytes(measure::children_peak()?),
        );
    }
    let (mut wall, mut cpu, mut dice) = (Times::default(), Times::default(), Dice::new());
    for _ in 0..effort.choose(5, 15) {
        let number = dice.roll(shape.services);
        for endpoints in [0..shape.endpoints + 1, 0..shape.endpoints] {
            let spent = kube_proxy.change(number..number + 1, &endpoints)?;
            wall.push(spent.wall);
            cpu.push(spent.cpu);
        }
    }
    for (metric, time) in [("p50", wall.median()), ("max", wall.max()), ("cpu", cpu.median())] {
        report.record(ONE, subject, metric, Side::Baseline, Figure::microseconds(time));
    }
    kube_proxy.change(0..MANY_SERVICES, &(0..MANY_ENDPOINTS))?;
    let spent = kube_proxy.change(0..MANY_SERVICES, &(2 * MANY_ENDPOINTS..3 * MANY_ENDPOINTS))?;
    report.record(MANY, subject, "all replaced", Side::Baseline, Figure::milliseconds(spent.wall));
    report.record(MANY, subject, "all replaced, cpu", Side::Baseline, Figure::milliseconds(spent.cpu));
    Ok(())
}

/// What one full load took.
#[derive(Debug)]
pub(crate) struct FullLoad {
    all: Spent,
    resolve: Spent,
}

/// A node whose kernel has everything.
#[derive(Debug)]
pub(crate) struct LoadedNode {
    filled: Filled,
    dataplane: Nftables,
    family: Family,
    _namespace: Namespace,
}

impl LoadedNode {
    /// Fills a cluster and loads it into a kernel without rules.
    pub(crate) fn load(workload: &Workload) -> Result<(FullLoad, LoadedNode)> {
        Self::load_into(&Namespace::new("bench")?, workload)
    }

    /// The same into an existing namespace.
    pub(crate) fn load_into(namespace: &Namespace, workload: &Workload) -> Result<(FullLoad, LoadedNode)> {
        let mut filled = workload.fill();
        let family = workload.family;
        let _inside = namespace.enter()?;
        // Both families, as in the daemon.
        let mut dataplane = Nftables::new(&Family::BOTH, Options::default())?;
        let (all, resolve) = measure::spend(|| {
            let (resolve, _) = measure::spend(|| Ok(filled.cluster.resolve()))?;
            sync(&mut dataplane, &filled, family, &Changes::everything())?;
            Ok(resolve)
        })?;
        let node = LoadedNode { filled, dataplane, family, _namespace: namespace.clone() };
        Ok((FullLoad { all, resolve }, node))
    }

    /// From events to the kernel's acknowledgement.
    pub(crate) fn change(&mut self, events: impl IntoIterator<Item = Event>) -> Result<Spent> {
        let (spent, ()) = measure::spend(|| {
            for event in events {
                self.filled.cluster.apply(event);
            }
            let changes = self.filled.cluster.resolve();
            sync(&mut self.dataplane, &self.filled, self.family, &changes[self.family])
        })?;
        // Notifications of our own changes, which the engine reads when it has nothing else to do.
        if let Some(found) = self.dataplane.poll(Instant::now()).first() {
            return Err(anyhow!("another process changes the table: {found:?}"));
        }
        Ok(spent)
    }

    /// The one endpoint more, and one less again, of a service.
    pub(crate) fn flap(&mut self, workload: &Workload, number: usize) -> Result<()> {
        for endpoints in [0..workload.shape.endpoints + 1, 0..workload.shape.endpoints] {
            let event = workload.slice(number, endpoints, &mut self.filled.names);
            self.change([event])?;
        }
        Ok(())
    }

    fn change_many(&mut self, workload: &Workload, endpoints: &Range<usize>) -> Result<Spent> {
        let names = &mut self.filled.names;
        let events: Vec<Event> =
            (0..MANY_SERVICES).map(|number| workload.slice(number, endpoints.clone(), names)).collect();
        self.change(events)
    }
}

fn sync(dataplane: &mut Nftables, filled: &Filled, family: Family, changes: &Changes) -> Result<()> {
    let outcome = dataplane.sync(filled.cluster.desired(family), changes, Instant::now());
    let report =
        outcome.map_err(|error| anyhow!("{error}: {:?}", error.source.source().map(ToString::to_string)))?;
    match report.refused.first() {
        Some(refused) => Err(anyhow!("{}: {}", refused.service, refused.reason)),
        None => Ok(()),
    }
}

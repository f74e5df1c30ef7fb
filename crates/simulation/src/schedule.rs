//! A schedule: what happens to an engine, step by step. Steps do not refer to each other, so any subset of a schedule is a schedule.

use portwarden_model::Family;

use crate::random::Random;

/// How many Services a schedule knows.
pub(crate) const SERVICES: u8 = 5;
/// How many slices a schedule knows; even ones are IPv4.
pub(crate) const SLICES: u8 = 8;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the line of a variant names its fields")]
pub enum Step {
    /// A Service is created or changed; the bits of `shape` choose its fields.
    PutService { service: u8, shape: u8 },
    /// A Service is deleted.
    DeleteService { service: u8 },
    /// A slice is created, changed or moved to another Service.
    PutSlice { slice: u8, service: u8, endpoints: u8, state: u8 },
    /// A slice is deleted.
    DeleteSlice { slice: u8 },
    /// The Node changes.
    PutNode { shape: u8 },
    /// The Node is deleted.
    DeleteNode,
    /// The ranges of cluster addresses change.
    PutServiceCidr { shape: u8 },
    /// The addresses of the host's interfaces change.
    HostAddresses { shape: u8 },
    /// The source sends everything again that it has sent before.
    Repeat,
    /// The source loses its connection: changes wait for the next list.
    Disconnect,
    /// The source lists everything anew. With `stop`, the list breaks off in the middle first.
    Connect { stop: bool },
    /// The configuration changes.
    Reconfigure { mode: Mode, families: Families, masquerade_all: bool },
    /// The next sync of a family meets a fault.
    Arm { layer: Layer, family: Family, fault: Fault },
    /// The kernel refuses a Service from now on. With `late`, only after its sync.
    Refuse { service: u8, family: Family, late: bool },
    /// The kernel accepts all Services again. With `announce`, the dataplane installs them by itself.
    Accept { announce: bool },
    /// Another process changes our objects.
    Edit { layer: Layer, family: Family, edit: Edit, noticed: bool },
    /// A UDP client sends to a Service, and conntrack remembers where to.
    Client { service: u8, family: Family, client: u8 },
    /// The next clean-up of flows meets a fault.
    FailFlows { after: u8 },
    /// The process is killed.
    Crash,
    /// The process starts, if it does not run.
    Start,
    /// The wall clock jumps by this many seconds.
    SetWallClock { seconds: i32 },
    /// Time passes.
    Pass { millis: u32 },
    /// All faults end, and everything must be in order soon.
    Settle,
}

/// A proxy mode of the modelled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// One dataplane per family.
    Single,
    /// One dataplane for both families, with another one above it.
    Layered,
}

/// Where a modelled dataplane writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// That of [`Mode::Single`].
    Single,
    /// The lower one of [`Mode::Layered`].
    Lower,
    /// The upper one of [`Mode::Layered`].
    Upper,
}

/// The families that a mode serves on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv4 and IPv6.
    Both,
    /// IPv4 alone.
    OnlyV4,
}

/// What a sync may meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the line of a variant names its fields")]
pub enum Fault {
    /// The kernel refuses the whole request (`EINTR`, `EBUSY`, `ENOMEM`): nothing is written.
    Nothing,
    /// An error after some writes. With `missed`, notifications were off meanwhile and another process removed a Service.
    Part { writes: u8, missed: bool },
    /// Everything is written, but the acknowledgement is lost (`ENOBUFS`).
    Unacknowledged,
    /// A dump is interrupted (`NLM_F_DUMP_INTR`) or ends early. Only full syncs dump.
    Dump,
    /// The call takes this many seconds.
    Hang { seconds: u8 },
    /// The call continues in the background for this many seconds. With `silent`, its end is never reported.
    Background { seconds: u8, silent: bool },
    /// Notifications are off during the write, and another process removes a Service.
    Missed,
    /// The process is killed after some writes.
    Kill { writes: u8 },
}

/// What another process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the line of a variant names its fields")]
pub enum Edit {
    /// Removes a Service.
    Remove { service: u8 },
    /// Removes everything.
    Flush,
    /// Brings back a Service that we deleted, or one that never was.
    Add { service: u8 },
}

/// The schedule of a seed.
pub fn schedule(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed);
    // Some seeds have few kinds of steps, so that each of them happens often.
    let kinds: Vec<u8> = (0..KINDS).filter(|_| !random.once_in(3)).collect();
    let length = random.within(5..40);
    let mut steps: Vec<Step> = (0..3).map(|_| put_service(&mut random)).collect();
    steps.extend((0..3).map(|_| put_slice(&mut random)));
    for _ in 0..length {
        let kind = if kinds.is_empty() || random.once_in(4) { 0 } else { random.one_of(&kinds) };
        steps.push(step(kind, &mut random));
        if random.once_in(2) {
            steps.push(pass(&mut random));
        }
    }
    steps.push(Step::Settle);
    steps
}

const KINDS: u8 = 22;

fn step(kind: u8, random: &mut Random) -> Step {
    match kind {
        0 | 1 => pass(random),
        2 | 3 => put_service(random),
        4 => Step::DeleteService { service: random.below(SERVICES) },
        5 | 6 => put_slice(random),
        7 => Step::DeleteSlice { slice: random.below(SLICES) },
        8 => node(random),
        9 => Step::Repeat,
        10 => Step::Disconnect,
        11 => Step::Connect { stop: random.once_in(2) },
        12 => Step::Reconfigure {
            mode: random.one_of(&[Mode::Single, Mode::Layered]),
            families: random.one_of(&[Families::Both, Families::Both, Families::OnlyV4]),
            masquerade_all: random.once_in(2),
        },
        13..=15 => Step::Arm { layer: layer(random), family: family(random), fault: fault(random) },
        16 => {
            Step::Refuse { service: random.below(SERVICES), family: family(random), late: random.once_in(2) }
        }
        17 => Step::Accept { announce: random.once_in(2) },
        18 => Step::Edit {
            layer: layer(random),
            family: family(random),
            edit: edit(random),
            noticed: !random.once_in(4),
        },
        19 => Step::Client {
            service: random.below(SERVICES),
            family: family(random),
            client: random.below(100),
        },
        20 => Step::FailFlows { after: random.below(3) },
        _ => random.one_of(&[Step::Crash, Step::Start, Step::Start, Step::Settle]),
    }
}

fn put_service(random: &mut Random) -> Step {
    Step::PutService { service: random.below(SERVICES), shape: random.below(255) }
}

fn put_slice(random: &mut Random) -> Step {
    let (slice, service) = (random.below(SLICES), random.below(SERVICES));
    Step::PutSlice { slice, service, endpoints: random.below(16), state: random.below(255) }
}

fn node(random: &mut Random) -> Step {
    let shape = random.below(8);
    match random.below(6) {
        0 => Step::DeleteNode,
        1 => Step::PutServiceCidr { shape },
        2 => Step::HostAddresses { shape },
        3 => Step::SetWallClock { seconds: i32::from(shape) * 1000 - 4000 },
        _ => Step::PutNode { shape },
    }
}

fn pass(random: &mut Random) -> Step {
    let limit = random.one_of(&[2, 20, 1000, 5000, 40_000, 100_000, 4_000_000]);
    Step::Pass { millis: u32::try_from(random.within(0..limit)).unwrap_or(u32::MAX) }
}

fn layer(random: &mut Random) -> Layer {
    random.one_of(&[Layer::Single, Layer::Lower, Layer::Upper])
}

fn family(random: &mut Random) -> Family {
    random.one_of(&Family::BOTH)
}

fn fault(random: &mut Random) -> Fault {
    match random.below(10) {
        0 | 1 => Fault::Nothing,
        2 | 3 => Fault::Part { writes: random.below(4), missed: random.once_in(2) },
        4 => Fault::Unacknowledged,
        5 => Fault::Dump,
        6 => Fault::Hang { seconds: random.below(150) },
        7 => Fault::Background { seconds: random.below(100), silent: random.once_in(2) },
        8 => Fault::Missed,
        _ => Fault::Kill { writes: random.below(4) },
    }
}

fn edit(random: &mut Random) -> Edit {
    let service = random.below(SERVICES);
    random.one_of(&[Edit::Remove { service }, Edit::Flush, Edit::Add { service }])
}

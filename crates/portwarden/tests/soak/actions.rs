//! What happens, chosen by a seed and by nothing else: the same seed gives the same actions in the same order.

use std::fmt;
use std::time::Duration;

/// Services under traffic. The first one always has endpoints that are ready; the others may lose all of theirs.
pub(crate) const SERVICES: usize = 4;
/// Pods on the node under test.
pub(crate) const PODS: usize = 5;
/// Pods on the other node.
pub(crate) const REMOTE_PODS: usize = 2;
/// The hosts that are endpoints of the first Service at all times.
const ALWAYS: [usize; 3] = [0, 1, PODS];

/// One thing that happens.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// A Service has these endpoints now.
    Endpoints { service: usize, members: Vec<Member> },
    /// Endpoints are replaced one by one, as in a rolling update.
    Roll { service: usize, steps: Vec<Vec<Member>> },
    /// A Service is another one now.
    Reshape { service: usize, shape: Shape },
    /// A Service is deleted and comes back, with or without its slices.
    Recreate { service: usize, slices: bool, pause: Duration },
    /// Services without traffic are added or deleted.
    Crowd { first: u8, count: u8, present: bool },
    /// The Node is in another zone.
    Zone(u8),
    /// Another process damages the rules.
    Damage(Damage),
    /// The process is killed, and started again later.
    Kill { pause: Duration, meanwhile: Vec<Action> },
    /// The process is asked to end, and started again.
    Restart,
    /// The operator changes the configuration.
    Reload(Reload),
    /// The API server fails in many ways for a while.
    Faults { seed: u64, pause: Duration, heal: Heal, meanwhile: Vec<Action> },
    /// The API server is unreachable.
    Outage { pause: Duration, meanwhile: Vec<Action> },
}

/// An endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// Pods of the node under test come first, then those of the other node.
    pub(crate) host: usize,
    pub(crate) condition: Condition,
}

/// What the cluster says about an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Ready,
    NotReady,
    /// Terminating and still serving.
    Draining,
}

/// What can differ in a Service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) affinity: bool,
    pub(crate) internal_local: bool,
    pub(crate) extra_port: bool,
    pub(crate) label: u8,
}

/// How rules are damaged.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Damage {
    /// Everything is flushed.
    Ruleset,
    /// A table is deleted.
    Table { v6: bool },
    /// A chain is emptied; which one is chosen by this number.
    Chain { v6: bool, number: u64 },
    /// A map or set is emptied.
    Set { v6: bool, number: u64 },
}

/// What changes in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reload {
    MasqueradeAll(bool),
    Verbosity(u8),
    /// The shortest time between writes, in milliseconds; 0 is adaptive.
    MinSyncPeriod(u16),
    /// The other mode.
    Mode {
        iptables: bool,
    },
    /// A file that cannot be used, and then the one from before.
    Nonsense,
}

/// How the API server recovers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Heal {
    /// It closes all connections.
    Disconnect,
    /// It closes all connections, and has forgotten what happened.
    Forget,
}

/// Actions in the order of a seed.
pub(crate) struct Script {
    random: Random,
    /// Only endpoints change, to measure how fast that takes effect.
    calm: bool,
}

impl Script {
    pub(crate) fn new(seed: u64, calm: bool) -> Script {
        Script { random: Random(seed), calm }
    }

    /// The next action, and the time of traffic after it.
    pub(crate) fn next(&mut self) -> (Action, Duration) {
        if self.calm {
            let service = self.random.index(SERVICES);
            return (Action::Endpoints { service, members: self.members(service) }, self.pause(250));
        }
        let action = match self.random.below(24) {
            0..8 | 23 => self.write(),
            8 => self.recreate(),
            9..12 => self.roll(),
            12..14 => self.damage(),
            14..16 => Action::Kill { pause: self.pause(800), meanwhile: self.meanwhile() },
            16 => Action::Restart,
            17..20 => self.reload(),
            20 | 21 => {
                let heal = if self.random.chance(50) { Heal::Disconnect } else { Heal::Forget };
                let (seed, pause) = (self.random.next(), self.pause(1500));
                Action::Faults { seed, pause, heal, meanwhile: self.meanwhile() }
            }
            _ => Action::Outage { pause: self.pause(1500), meanwhile: self.meanwhile() },
        };
        (action, self.pause(250))
    }

    /// What happens while something is broken.
    fn meanwhile(&mut self) -> Vec<Action> {
        let count = self.random.below(4);
        let mut actions: Vec<Action> = (0..count).map(|_| self.write()).collect();
        match self.random.below(12) {
            0 => actions.push(self.damage()),
            1 => actions.push(Action::Kill { pause: self.pause(300), meanwhile: vec![self.write()] }),
            2 => actions.push(self.recreate()),
            _ => {}
        }
        actions
    }

    /// A write to the API server.
    fn write(&mut self) -> Action {
        let service = self.random.index(SERVICES);
        match self.random.below(10) {
            0..6 => Action::Endpoints { service, members: self.members(service) },
            6..8 => Action::Reshape { service, shape: self.shape() },
            8 => Action::Crowd {
                first: self.random.small(100),
                count: self.random.small(40),
                present: self.random.chance(60),
            },
            _ => Action::Zone(self.random.small(3)),
        }
    }

    fn recreate(&mut self) -> Action {
        let service = 1 + self.random.index(SERVICES - 1);
        Action::Recreate { service, slices: self.random.chance(50), pause: self.pause(200) }
    }

    fn roll(&mut self) -> Action {
        let service = self.random.index(SERVICES);
        let steps = 2 + self.random.below(6);
        Action::Roll { service, steps: (0..steps).map(|_| self.members(service)).collect() }
    }

    fn members(&mut self, service: usize) -> Vec<Member> {
        let mut members = Vec::new();
        for host in 0..PODS + REMOTE_PODS {
            let condition = match self.random.below(10) {
                0..5 => Condition::Ready,
                5 => Condition::Draining,
                6 => Condition::NotReady,
                _ => continue,
            };
            members.push(Member { host, condition });
        }
        if service == 0 {
            members.retain(|member| !ALWAYS.contains(&member.host));
            members.extend(ALWAYS.map(|host| Member { host, condition: Condition::Ready }));
        } else if self.random.chance(15) {
            members.clear();
        }
        members
    }

    fn shape(&mut self) -> Shape {
        Shape {
            affinity: self.random.chance(30),
            internal_local: self.random.chance(30),
            extra_port: self.random.chance(50),
            label: self.random.small(100),
        }
    }

    fn damage(&mut self) -> Action {
        let (v6, number) = (self.random.chance(30), self.random.next());
        Action::Damage(match self.random.below(4) {
            0 => Damage::Ruleset,
            1 => Damage::Table { v6 },
            2 => Damage::Chain { v6, number },
            _ => Damage::Set { v6, number },
        })
    }

    fn reload(&mut self) -> Action {
        Action::Reload(match self.random.below(10) {
            0..3 => Reload::MasqueradeAll(self.random.chance(50)),
            3..5 => Reload::Verbosity(self.random.small(4)),
            5..7 => Reload::MinSyncPeriod([0, 20, 200][self.random.index(3)]),
            7 => Reload::Nonsense,
            _ => Reload::Mode { iptables: self.random.chance(50) },
        })
    }

    fn pause(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.random.below(most))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Endpoints { service, members } => {
                write!(f, "service-{service} has endpoints {}", list(members))
            }
            Action::Roll { service, steps } => {
                let steps: Vec<String> = steps.iter().map(|members| list(members)).collect();
                write!(f, "service-{service} rolls through {}", steps.join(" then "))
            }
            other => write!(f, "{other:?}"),
        }
    }
}

fn list(members: &[Member]) -> String {
    let one = |member: &Member| match member.condition {
        Condition::Ready => member.host.to_string(),
        condition => format!("{} ({condition:?})", member.host),
    };
    format!("[{}]", members.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap_or(0)
    }

    fn small(&mut self, limit: u8) -> u8 {
        u8::try_from(self.below(limit.into())).unwrap_or(0)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

//! What happens in a scenario.

use serde::Deserialize;

use super::FamilyName;
use super::objects::Objects;
use super::text::{Names, Sender, SourceContent, Target};

/// Something that happens.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// A host sends packets.
    Probe(Probe),
    /// Objects come or change.
    Apply(Objects),
    /// Objects go.
    Delete(Deletion),
    /// A host opens a connection and keeps it.
    Connect(Connect),
    /// Something is said over such a connection.
    Exchange(Exchange),
    /// A host starts to open connections at a steady rate.
    Load(LoadStart),
    /// The load continues until these hosts have answered.
    AwaitLoad(LoadCheck),
    /// The load ends; no other host has answered, and nothing failed.
    EndLoad(LoadCheck),
    /// A client stops for so long that its affinity ends.
    Forget(Forget),
    /// So many seconds pass.
    Pause(f64),
    /// Every pod of `node-a` sends once; the answers are spread evenly.
    Clients(Clients),
    /// The dataplane restarts over the kernel's state.
    Restart(Restart),
    /// The answers for load balancers.
    HealthCheck(HealthCheckContent),
}

/// Packets and what becomes of them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probe {
    /// Who sends.
    pub from: Sender,
    /// Where to.
    pub to: Target,
    /// The only family in which it is sent.
    pub family: Option<FamilyName>,
    /// The hosts that answer: these, all of them, and no others.
    #[serde(default)]
    pub answered_by: Names,
    /// How it fails.
    pub expect: Option<Failure>,
    /// What the endpoints see as source.
    pub source: Option<SourceContent>,
    /// All probes with this word are answered by one and the same host.
    pub sticky: Option<String>,
    /// Whether all hosts must answer equally often.
    #[serde(default)]
    pub evenly: bool,
}

/// How a probe fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// At once, with a reset or an ICMP message.
    Refused,
    /// In silence.
    Dropped,
}

/// Objects that go, by name.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Deletion {
    /// Services, with the slices that followed from their `endpoints` unless `keepEndpoints` is set.
    pub services: Vec<String>,
    /// Whether the endpoints of these Services stay.
    pub keep_endpoints: bool,
    /// Slices.
    pub slices: Vec<String>,
    /// ServiceCIDRs.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
}

/// A connection that stays.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Connect {
    /// What later steps call it.
    pub name: String,
    /// Who opens it.
    pub from: Sender,
    /// Where to.
    pub to: Target,
    /// One of these answers.
    #[serde(default)]
    pub answered_by: Names,
    /// How it fails; the socket stays open all the same.
    pub expect: Option<Failure>,
}

/// A question and an answer over a connection.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exchange {
    /// The name given in `connect`.
    pub over: String,
    /// Who answers; by default the same as at first.
    #[serde(default)]
    pub answered_by: Names,
    /// How it fails.
    pub expect: Option<Failure>,
}

/// A steady load.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadStart {
    /// What later steps call it.
    pub name: String,
    /// Who opens connections.
    pub from: Sender,
    /// Where to.
    pub to: Target,
    /// How many; 100 by default.
    #[serde(default = "hundred")]
    pub per_second: u32,
}

fn hundred() -> u32 {
    100
}

/// What a load has seen.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadCheck {
    /// The name given in `load`.
    pub name: String,
    /// Who has answered.
    pub answered_by: Names,
}

/// A client that pauses until another endpoint answers it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forget {
    /// The client whose affinity must end.
    pub from: Sender,
    /// Where to.
    pub to: Target,
    /// The affinity's timeout in seconds.
    pub seconds: u16,
}

/// Many clients, one packet each.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clients {
    /// Where to.
    pub to: Target,
    /// The hosts that answer, all equally often.
    pub answered_by: Names,
}

/// A new start, and what changed while the dataplane was away.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Restart {
    /// Objects that came or changed.
    pub apply: Objects,
    /// Objects that went.
    pub delete: Deletion,
}

/// The answer on a health-check node port.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheckContent {
    /// The Service.
    pub service: String,
    /// The port; absent if there must be none.
    pub port: Option<u16>,
    /// The number of endpoints here.
    #[serde(default)]
    pub local_endpoints: usize,
}

//! `/api/status`: put together from what the engine has published, so that it can be answered while the engine is stuck.

use std::fs;
use std::time::{Duration, Instant};

use portwarden_model::HealthReport;

use super::activity::{Activity, Report};
use super::api::{self, Conntrack, EngineStatus, Status, Verdict};
use crate::engine::{Heartbeat, Moment};
use crate::health::SharedHealth;

/// The share of the conntrack table that may be in use, in percent.
const CONNTRACK_LIMIT: u64 = 95;

/// What a status shows that does not change.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The Node that the process works for.
    pub node: String,
    /// As kube-proxy reports it.
    pub version: String,
    /// When the process started.
    pub started: Moment,
}

/// Where a status comes from.
#[derive(Clone)]
pub struct Sources {
    /// What the process did lately.
    pub activity: Activity,
    /// Whether changes wait too long.
    pub health: SharedHealth,
    /// Whether the engine makes progress.
    pub heartbeat: Heartbeat,
}

/// The status at this moment.
pub(super) fn status(identity: &Identity, sources: &Sources, now: Moment) -> Status {
    let Report { mode, next_mode, mut families, syncs, totals, refused, sources: parts, timeline_version } =
        sources.activity.report();
    for (family, shown) in &mut families {
        let waiting = sources.health.oldest_queued(*family);
        shown.oldest_pending = waiting.map(|since| seconds(since, now.instant));
    }
    let families: Vec<api::FamilyStatus> = families.into_iter().map(|(_, shown)| shown).collect();
    let busy = sources.heartbeat.busy_since();
    let engine = EngineStatus {
        stuck: sources.health.stuck_since(now.instant).is_some(),
        busy: busy.map(|since| seconds(since, now.instant)),
        stage: busy.map(|_| sources.heartbeat.stage().as_str().to_owned()),
    };
    let (report, eligible) = sources.health.report(now.instant);
    let conntrack = conntrack();
    let mut reasons = Vec::new();
    add_engine_reasons(&engine, &families, &report, &mut reasons);
    for part in parts.iter().filter(|part| !part.following) {
        let why = part.error.as_deref().unwrap_or_default();
        reasons.push(format!("changes of {} are not followed: {why}", part.part));
    }
    if refused.count > 0 {
        reasons.push(format!("the kernel refuses {} Services", refused.count));
    }
    if !eligible {
        reasons.push("the Node is unknown or is being removed".to_owned());
    }
    if let Some(table) = conntrack.filter(|table| table.entries * 100 >= table.limit * CONNTRACK_LIMIT) {
        reasons.push(format!("conntrack: {} of {} entries are in use", table.entries, table.limit));
    }
    Status {
        now: now.wall.to_string(),
        node: identity.node.clone(),
        version: identity.version.clone(),
        portwarden: crate::version::OWN.to_owned(),
        mode,
        next_mode,
        started: identity.started.wall.to_string(),
        uptime: seconds(identity.started.instant, now.instant),
        verdict: Verdict {
            healthy: reasons.is_empty(),
            live: report.healthy,
            takes_traffic: report.takes_traffic(eligible),
            reasons,
        },
        oldest_pending: families.iter().filter_map(|family| family.oldest_pending).reduce(f64::max),
        families,
        engine,
        syncs,
        totals,
        refused,
        sources: parts,
        conntrack,
        memory: resident_memory(),
        timeline_version,
    }
}

fn add_engine_reasons(
    engine: &EngineStatus,
    families: &[api::FamilyStatus],
    report: &HealthReport,
    reasons: &mut Vec<String>,
) {
    if engine.stuck {
        reasons.push(stuck_text(engine));
    } else if !report.healthy {
        reasons.push("a change has waited for longer than two sync periods".to_owned());
    }
    for family in families {
        if family.failures > 0 {
            reasons.push(format!("the last {} syncs of {} failed", family.failures, family.family));
        } else if !family.installed {
            reasons.push(format!("the first sync of {} is not done", family.family));
        }
    }
}

/// What a client reads while the engine does not answer.
pub(super) fn stuck_text(engine: &EngineStatus) -> String {
    let stage = engine.stage.as_deref().unwrap_or("working");
    format!("the engine has been busy for {:.1} s ({stage})", engine.busy.unwrap_or_default())
}

fn seconds(since: Instant, now: Instant) -> f64 {
    rounded(now.saturating_duration_since(since))
}

/// To the millisecond.
fn rounded(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

fn conntrack() -> Option<Conntrack> {
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?;
        text.trim().parse().ok()
    };
    Some(Conntrack { entries: read("nf_conntrack_count")?, limit: read("nf_conntrack_max")? })
}

/// Memory of this process, in bytes; zero if unknown.
pub(super) fn resident_memory() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0);
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages * size.and_then(|size| u64::try_from(size).ok()).unwrap_or(4096)
}

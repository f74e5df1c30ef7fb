//! The dataplane of one family: decides between full and partial syncs, commits, and remembers what was acknowledged.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portwarden_model::{
    Changes, Count, Dataplane, Desired, Family, Gauge, LoopbackNodePorts, Notification, RefusedService,
    Report, SyncError,
};
use portwarden_xtables::{ChangeNotices, Programs, RestoreError, Table, Transaction, Variant};

use crate::aside::{Aside, Refused};
use crate::counters::Counters;
use crate::diff;
use crate::error::Error;
use crate::full::{self, Needed};
use crate::monitor::Monitor;
use crate::names::chain_level;
use crate::options::Options;
use crate::plan::Plan;
use crate::render::{Context, FixedRules, InvalidPackets, Mark, pod_match};
use crate::ruleset::{Pending, Ruleset};
use crate::sysctl;
use crate::variant::other_rules;

/// Counts failed restores, under kube-proxy's names.
const RESTORE_FAILURES: &str = "sync_proxy_rules_iptables_restore_failures_total";
const PARTIAL_RESTORE_FAILURES: &str = "sync_proxy_rules_iptables_partial_restore_failures_total";

/// More endpoints than this make a cluster large.
const LARGE_CLUSTER_ENDPOINTS: usize = 1000;

/// After this time without a full sync, one is made to repair what others may have changed.
const FULL_SYNC_PERIOD: Duration = Duration::from_secs(3600);

/// From so many rules on it is not listened to notifications of our own changes: the kernel takes long to make them, and loses some.
const QUIET_FROM: usize = 10_000;

/// How often a sync sets aside what was refused and tries again with the rest.
const ATTEMPTS: usize = 16;

/// Programs the rules of one family through the iptables programs.
#[derive(Debug)]
pub struct IptablesDataplane {
    family: Family,
    options: Options,
    mark: Mark,
    programs: Programs,
    counters: Counters,
    invalid_packets_pass: bool,
    installed: Ruleset,
    /// Whether `installed` is what the kernel has. Not so at first, after a failure, and after somebody's flush.
    trusted: bool,
    /// What the rules depended on in the last successful sync.
    context: Option<Arc<Context>>,
    last_full: Option<Instant>,
    localhost_allowed: bool,
    monitor: Monitor,
    /// Whether a sync wrote so much that it did not listen to others.
    missed_notifications: bool,
    /// Services that the kernel refused.
    refused: Refused,
    failures: Arc<Failures>,
}

/// How many restores failed since the start.
#[derive(Debug, Default)]
pub struct Failures {
    restore: AtomicU64,
    partial: AtomicU64,
}

impl Failures {
    /// Failed calls of `iptables-restore`.
    pub fn restore(&self) -> u64 {
        self.restore.load(Ordering::Relaxed)
    }

    /// Failed partial syncs, each of which leads to a full one.
    pub fn partial(&self) -> u64 {
        self.partial.load(Ordering::Relaxed)
    }
}

impl IptablesDataplane {
    /// For one family, in the network namespace of the calling thread. Changes nothing yet.
    pub fn new(family: Family, options: Options) -> Result<Self, Error> {
        let programs = Programs::new(family, options.variant);
        IptablesDataplane::with_programs(family, options, programs)
    }

    /// The same with programs of the caller's choice.
    pub fn with_programs(family: Family, options: Options, programs: Programs) -> Result<Self, Error> {
        let mark = options.mark()?;
        let mut programs = programs.split_by_level(chain_level);
        programs.check()?;
        let variant = programs.detect_variant()?;
        if let Some(other) = other_rules(family, variant) {
            tracing::warn!(%family, used = %variant, %other, "the other variant of iptables holds rules of this mode, which apply too; \
                clean up with that variant");
        }
        let invalid_packets_pass = sysctl::tcp_is_liberal();
        if invalid_packets_pass {
            // kube-proxy's words, which operators look for.
            tracing::info!(ipFamily = %family, "nf_conntrack_tcp_be_liberal set, not installing DROP rules for INVALID packets");
        }
        Ok(IptablesDataplane {
            family,
            mark,
            programs,
            counters: Counters::probe(),
            invalid_packets_pass,
            installed: Ruleset::default(),
            trusted: false,
            context: None,
            last_full: None,
            localhost_allowed: false,
            monitor: Monitor::new(options.sync_period, watch(family, variant))?,
            missed_notifications: false,
            refused: Refused::default(),
            failures: Arc::default(),
            options,
        })
    }

    /// Counts of failures, for metrics; they go on when the dataplane is gone.
    pub fn failures(&self) -> Arc<Failures> {
        self.failures.clone()
    }

    /// Like [`Dataplane::sync`], with a time of the caller's choice.
    pub fn sync_at(&mut self, now: Instant, desired: &Desired, changes: &Changes) -> Result<Report, Error> {
        self.monitor.listen(&self.programs, now);
        let full = changes.full || !self.trusted || self.is_full_sync_due(now);
        let result = if full { self.sync_fully(desired) } else { self.sync_partly(desired, changes) };
        self.trusted = result.is_ok();
        let fully = result.as_ref().is_ok_and(|report| report.full);
        if fully {
            self.last_full = Some(now);
            self.monitor.forget();
        }
        let missed_notifications = std::mem::take(&mut self.missed_notifications);
        result.map(|report| Report { missed_notifications, ..report })
    }

    /// Anything that is refused unexpectedly turns this into a full sync: perhaps the tables are not what they are thought to be.
    fn sync_partly(&mut self, desired: &Desired, changes: &Changes) -> Result<Report, Error> {
        let result = self.sync_changes(desired, changes);
        if !matches!(result, Ok(Some(_))) {
            self.failures.partial.fetch_add(1, Ordering::Relaxed);
        }
        match result? {
            Some(report) => Ok(report),
            None => self.sync_fully(desired),
        }
    }

    /// Large clusters go without, as the reference does: reading all rules back takes them too long.
    fn is_full_sync_due(&self, now: Instant) -> bool {
        let large = self.context.as_ref().is_some_and(|context| context.large);
        let due = self.last_full.is_none_or(|last| now.duration_since(last) > FULL_SYNC_PERIOD);
        due && !large
    }

    fn sync_fully(&mut self, desired: &Desired) -> Result<Report, Error> {
        self.counters.ensure();
        let context = self.prepare(desired)?;
        let plan = Plan::everything(&self.installed, desired, &context, self.fixed_rules(desired));
        let Plan { mut pending, isolated } = plan;
        let mut aside = Aside::new(isolated);
        let mut attempts = 0;
        loop {
            attempts += 1;
            // Anew for each attempt: one that failed may have changed the filter table.
            let firewall_is_written = self.has_localhost_node_ports(desired);
            let restored = match full::look(&self.programs, self.family, firewall_is_written, &pending)? {
                Needed::Everything(all) => self.counted(all.restore(&self.programs, self.family, &pending)),
                Needed::Change(mut transaction) => {
                    aside.keep_chains(&mut transaction);
                    self.restore(&transaction).map(|()| *transaction)
                }
            };
            match restored {
                Ok(transaction) => {
                    full::finish(&self.programs, &mut self.monitor);
                    self.refused = Refused::of(&aside, desired);
                    let report = self.acknowledge(pending, context, &transaction, aside.isolated);
                    return Ok(Report { full: true, ..report });
                }
                Err(RestoreError::Other(error)) => return Err(error.into()),
                Err(RestoreError::Lines(lines)) => {
                    let progress = aside.set_aside(&lines, &mut pending, &self.installed);
                    if attempts == ATTEMPTS || !progress {
                        return Err(self.programs.rejection(&lines).into());
                    }
                }
            }
        }
    }

    /// `None` if something was refused for which no Service is known to be the reason.
    fn sync_changes(&mut self, desired: &Desired, changes: &Changes) -> Result<Option<Report>, Error> {
        let context = self.prepare(desired)?;
        let all = self.context.as_ref().is_none_or(|old| old.differs_for_all(&context));
        let fixed = self.fixed_rules(desired);
        let Plan { mut pending, isolated } =
            Plan::changes(&self.installed, desired, changes, all, &context, fixed);
        let mut aside = Aside::new(isolated);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let transaction = diff::changes(&self.installed, &pending);
            match self.restore(&transaction) {
                Ok(()) => {
                    return Ok(Some(self.acknowledge(pending, context, &transaction, aside.isolated)));
                }
                Err(RestoreError::Other(error)) => return Err(error.into()),
                Err(RestoreError::Lines(lines)) => {
                    if attempts == ATTEMPTS || !self.refused.explain(&lines, desired) {
                        let error = self.programs.rejection(&lines);
                        tracing::warn!(%error, family = %self.family, "a partial sync was refused; making a full one");
                        return Ok(None);
                    }
                    aside.set_aside(&lines, &mut pending, &self.installed);
                }
            }
        }
    }

    /// Remembers what the kernel has accepted.
    fn acknowledge(
        &mut self,
        pending: Pending,
        context: Arc<Context>,
        transaction: &Transaction,
        refused: Vec<RefusedService>,
    ) -> Report {
        self.installed.acknowledge(pending);
        self.context = Some(context);
        report(transaction, &self.installed, refused)
    }

    fn restore(&mut self, transaction: &Transaction) -> Result<(), RestoreError> {
        if transaction.is_empty() {
            return Ok(());
        }
        if transaction.len() >= QUIET_FROM {
            let (restored, deaf) = self.monitor.deaf(|| self.programs.restore(transaction));
            self.missed_notifications |= deaf;
            return self.counted(restored);
        }
        self.counted(self.programs.restore(transaction))
    }

    fn counted<T>(&self, restored: Result<T, RestoreError>) -> Result<T, RestoreError> {
        restored.inspect_err(|_| {
            self.failures.restore.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Makes sure that node ports can answer on loopback, and gathers what the Services' rules depend on.
    fn prepare(&mut self, desired: &Desired) -> Result<Arc<Context>, Error> {
        let localhost = self.has_localhost_node_ports(desired);
        if localhost && !self.localhost_allowed {
            sysctl::allow_localhost_node_ports()?;
            self.localhost_allowed = true;
        }
        let context = Context {
            family: self.family,
            pods: pod_match(&desired.node.pod_traffic),
            count_localhost: localhost && self.counters.localhost(),
            large: desired.totals().endpoints > LARGE_CLUSTER_ENDPOINTS,
        };
        let same = self.context.as_ref().filter(|old| ***old == context);
        Ok(same.cloned().unwrap_or_else(|| Arc::new(context)))
    }

    fn fixed_rules(&self, desired: &Desired) -> FixedRules {
        let invalid = match (self.invalid_packets_pass, self.counters.invalid()) {
            (true, _) => InvalidPackets::Pass,
            (false, false) => InvalidPackets::Drop,
            (false, true) => InvalidPackets::DropAndCount,
        };
        let localhost = self.has_localhost_node_ports(desired);
        FixedRules::render(self.family, self.mark, invalid, localhost, &desired.node.node_ports)
    }

    /// Never for IPv6, whose loopback address cannot be routed.
    fn has_localhost_node_ports(&self, desired: &Desired) -> bool {
        self.family == Family::V4
            && self.options.localhost_node_ports
            && desired.node.loopback_node_ports != LoopbackNodePorts::Excluded
    }
}

impl Dataplane for IptablesDataplane {
    fn families(&self) -> &[Family] {
        std::slice::from_ref(&self.family)
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        self.sync_at(now, desired, changes).map_err(|error| {
            let mut counts = vec![Count::one(RESTORE_FAILURES)];
            counts.extend((!changes.full).then(|| Count::one(PARTIAL_RESTORE_FAILURES)));
            SyncError { report: Report { counts, ..Report::default() }, ..SyncError::from(error) }
        })
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.monitor.fd()]
    }

    fn poll(&mut self, now: Instant) -> Vec<Notification> {
        let flushed = self.monitor.check(&self.programs, now);
        if flushed.is_some() {
            self.trusted = false;
        }
        flushed.map(|what| Notification::Tampered { family: self.family, what }).into_iter().collect()
    }
}

/// Others' changes can be followed where the kernel tells of them.
fn watch(family: Family, variant: Variant) -> Option<ChangeNotices> {
    if variant != Variant::Nft {
        return None;
    }
    ChangeNotices::open(family, &[Table::Filter, Table::Nat])
        .inspect_err(|error| tracing::warn!(%error, "cannot follow changes of the packet filter; only flushes are noticed"))
        .ok()
}

fn report(transaction: &Transaction, installed: &Ruleset, refused: Vec<RefusedService>) -> Report {
    let gauge = |metric, table: Table, value| Gauge {
        metric,
        labels: vec![("table", table.as_str().to_owned())],
        value,
    };
    let gauges = vec![
        gauge("sync_proxy_rules_iptables_total", Table::Filter, installed.rules(Table::Filter)),
        gauge("sync_proxy_rules_iptables_total", Table::Nat, installed.rules(Table::Nat)),
        gauge("sync_proxy_rules_iptables_last", Table::Filter, transaction.filter.rules()),
        gauge("sync_proxy_rules_iptables_last", Table::Nat, transaction.nat.rules()),
    ];
    Report { written: transaction.len(), refused, gauges, ..Report::default() }
}

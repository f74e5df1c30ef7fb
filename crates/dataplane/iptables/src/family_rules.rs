//! The rules of one family: plans full and partial syncs, commits them, and remembers what the kernel acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use portwarden_model::{
    Changes, Count, Desired, Family, Gauge, LoopbackNodePorts, NamespacedName, RefusedService, Report,
};
use portwarden_xtables::{ChangeNotices, Programs, RestoreError, Table, Transaction, Variant};

use crate::counters::Counters;
use crate::diff;
use crate::earlier_restores::EarlierRestores;
use crate::error::Error;
use crate::full_sync::{self, Needed};
use crate::names::chain_level;
use crate::options::Options;
use crate::other_variant::other_rules;
use crate::plan::Plan;
use crate::quarantine::{KnownRefusals, Quarantine};
use crate::render::{Context, FixedRules, InvalidPackets, Mark, pod_match};
use crate::ruleset::{Entry, Pending, Ruleset};
use crate::sysctl;
use crate::tampering::{Checked, TamperWatch};

/// kube-proxy's names.
const RESTORE_FAILURES: &str = "sync_proxy_rules_iptables_restore_failures_total";
const PARTIAL_RESTORE_FAILURES: &str = "sync_proxy_rules_iptables_partial_restore_failures_total";

/// More endpoints than this make a cluster large.
const LARGE_CLUSTER_ENDPOINTS: usize = 1000;

/// From so many rules on, notifications are paused during the write: the kernel takes long to build them, and loses some.
const PAUSE_NOTIFICATIONS_FROM: usize = 10_000;

/// How often a sync leaves out what was refused and tries again with the rest.
const ATTEMPTS: usize = 16;

/// As kube-proxy has it: comments are left out, and there is no periodic full sync, which takes such clusters too long.
pub(crate) fn is_large(desired: &Desired) -> bool {
    desired.totals().endpoints > LARGE_CLUSTER_ENDPOINTS
}

/// What is known about the kernel's rules of one family, and the means to change them.
#[derive(Debug)]
pub(crate) struct FamilyRules {
    family: Family,
    loopback_node_ports: bool,
    mark: Mark,
    programs: Programs,
    counters: Counters,
    invalid_packets_pass: bool,
    installed: Ruleset,
    /// Whether the kernel has `installed`. Unknown at first, after a failure, and after tampering.
    trusted: bool,
    /// What the rules depended on in the last successful sync.
    context: Option<Arc<Context>>,
    loopback_allowed: bool,
    pub(crate) tampering: TamperWatch,
    refusals: KnownRefusals,
    counts: Vec<Count>,
    missed_notifications: bool,
}

/// A sync that was planned and is about to run.
#[derive(Debug)]
pub(crate) struct Task {
    full: bool,
    plan: Plan,
    context: Arc<Context>,
    /// The transaction creates the chain that is shared with the kubelet.
    writes_firewall: bool,
}

impl FamilyRules {
    /// Changes nothing yet.
    pub(crate) fn new(options: &Options, programs: Programs) -> Result<Self, Error> {
        let family = programs.family();
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
        let tampering =
            TamperWatch::new(options.sync_period, notices(family, variant), EarlierRestores::find());
        Ok(FamilyRules {
            family,
            loopback_node_ports: options.loopback_node_ports,
            mark,
            programs,
            counters: Counters::probe(),
            invalid_packets_pass,
            installed: Ruleset::default(),
            trusted: false,
            context: None,
            loopback_allowed: false,
            tampering,
            refusals: KnownRefusals::default(),
            counts: Vec::new(),
            missed_notifications: false,
        })
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }

    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// The next sync must compare everything.
    pub(crate) fn distrust(&mut self) {
        self.trusted = false;
    }

    /// What was counted since the last call.
    pub(crate) fn take_counts(&mut self) -> Vec<Count> {
        std::mem::take(&mut self.counts)
    }

    pub(crate) fn read_notices(&mut self, now: Instant) {
        self.tampering.read_notices(&self.programs, now);
    }

    pub(crate) fn sync_begins(&mut self, now: Instant) {
        self.tampering.sync_begins(&self.programs, now);
    }

    /// Runs programs.
    pub(crate) fn check_canaries(&mut self, now: Instant) -> Checked {
        self.tampering.check(&self.programs, now)
    }

    /// Plans a sync of everything.
    pub(crate) fn plan_full(&mut self, desired: &Desired) -> Result<Task, Error> {
        self.counters.ensure();
        let context = self.prepare(desired)?;
        let plan = Plan::everything(&self.installed, desired, &context, self.fixed_rules(desired));
        Ok(Task { full: true, plan, context, writes_firewall: self.has_loopback_node_ports(desired) })
    }

    /// Plans a sync of what changed since the last acknowledged one.
    pub(crate) fn plan_partial(&mut self, desired: &Desired, changes: &Changes) -> Result<Task, Error> {
        let context = self.prepare(desired)?;
        let all = changes.full || self.context.as_ref().is_none_or(|old| old.differs_for_all(&context));
        let fixed = self.fixed_rules(desired);
        let plan = Plan::changes(&self.installed, desired, changes, all, &context, fixed);
        Ok(Task { full: false, plan, context, writes_firewall: self.has_loopback_node_ports(desired) })
    }

    /// Leaves Services out of a partial sync that were refused a moment ago, and returns their names.
    pub(crate) fn leave_out_known_refusals(&self, task: &mut Task) -> BTreeSet<NamespacedName> {
        if task.full {
            return BTreeSet::new();
        }
        let is_known = |name: &NamespacedName, entry: &mut Option<Entry>| {
            entry.as_ref().is_some_and(|entry| self.refusals.contains(name, entry.service()))
        };
        task.plan.pending.services.extract_if(.., is_known).map(|(name, _)| name).collect()
    }

    /// Whether a task needs no program.
    pub(crate) fn is_trivial(&self, task: &Task) -> bool {
        let pending = &task.plan.pending;
        !task.full && pending.services.is_empty() && pending.fixed == *self.installed.fixed()
    }

    /// Carries out a task. `None`: a partial sync was refused for an unknown cause. Perhaps the tables are not what they are thought to
    /// be; a full sync must follow.
    pub(crate) fn run(&mut self, task: Task) -> Result<Option<Report>, Error> {
        let full = task.full;
        let result = if full { self.run_full(task).map(Some) } else { self.run_partial(task) };
        self.trusted = matches!(result, Ok(Some(_)));
        if !full && !self.trusted {
            self.counts.push(Count::one(PARTIAL_RESTORE_FAILURES));
        }
        if full && self.trusted {
            self.tampering.repaired();
        }
        result
    }

    fn run_full(&mut self, task: Task) -> Result<Report, Error> {
        let Task { plan: Plan { mut pending, refused }, context, writes_firewall, .. } = task;
        let mut quarantine = Quarantine::new(refused);
        let mut attempts = 0;
        loop {
            attempts += 1;
            // Read again for each attempt: a failed one may have changed the filter table.
            let needed = full_sync::compare(&self.programs, writes_firewall, &pending)?;
            let restored = match needed {
                Needed::Everything(all) => {
                    let restored = all.restore(&self.programs, &pending);
                    self.count_failure(restored)
                }
                Needed::Change(mut transaction) => {
                    quarantine.keep_chains(&mut transaction);
                    self.restore(&transaction).map(|()| *transaction)
                }
            };
            match restored {
                Ok(transaction) => {
                    full_sync::finish(&self.programs, &mut self.tampering);
                    let refused = std::mem::take(&mut quarantine.refused);
                    self.refusals = KnownRefusals::of(quarantine);
                    let report = self.acknowledge(pending, context, &transaction, refused);
                    return Ok(Report { full: true, ..report });
                }
                Err(RestoreError::Other(error)) => return Err(error.into()),
                Err(RestoreError::Lines(lines)) => {
                    let progress = quarantine.add(&lines, &mut pending, &self.installed);
                    if attempts == ATTEMPTS || !progress {
                        return Err(self.programs.rejection(&lines).into());
                    }
                }
            }
        }
    }

    fn run_partial(&mut self, task: Task) -> Result<Option<Report>, Error> {
        let Task { plan: Plan { mut pending, refused }, context, .. } = task;
        let mut quarantine = Quarantine::new(refused);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let transaction = diff::changes(&self.installed, &pending);
            match self.restore(&transaction) {
                Ok(()) => {
                    let report = self.acknowledge(pending, context, &transaction, quarantine.refused);
                    return Ok(Some(report));
                }
                Err(RestoreError::Other(error)) => return Err(error.into()),
                Err(RestoreError::Lines(lines)) => {
                    if attempts == ATTEMPTS || !self.refusals.explain(&lines, &pending) {
                        let error = self.programs.rejection(&lines);
                        tracing::warn!(%error, family = %self.family, "a partial sync was refused; making a full one");
                        return Ok(None);
                    }
                    quarantine.add(&lines, &mut pending, &self.installed);
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
        Report {
            written: transaction.len(),
            refused,
            missed_notifications: std::mem::take(&mut self.missed_notifications),
            gauges: gauges(transaction, &self.installed),
            ..Report::default()
        }
    }

    fn restore(&mut self, transaction: &Transaction) -> Result<(), RestoreError> {
        let restored = if transaction.len() >= PAUSE_NOTIFICATIONS_FROM {
            let restore = || self.programs.restore(transaction);
            let (restored, missed) = self.tampering.with_notifications_paused(restore);
            self.missed_notifications |= missed;
            restored
        } else {
            self.programs.restore(transaction)
        };
        self.count_failure(restored)
    }

    fn count_failure<T>(&mut self, restored: Result<T, RestoreError>) -> Result<T, RestoreError> {
        restored.inspect_err(|_| self.counts.push(Count::one(RESTORE_FAILURES)))
    }

    /// Makes sure that node ports can answer on loopback, and gathers what the Services' rules depend on.
    fn prepare(&mut self, desired: &Desired) -> Result<Arc<Context>, Error> {
        let loopback = self.has_loopback_node_ports(desired);
        if loopback && !self.loopback_allowed {
            sysctl::allow_loopback_node_ports()?;
            self.loopback_allowed = true;
        }
        let context = Context {
            family: self.family,
            pods: pod_match(&desired.node.pod_traffic),
            count_loopback: loopback && self.counters.loopback(),
            large: is_large(desired),
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
        let loopback = self.has_loopback_node_ports(desired);
        FixedRules::render(self.family, self.mark, invalid, loopback, &desired.node.node_ports)
    }

    /// Never for IPv6, whose loopback address cannot be routed.
    fn has_loopback_node_ports(&self, desired: &Desired) -> bool {
        self.family == Family::V4
            && self.loopback_node_ports
            && desired.node.loopback_node_ports != LoopbackNodePorts::Excluded
    }
}

/// Subscribes where the kernel has notifications.
fn notices(family: Family, variant: Variant) -> Option<ChangeNotices> {
    if variant != Variant::Nft {
        return None;
    }
    ChangeNotices::open(family, &[Table::Filter, Table::Nat])
        .inspect_err(|error| tracing::warn!(%error, "cannot follow changes of the packet filter; only flushes are noticed"))
        .ok()
}

fn gauges(transaction: &Transaction, installed: &Ruleset) -> Vec<Gauge> {
    let gauge = |metric, table: Table, value| Gauge {
        metric,
        labels: vec![("table", table.as_str().to_owned())],
        value,
    };
    let filter = transaction.filter.rules() + transaction.filter_last.rules();
    vec![
        gauge("sync_proxy_rules_iptables_total", Table::Filter, installed.rules(Table::Filter)),
        gauge("sync_proxy_rules_iptables_total", Table::Nat, installed.rules(Table::Nat)),
        gauge("sync_proxy_rules_iptables_last", Table::Filter, filter),
        gauge("sync_proxy_rules_iptables_last", Table::Nat, transaction.nat.rules()),
    ]
}

//! What the kernel refuses is set aside, so that it does not stop the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portwarden_model::{Desired, NamespacedName, ProxiedService, RefusedService};
use portwarden_xtables::{Culprit, RejectedLine, Transaction};

use crate::ruleset::{Pending, Ruleset};

/// What was left out of a transaction so that the rest could be committed.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// Services that were left out, and why.
    pub(crate) isolated: Vec<RefusedService>,
    refused: BTreeSet<NamespacedName>,
    kept_chains: BTreeSet<String>,
}

impl Aside {
    /// With Services that are left out from the start.
    pub(crate) fn new(isolated: Vec<RefusedService>) -> Self {
        Aside { isolated, ..Aside::default() }
    }

    /// Takes chains out of a transaction that cannot be removed.
    pub(crate) fn keep_chains(&self, transaction: &mut Transaction) {
        self.kept_chains.iter().for_each(|chain| transaction.nat.keep_chain(chain));
    }

    /// Takes the refused lines out of what is pending. Returns whether any of them could be left out.
    pub(crate) fn set_aside(
        &mut self,
        rejected: &[RejectedLine],
        pending: &mut Pending,
        installed: &Ruleset,
    ) -> bool {
        let mut seen = BTreeSet::new();
        let mut progress = false;
        for line in rejected {
            match &line.culprit {
                Culprit::Service(service) if seen.insert(service) => {
                    progress = true;
                    self.isolate(service, line, pending, installed);
                }
                Culprit::Deletion(chain) => {
                    progress |= self.kept_chains.insert(chain.clone());
                    tracing::warn!(
                        chain,
                        reason = line.message,
                        "cannot remove a stale chain: something else uses it"
                    );
                }
                _ => {}
            }
        }
        progress
    }

    fn isolate(
        &mut self,
        service: &NamespacedName,
        line: &RejectedLine,
        pending: &mut Pending,
        installed: &Ruleset,
    ) {
        let first_time = self.refused.insert(service.clone());
        // What the kernel accepted before is better than nothing, unless it is that which is refused now.
        let fallback = installed.service(service).filter(|_| first_time).cloned();
        pending.services.insert(service.clone(), fallback);
        if first_time {
            self.isolated.push(RefusedService { service: service.clone(), reason: line.reason() });
        }
    }
}

/// Services that a full sync had to set aside. When a partial sync meets them again, unchanged, nothing else can be wrong.
#[derive(Debug, Default)]
pub(crate) struct Refused(BTreeMap<NamespacedName, Arc<ProxiedService>>);

impl Refused {
    /// Those of a full sync.
    pub(crate) fn of(aside: &Aside, desired: &Desired) -> Self {
        let service = |name: &NamespacedName| Some((name.clone(), desired.service(name)?.clone()));
        Refused(aside.refused.iter().filter_map(service).collect())
    }

    /// Whether all lines are theirs, and nothing of the transaction took effect.
    pub(crate) fn explain(&self, rejected: &[RejectedLine], desired: &Desired) -> bool {
        let is_known = |name: &NamespacedName| match (self.0.get(name), desired.service(name)) {
            (Some(refused), Some(service)) => Arc::ptr_eq(refused, service),
            _ => false,
        };
        rejected.iter().all(|line| match &line.culprit {
            Culprit::Service(service) => !line.partly_committed && is_known(service),
            Culprit::Deletion(_) | Culprit::Unknown => false,
        })
    }
}

//! What the kernel refuses is left out of a transaction, so that it does not stop the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portwarden_model::{NamespacedName, ProxiedService, RefusedService};
use portwarden_xtables::{Culprit, RejectedLine, Transaction};

use crate::ruleset::{Entry, Pending, Ruleset};

/// What was left out of a transaction so that the rest could be committed.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// Services that were left out, and why.
    pub(crate) refused: Vec<RefusedService>,
    rejected: BTreeMap<NamespacedName, Option<Arc<ProxiedService>>>,
    kept_chains: BTreeSet<String>,
}

impl Quarantine {
    /// With Services that are left out from the start.
    pub(crate) fn new(refused: Vec<RefusedService>) -> Self {
        Quarantine { refused, ..Quarantine::default() }
    }

    /// Takes chains out of a transaction that cannot be deleted.
    pub(crate) fn keep_chains(&self, transaction: &mut Transaction) {
        self.kept_chains.iter().for_each(|chain| transaction.nat.keep_chain(chain));
    }

    /// Takes the rejected lines out of what is pending. Returns whether any of them could be left out.
    pub(crate) fn add(
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
                    self.add_service(service, line, pending, installed);
                }
                Culprit::Deletion(chain) => {
                    progress |= self.kept_chains.insert(chain.clone());
                    tracing::warn!(
                        chain,
                        reason = line.message,
                        "cannot delete a stale chain: something else uses it"
                    );
                }
                _ => {}
            }
        }
        progress
    }

    fn add_service(
        &mut self,
        service: &NamespacedName,
        line: &RejectedLine,
        pending: &mut Pending,
        installed: &Ruleset,
    ) {
        let first_time = !self.rejected.contains_key(service);
        // What the kernel accepted before is better than nothing, unless it is that which is refused now.
        let fallback = installed.service(service).filter(|_| first_time).cloned();
        let rejected = pending.services.insert(service.clone(), fallback).flatten();
        if first_time {
            self.rejected.insert(service.clone(), rejected.as_ref().map(Entry::service).cloned());
            self.refused.push(RefusedService { service: service.clone(), reason: line.reason() });
        }
    }
}

/// Services that a full sync had to leave out. When a partial sync meets them again, unchanged, they alone are the cause.
#[derive(Debug, Default)]
pub(crate) struct KnownRefusals(BTreeMap<NamespacedName, Arc<ProxiedService>>);

impl KnownRefusals {
    /// Those of a full sync.
    pub(crate) fn of(quarantine: Quarantine) -> Self {
        let known = quarantine.rejected.into_iter();
        KnownRefusals(known.filter_map(|(name, service)| Some((name, service?))).collect())
    }

    /// Whether this very Service was refused.
    pub(crate) fn contains(&self, name: &NamespacedName, service: &Arc<ProxiedService>) -> bool {
        self.0.get(name).is_some_and(|refused| Arc::ptr_eq(refused, service))
    }

    /// Whether all lines are theirs, and nothing of the transaction took effect.
    pub(crate) fn explain(&self, rejected: &[RejectedLine], pending: &Pending) -> bool {
        let is_known = |name: &NamespacedName| {
            let entry = pending.services.get(name).and_then(Option::as_ref);
            entry.is_some_and(|entry| self.contains(name, entry.service()))
        };
        rejected.iter().all(|line| match &line.culprit {
            Culprit::Service(service) => !line.partly_committed && is_known(service),
            Culprit::Deletion(_) | Culprit::Unknown => false,
        })
    }
}

//! Which Services are to be written: all of them, or those that differ. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use portwarden_model::{Changes, Desired, NamespacedName, ProxiedService, RefusedService};

use crate::render::{Context, FixedRules, is_safe_name};
use crate::ruleset::{Entry, Pending, Ruleset};

/// What a sync is about to bring to the kernel.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) pending: Pending,
    /// Services that cannot be written as rules.
    pub(crate) refused: Vec<RefusedService>,
}

impl Plan {
    /// Everything: the desired Services, and the removal of those in `installed` that are no longer desired.
    pub(crate) fn everything(
        installed: &Ruleset,
        desired: &Desired,
        context: &Arc<Context>,
        fixed: FixedRules,
    ) -> Plan {
        let mut plan = Plan::new(fixed);
        let gone = installed.names().filter(|name| desired.service(name).is_none());
        plan.pending.services.extend(gone.map(|name| (name.clone(), None)));
        for (name, service) in desired.services() {
            let entry = plan.admits(name, service).then(|| Entry::new(service, context));
            plan.pending.services.insert(name.clone(), entry);
        }
        plan
    }

    /// What `changes` names; with `all`, also every other Service that is no longer rendered right.
    pub(crate) fn changes(
        installed: &Ruleset,
        desired: &Desired,
        changes: &Changes,
        all: bool,
        context: &Arc<Context>,
        fixed: FixedRules,
    ) -> Plan {
        let mut plan = Plan::new(fixed);
        if all {
            desired.services().for_each(|(name, _)| plan.add(name, installed, desired, context));
        }
        changes.services.iter().for_each(|name| plan.add(name, installed, desired, context));
        plan
    }

    fn new(fixed: FixedRules) -> Plan {
        Plan { pending: Pending { services: BTreeMap::new(), fixed }, refused: Vec::new() }
    }

    fn add(&mut self, name: &NamespacedName, installed: &Ruleset, desired: &Desired, context: &Arc<Context>) {
        if self.pending.services.contains_key(name) {
            return;
        }
        let service = desired.service(name).filter(|service| self.admits(name, service));
        let same = match (installed.service(name), service) {
            (Some(entry), Some(service)) => entry.is_of(service, context),
            (None, None) => true,
            _ => false,
        };
        if !same {
            let entry = service.map(|service| Entry::new(service, context));
            self.pending.services.insert(name.clone(), entry);
        }
    }

    /// Whether the Service can be written as rules at all; notes it if not.
    fn admits(&mut self, name: &NamespacedName, service: &ProxiedService) -> bool {
        let Some(port) = service.ports.iter().find(|port| !is_safe_name(&port.name)) else { return true };
        let reason = format!("the name {:?} cannot be part of an iptables rule", port.name.to_string());
        self.refused.push(RefusedService { service: name.clone(), reason });
        false
    }
}

//! What the kernel has acknowledged, and what it is to have next.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use portwarden_model::{NamespacedName, ProxiedService};
use portwarden_xtables::Table;

use crate::names::ServiceChain;
use crate::render::{Context, FixedRules, OwnChains, SharedLines, own_chain_names};

/// One Service as rendered, when first asked for. Its own chains are not kept: they follow from the Service and the context, and are
/// most of the text.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    service: Arc<ProxiedService>,
    context: Arc<Context>,
    shared: OnceLock<SharedLines>,
    /// How many rules its own chains have, once they were rendered.
    own_rules: OnceLock<usize>,
}

impl Entry {
    pub(crate) fn new(service: &Arc<ProxiedService>, context: &Arc<Context>) -> Entry {
        Entry {
            shared: OnceLock::new(),
            own_rules: OnceLock::new(),
            service: service.clone(),
            context: context.clone(),
        }
    }

    pub(crate) fn service(&self) -> &Arc<ProxiedService> {
        &self.service
    }

    /// Its lines in chains that all Services share.
    pub(crate) fn shared(&self) -> &SharedLines {
        self.shared.get_or_init(|| SharedLines::render(&self.service, &self.context))
    }

    pub(crate) fn own(&self) -> OwnChains {
        let mut own = OwnChains::default();
        self.render_own(&mut own);
        own
    }

    pub(crate) fn own_names(&self, names: &mut Vec<ServiceChain>) {
        own_chain_names(&self.service, &self.context, names);
    }

    /// Its own chains, in place of what `own` holds.
    pub(crate) fn render_own(&self, own: &mut OwnChains) {
        own.render_again(&self.service, &self.context);
        self.own_rules.get_or_init(|| own.rules());
    }

    /// Whether it was rendered from this very Service in an equal context.
    pub(crate) fn is_of(&self, service: &Arc<ProxiedService>, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.service, service)
            && (Arc::ptr_eq(&self.context, context) || self.context == *context)
    }

    fn rules(&self, table: Table) -> usize {
        let own = || *self.own_rules.get_or_init(|| OwnChains::render(&self.service, &self.context).rules());
        self.shared().count(table) + if table == Table::Nat { own() } else { 0 }
    }
}

/// The rules that the kernel has acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Ruleset {
    services: BTreeMap<NamespacedName, Entry>,
    fixed: FixedRules,
    filter_rules: usize,
    nat_rules: usize,
}

impl Ruleset {
    /// What the kernel has of one Service.
    pub(crate) fn service(&self, name: &NamespacedName) -> Option<&Entry> {
        self.services.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.keys()
    }

    /// The rules of no Service.
    pub(crate) fn fixed(&self) -> &FixedRules {
        &self.fixed
    }

    /// How many rules a table has.
    pub(crate) fn rules(&self, table: Table) -> usize {
        let services = match table {
            Table::Filter => self.filter_rules,
            Table::Nat => self.nat_rules,
            Table::Mangle => 0,
        };
        services + self.fixed.count(table)
    }

    /// The kernel has accepted this.
    pub(crate) fn acknowledge(&mut self, pending: Pending) {
        self.fixed = pending.fixed;
        for (name, entry) in pending.services {
            let old = match entry {
                Some(entry) => {
                    self.filter_rules += entry.rules(Table::Filter);
                    self.nat_rules += entry.rules(Table::Nat);
                    self.services.insert(name, entry)
                }
                None => self.services.remove(&name),
            };
            if let Some(old) = old {
                self.filter_rules -= old.rules(Table::Filter);
                self.nat_rules -= old.rules(Table::Nat);
            }
        }
    }
}

/// What is to differ from the acknowledged rules.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    /// Services that changed; `None` for one that goes.
    pub(crate) services: BTreeMap<NamespacedName, Option<Entry>>,
    /// The rules of no Service.
    pub(crate) fixed: FixedRules,
}

impl Pending {
    /// All Services as they are to be, in order: the pending ones, and the acknowledged ones that do not change.
    pub(crate) fn entries<'a>(
        &'a self,
        installed: &'a Ruleset,
    ) -> impl Iterator<Item = (&'a NamespacedName, &'a Entry)> {
        let mut pending = self.services.iter().peekable();
        let mut installed = installed.services.iter().peekable();
        std::iter::from_fn(move || {
            let order = match (pending.peek(), installed.peek()) {
                (Some((new, _)), Some((old, _))) => new.cmp(old),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return None,
            };
            if order == Ordering::Greater {
                return installed.next().map(|(name, entry)| Some((name, entry)));
            }
            if order == Ordering::Equal {
                installed.next();
            }
            pending.next().map(|(name, entry)| entry.as_ref().map(|entry| (name, entry)))
        })
        .flatten()
    }
}

//! Compares the table with what was written, and restores what differs.
//!
//! Elements are looked up by their keys, a thousand at a time, with pauses: where the process has a small share of a processor, a comparison of a
//! large table delays no change and no health check. Changes that are written between two pieces do no harm, since each piece is compared
//! with what is installed at its time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use portwarden_model::NamespacedName;
use portwarden_netlink::Result;
use portwarden_netlink::nftables::{Chain, Element, Image, Name, Rule, Set, Transaction, Verdict};

use super::FamilyTable;
use crate::chains;
use crate::error::Error;
use crate::installed::Keys;
use crate::load_balancing;
use crate::plan::{ElementChanges, Plan};
use crate::route::class_bits;
use crate::sets::SetId;
use crate::tampering::{Damage, TamperMonitor};

/// How many elements are looked up before others get their turn: a few milliseconds of work.
const PIECE: usize = 1000;

/// The pause after a piece. A comparison takes a small part of one processor.
const PAUSE: Duration = Duration::from_millis(50);

/// Sets with more elements are not listed as a whole: the cost of a listing grows with the square of their number.
const MOST_LISTED: usize = 20_000;

/// Elements of these sets cannot be looked up by key, or there are only a few.
const LISTED: [SetId; 4] = [SetId::AllowedSources, SetId::NodeAddresses, SetId::Classes, SetId::Redraws];

/// A comparison that is under way.
#[derive(Debug)]
pub(super) struct Comparison {
    /// When the next piece is due.
    pub(super) due: Instant,
    services: Vec<NamespacedName>,
    /// The rest of what was taken from `services`, and whether the elements that Services share are among it.
    elements: Vec<(SetId, Element)>,
    shared: bool,
    /// Elements are probably missing: no pauses, and nothing is left unexamined.
    urgent: bool,
    restored: usize,
}

/// What one piece of a comparison found out.
pub(crate) enum Progress {
    /// There is more to compare.
    Continues,
    /// Everything was compared, and so many elements were restored.
    Done(usize),
    /// The difference cannot be restored element by element; the next sync writes everything.
    Lost(String),
}

/// How the chains, rules and sets differ from those that were written.
pub(super) enum Structure {
    Intact,
    /// Only the rules of these chains differ.
    Rules(BTreeSet<Name>),
    /// A set, a chain or the table is missing or changed.
    Broken,
}

impl FamilyTable {
    /// When the next piece of a comparison is due.
    pub(crate) fn comparison_due(&self) -> Option<Instant> {
        self.comparison.as_ref().map(|comparison| comparison.due)
    }

    /// Starts a comparison of all elements, or makes the present one urgent.
    pub(super) fn start_comparison(&mut self, urgent: bool, now: Instant) {
        if self.comparison.as_ref().is_some_and(|present| !urgent || present.urgent) {
            return;
        }
        self.comparison = Some(Comparison {
            due: now,
            services: self.installed.service_names(),
            elements: Vec::new(),
            shared: false,
            urgent,
            restored: 0,
        });
    }

    /// Compares the next piece if it is due, and restores what differs.
    pub(crate) fn compare(&mut self, monitor: &TamperMonitor, now: Instant) -> Option<Progress> {
        let mut comparison = self.comparison.take_if(|comparison| comparison.due <= now)?;
        let progress = self.compare_piece(&mut comparison, monitor);
        let progress = progress.unwrap_or_else(|error| {
            self.in_step = false;
            Progress::Lost(format!("a difference that cannot be restored alone: {error}"))
        });
        if matches!(progress, Progress::Continues) {
            comparison.due = if comparison.urgent { now } else { now + PAUSE };
            self.comparison = Some(comparison);
        }
        Some(progress)
    }

    fn compare_piece(&mut self, comparison: &mut Comparison, monitor: &TamperMonitor) -> Result<Progress> {
        self.fill(comparison);
        if comparison.elements.is_empty() {
            let restored = match self.compare_sets(comparison.urgent, monitor)? {
                Some(restored) => comparison.restored + restored,
                None => {
                    self.in_step = false;
                    return Ok(Progress::Lost("elements that are not ours".to_owned()));
                }
            };
            return Ok(Progress::Done(restored));
        }
        let rest = comparison.elements.len().saturating_sub(PIECE);
        let piece = comparison.elements.split_off(rest);
        let keys: Keys = self.different(&piece)?;
        comparison.restored += self.restore(&keys, monitor)?;
        Ok(Progress::Continues)
    }

    /// Takes Services until there are enough elements for a piece.
    fn fill(&self, comparison: &mut Comparison) {
        let mut plan = Plan::new();
        while comparison.elements.len() + plan.len() < PIECE {
            if let Some(service) = comparison.services.pop() {
                self.installed.write_service(&service, &mut plan);
            } else if !std::mem::replace(&mut comparison.shared, true) {
                self.installed.write_shared(&mut plan);
            } else {
                break;
            }
        }
        let sets = SetId::ALL.into_iter().filter(|set| !LISTED.contains(set));
        for set in sets {
            comparison.elements.extend(plan.added(set).iter().map(|element| (set, element)));
        }
    }

    /// The keys of those elements that the kernel has not, or with another value.
    fn different(&mut self, elements: &[(SetId, Element)]) -> Result<Keys> {
        let mut by_set: BTreeMap<SetId, Vec<&Element>> = BTreeMap::new();
        for (set, element) in elements {
            by_set.entry(*set).or_default().push(element);
        }
        let mut different = Keys::new();
        for (set, elements) in by_set {
            let keys: Vec<&[u8]> = elements.iter().map(|element| element.key.as_slice()).collect();
            let table = self.kernel.table().clone();
            let found = self.kernel.client.elements_at(&table, set.name(), &keys)?;
            for (element, found) in elements.into_iter().zip(found) {
                if found.is_none_or(|found| found.value != element.value) {
                    different.insert((set, element.key.clone()));
                }
            }
        }
        Ok(different)
    }

    /// Brings the elements with these keys to what is installed, and returns how many were written or removed.
    fn restore(&mut self, keys: &Keys, monitor: &TamperMonitor) -> Result<usize> {
        if keys.is_empty() {
            return Ok(0);
        }
        let mut wanted = Plan::new();
        self.installed.write_keys(keys, &mut wanted);
        self.write_fixed(&mut wanted);
        let mut plan = Plan::new();
        for set in SetId::ALL.into_iter().filter(|set| *set != SetId::Affinity) {
            let keys: Vec<&Vec<u8>> = keys.iter().filter(|(of, _)| *of == set).map(|(_, key)| key).collect();
            if keys.is_empty() {
                continue;
            }
            let wanted: HashMap<Vec<u8>, Element> =
                wanted.added(set).iter().map(|element| (element.key.clone(), element)).collect();
            let table = self.kernel.table().clone();
            let found = self.kernel.client.elements_at(&table, set.name(), &keys)?;
            for (key, found) in keys.into_iter().zip(found) {
                plan.replace(set, found.as_ref(), wanted.get(key));
            }
        }
        self.commit_restored(plan, monitor)
    }

    fn commit_restored(&mut self, mut plan: Plan, monitor: &TamperMonitor) -> Result<usize> {
        let restored = plan.len();
        if restored > 0 {
            let mut transaction = Transaction::new();
            plan.append_to(&mut transaction, &self.sets);
            self.kernel.commit(&transaction, monitor)?;
        }
        Ok(restored)
    }

    /// Looks for elements that are not ours, by the number of elements of each set, and restores the sets that are listed. `None` if a set is
    /// too large to be listed and may have some.
    fn compare_sets(&mut self, urgent: bool, monitor: &TamperMonitor) -> Result<Option<usize>> {
        let table = self.kernel.table().clone();
        let counts = self.kernel.client.set_counts(&table)?;
        let installed = self.installed.counts();
        let mut plan = Plan::new();
        for set in SetId::ALL.into_iter().filter(|set| *set != SetId::Affinity) {
            let (expected, found) = (installed[set as usize], counts.get(set.name()));
            if !LISTED.contains(&set) && found.is_some_and(|found| *found as usize == expected) {
                continue;
            }
            if expected > MOST_LISTED {
                // A kernel that does not count leaves it open whether there are any; notifications are the rule.
                match (found, urgent) {
                    (None, false) => continue,
                    _ => return Ok(None),
                }
            }
            self.compare_listed(set, &mut plan)?;
        }
        self.commit_restored(plan, monitor).map(Some)
    }

    /// Compares all elements of a set.
    fn compare_listed(&mut self, set: SetId, plan: &mut Plan) -> Result<()> {
        let table = self.kernel.table().clone();
        let found = self.kernel.client.elements(&table, set.name())?;
        let mut wanted = Plan::new();
        self.installed.write_set(set, &mut wanted);
        self.write_fixed(&mut wanted);
        let whole = |element: Element| ((element.key.clone(), element.key_end.clone()), element);
        let mut wanted: HashMap<_, Element> = wanted.added(set).iter().map(whole).collect();
        for (key, found) in found.into_iter().map(whole) {
            plan.replace(set, Some(&found), wanted.remove(&key).as_ref());
        }
        wanted.values().for_each(|missing| plan.replace(set, None, Some(missing)));
        Ok(())
    }

    /// The elements that belong to no Service.
    fn write_fixed(&self, plan: &mut Plan) {
        for ip in &self.node_addresses {
            plan.add(SetId::NodeAddresses, Image::new().address(*ip), Image::new());
        }
        load_balancing::add_classes(plan);
        for (class, number) in self.installed.sticky_class_numbers() {
            plan.add_class(class_bits(number), &Verdict::Goto(class.chain().into()));
        }
    }

    /// Restores the elements that other processes changed, as far as notifications named them.
    pub(super) fn restore_named(
        &mut self,
        damage: &Damage,
        monitor: &TamperMonitor,
    ) -> std::result::Result<usize, Error> {
        let set = |name: &str| SetId::ALL.into_iter().find(|set| set.name() == name);
        let named = damage.elements.iter().filter_map(|(name, key)| Some((set(name)?, key.clone())));
        let (listed, keys): (Keys, Keys) = named.partition(|(set, _)| LISTED.contains(set));
        let mut plan = Plan::new();
        let outcome = (|| {
            for set in listed.iter().map(|(set, _)| *set).collect::<BTreeSet<SetId>>() {
                self.compare_listed(set, &mut plan)?;
            }
            Ok(self.commit_restored(plan, monitor)? + self.restore(&keys, monitor)?)
        })();
        outcome.map_err(|source| {
            self.in_step = false;
            Error::Commit { family: self.family, source }
        })
    }

    /// Compares everything but elements: there are not many sets, chains and rules.
    pub(super) fn structure(&mut self) -> Result<Structure> {
        let table = self.kernel.table().clone();
        let client = &mut self.kernel.client;
        let sets: BTreeMap<Name, Set> =
            client.sets(&table)?.into_iter().map(|set| (set.object.name.clone(), set.object)).collect();
        let same_sets =
            SetId::ALL.into_iter().all(|id| sets.get(id.name()) == Some(self.sets.get(id).as_ref()));
        let found: BTreeMap<Name, Chain> = client
            .chains(&table)?
            .into_iter()
            .map(|chain| (chain.object.name.clone(), chain.object))
            .collect();
        let same_chains = found.len() == self.chains.iter().count()
            && self.chains.iter().all(|(name, _)| found.get(name) == Some(&chains::define(&table, name)));
        let counters: BTreeSet<Name> =
            client.counters(&table)?.into_iter().map(|counter| counter.object.name).collect();
        let same_counters = counters.iter().eq(self.chains.counters());
        if !same_sets || sets.len() != SetId::ALL.len() || !same_chains || !same_counters {
            return Ok(Structure::Broken);
        }
        let mut rules: BTreeMap<Name, Vec<Rule>> = BTreeMap::new();
        for rule in client.rules(&table, None)? {
            rules.entry(rule.object.chain.clone()).or_default().push(rule.object);
        }
        let differs = |name: &Name, wanted: &Vec<Vec<_>>| {
            let found = rules.get(name).into_iter().flatten().map(|rule| &rule.expressions);
            !found.eq(wanted.iter())
        };
        let different: BTreeSet<Name> = self
            .chains
            .iter()
            .filter(|(name, wanted)| differs(name, wanted))
            .map(|(name, _)| name.clone())
            .collect();
        Ok(if different.is_empty() { Structure::Intact } else { Structure::Rules(different) })
    }

    /// Writes the rules of these chains again.
    pub(super) fn restore_rules(
        &mut self,
        names: &BTreeSet<Name>,
        monitor: &TamperMonitor,
    ) -> std::result::Result<usize, Error> {
        let table = self.kernel.table();
        let mut transaction = Transaction::new();
        for (name, rules) in self.chains.iter().filter(|(name, _)| names.contains(*name)) {
            transaction.flush(Chain::new(table, name.clone()));
            chains::to_rules(table, name, rules).for_each(|rule| transaction.add(rule));
        }
        let outcome = self.kernel.commit(&transaction, monitor);
        outcome.map(|()| transaction.len()).map_err(|source| {
            self.in_step = false;
            Error::Commit { family: self.family, source }
        })
    }
}

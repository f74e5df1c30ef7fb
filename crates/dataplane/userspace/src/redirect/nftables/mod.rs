//! Redirection by nf_tables: a table of our own in each family, changed in one transaction.

mod chains;
mod expressions;
mod present;
mod redirections;
mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use portwarden_model::{Family, PerFamily, Protocol};
use portwarden_netlink::nftables::{
    self, Chain, Client, ElementParts, Elements, Monitor, Notice, Set, TableId, Transaction, Value,
    ValueParts,
};
use portwarden_netlink::{Errno, Error};

use super::ledger::{Difference, Draft, Ledger};
use super::{Origin, Recovered, Settings, Wanted, Written};
use chains::Chains;
use present::Present;
pub(crate) use redirections::Redirections;
use sets::{Element, SetId};

/// The table's name in both families.
pub(crate) const TABLE: &str = "portwarden-userspace";

/// Notifications of larger transactions of ours are not worth reading one by one.
const QUIET_FROM: usize = 512;

/// The rules of both families.
#[derive(Debug)]
pub(crate) struct Nftables {
    client: Client,
    monitor: Monitor,
    settings: Settings,
    tables: PerFamily<Table>,
}

/// What the kernel has acknowledged in one family.
#[derive(Debug)]
struct Table {
    id: TableId,
    sets: Vec<Arc<Set>>,
    chains: Chains,
    ledger: Ledger<Element>,
    /// Whether all of this is what the kernel has.
    in_step: bool,
}

impl Nftables {
    /// Connects to the kernel, and tries out whether it has nf_tables for these families. Nothing changes.
    pub(crate) fn open(settings: Settings, families: &[Family]) -> Result<Self, Error> {
        let mut client = Client::open()?;
        families.iter().try_for_each(|family| probe(&mut client, *family))?;
        let table = |family| {
            let id = TableId::new(expressions::kernel_family(family), TABLE);
            let sets = sets::define(&id, family);
            let chains = Chains::new();
            Table { id, sets, chains, ledger: Ledger::new(), in_step: false }
        };
        let tables = PerFamily::from_fn(table);
        Ok(Nftables { client, monitor: Monitor::open()?, settings, tables })
    }

    /// Reads which sockets an earlier process used.
    pub(crate) fn recover(&mut self, family: Family) -> Result<Recovered, Error> {
        let table = &self.tables[family].id;
        let mut recovered = Recovered::default();
        let tables = self.client.tables(Some(table.family))?;
        if !tables.iter().any(|listed| listed.object.id == *table) {
            return Ok(recovered);
        }
        for origin in Origin::BOTH {
            for set in [SetId::redirections(origin, false), SetId::redirections(origin, true)] {
                // A table of another layout has nothing to recover.
                let elements = match self.client.elements(table, set.name()) {
                    Err(error) if error.is_not_found() => continue,
                    elements => elements?,
                };
                for element in elements {
                    recovered.take(origin, &element);
                }
            }
        }
        Ok(recovered)
    }

    /// Writes the rules of Services and of the node.
    pub(crate) fn write(&mut self, wanted: &Wanted<'_>) -> Result<Written, Error> {
        let family = wanted.family;
        let table = &self.tables[family];
        let chains = chains::render(family, wanted.node, self.settings);
        let draft = wanted.draft(sets::elements, sets::node_addresses(wanted.node));
        let full = wanted.full || !table.in_step;
        let (objects, missed_notifications, difference) = if full {
            self.write_everything(family, &chains, &draft)?
        } else {
            let difference = table.ledger.difference(&draft);
            let transaction = table.changes(&chains, &difference);
            (count(&transaction), self.commit(&transaction)?, difference)
        };
        let table = &mut self.tables[family];
        table.ledger.accept(draft, difference);
        (table.chains, table.in_step) = (chains, true);
        Ok(Written { objects, full, missed_notifications })
    }

    /// Changes what differs from what the kernel has; without a table of our layout, or if another process changes it meanwhile, replaces
    /// the table. Returns the objects written, whether notifications were missed, and the difference to an empty table.
    fn write_everything(
        &mut self,
        family: Family,
        chains: &Chains,
        draft: &Draft<'_, Element>,
    ) -> Result<(usize, bool, Difference<Element>), Error> {
        let table = &mut self.tables[family];
        if let Some(present) = Present::read(&mut self.client, &table.id, &table.sets, chains.keys())? {
            table.chains = present.chains;
            let difference = Ledger::everything(draft).beyond(&present.elements);
            let transaction = self.tables[family].changes(chains, &difference);
            match self.commit(&transaction) {
                Ok(missed) => return Ok((count(&transaction), missed, difference)),
                Err(error) if !is_out_of_step(&error) => return Err(error),
                Err(_) => {}
            }
        }
        let difference = Ledger::everything(draft);
        let transaction = self.tables[family].replacement(chains, &difference);
        let missed = self.commit(&transaction)?;
        Ok((count(&transaction), missed, difference))
    }

    /// Whether the rules of a family can be changed element by element.
    pub(crate) fn in_step(&self, family: Family) -> bool {
        self.tables[family].in_step
    }

    /// Returns whether changes of other processes may have gone unnoticed.
    fn commit(&mut self, transaction: &Transaction) -> Result<bool, Error> {
        if transaction.is_empty() {
            return Ok(false);
        }
        if transaction.element_count() < QUIET_FROM {
            self.client.commit(transaction)?;
            return Ok(false);
        }
        let before = self.client.generation()?.id;
        self.monitor.pause()?;
        let outcome = self.client.commit(transaction);
        self.monitor.resume()?;
        // The kernel counts transactions: more than ours means that another process wrote while notifications were off.
        let expected = before.wrapping_add(u32::from(outcome.is_ok()));
        let missed = self.client.generation()?.id != expected;
        outcome.map(|()| missed)
    }

    /// Reads notifications. Returns what other processes changed in our tables, by family.
    pub(crate) fn tampering(&mut self) -> Result<PerFamily<Option<String>>, Error> {
        let mut found = PerFamily::<Option<String>>::default();
        let (own, tables) = (self.client.port(), &self.tables);
        self.monitor.read(|notice| {
            for family in Family::BOTH {
                let what = match &notice {
                    Notice::Missed => Some("more changes at once than could be read".to_owned()),
                    Notice::Event(event) if event.port == own => None,
                    Notice::Event(event) => event.describe(&tables[family].id),
                };
                if found[family].is_none() {
                    found[family] = what;
                }
            }
        })?;
        for family in Family::BOTH {
            if found[family].is_some() {
                self.tables[family].in_step = false;
            }
        }
        Ok(found)
    }

    pub(crate) fn watch_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

/// Objects and elements that a transaction writes.
fn count(transaction: &Transaction) -> usize {
    transaction.len() + transaction.element_count()
}

/// Whether an error means that the kernel does not have what we think it has.
pub(crate) fn is_out_of_step(error: &Error) -> bool {
    let Error::Rejected(rejected) = error else { return false };
    let drift = |errno| matches!(errno, Errno::ENOENT | Errno::EEXIST);
    rejected.failures.iter().any(|failure| drift(failure.answer.errno))
}

/// Creates a table with our base chains and deletes it again, in one transaction: a kernel may have nf_tables, but not for this family.
fn probe(client: &mut Client, family: Family) -> Result<(), Error> {
    let id = TableId::new(expressions::kernel_family(family), "portwarden-userspace-probe");
    let mut transaction = Transaction::new();
    transaction.add(nftables::Table::new(&id));
    for name in ["nat-prerouting", "filter-input"] {
        transaction.add(chains::define(&id, name));
    }
    transaction.delete(nftables::Table::new(&id));
    client.commit(&transaction)
}

impl Table {
    /// Replaces the whole table.
    fn replacement(&self, chains: &Chains, all: &Difference<Element>) -> Transaction {
        let mut transaction = Transaction::new();
        transaction.ensure_absent(&self.id);
        transaction.add(nftables::Table::new(&self.id).comment("redirection to the sockets of Portwarden"));
        for set in &self.sets {
            transaction.add(set);
        }
        for name in chains.keys() {
            transaction.add(chains::define(&self.id, name));
        }
        for (name, rules) in chains {
            chains::to_rules(&self.id, name, rules).for_each(|rule| transaction.add(rule));
        }
        self.add(&all.added, &mut transaction);
        transaction
    }

    /// Changes what differs.
    fn changes(&self, chains: &Chains, difference: &Difference<Element>) -> Transaction {
        let mut transaction = Transaction::new();
        for (name, rules) in chains {
            if self.chains.get(name) != Some(rules) {
                transaction.flush(Chain::new(&self.id, *name));
                chains::to_rules(&self.id, name, rules).for_each(|rule| transaction.add(rule));
            }
        }
        // An element may change its value or its Service: everything is deleted before anything is added.
        self.delete(&difference.gone, &mut transaction);
        self.add(&difference.added, &mut transaction);
        transaction
    }

    fn add(&self, elements: &BTreeSet<Element>, transaction: &mut Transaction) {
        for (set, elements) in self.by_set(elements) {
            transaction.add_elements(set, elements);
        }
    }

    fn delete(&self, elements: &BTreeSet<Element>, transaction: &mut Transaction) {
        for (set, elements) in self.by_set(elements) {
            transaction.delete_elements(set, elements);
        }
    }

    fn by_set(&self, elements: &BTreeSet<Element>) -> impl Iterator<Item = (&Arc<Set>, Elements)> {
        let mut by_set: BTreeMap<SetId, Elements> = BTreeMap::new();
        for element in elements {
            by_set.entry(element.set).or_default().push(&ElementParts {
                key: &element.key,
                key_end: element.end.as_deref(),
                value: (!element.value.is_empty()).then_some(ValueParts::Data(&element.value)),
                ..ElementParts::default()
            });
        }
        by_set.into_iter().map(|(id, elements)| (&self.sets[id as usize], elements))
    }
}

impl Recovered {
    fn take(&mut self, origin: Origin, element: &nftables::Element) {
        let Some(Value::Data(value)) = &element.value else { return };
        let Some(port) = sets::port_of(value) else { return };
        match sets::place_of(&element.key) {
            Some(place) if place.protocol == Protocol::Tcp => {
                self.tcp.insert(origin, port);
            }
            Some(place) if place.protocol == Protocol::Udp => {
                self.udp.insert((origin, place), port);
            }
            _ => {}
        }
    }
}

/// Removes the table of a family. Returns whether there was one.
pub(crate) fn cleanup(family: Family) -> Result<bool, Error> {
    let mut client = Client::open()?;
    let table = TableId::new(expressions::kernel_family(family), TABLE);
    if !client.tables(Some(table.family))?.iter().any(|listed| listed.object.id == table) {
        return Ok(false);
    }
    let mut transaction = Transaction::new();
    transaction.delete(nftables::Table::new(&table));
    match client.commit(&transaction) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(true),
    }
}

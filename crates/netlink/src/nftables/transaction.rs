//! A change to the ruleset as a value: it can be compared, counted, printed as nft text and committed whole.

use super::element::Elements;
use super::expr::Rule;
use super::set::Set;
use super::table::{Chain, Name, Table, TableId};
use std::sync::Arc;

/// A list of operations that the kernel takes all or none of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    operations: Vec<Operation>,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What to do.
    pub verb: Verb,
    /// What to do it to.
    pub object: Object,
}

/// What to do, as nft means it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Make it; fine if it exists already. A rule goes to the end of its chain.
    Add,
    /// Make it; an error if it exists already.
    Create,
    /// Put a rule at the start of its chain, or before another one.
    Insert,
    /// Put a rule in another one's place.
    Replace,
    /// Remove it; an error if it does not exist.
    Delete,
    /// Remove it; fine if it does not exist. Needs Linux 6.3.
    Destroy,
    /// Empty it: rules of a table or chain, elements of a set.
    Flush,
}

/// What an operation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A table; flushing it removes the rules of all its chains.
    Table(Table),
    /// With its hook, if it has one.
    Chain(Chain),
    /// A rule and its position in the chain.
    Rule {
        /// With its chain and expressions.
        rule: Rule,
        /// The rule to delete or replace, or the neighbour of the one to add or insert.
        handle: Option<u64>,
    },
    /// A set or map.
    Set(Arc<Set>),
    /// Elements of a set or map.
    Elements {
        /// The set; its types say how to print the elements.
        set: Arc<Set>,
        /// The elements. Without any, nothing is done, also when deleting.
        elements: Elements,
    },
    /// A named counter.
    Counter(Counter),
}

/// A named counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The table it belongs to.
    pub table: TableId,
    /// Unique within the table, among counters.
    pub name: Name,
    /// Packets so far.
    pub packets: u64,
    /// Bytes so far.
    pub bytes: u64,
    /// A comment for people.
    pub comment: Option<String>,
}

impl Counter {
    /// A counter at zero.
    pub fn new(table: &TableId, name: impl Into<Name>) -> Self {
        Self { table: table.clone(), name: name.into(), packets: 0, bytes: 0, comment: None }
    }
}

impl From<Table> for Object {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl From<Chain> for Object {
    fn from(chain: Chain) -> Self {
        Self::Chain(chain)
    }
}

impl From<Rule> for Object {
    fn from(rule: Rule) -> Self {
        Self::Rule { rule, handle: None }
    }
}

impl From<Arc<Set>> for Object {
    fn from(set: Arc<Set>) -> Self {
        Self::Set(set)
    }
}

impl From<&Arc<Set>> for Object {
    fn from(set: &Arc<Set>) -> Self {
        Self::Set(Arc::clone(set))
    }
}

impl From<Set> for Object {
    fn from(set: Set) -> Self {
        Self::Set(Arc::new(set))
    }
}

impl From<Counter> for Object {
    fn from(counter: Counter) -> Self {
        Self::Counter(counter)
    }
}

impl Object {
    /// The table it belongs to.
    pub fn table(&self) -> &TableId {
        match self {
            Self::Table(table) => &table.id,
            Self::Chain(chain) => &chain.table,
            Self::Rule { rule, .. } => &rule.table,
            Self::Set(set) | Self::Elements { set, .. } => &set.table,
            Self::Counter(counter) => &counter.table,
        }
    }
}

impl Transaction {
    /// Nothing to do yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The operations in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Number of elements in all operations.
    pub fn element_count(&self) -> usize {
        let elements = |operation: &Operation| match &operation.object {
            Object::Elements { elements, .. } => elements.len(),
            _ => 0,
        };
        self.operations.iter().map(elements).sum()
    }

    /// Adds a table, chain, rule, set or counter; fine if it exists already.
    pub fn add(&mut self, object: impl Into<Object>) {
        self.push(Verb::Add, object.into());
    }

    /// Creates a table, chain, set or counter; an error if it exists already.
    pub fn create(&mut self, object: impl Into<Object>) {
        self.push(Verb::Create, object.into());
    }

    /// Puts a rule at the start of its chain.
    pub fn insert(&mut self, rule: Rule) {
        self.push(Verb::Insert, rule.into());
    }

    /// Puts a rule in the place of the one with this handle.
    pub fn replace(&mut self, rule: Rule, handle: u64) {
        self.push(Verb::Replace, Object::Rule { rule, handle: Some(handle) });
    }

    /// Deletes a table, chain, set or counter by its name; an error if it does not exist.
    pub fn delete(&mut self, object: impl Into<Object>) {
        self.push(Verb::Delete, object.into());
    }

    /// Deletes a table, chain, set or counter by its name; fine if it does not exist. Needs Linux 6.3.
    pub fn destroy(&mut self, object: impl Into<Object>) {
        self.push(Verb::Destroy, object.into());
    }

    /// Deletes a table that need not exist, also on kernels without destroy: adds and deletes it.
    pub fn ensure_absent(&mut self, table: &TableId) {
        self.add(Table::new(table));
        self.delete(Table::new(table));
    }

    /// Deletes one rule.
    pub fn delete_rule(&mut self, table: &TableId, chain: impl Into<Name>, handle: u64) {
        let rule = Rule::new(table, chain, Vec::new());
        self.push(Verb::Delete, Object::Rule { rule, handle: Some(handle) });
    }

    /// Removes the rules of a chain, or of all chains of a table, or the elements of a set.
    pub fn flush(&mut self, object: impl Into<Object>) {
        self.push(Verb::Flush, object.into());
    }

    /// Adds elements; an element that exists with the same value is fine, with another one an error.
    pub fn add_elements(&mut self, set: &Arc<Set>, elements: Elements) {
        self.push(Verb::Add, Object::Elements { set: Arc::clone(set), elements });
    }

    /// Deletes elements by their keys; any that does not exist is an error.
    pub fn delete_elements(&mut self, set: &Arc<Set>, elements: Elements) {
        self.push(Verb::Delete, Object::Elements { set: Arc::clone(set), elements });
    }

    /// Appends the operations of another transaction.
    pub fn append(&mut self, other: Self) {
        self.operations.extend(other.operations);
    }

    fn push(&mut self, verb: Verb, object: Object) {
        self.operations.push(Operation { verb, object });
    }
}

impl Extend<Operation> for Transaction {
    fn extend<I: IntoIterator<Item = Operation>>(&mut self, operations: I) {
        self.operations.extend(operations);
    }
}

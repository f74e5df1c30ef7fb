//! The conversation with the kernel: look at the table, commit, notice what others change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portwarden_model::{Backend, Family};
use portwarden_netlink::nftables::{
    self, Batch, Change, Client, Event, Image, Monitor, Notice, Subject, TableId, Transaction, Value,
};
use portwarden_netlink::{Errno, Result};

use crate::lists::ListState;
use crate::route::List;
use crate::sets::{SetId, Sets};

/// Notifications of larger transactions of ours are not worth reading one by one.
const QUIET_FROM: usize = 512;

/// The nftables of one network namespace, one family.
#[derive(Debug)]
pub(crate) struct Kernel {
    client: Client,
    watch: Watch,
    table: TableId,
    unwatched: bool,
}

/// What the kernel has under the name of our table.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// A table of this layout: session affinity can stay. Sets, chains and counters by name.
    Ours { sets: Vec<nftables::Set>, chains: BTreeSet<String>, counters: BTreeSet<String> },
    /// A table of another layout, or of another program.
    Other,
}

impl Kernel {
    pub(crate) fn open(family: Family, table: &str, watch: Watch) -> Result<Self> {
        let client = Client::open()?;
        let table = TableId::new(kernel_family(family), table);
        let mut shared = watch.shared();
        shared.ports.insert(client.port());
        shared.tables.insert(table.clone(), None);
        drop(shared);
        Ok(Kernel { client, watch, table, unwatched: false })
    }

    pub(crate) fn table(&self) -> &TableId {
        &self.table
    }

    /// Looks at the table. It is ours if its map of clients has our type.
    pub(crate) fn look(&mut self, sets: &Sets) -> Result<Found> {
        let tables = self.client.tables(Some(self.table.family))?;
        if !tables.iter().any(|table| table.object.id == self.table) {
            return Ok(Found::Nothing);
        }
        let found: Vec<nftables::Set> =
            self.client.sets(&self.table)?.into_iter().map(|set| set.object).collect();
        let affinity = sets.get(SetId::Affinity);
        if !found.iter().any(|set| set == affinity.as_ref()) {
            return Ok(Found::Other);
        }
        let chains =
            self.client.chains(&self.table)?.into_iter().map(|chain| chain.object.name.to_string()).collect();
        let counters = self.client.counters(&self.table)?;
        let counters = counters.into_iter().map(|counter| counter.object.name.to_string()).collect();
        Ok(Found::Ours { sets: found, chains, counters })
    }

    /// Sticky lists that an earlier process left, by the key of their name.
    pub(crate) fn recover(&mut self) -> Result<HashMap<Vec<u8>, ListState>> {
        let names = self.client.elements(&self.table, SetId::StickyNames.name())?;
        let mut endpoints: HashMap<List, Vec<(u16, Backend)>> = HashMap::new();
        for element in self.client.elements(&self.table, SetId::StickyEndpoints.name())? {
            if let Some((list, entry, backend)) = sticky_endpoint(&element) {
                endpoints.entry(list).or_default().push((entry, backend));
            }
        }
        let state = |element: &nftables::Element| {
            let list = List::from_sticky_key(number(data(element)?)?)?;
            Some((
                element.key.clone(),
                ListState::recovered(list, endpoints.get(&list).cloned().unwrap_or_default()),
            ))
        };
        Ok(names.iter().filter_map(state).collect())
    }

    /// Commits whole; on an error the kernel took nothing.
    pub(crate) fn commit(&mut self, transaction: &Transaction) -> Result<()> {
        if transaction.element_count() < QUIET_FROM {
            return self.client.commit(transaction);
        }
        let batch = Batch::encode(transaction)?;
        let before = self.client.generation()?.id;
        self.watch.shared().monitor.pause()?;
        let outcome = self.client.commit_encoded(transaction, &batch);
        self.watch.shared().monitor.resume()?;
        // The kernel counts transactions: more than ours means that others were at work while nobody listened.
        let expected = before.wrapping_add(u32::from(outcome.is_ok()));
        self.unwatched |= self.client.generation()?.id != expected;
        outcome
    }

    /// Whether others changed something, in whatever table, while a large transaction was committed.
    pub(crate) fn take_unwatched(&mut self) -> bool {
        std::mem::take(&mut self.unwatched)
    }

    /// Reads notifications. Tells what others changed in our table, if they did.
    pub(crate) fn tampering(&mut self) -> Result<Option<String>> {
        self.watch.shared().take(&self.table)
    }

    pub(crate) fn watch_fd(&self) -> BorrowedFd<'_> {
        self.watch.fd.as_fd()
    }
}

/// What the kernel tells about its rules, shared by the dataplanes of both families: while anybody listens, the kernel builds a
/// notification for every element of a transaction, so that during a large one nobody may.
#[derive(Debug, Clone)]
pub struct Watch {
    shared: Arc<Mutex<Shared>>,
    /// The same descriptor, to wait on without the lock.
    fd: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Shared {
    monitor: Monitor,
    /// The sockets whose changes are our own.
    ports: BTreeSet<u32>,
    /// Our tables, with what others changed in them until their dataplane asks.
    tables: BTreeMap<TableId, Option<String>>,
}

impl Watch {
    /// Starts to listen in the network namespace of the calling thread.
    pub fn open() -> Result<Watch> {
        let monitor = Monitor::open()?;
        let failed = |error: std::io::Error| portwarden_netlink::Error::Open {
            action: "duplicate",
            protocol: "netfilter",
            source: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        };
        let fd = monitor.as_fd().try_clone_to_owned().map_err(failed)?;
        let shared = Shared { monitor, ports: BTreeSet::new(), tables: BTreeMap::new() };
        Ok(Watch { shared: Arc::new(Mutex::new(shared)), fd: Arc::new(fd) })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Nothing is half done under this lock, whatever happened to another holder.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// What others changed in a table since it was asked for last.
    fn take(&mut self, table: &TableId) -> Result<Option<String>> {
        let (ports, tables) = (&self.ports, &mut self.tables);
        self.monitor.read(|notice| {
            for (table, found) in tables.iter_mut().filter(|(_, found)| found.is_none()) {
                *found = match &notice {
                    Notice::Missed => Some("more changes at once than could be read".to_owned()),
                    Notice::Event(event) if ports.contains(&event.port) => None,
                    Notice::Event(event) => describe(event, table),
                };
            }
        })?;
        Ok(self.tables.get_mut(table).and_then(Option::take))
    }
}

/// nf_tables' name for a family.
pub(crate) fn kernel_family(family: Family) -> nftables::Family {
    match family {
        Family::V4 => nftables::Family::Ip,
        Family::V6 => nftables::Family::Ip6,
    }
}

/// What a notification says about our table; `None` if it is about something else.
fn describe(event: &Event, table: &TableId) -> Option<String> {
    let what = match &event.subject {
        Subject::Table(listed) => (listed.object.id == *table).then(|| "the table".to_owned()),
        Subject::Chain(listed) => {
            (listed.object.table == *table).then(|| format!("chain {}", listed.object.name))
        }
        Subject::Rule(listed) => {
            (listed.object.table == *table).then(|| format!("a rule of chain {}", listed.object.chain))
        }
        Subject::Set(listed) => {
            (listed.object.table == *table).then(|| format!("set {}", listed.object.name))
        }
        Subject::Elements(elements) => {
            (elements.table == *table).then(|| format!("an element of {}", elements.set))
        }
        Subject::Counter(_) | Subject::Generation(_) | Subject::Other { .. } => None,
    }?;
    let done = match event.change {
        Change::Present => "was added or changed",
        Change::Gone => "was removed",
    };
    Some(format!("{what} {done}"))
}

/// The list, entry and endpoint of an element of [`SetId::StickyEndpoints`].
fn sticky_endpoint(element: &nftables::Element) -> Option<(List, u16, Backend)> {
    let entry = number(&element.key)?;
    let list = List::from_sticky_key(entry & crate::route::STICKY_LIST_MASK)?;
    let value = data(element)?;
    let (address, port) = value.split_at_checked(value.len().checked_sub(4)?)?;
    let ip = match address.len() {
        4 => <[u8; 4]>::try_from(address).ok()?.into(),
        16 => <[u8; 16]>::try_from(address).ok()?.into(),
        _ => return None,
    };
    let port = u16::from_be_bytes([*port.first()?, *port.get(1)?]);
    let entry = u16::try_from(entry & !crate::route::STICKY_LIST_MASK).ok()?;
    Some((list, entry, Backend::new(SocketAddr::new(ip, port), false)))
}

fn data(element: &nftables::Element) -> Option<&[u8]> {
    match element.value.as_ref()? {
        Value::Data(data) => Some(data),
        Value::Verdict(_) => None,
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// The key of one element of our maps of classes and kinds.
pub(crate) fn number_key(number: u32) -> Image {
    Image::new().number(number)
}

//! The conversation with the kernel: look at the table, commit, notice what others change.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};

use portwarden_model::{Backend, Family};
use portwarden_netlink::Result;
use portwarden_netlink::nftables::{
    self, Change, Client, Event, Image, Monitor, Notice, Subject, TableId, Transaction, Value,
};

use crate::lists::ListState;
use crate::route::List;
use crate::sets::{SetId, Sets};

/// Notifications of larger transactions of ours are not worth reading one by one.
const QUIET_FROM: usize = 512;

/// The nftables of one network namespace, one family.
#[derive(Debug)]
pub(crate) struct Kernel {
    client: Client,
    monitor: Monitor,
    table: TableId,
}

/// What the kernel has under the name of our table.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// A table of this layout: session affinity can stay. Sets and chains by name.
    Ours { sets: Vec<nftables::Set>, chains: BTreeSet<String> },
    /// A table of another layout, or of another program.
    Other,
}

impl Kernel {
    pub(crate) fn open(family: Family, table: &str) -> Result<Self> {
        Ok(Kernel {
            client: Client::open()?,
            monitor: Monitor::open()?,
            table: TableId::new(kernel_family(family), table),
        })
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
        Ok(Found::Ours { sets: found, chains })
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
        let quiet = transaction.element_count() >= QUIET_FROM;
        if quiet {
            self.monitor.pause()?;
        }
        let outcome = self.client.commit(transaction);
        if quiet {
            self.monitor.resume()?;
        }
        outcome
    }

    /// Reads notifications. Tells what others changed in our table, if they did.
    pub(crate) fn tampering(&mut self) -> Result<Option<String>> {
        let ours = self.client.port();
        let table = self.table.clone();
        let mut found = None;
        self.monitor.read(|notice| {
            let change = match notice {
                Notice::Missed => Some("more changes at once than could be read".to_owned()),
                Notice::Event(event) if event.port == ours => None,
                Notice::Event(event) => describe(&event, &table),
            };
            found = found.take().or(change);
        })?;
        Ok(found)
    }

    pub(crate) fn watch_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
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
    Some((list, entry, Backend { ip, port, local: false }))
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

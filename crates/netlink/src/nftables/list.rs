//! Listing what the kernel holds.

use super::batch::Batch;
use super::client::Client;
use super::codes::{self, LIST_ELEMENT, SUBSYSTEM, message};
use super::decode::{Event, Generation, Subject, each_element, set_count};
use super::element::Element;
use super::expr::Rule;
use super::set::Set;
use super::table::{Chain, Family, Listed, Table, TableId};
use super::transaction::{Counter, Transaction};
use crate::error::{Error, Result};
use crate::socket::{Consistency, DUMP_ATTEMPTS};
use crate::wire::{Malformed, Message, Writer};
use nix::errno::Errno;
use std::collections::HashMap;

/// Keys in one request. Each element comes in a datagram of its own, and all of them must fit into the receive buffer.
const KEYS_AT_ONCE: usize = 64;

/// Room for the answers to so many keys.
const KEYS_BUFFER: usize = 1 << 20;

impl Client {
    /// Lists the tables of a family, or of all.
    pub fn tables(&mut self, family: Option<Family>) -> Result<Vec<Listed<Table>>> {
        let family = family.map_or(0, Family::byte);
        self.list(
            "a list of nftables tables",
            message::GET_TABLE,
            family,
            |_| {},
            |subject| match subject {
                Subject::Table(table) => Some(table),
                _ => None,
            },
        )
    }

    /// Lists the chains of a table; none if the table does not exist.
    pub fn chains(&mut self, table: &TableId) -> Result<Vec<Listed<Chain>>> {
        // Kernels list the chains of all tables of the family, whatever is asked for.
        self.list(
            "a list of nftables chains",
            message::GET_CHAIN,
            table.family.byte(),
            |writer| writer.string(codes::chain::TABLE, &table.name),
            |subject| match subject {
                Subject::Chain(chain) => (chain.object.table == *table).then_some(chain),
                _ => None,
            },
        )
    }

    /// Lists the rules of a table, or of one of its chains, in their order within each chain.
    pub fn rules(&mut self, table: &TableId, chain: Option<&str>) -> Result<Vec<Listed<Rule>>> {
        self.list(
            "a list of nftables rules",
            message::GET_RULE,
            table.family.byte(),
            |writer| {
                writer.string(codes::rule::TABLE, &table.name);
                if let Some(chain) = chain {
                    writer.string(codes::rule::CHAIN, chain);
                }
            },
            |subject| match subject {
                Subject::Rule(rule) => {
                    let wanted = chain.is_none_or(|chain| *rule.object.chain == *chain);
                    (wanted && rule.object.table == *table).then_some(rule)
                }
                _ => None,
            },
        )
    }

    /// Lists the sets and maps of a table, without their elements.
    pub fn sets(&mut self, table: &TableId) -> Result<Vec<Listed<Set>>> {
        let listed = self.list(
            "a list of nftables sets",
            message::GET_SET,
            table.family.byte(),
            |writer| writer.string(codes::set::TABLE, &table.name),
            |subject| match subject {
                Subject::Set(set) => (set.object.table == *table).then_some(set),
                _ => None,
            },
        );
        none_if_absent(listed)
    }

    /// Lists the named counters of a table.
    pub fn counters(&mut self, table: &TableId) -> Result<Vec<Listed<Counter>>> {
        let listed = self.list(
            "a list of nftables counters",
            message::GET_OBJECT,
            table.family.byte(),
            |writer| {
                writer.string(codes::object::TABLE, &table.name);
                writer.u32(codes::object::KIND, codes::object::KIND_COUNTER);
            },
            |subject| match subject {
                Subject::Counter(counter) => (counter.object.table == *table).then_some(counter),
                _ => None,
            },
        );
        none_if_absent(listed)
    }

    /// Lists the elements of a set or map. The cost grows with the square of their number.
    ///
    /// The listing is consistent for sets with a size. The kernel resizes other hash tables in the background, and a listing can miss
    /// elements meanwhile.
    pub fn elements(&mut self, table: &TableId, set: &str) -> Result<Vec<Element>> {
        self.dump_one_state(
            "a list of nftables elements",
            |writer, flags, sequence| {
                let kind = SUBSYSTEM << 8 | message::GET_ELEMENTS;
                let mark = writer.begin_netfilter(kind, flags, sequence, table.family.byte(), 0);
                writer.string(codes::element::LIST_TABLE, &table.name);
                writer.string(codes::element::LIST_SET, set);
                writer.end_message(mark);
            },
            |elements, message| each_element(message, |element| elements.push(element)),
        )
    }

    /// Asks for one element by its key, whatever the size of the set.
    pub fn element(&mut self, table: &TableId, set: &str, key: &[u8]) -> Result<Option<Element>> {
        let mut found = None;
        let answer = self.request_elements(table, set, &[key], |element| found = Some(element));
        match answer {
            Ok(()) => Ok(found),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks for elements by their keys, many at a time, whatever the size of the set. Returns them in the order of the keys; `None` for a
    /// key that the set does not have.
    pub fn elements_at<K: AsRef<[u8]>>(
        &mut self,
        table: &TableId,
        set: &str,
        keys: &[K],
    ) -> Result<Vec<Option<Element>>> {
        self.socket.grow_receive_buffer(KEYS_BUFFER);
        let mut found = Vec::with_capacity(keys.len());
        while found.len() < keys.len() {
            let rest = &keys[found.len()..];
            let asked = &rest[..rest.len().min(KEYS_AT_ONCE)];
            // The kernel answers key by key, up to the first that does not exist.
            match self.request_elements(table, set, asked, |element| found.push(Some(element))) {
                Ok(()) => {}
                Err(error) if error.is_not_found() => found.push(None),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn request_elements<K: AsRef<[u8]>>(
        &mut self,
        table: &TableId,
        set: &str,
        keys: &[K],
        mut on_element: impl FnMut(Element),
    ) -> Result<()> {
        self.socket.request(
            "nftables elements",
            |writer, flags, sequence| {
                let kind = SUBSYSTEM << 8 | message::GET_ELEMENTS;
                let mark = writer.begin_netfilter(kind, flags, sequence, table.family.byte(), 0);
                writer.string(codes::element::LIST_TABLE, &table.name);
                writer.string(codes::element::LIST_SET, set);
                writer.nest(codes::element::LIST_ELEMENTS, |writer| {
                    for key in keys {
                        writer.nest(LIST_ELEMENT, |writer| {
                            writer.nest(codes::element::KEY, |writer| {
                                writer.attribute(codes::data::VALUE, key.as_ref());
                            });
                        });
                    }
                });
                writer.end_message(mark);
            },
            |message| each_element(message, &mut on_element),
        )
    }

    /// How many elements each set of a table has. Empty on kernels before 6.16, which do not say.
    pub fn set_counts(&mut self, table: &TableId) -> Result<HashMap<String, u32>> {
        let counts = self.dump_one_state(
            "the sizes of nftables sets",
            |writer, flags, sequence| {
                let kind = SUBSYSTEM << 8 | message::GET_SET;
                let mark = writer.begin_netfilter(kind, flags, sequence, table.family.byte(), 0);
                writer.string(codes::set::TABLE, &table.name);
                writer.end_message(mark);
            },
            |found, message| {
                found.extend(set_count(message, table)?);
                Ok(())
            },
        );
        Ok(none_if_absent(counts)?.into_iter().collect())
    }

    /// The current generation of the ruleset.
    pub fn generation(&mut self) -> Result<Generation> {
        const REQUEST: &str = "the nftables generation";
        let mut found = None;
        self.socket.request(
            REQUEST,
            |writer, flags, sequence| {
                let kind = SUBSYSTEM << 8 | message::GET_GENERATION;
                let mark = writer.begin_netfilter(kind, flags, sequence, 0, 0);
                writer.end_message(mark);
            },
            |message| {
                if let Some(Event { subject: Subject::Generation(generation), .. }) = Event::decode(message)?
                {
                    found = Some(generation);
                }
                Ok(())
            },
        )?;
        found.ok_or(Error::Answer { request: REQUEST, source: Malformed { what: "no generation in it" } })
    }

    fn list<T>(
        &mut self,
        request: &'static str,
        kind: u16,
        family: u8,
        filter: impl Fn(&mut Writer),
        choose: impl Fn(Subject) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.dump_one_state(
            request,
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(SUBSYSTEM << 8 | kind, flags, sequence, family, 0);
                filter(writer);
                writer.end_message(mark);
            },
            |found, message| {
                found.extend(Event::decode(message)?.and_then(|event| choose(event.subject)));
                Ok(())
            },
        )
    }

    /// Lists objects again until no transaction came in between.
    ///
    /// The kernel marks a dump as interrupted only if a transaction ends between two of its datagrams. One that
    /// ends while a datagram is filled leaves a mix of old and new elements and no mark, hence the look at
    /// the generation before and after.
    fn dump_one_state<T>(
        &mut self,
        request: &'static str,
        build: impl Fn(&mut Writer, u16, u32),
        on_message: impl Fn(&mut Vec<T>, &Message<'_>) -> Result<(), Malformed>,
    ) -> Result<Vec<T>> {
        let mut before = self.stable_generation(request)?;
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let consistency = self.socket.dump(request, &build, |message| on_message(&mut found, message))?;
            let after = self.stable_generation(request)?;
            if consistency == Consistency::Complete && before == after {
                return Ok(found);
            }
            before = after;
        }
        Err(Error::Interrupted { request, attempts: DUMP_ATTEMPTS })
    }

    /// The generation of the ruleset, asked for when no transaction is under way.
    ///
    /// A transaction puts its new elements into the hash tables before it raises the generation, and takes the old ones out
    /// after it did. A dump counts how many elements it has passed, so both shift what it skips. An empty batch
    /// changes nothing and waits until the one under way is done.
    fn stable_generation(&mut self, request: &'static str) -> Result<u32> {
        self.socket.send(request, Batch::encode(&Transaction::new())?.bytes())?;
        Ok(self.generation()?.id)
    }
}

/// Some listings answer with an error if the table does not exist, others with nothing.
fn none_if_absent<T>(listed: Result<Vec<T>>) -> Result<Vec<T>> {
    match listed {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Vec::new()),
        listed => listed,
    }
}

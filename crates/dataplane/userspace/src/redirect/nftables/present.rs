//! What the kernel has under the name of our table, so that a full write changes only what differs.
//!
//! A table that is deleted and added again in one transaction is not exchanged between two packets. While the kernel commits, base chains of both tables are
//! registered. A packet can pass the new chain just before its rules count and the old one just after its rules have gone, and is not redirected.

use std::collections::BTreeSet;
use std::sync::Arc;

use portwarden_netlink::Error;
use portwarden_netlink::nftables::{Chain, Client, Set, TableId, Value};

use super::chains::{self, Chains};
use super::sets::{Element, SetId};

/// A table with our sets and chains.
pub(super) struct Present {
    pub(super) chains: Chains,
    pub(super) elements: BTreeSet<Element>,
}

impl Present {
    /// `None` if there is no table, or one of another layout: `names` are the chains of ours.
    pub(super) fn read<'a>(
        client: &mut Client,
        table: &TableId,
        sets: &[Arc<Set>],
        names: impl Iterator<Item = &'a &'static str>,
    ) -> Result<Option<Present>, Error> {
        let found = client.sets(table)?;
        let same = |set: &Arc<Set>| found.iter().any(|one| one.object == **set);
        if found.len() != sets.len() || !sets.iter().all(same) {
            return Ok(None);
        }
        let mut chains: Chains = names.map(|name| (*name, Vec::new())).collect();
        let found: Vec<Chain> = client.chains(table)?.into_iter().map(|listed| listed.object).collect();
        let same = |name: &&'static str| found.contains(&chains::define(table, name));
        if found.len() != chains.len() || !chains.keys().all(same) {
            return Ok(None);
        }
        for rule in client.rules(table, None)? {
            if let Some(rules) = chains.get_mut(&*rule.object.chain) {
                rules.push(rule.object.expressions);
            }
        }
        let mut elements = BTreeSet::new();
        for set in SetId::ALL {
            let listed = client.elements(table, set.name())?;
            elements.extend(listed.into_iter().map(|element| Element {
                set,
                key: element.key,
                end: element.key_end,
                value: match element.value {
                    Some(Value::Data(value)) => value,
                    _ => Vec::new(),
                },
            }));
        }
        Ok(Some(Present { chains, elements }))
    }
}

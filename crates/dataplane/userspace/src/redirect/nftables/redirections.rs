//! The redirections that the kernel has, whichever process wrote them.

use std::collections::{BTreeMap, BTreeSet};

use portwarden_model::Family;
use portwarden_netlink::Error;
use portwarden_netlink::nftables::{Client, TableId, Value};

use super::sets::{self, SetId};
use super::{TABLE, expressions};
use crate::redirect::{Action, Origin, Place};

/// What happens to connections, by where they start and where they go.
#[derive(Debug, Default)]
pub(crate) struct Redirections {
    redirected: BTreeMap<(Origin, Place), Action>,
    /// What becomes of connections that are not redirected.
    rest: BTreeMap<Place, Action>,
}

impl Redirections {
    /// `None` if there is no table.
    pub(crate) fn read(family: Family) -> Result<Option<Self>, Error> {
        let mut client = Client::open()?;
        let table = TableId::new(expressions::kernel_family(family), TABLE);
        if !client.tables(Some(table.family))?.iter().any(|listed| listed.object.id == table) {
            return Ok(None);
        }
        let mut found = Redirections::default();
        for origin in Origin::BOTH {
            for set in [SetId::redirections(origin, false), SetId::redirections(origin, true)] {
                for element in client.elements(&table, set.name())? {
                    let Some(Value::Data(value)) = &element.value else { continue };
                    if let (Some(place), Some(to)) = (sets::place_of(&element.key), sets::socket_of(value)) {
                        found.redirected.insert((origin, place), Action::Redirect(to));
                    }
                }
            }
        }
        let refused = [
            (SetId::Rejected, Action::Reject),
            (SetId::RejectedNodePorts, Action::Reject),
            (SetId::Dropped, Action::Drop),
            (SetId::DroppedNodePorts, Action::Drop),
        ];
        for (set, action) in refused {
            let listed = client.elements(&table, set.name())?;
            found.rest.extend(
                listed.iter().filter_map(|one| sets::place_of(&one.key)).map(|place| (place, action)),
            );
        }
        Ok(Some(found))
    }

    /// Every place that has a rule.
    pub(crate) fn places(&self) -> BTreeSet<Place> {
        self.redirected.keys().map(|(_, place)| *place).chain(self.rest.keys().copied()).collect()
    }

    /// What happens to connections to a place; `None` if no rule is about it.
    pub(crate) fn action(&self, origin: Origin, place: Place) -> Option<Action> {
        self.redirected.get(&(origin, place)).or_else(|| self.rest.get(&place)).copied()
    }
}

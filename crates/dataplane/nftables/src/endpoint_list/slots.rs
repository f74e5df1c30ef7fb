//! Which endpoint has which slot: an endpoint keeps its slot as long as it can, and the last ones move into the gaps.

use std::collections::HashMap;
use std::net::SocketAddr;

use portwarden_model::Pool;

/// The slots of a pool's endpoints, in the pool's order. Most lists lose the pool's own order sooner or later, so slots are stored as
/// narrow as possible.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Slots {
    InOrder,
    Narrow(Box<[u8]>),
    Wide(Box<[u32]>),
}

impl Slots {
    pub(super) fn new(slots: Vec<u32>) -> Slots {
        if slots.iter().enumerate().all(|(index, slot)| index == *slot as usize) {
            return Slots::InOrder;
        }
        match slots.iter().map(|slot| u8::try_from(*slot)).collect() {
            Ok(narrow) => Slots::Narrow(narrow),
            Err(_) => Slots::Wide(slots.into()),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<u32> {
        match self {
            Slots::InOrder => None,
            Slots::Narrow(slots) => slots.get(index).copied().map(u32::from),
            Slots::Wide(slots) => slots.get(index).copied(),
        }
    }
}

/// The slot of an endpoint and, in a sticky list, its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) slot: u32,
    pub(super) entry: Option<u16>,
}

/// The difference between two states of a list.
#[derive(Debug, Default)]
pub(super) struct SlotChanges {
    /// The slot of each endpoint of the new pool.
    pub(super) slots: Vec<u32>,
    /// Endpoints of the new pool whose slot has to be written.
    pub(super) filled: Vec<usize>,
    /// Endpoints of the new pool that the old one did not have.
    pub(super) added: Vec<usize>,
    /// Positions whose slot has to be emptied.
    pub(super) emptied: Vec<Position>,
    /// Positions of endpoints that the new pool does not have.
    pub(super) removed: Vec<Position>,
}

impl SlotChanges {
    /// Endpoints keep their slots where possible; the others fill the gaps below the new length.
    pub(super) fn compute(mut old: HashMap<SocketAddr, Position>, pool: &Pool) -> SlotChanges {
        const UNSET: u32 = u32::MAX;
        let mut changed = SlotChanges::default();
        let mut taken = vec![false; pool.len()];
        for (index, backend) in pool.iter().enumerate() {
            let position = old.remove(&backend.address());
            let stays = position.filter(|position| taken.get(position.slot as usize) == Some(&false));
            if let Some(position) = stays {
                taken[position.slot as usize] = true;
            }
            changed.emptied.extend(position.filter(|_| stays.is_none()));
            if position.is_none() {
                changed.added.push(index);
            }
            changed.slots.push(stays.map_or(UNSET, |position| position.slot));
        }
        changed.removed = old.into_values().collect();
        changed.emptied.extend(&changed.removed);
        let mut free = (0..).zip(taken).filter(|(_, taken)| !taken).map(|(slot, _)| slot);
        for (index, slot) in changed.slots.iter_mut().enumerate().filter(|(_, slot)| **slot == UNSET) {
            *slot = free.next().unwrap_or(UNSET);
            changed.filled.push(index);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_model::Backend;

    #[test]
    fn slots_are_stored_without_loss_in_every_width() {
        for length in [0_u32, 1, 2, 256, 257, 1000] {
            let slots: Vec<u32> = (0..length).rev().collect();
            let stored = Slots::new(slots.clone());
            let read: Vec<u32> = (0..length).map(|slot| stored.get(slot as usize).unwrap_or(slot)).collect();
            assert_eq!(read, slots);
            assert_eq!(matches!(stored, Slots::Narrow(_)), (2..=256).contains(&length));
        }
    }

    /// 1, 2 and 3 had slots 0, 1 and 2; without 2 the last one moves into its slot.
    #[test]
    fn the_last_slot_moves_into_the_gap() {
        let backend = |number| Backend::new(([10, 0, 0, number], 80).into(), false);
        let old = (1..=3).map(|number| {
            let slot = u32::from(number) - 1;
            (backend(number).address(), Position { slot, entry: None })
        });
        let changes = SlotChanges::compute(old.collect(), &Pool::new(&[backend(1), backend(3)]));
        assert_eq!(changes.slots, [0, 1]);
        assert_eq!((changes.filled, changes.added), (vec![1], vec![]));
        assert_eq!((changes.emptied.len(), changes.removed.len()), (2, 1));
    }
}

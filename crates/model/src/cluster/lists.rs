//! List generations: which objects the newest list of a kind contained.

use crate::event::Kind;

/// The lists of all kinds. Each object stores the generation of the list, or of the watch after it, that delivered it.
#[derive(Debug, Default)]
pub(super) struct Lists {
    kinds: [List; 4],
}

#[derive(Debug, Default)]
struct List {
    generation: u32,
    synced: bool,
}

impl Lists {
    pub(super) fn start(&mut self, kind: Kind) {
        let list = self.list(kind);
        list.generation = list.generation.wrapping_add(1);
    }

    /// Marks the kind as synced and returns the generation of the list that ended.
    pub(super) fn finish(&mut self, kind: Kind) -> u32 {
        let list = self.list(kind);
        list.synced = true;
        list.generation
    }

    pub(super) fn generation(&self, kind: Kind) -> u32 {
        self.kinds[kind as usize].generation
    }

    pub(super) fn is_synced(&self, kind: Kind) -> bool {
        self.kinds[kind as usize].synced
    }

    fn list(&mut self, kind: Kind) -> &mut List {
        &mut self.kinds[kind as usize]
    }
}

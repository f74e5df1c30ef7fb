//! Routes: everything that the packet path needs about a frontend, in the 32 bits of `meta priority`.
//!
//! ```text
//! ordinary   1 0 iiiiiiiiiiiiiiiiiiii cccccccc kk     i: list   c: class   k: kind
//! sticky     1 1 s iiiiiiiiiiiiiii 0000 cccccccc kk   s: second list of a port   i: port   c: class   k: kind
//! entry      1 1 s iiiiiiiiiiiiiii eeeeeeeeeeeeee     s: second list of a port   i: port   e: endpoint within the port
//! ```
//!
//! A list holds the endpoints of one service port (all, or those on this node). The class says how to draw from the list; without class
//! and kind the value is the key of the list. The two lists of a sticky port differ in one bit, and an endpoint of both has the same entry
//! in both: so the packet path gets from a client's entry in one list to its entry in the other. Since routes are plain data, no change to
//! a Service touches a verdict, and the kernel has nothing to validate.

/// Set in every route, to distinguish it from a real priority.
pub(crate) const MAGIC: u32 = 1 << 31;
/// Set in routes and entries of lists with session affinity.
const STICKY: u32 = 1 << 30;
/// The bit in which a sticky list and its sibling differ, and their entries too.
pub(crate) const SIBLING: u32 = 1 << 29;
/// The bits of the kind.
pub(crate) const KIND_MASK: u32 = 0b11;
/// The bits of the class.
pub(crate) const CLASS_MASK: u32 = 0xff << CLASS_SHIFT;
/// The bits that identify an ordinary list.
pub(crate) const LIST_MASK: u32 = !(CLASS_MASK | KIND_MASK);
/// The bits that identify a sticky list.
pub(crate) const STICKY_LIST_MASK: u32 = !0x3fff;
const CLASS_SHIFT: u32 = 2;
const LIST_SHIFT: u32 = 10;
const STICKY_SHIFT: u32 = 14;

/// How many ordinary lists there can be.
pub(crate) const LISTS: u32 = 1 << 20;
/// How many sticky service ports there can be, each with up to two lists.
pub(crate) const STICKY_PORTS: u32 = 1 << 15;
/// How many endpoints a sticky service port can have: entry 0 would be the key of the list itself.
pub(crate) const STICKY_ENTRIES: u16 = (1 << 14) - 1;

/// What happens to a packet before an endpoint is drawn: whose source address is masqueraded, and which list is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Masqueraded unless it comes from a pod.
    MasqueradeOthers = 0,
    /// Masqueraded.
    MasqueradeAll = 1,
    /// External policy Local: traffic that starts on this node uses another list, and that of host processes is masqueraded.
    SplitByOrigin = 2,
    /// Not masqueraded.
    MasqueradeNone = 3,
}

/// Identifies a list; also its key in the maps of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ListId(u32);

impl ListId {
    /// The ordinary list of this number.
    pub(crate) fn ordinary(number: u32) -> ListId {
        ListId(MAGIC | (number % LISTS) << LIST_SHIFT)
    }

    /// The first list of the sticky service port of this number.
    pub(crate) fn sticky(number: u32) -> ListId {
        ListId(MAGIC | STICKY | (number % STICKY_PORTS) << STICKY_SHIFT)
    }

    /// The other list of the same sticky service port.
    pub(crate) fn sibling(self) -> ListId {
        ListId(self.0 ^ SIBLING)
    }

    /// The sticky list of this key; `None` if the key belongs to something else.
    pub(crate) fn from_sticky_key(key: u32) -> Option<ListId> {
        (key & (MAGIC | STICKY) == MAGIC | STICKY && key & !STICKY_LIST_MASK == 0).then_some(ListId(key))
    }

    /// The ordinary list of this key.
    pub(crate) fn from_ordinary_key(key: u32) -> ListId {
        ListId(key & LIST_MASK)
    }

    pub(crate) fn is_sticky(self) -> bool {
        self.0 & STICKY != 0
    }

    /// The number of an ordinary list, or of the service port of a sticky list.
    pub(crate) fn number(self) -> u32 {
        if self.is_sticky() {
            (self.0 & !(MAGIC | STICKY | SIBLING)) >> STICKY_SHIFT
        } else {
            (self.0 & !MAGIC) >> LIST_SHIFT
        }
    }

    pub(crate) fn key(self) -> u32 {
        self.0
    }

    pub(crate) fn route(self, class: u8, kind: Kind) -> u32 {
        self.0 | u32::from(class) << CLASS_SHIFT | kind as u32
    }

    /// The entry of an endpoint in this list.
    pub(crate) fn entry(self, endpoint: u16) -> u32 {
        self.0 | u32::from(endpoint)
    }
}

/// A class as a part of a route.
pub(crate) fn class_bits(class: u8) -> u32 {
    u32::from(class) << CLASS_SHIFT
}

/// How many endpoints have a class of their own.
pub(crate) const EXACT: u32 = 8;
/// The classes above that are powers of two; this is the largest.
const LARGEST_POWER: u32 = 17;
/// The first class that belongs to session affinity.
pub(crate) const FIRST_STICKY_CLASS: u8 = 64;

/// How endpoints are drawn from a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Draw {
    /// The list has exactly this many.
    Exactly(u32),
    /// It has at most this many, a power of two, and more than half of it.
    UpTo(u32),
}

impl Draw {
    /// How to draw from this many endpoints; `None` for an empty list, or one that is too long.
    pub(crate) fn of(count: usize) -> Option<Draw> {
        let number = u32::try_from(count).ok()?;
        match number {
            0 => None,
            1..=EXACT => Some(Draw::Exactly(number)),
            _ => {
                Some(Draw::UpTo(number.checked_next_power_of_two()?)).filter(|_| number <= 1 << LARGEST_POWER)
            }
        }
    }

    /// How to draw for new clients of sticky lists: only powers of two, since each needs chains for each timeout.
    pub(crate) fn sticky(count: usize) -> Option<Draw> {
        let number = u32::try_from(count).ok().filter(|number| *number <= u32::from(STICKY_ENTRIES))?;
        (number > 0).then(|| Draw::UpTo(number.next_power_of_two()))
    }

    /// All ways to draw, in the order of their classes.
    pub(crate) fn all() -> impl Iterator<Item = Draw> {
        let exact = (1..=EXACT).map(Draw::Exactly);
        exact.chain((4..=LARGEST_POWER).map(|power| Draw::UpTo(1 << power)))
    }

    /// The class, which is never 0.
    pub(crate) fn class(self) -> u8 {
        let class = match self {
            Draw::Exactly(count) => count,
            Draw::UpTo(limit) => EXACT + limit.trailing_zeros() - 3,
        };
        u8::try_from(class).unwrap_or(u8::MAX)
    }

    /// Draws are below this number.
    pub(crate) fn modulus(self) -> u32 {
        match self {
            Draw::Exactly(count) | Draw::UpTo(count) => count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_distinct_and_leave_room_for_affinity() {
        let classes: Vec<u8> = Draw::all().map(Draw::class).collect();
        assert_eq!(classes, (1..=22).collect::<Vec<u8>>());
        assert!(classes.iter().all(|class| *class < FIRST_STICKY_CLASS));
        for draw in Draw::all() {
            assert_eq!(Draw::of(draw.modulus() as usize), Some(draw));
        }
    }

    #[test]
    fn a_list_above_the_exact_classes_fills_more_than_half_of_its_range() {
        for count in [9, 16, 17, 33, 64, 65, 100, 128, 129, 1000, 10_000, 70_000, 131_072] {
            let draw = Draw::of(count).unwrap();
            assert!(draw.modulus() as usize >= count && (draw.modulus() as usize / 2) < count, "{count}");
        }
        assert_eq!(Draw::of(0), None);
        assert_eq!(Draw::of(131_073), None);
    }

    #[test]
    fn the_parts_of_a_route_do_not_overlap() {
        let list = ListId::ordinary(LISTS - 1);
        let route = list.route(22, Kind::SplitByOrigin);
        assert_eq!(route & LIST_MASK, list.key());
        assert_eq!((route & CLASS_MASK, route & KIND_MASK), (class_bits(22), 2));
        assert_eq!(list.number(), LISTS - 1);
        let sticky = ListId::sticky(7);
        assert_eq!(sticky.route(200, Kind::MasqueradeOthers) & STICKY_LIST_MASK, sticky.key());
        assert_eq!(sticky.entry(STICKY_ENTRIES) & STICKY_LIST_MASK, sticky.key());
        assert_eq!(ListId::from_sticky_key(sticky.key()), Some(sticky));
        assert_eq!(ListId::from_sticky_key(list.key()), None);
        assert_eq!(sticky.number(), 7);
        let last = ListId::sticky(STICKY_PORTS - 1);
        assert_eq!((last.number(), last.sibling().number()), (STICKY_PORTS - 1, STICKY_PORTS - 1));
        assert_ne!(last.sibling(), last);
        assert_eq!(last.entry(9) ^ SIBLING, last.sibling().entry(9));
        assert_eq!(ListId::from_sticky_key(last.sibling().key()), Some(last.sibling()));
    }
}

//! What can go wrong, and when.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A new connection is closed at once.
    Refuse,
    /// A new connection is accepted and never answered.
    Mute,
    /// A new connection is greeted with noise instead of TLS or HTTP.
    Noise,
    /// A new connection gets a certificate of an unknown authority. Nothing happens without TLS.
    UntrustedCertificate,
    /// The connection is closed.
    Drop(When),
    /// The connection is reset.
    Reset(When),
    /// The connection stays open, and nothing goes through it any more in either direction.
    Freeze(When),
    /// The answer never comes, or never continues; everything else on the connection works.
    Silence(When),
    /// The answer comes late.
    Delay(Duration),
    /// The answer is an error.
    Status {
        /// The HTTP status code.
        code: u16,
        /// Seconds in `Retry-After`.
        retry_after: Option<u32>,
    },
    /// The answer is a web page, as something else at the server's address would send it.
    WebPage,
    /// The server claims not to have reached the version that is asked for.
    Behind,
    /// The version or page that is asked for is too old.
    Expired(GoneAs),
    /// The answer breaks off in the middle of this piece, as if a proxy on the way had crashed.
    Truncate(usize),
    /// The answer ends before this piece, as if that were all of it.
    End(usize),
    /// Instead of this piece comes something that makes no sense.
    Garbage(usize, Garbage),
    /// The answer comes in so many bytes at a time.
    Drip {
        /// How many.
        bytes: usize,
        /// With this time in between.
        every: Duration,
    },
}

/// When a fault strikes. Pieces are the events of a watch, or the items of a list after its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Instead of an answer.
    Answer,
    /// Instead of this piece of the answer.
    Piece(usize),
}

/// How the server says that a version is too old to watch from. Lists are always refused by status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoneAs {
    /// `410 Gone`.
    Status,
    /// `200 OK` and an `ERROR` event.
    Event,
}

/// How an answer makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Garbage {
    /// It cannot even be taken apart.
    Structure,
    /// A watch's frame is whole, and its content is noise. For a list it is the same as [`Garbage::Structure`].
    Content,
}

impl Fault {
    /// One of each, with parameters that hurt.
    pub fn examples() -> Vec<Fault> {
        let status = |code, retry_after| Fault::Status { code, retry_after };
        vec![
            Fault::Refuse,
            Fault::Mute,
            Fault::Noise,
            Fault::UntrustedCertificate,
            Fault::Drop(When::Answer),
            Fault::Drop(When::Piece(1)),
            Fault::Reset(When::Answer),
            Fault::Reset(When::Piece(1)),
            Fault::Freeze(When::Answer),
            Fault::Freeze(When::Piece(1)),
            Fault::Silence(When::Answer),
            Fault::Silence(When::Piece(1)),
            Fault::Delay(Duration::from_secs(20)),
            status(429, Some(1)),
            status(429, None),
            status(500, None),
            status(503, Some(2)),
            Fault::WebPage,
            Fault::Behind,
            Fault::Expired(GoneAs::Status),
            Fault::Expired(GoneAs::Event),
            Fault::Truncate(0),
            Fault::Truncate(2),
            Fault::End(0),
            Fault::End(2),
            Fault::Garbage(0, Garbage::Structure),
            Fault::Garbage(1, Garbage::Content),
            Fault::Drip { bytes: 64, every: Duration::from_millis(200) },
        ]
    }

    /// Whether it concerns new connections rather than requests.
    pub fn is_of_connections(self) -> bool {
        matches!(self, Fault::Refuse | Fault::Mute | Fault::Noise | Fault::UntrustedCertificate)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Refuse => f.write_str("connections refused"),
            Fault::Mute => f.write_str("connections never answered"),
            Fault::Noise => f.write_str("noise instead of TLS or HTTP"),
            Fault::UntrustedCertificate => f.write_str("untrusted certificate"),
            Fault::Drop(when) => write!(f, "closed {when}"),
            Fault::Reset(when) => write!(f, "reset {when}"),
            Fault::Freeze(when) => write!(f, "half-open {when}"),
            Fault::Silence(when) => write!(f, "silent {when}"),
            Fault::Delay(time) => write!(f, "late by {time:?}"),
            Fault::Status { code, retry_after: None } => write!(f, "status {code}"),
            Fault::Status { code, retry_after: Some(seconds) } => {
                write!(f, "status {code}, retry after {seconds} s")
            }
            Fault::WebPage => f.write_str("a web page"),
            Fault::Behind => f.write_str("version too large"),
            Fault::Expired(GoneAs::Status) => f.write_str("410 as status"),
            Fault::Expired(GoneAs::Event) => f.write_str("410 as event"),
            Fault::Truncate(piece) => write!(f, "truncated in piece {piece}"),
            Fault::End(piece) => write!(f, "ended before piece {piece}"),
            Fault::Garbage(piece, Garbage::Structure) => write!(f, "garbage for piece {piece}"),
            Fault::Garbage(piece, Garbage::Content) => write!(f, "garbage inside piece {piece}"),
            Fault::Drip { bytes, every } => write!(f, "{bytes} bytes every {every:?}"),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Answer => f.write_str("instead of an answer"),
            When::Piece(piece) => write!(f, "before piece {piece}"),
        }
    }
}

/// Something that can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion<'a> {
    /// A new connection.
    Connection,
    /// A request arrives, before it is answered.
    Request {
        /// How many came before it, since the schedule began.
        number: usize,
        /// The path without the query.
        path: &'a str,
        /// Whether it is a watch.
        watch: bool,
    },
}

/// Decides what goes wrong when.
pub struct Schedule {
    decide: Box<dyn FnMut(Occasion<'_>) -> Option<Fault> + Send>,
    requests: usize,
    /// What awaits the next connections.
    armed: VecDeque<Fault>,
}

impl Schedule {
    /// Nothing goes wrong.
    pub fn healthy() -> Schedule {
        Schedule::deciding(|_| None)
    }

    /// The same goes wrong every time.
    pub fn always(fault: Fault) -> Schedule {
        Schedule::deciding(move |_| Some(fault))
    }

    /// The same goes wrong with every request for a path.
    pub fn always_at(path: impl Into<String>, fault: Fault) -> Schedule {
        let wanted = path.into();
        Schedule::deciding(move |occasion| match occasion {
            Occasion::Request { path, .. } => (path == wanted).then_some(fault),
            Occasion::Connection => None,
        })
    }

    /// One entry for each request in turn, then nothing.
    pub fn script(faults: impl IntoIterator<Item = Option<Fault>>) -> Schedule {
        let faults: Vec<Option<Fault>> = faults.into_iter().collect();
        Schedule::deciding(move |occasion| match occasion {
            Occasion::Request { number, .. } => faults.get(number).copied().flatten(),
            Occasion::Connection => None,
        })
    }

    /// Each time one of these goes wrong with this probability. The same seed gives the same choices.
    pub fn random(seed: u64, probability: f64, faults: impl IntoIterator<Item = Fault>) -> Schedule {
        let (of_connections, of_requests): (Vec<Fault>, Vec<Fault>) =
            faults.into_iter().partition(|fault| fault.is_of_connections());
        let mut state = seed;
        Schedule::deciding(move |occasion| {
            let faults =
                if matches!(occasion, Occasion::Connection) { &of_connections } else { &of_requests };
            let chance = f64::from(u32::try_from(random(&mut state) >> 32).unwrap_or(0)) / 4_294_967_296.0;
            let choice = random(&mut state) % (faults.len() as u64).max(1);
            let choice = usize::try_from(choice).ok().and_then(|choice| faults.get(choice));
            choice.copied().filter(|_| chance < probability)
        })
    }

    /// Whatever this decides. A fault of connections that is decided on for a request closes that request's connection, and
    /// strikes the next one.
    pub fn deciding(decide: impl FnMut(Occasion<'_>) -> Option<Fault> + Send + 'static) -> Schedule {
        Schedule { decide: Box::new(decide), requests: 0, armed: VecDeque::new() }
    }

    pub(super) fn on_connection(&mut self) -> Option<Fault> {
        let decided = (self.decide)(Occasion::Connection).filter(|fault| fault.is_of_connections());
        self.armed.pop_front().or(decided)
    }

    pub(super) fn on_request(&mut self, path: &str, watch: bool) -> Option<Fault> {
        let number = self.requests;
        self.requests += 1;
        let fault = (self.decide)(Occasion::Request { number, path, watch })?;
        if !fault.is_of_connections() {
            return Some(fault);
        }
        if self.armed.is_empty() {
            self.armed.push_back(fault);
        }
        Some(Fault::Drop(When::Answer))
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// The next number of a sequence that a seed starts (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_followed_and_then_over() {
        let mut schedule = Schedule::script([None, Some(Fault::WebPage), Some(Fault::Mute)]);
        assert_eq!(schedule.on_connection(), None);
        assert_eq!(schedule.on_request("/a", false), None);
        assert_eq!(schedule.on_request("/a", true), Some(Fault::WebPage));
        assert_eq!(
            schedule.on_request("/a", true),
            Some(Fault::Drop(When::Answer)),
            "a new connection is needed"
        );
        assert_eq!(schedule.on_connection(), Some(Fault::Mute));
        assert_eq!(schedule.on_connection(), None);
        assert_eq!(schedule.on_request("/a", true), None);
    }

    #[test]
    fn chance_keeps_to_its_probability_and_its_seed() {
        let run = |seed| {
            let mut schedule = Schedule::random(seed, 0.3, Fault::examples());
            (0..1000).map(|_| schedule.on_request("/a", false)).collect::<Vec<_>>()
        };
        let faults = run(7);
        let struck = faults.iter().flatten().count();
        assert!((200..400).contains(&struck), "{struck}");
        assert_eq!(faults, run(7));
        assert_ne!(faults, run(8));
    }
}

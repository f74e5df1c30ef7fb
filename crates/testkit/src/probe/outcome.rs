//! What can become of a probe.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;

/// What became of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Answered(Answer),
    /// Turned away at once, before there was a connection.
    Refused(Refusal),
    /// Nothing came back in time.
    Dropped,
    /// Connected, and then reset before an answer.
    Reset,
    /// Connected, and then closed in good order without an answer.
    Closed,
    /// Connected, but no answer in time.
    Stalled,
    /// The network said that it cannot get there.
    Unreachable(Errno),
}

/// How a probe was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// By a TCP reset: what a closed port does, or a rule that rejects with a reset.
    Reset,
    /// By an ICMP message "port unreachable": what a closed UDP port does, or a rule that rejects.
    PortUnreachable,
}

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name of the host that answered.
    pub host: String,
    /// The address the server was reached at: the endpoint.
    pub endpoint: SocketAddr,
    /// The source address the server saw.
    pub source: SocketAddr,
    /// The source address the client believes to have.
    pub client: SocketAddr,
}

impl Answer {
    /// Whether the server saw the client's own address (ports may differ).
    pub fn kept_source(&self) -> bool {
        self.source.ip() == self.client.ip()
    }
}

impl Outcome {
    /// The answer, if there was one.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Outcome::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// The name of the host that answered.
    pub fn host(&self) -> Option<&str> {
        self.answer().map(|answer| answer.host.as_str())
    }

    /// The source address the server saw.
    pub fn source(&self) -> Option<IpAddr> {
        self.answer().map(|answer| answer.source.ip())
    }

    /// Whether a server answered.
    pub fn is_answered(&self) -> bool {
        self.answer().is_some()
    }

    /// Whether it was turned away at once, in whatever way.
    pub fn is_refused(&self) -> bool {
        matches!(self, Outcome::Refused(_))
    }

    /// One word for the kind of outcome, as scenarios and tallies use it.
    pub fn kind(&self) -> &'static str {
        match self {
            Outcome::Answered(_) => "answered",
            Outcome::Refused(_) => "refused",
            Outcome::Dropped => "dropped",
            Outcome::Reset => "reset",
            Outcome::Closed => "closed",
            Outcome::Stalled => "stalled",
            Outcome::Unreachable(_) => "unreachable",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Answered(answer) => write!(f, "{answer}"),
            Outcome::Refused(Refusal::Reset) => write!(f, "refused with a TCP reset"),
            Outcome::Refused(Refusal::PortUnreachable) => write!(f, "refused with ICMP port unreachable"),
            Outcome::Unreachable(error) => write!(f, "unreachable: {}", error.desc()),
            _ => f.write_str(self.kind()),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { host, endpoint, source, client } = self;
        write!(f, "answered by {host} at {endpoint}, which saw {source} (the client is {client})")
    }
}

//! What can go wrong between us and the kernel.

use crate::wire::Malformed;
use nix::errno::Errno;
use std::fmt;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed exchange with the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket could not be opened or set up.
    #[error("cannot {action} a {protocol} netlink socket{}", hint_for(*source))]
    Open {
        /// The step that failed: open, bind, ...
        action: &'static str,
        /// Which netlink protocol.
        protocol: &'static str,
        /// The kernel's reason.
        source: Errno,
    },
    /// The kernel did not grant a send buffer as large as the batch, which must go in one piece.
    #[error(
        "a netlink send buffer of {needed} bytes was refused (granted: {granted}): grant CAP_NET_ADMIN or \
         raise net.core.wmem_max"
    )]
    SendBuffer {
        /// Bytes of the batch.
        needed: usize,
        /// Bytes the kernel granted.
        granted: usize,
    },
    /// Sending failed before the kernel looked at the request.
    #[error("cannot send {bytes} bytes for {request}{}", hint_for(*source))]
    Send {
        /// What was asked for.
        request: &'static str,
        /// Size of the request.
        bytes: usize,
        /// The kernel's reason.
        source: Errno,
    },
    /// Receiving failed.
    #[error("cannot receive the answer to {request}")]
    Receive {
        /// What was asked for.
        request: &'static str,
        /// The kernel's reason.
        source: Errno,
    },
    /// The kernel did not answer in time.
    #[error("the kernel did not answer {request} in time")]
    Timeout {
        /// What was asked for.
        request: &'static str,
    },
    /// Answers were lost as the receive buffer was full: the outcome is not known and must be read back.
    #[error("answers to {request} were lost, the receive buffer was full: the outcome is unknown")]
    Overrun {
        /// What was asked for.
        request: &'static str,
    },
    /// A datagram was larger than the receive buffer.
    #[error("an answer to {request} of {bytes} bytes was cut off")]
    Truncated {
        /// What was asked for.
        request: &'static str,
        /// The datagram's size.
        bytes: usize,
    },
    /// The kernel refused a single request.
    #[error("the kernel refused {request}: {answer}")]
    Refused {
        /// What was asked for.
        request: String,
        /// What the kernel said.
        answer: Answer,
    },
    /// The kernel rejected a transaction; nothing of it took effect.
    #[error(transparent)]
    Rejected(Rejected),
    /// What was listed kept changing while it was listed.
    #[error("{request} was interrupted by changes {attempts} times in a row")]
    Interrupted {
        /// What was asked for.
        request: &'static str,
        /// How often it was tried.
        attempts: u32,
    },
    /// An operation does not fit into netlink's 64 KiB attributes.
    #[error("operation {operation} of the transaction is too large for netlink: {description}")]
    Oversize {
        /// Index of the operation.
        operation: usize,
        /// The operation in words.
        description: String,
    },
    /// The kernel's answer could not be understood.
    #[error("cannot read the answer to {request}")]
    Answer {
        /// What was asked for.
        request: &'static str,
        /// What was wrong with it.
        source: Malformed,
    },
}

impl Error {
    /// The kernel's error number, if it gave one; for a rejected transaction, that of the first failure.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { source, .. } | Self::Send { source, .. } | Self::Receive { source, .. } => {
                Some(*source)
            }
            Self::Refused { answer, .. } => Some(answer.errno),
            Self::Rejected(rejected) => rejected.failures.first().map(|failure| failure.answer.errno),
            _ => None,
        }
    }

    /// Whether the kernel said that what was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// Whether rights are missing.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(Errno::EPERM | Errno::EACCES))
    }
}

/// An error answer: the number and, where the kernel explains itself, its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The error number; [`Errno::UnknownErrno`] for a subsystem's private codes.
    pub errno: Errno,
    /// The number as the kernel sent it, positive. ipset has codes of its own above 4096.
    pub code: i32,
    /// The kernel's own words.
    pub text: Option<String>,
    /// Offset of the offending attribute within the request message.
    pub offset: Option<u32>,
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) if self.errno == Errno::UnknownErrno => {
                write!(formatter, "{text} (code {})", self.code)
            }
            Some(text) => write!(formatter, "{text} ({})", self.errno),
            None if self.errno == Errno::UnknownErrno => write!(formatter, "code {}", self.code),
            None => write!(formatter, "{}", self.errno),
        }
    }
}

impl Answer {
    /// The answer with the number that the kernel sent, which is negative.
    pub(crate) fn from_code(code: i32) -> Self {
        let code = code.checked_neg().unwrap_or(i32::MAX);
        Self { errno: Errno::from_raw(code), code, text: None, offset: None }
    }
}

/// Why the kernel rejected a transaction. It took nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Every error answer, in the order of the transaction; never empty.
    pub failures: Vec<Failure>,
}

/// One error answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The part of the transaction that was refused.
    pub part: FailedPart,
    /// The kernel's error and its extended acknowledgement.
    pub answer: Answer,
}

/// The part of a transaction that an error answer is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailedPart {
    /// The transaction as a whole, for example a loop of chains or a generation that moved on.
    Whole,
    /// One operation.
    Operation {
        /// Index of the operation in the transaction.
        index: usize,
        /// Index of the element within the operation, if the kernel pointed at one.
        element: Option<usize>,
        /// The object in nft's words.
        description: String,
    },
}

impl FailedPart {
    /// Index of the operation, unless the whole transaction is meant.
    pub fn operation(&self) -> Option<usize> {
        match self {
            Self::Whole => None,
            Self::Operation { index, .. } => Some(*index),
        }
    }
}

impl std::error::Error for Rejected {}

impl fmt::Display for Rejected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the kernel rejected the nftables transaction")?;
        const SHOWN: usize = 3;
        for (index, failure) in self.failures.iter().take(SHOWN).enumerate() {
            formatter.write_str(if index == 0 { ": " } else { "; " })?;
            write!(formatter, "{failure}")?;
        }
        match self.failures.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(formatter, "; and {more} more"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            FailedPart::Whole => write!(formatter, "{}{}", self.answer, hint_for(self.answer.errno)),
            FailedPart::Operation { description, .. } => write!(formatter, "{description}: {}", self.answer),
        }
    }
}

fn hint_for(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES => ": run as root or grant CAP_NET_ADMIN",
        Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP => ": this kernel lacks it",
        Errno::ERESTART => ": the ruleset has changed meanwhile",
        _ => "",
    }
}

//! What `iptables-restore` reads, and what it says when it refuses.

mod input;
mod rejected_lines;
mod transaction;

use portwarden_model::NamespacedName;

use crate::error::{Error, hint};
use crate::process::Finished;

pub(crate) use input::{Input, announce};
pub use transaction::{Section, Transaction, count_lines};

use input::Line;

/// Why a transaction was not committed, or only in part.
#[derive(Debug)]
pub enum RestoreError {
    /// These lines were rejected; there is at least one.
    Lines(Vec<RejectedLine>),
    /// Anything else.
    Other(Error),
}

/// A line that `iptables-restore` rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLine {
    /// Its number; the first is 1.
    pub number: usize,
    /// The line without its end.
    pub text: String,
    /// The program's message.
    pub message: String,
    /// What has to be left out for the rest to be accepted.
    pub culprit: Culprit,
    /// Whether a part of the transaction had been committed before.
    pub partly_committed: bool,
}

/// What a rejected line is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Culprit {
    /// A rule of this Service.
    Service(NamespacedName),
    /// The deletion of this chain.
    Deletion(String),
    /// Nothing that could be left out.
    Unknown,
}

impl RejectedLine {
    /// The line, the message, and advice where the cause is known.
    pub fn reason(&self) -> String {
        format!("iptables-restore refused `{}`: {}{}", self.text, self.message, hint(&self.message))
    }
}

/// The result of a restore; `input` is what the program read, if that much is known.
pub(crate) fn outcome(finished: &Finished, input: Option<&Input<'_>>) -> Result<(), RestoreError> {
    let Err(error) = finished.successful() else { return Ok(()) };
    if let (Error::Failed { .. }, Some(input)) = (&error, input) {
        let lines = rejected_lines::parse(&finished.errors);
        if !lines.is_empty() {
            return Err(RestoreError::Lines(lines.into_iter().map(|line| explain(line, input)).collect()));
        }
    }
    Err(RestoreError::Other(error))
}

/// Finds out what a rejected line is about.
fn explain((number, message): (usize, String), input: &Input<'_>) -> RejectedLine {
    let (line, partly_committed) = input.line(number).unwrap_or((Line::Frame, true));
    let (text, culprit) = match line {
        Line::Rule { text, owner: Some(owner) } => (text.to_owned(), Culprit::Service(owner.clone())),
        Line::Rule { text, owner: None } => (text.to_owned(), Culprit::Unknown),
        Line::Delete { chain } => (format!("-X {chain}"), Culprit::Deletion(chain.to_owned())),
        Line::Chain { name } => (format!(":{name}"), Culprit::Unknown),
        Line::Frame => ("COMMIT".to_owned(), Culprit::Unknown),
    };
    RejectedLine { number, text, message, culprit, partly_committed }
}

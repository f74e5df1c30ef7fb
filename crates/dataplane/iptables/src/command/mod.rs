//! The iptables programs of one family: what we ask them, and how their answers are understood.

mod process;
mod restore_error;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use portwarden_model::{Family, NamespacedName};

use crate::error::Error;
use crate::input::{Input, Line, announce};
use crate::saved::{Reader, Saved};
use crate::table::Table;
use crate::transaction::Transaction;

use process::{Finished, Process};

pub(crate) use process::was_started_here;

/// Seconds that the programs wait for the lock of the legacy variant.
const LOCK_WAIT: &str = "5";

/// Time for anything but a restore. Only a program that hangs needs it.
const LIMIT: Duration = Duration::from_secs(300);

/// More time for each line of a restore: old kernels take milliseconds for a rule when tables are large.
const LIMIT_PER_LINE: Duration = Duration::from_millis(5);

/// Chains that the nf_tables variant gets in one step. Its time grows with the square of them, and each step takes a moment too.
const NFT_CHAINS_PER_STEP: usize = 250;

/// Which of the two implementations of iptables is used. They are different objects in the kernel and do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// Whichever `iptables` in PATH is.
    #[default]
    FromPath,
    /// The one on top of nf_tables.
    Nft,
    /// The old one.
    Legacy,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::FromPath => "iptables",
            Variant::Nft => "iptables-nft",
            Variant::Legacy => "iptables-legacy",
        })
    }
}

/// The programs of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    iptables: PathBuf,
    save: PathBuf,
    restore: PathBuf,
    environment: Vec<(OsString, OsString)>,
    limit: Duration,
    chains_per_step: usize,
}

/// Why a restore did not happen.
#[derive(Debug)]
pub enum RestoreError {
    /// These lines were refused; there is at least one.
    Lines(Vec<RejectedLine>),
    /// Anything else.
    Other(Error),
}

/// A line that `iptables-restore` refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLine {
    /// Its number; the first is 1.
    pub number: usize,
    /// The line.
    pub text: String,
    /// Why.
    pub message: String,
    /// What has to be left out for the rest to be accepted.
    pub culprit: Culprit,
    /// Whether a part of the transaction had been committed before.
    pub partly_committed: bool,
}

/// What a refused line is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Culprit {
    /// A rule of this Service.
    Service(NamespacedName),
    /// The removal of this chain.
    Deletion(String),
    /// Nothing that could be left out.
    Nobody,
}

/// Whether something is in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    Present,
    /// It is not.
    Absent,
    /// Nobody could tell just now.
    Unknown,
}

impl Programs {
    /// The programs of a variant, looked up in PATH.
    pub fn new(family: Family, variant: Variant) -> Self {
        let stem = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let stem = match variant {
            Variant::FromPath => stem.to_owned(),
            Variant::Nft => format!("{stem}-nft"),
            Variant::Legacy => format!("{stem}-legacy"),
        };
        Programs {
            save: format!("{stem}-save").into(),
            restore: format!("{stem}-restore").into(),
            iptables: stem.into(),
            environment: Vec::new(),
            limit: LIMIT,
            chains_per_step: usize::MAX,
        }
    }

    /// The same programs in one folder instead of PATH.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        for program in [&mut self.iptables, &mut self.save, &mut self.restore] {
            *program = folder.join(&*program);
        }
        self
    }

    /// Sets a variable in the environment of the programs.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Gives the programs another time to end; a restore gets more, by its size.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Whether the family can be used at all: the programs run, and the kernel has the nat table.
    pub fn check(&self) -> Result<(), Error> {
        self.iptables(&["-S", "POSTROUTING", "-t", "nat"])?.successful()
    }

    /// Finds out which variant the programs are, and suits it.
    pub fn find_variant(&mut self) -> Result<Variant, Error> {
        let version =
            Process::new(&self.iptables, &["--version"], &self.environment).run(self.limit, None)?;
        let variant =
            if version.into_output()?.contains("nf_tables") { Variant::Nft } else { Variant::Legacy };
        self.chains_per_step = if variant == Variant::Nft { NFT_CHAINS_PER_STEP } else { usize::MAX };
        Ok(variant)
    }

    /// Makes a chain; tells whether it was not there before.
    pub fn new_chain(&self, table: Table, chain: &str) -> Result<bool, Error> {
        let finished = self.iptables(&["-N", chain, "-t", table.as_str()])?;
        if finished.code == Some(1) { Ok(false) } else { finished.successful().map(|()| true) }
    }

    /// Whether a chain exists.
    pub fn has_chain(&self, table: Table, chain: &str) -> Result<Presence, Error> {
        let finished = self.iptables(&["-S", chain, "-t", table.as_str()])?;
        Ok(match finished.code {
            Some(0) => Presence::Present,
            // A resource problem, such as a lock that was not to be had: it says nothing about the chain.
            Some(4) => Presence::Unknown,
            _ => Presence::Absent,
        })
    }

    /// Removes an empty chain.
    pub fn delete_chain(&self, table: Table, chain: &str) -> Result<(), Error> {
        self.iptables(&["-X", chain, "-t", table.as_str()])?.successful()
    }

    /// Whether a chain has a rule.
    pub fn has_rule(&self, table: Table, chain: &str, rule: &[&str]) -> Result<bool, Error> {
        let arguments = [&["-C", chain, "-t", table.as_str()], rule].concat();
        let finished = self.iptables(&arguments)?;
        if finished.code == Some(1) || finished.tells_absence() {
            return Ok(false);
        }
        finished.successful().map(|()| true)
    }

    /// Removes a rule if it is there.
    pub fn delete_rule(&self, table: Table, chain: &str, rule: &[&str]) -> Result<(), Error> {
        if !self.has_rule(table, chain, rule)? {
            return Ok(());
        }
        let arguments = [&["-D", chain, "-t", table.as_str()], rule].concat();
        let finished = self.iptables(&arguments)?;
        if finished.tells_absence() { Ok(()) } else { finished.successful() }
    }

    /// The chains and rules of a table as text.
    pub fn save(&self, table: Table) -> Result<String, Error> {
        let arguments = ["-t", table.as_str()];
        Process::new(&self.save, &arguments, &self.environment).run(self.limit, None)?.into_output()
    }

    /// The chains and rules of a table, taken in while they are printed.
    pub fn read(&self, table: Table) -> Result<Saved, Error> {
        let arguments = ["-t", table.as_str()];
        let mut reader = Reader::default();
        Process::new(&self.save, &arguments, &self.environment)
            .stream(self.limit, None, &mut |piece| reader.push(piece))?
            .successful()?;
        Ok(reader.finish())
    }

    /// Carries out a transaction.
    pub fn restore(&self, transaction: &Transaction) -> Result<(), RestoreError> {
        let input = Input::new(transaction, self.chains_per_step);
        let finished = self.run_restore(transaction.len(), Box::new(|stdin| input.write_to(stdin)))?;
        outcome(&finished, Some(&input))
    }

    /// Carries out a transaction that is rendered while the program makes its chains. `chains` are all that it makes in the nat table.
    pub(crate) fn restore_announced(
        &self,
        mut chains: Vec<&str>,
        render: impl FnOnce() -> Transaction + Send,
    ) -> Result<Transaction, RestoreError> {
        // Two rules of an endpoint's own, and two that may lead to it.
        let lines = chains.len().saturating_mul(4);
        let rendered = OnceLock::new();
        let write = |stdin: &mut dyn Write| {
            announce(&mut chains, stdin)?;
            Input::announced(rendered.get_or_init(render)).write_rest(stdin)
        };
        let finished = self.run_restore(lines, Box::new(write))?;
        outcome(&finished, rendered.get().map(Input::announced).as_ref())?;
        rendered.into_inner().ok_or_else(|| RestoreError::Other(finished.unread()))
    }

    /// Whether a transaction goes to the program in one piece.
    pub(crate) fn takes_all_at_once(&self) -> bool {
        self.chains_per_step == usize::MAX
    }

    fn run_restore(&self, lines: usize, write: process::Input<'_>) -> Result<Finished, RestoreError> {
        let lines = u32::try_from(lines).unwrap_or(u32::MAX);
        let limit = self.limit + LIMIT_PER_LINE.saturating_mul(lines);
        let arguments = ["-w", LOCK_WAIT, "--noflush", "--counters"];
        let process = Process::new(&self.restore, &arguments, &self.environment);
        process.run(limit, Some(write)).map_err(RestoreError::Other)
    }

    /// The error for refused lines, with the first of them in full.
    pub(crate) fn rejection(&self, lines: &[RejectedLine]) -> Error {
        let program = self.restore.display().to_string();
        match lines.first() {
            Some(RejectedLine { number, text, message, .. }) => {
                Error::Rejected { program, number: *number, text: text.clone(), message: message.clone() }
            }
            None => Error::Rejected { program, number: 0, text: String::new(), message: String::new() },
        }
    }

    fn iptables(&self, arguments: &[&str]) -> Result<Finished, Error> {
        let arguments = [&["-w", LOCK_WAIT], arguments].concat();
        Process::new(&self.iptables, &arguments, &self.environment).run(self.limit, None)
    }
}

/// What became of a restore; `input` is what the program read, if that much is known.
fn outcome(finished: &Finished, input: Option<&Input<'_>>) -> Result<(), RestoreError> {
    let Err(error) = finished.successful() else { return Ok(()) };
    if let (Error::Failed { .. }, Some(input)) = (&error, input) {
        let lines = restore_error::rejected_lines(&finished.errors);
        if !lines.is_empty() {
            return Err(RestoreError::Lines(lines.into_iter().map(|line| explain(line, input)).collect()));
        }
    }
    Err(RestoreError::Other(error))
}

/// Finds out what a refused line is about.
fn explain((number, message): (usize, String), input: &Input<'_>) -> RejectedLine {
    let (line, partly_committed) = input.line(number).unwrap_or((Line::Frame, true));
    let (text, culprit) = match line {
        Line::Rule { text, owner: Some(owner) } => (text.to_owned(), Culprit::Service(owner.clone())),
        Line::Rule { text, owner: None } => (text.to_owned(), Culprit::Nobody),
        Line::Delete { chain } => (format!("-X {chain}"), Culprit::Deletion(chain.to_owned())),
        Line::Chain { name } => (format!(":{name}"), Culprit::Nobody),
        Line::Frame => ("COMMIT".to_owned(), Culprit::Nobody),
    };
    RejectedLine { number, text, message, culprit, partly_committed }
}

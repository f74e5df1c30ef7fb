//! The iptables programs of one family: how they are called, and what their answers mean.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use portwarden_model::Family;

use crate::children::Children;
use crate::error::Error;
use crate::process::{self, Finished, Process};
use crate::restore::{self, Input, RejectedLine, RestoreError, Transaction};
use crate::save::{SaveReader, SavedTable, SavedTables, TablesReader};
use crate::table::Table;

/// Where programs are looked for, in this order.
const FOLDERS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Seconds that the programs wait for the xtables lock, which the legacy ones share.
const LOCK_WAIT: &str = "5";

/// After this time any program but a restore is killed. Only one that hangs needs it.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A restore gets this much more per line: old kernels take milliseconds for a rule when tables are large.
const TIMEOUT_PER_LINE: Duration = Duration::from_millis(5);

/// How many chains the nft variant gets in one step. Its time grows with their square, but each step has a cost of its own.
const NFT_CHAINS_PER_STEP: usize = 250;

/// The implementation of iptables. The two keep their rules in different places of the kernel, and neither sees the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// The one that `iptables` without a suffix stands for on this node.
    #[default]
    Installed,
    /// On top of nf_tables.
    Nft,
    /// On top of the older ip_tables and ip6_tables.
    Legacy,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Installed => "iptables",
            Variant::Nft => "iptables-nft",
            Variant::Legacy => "iptables-legacy",
        })
    }
}

/// The programs of one family. Clones share the list of programs that run.
#[derive(Debug, Clone)]
pub struct Programs {
    family: Family,
    iptables: PathBuf,
    save: PathBuf,
    restore: PathBuf,
    environment: Vec<(OsString, OsString)>,
    timeout: Duration,
    chains_per_step: usize,
    chain_level: Option<fn(&str) -> u8>,
    children: Arc<Children>,
}

/// Whether something is in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words say it")]
pub enum Presence {
    Present,
    Absent,
    /// The program could not find out this time, for example because of the xtables lock.
    Unknown,
}

impl Programs {
    /// The programs of a family and variant, from the folders of root's usual PATH. PATH itself does not matter: it is inherited
    /// from a caller who may not be trusted to choose programs that run with our rights.
    pub fn new(family: Family, variant: Variant) -> Self {
        let stem = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let stem = match variant {
            Variant::Installed => stem.to_owned(),
            Variant::Nft => format!("{stem}-nft"),
            Variant::Legacy => format!("{stem}-legacy"),
        };
        Programs {
            family,
            save: locate(&format!("{stem}-save")),
            restore: locate(&format!("{stem}-restore")),
            iptables: locate(&stem),
            // For what they start themselves: modprobe, or the program that a wrapper script chooses.
            environment: vec![("PATH".into(), FOLDERS.join(":").into())],
            timeout: TIMEOUT,
            chains_per_step: usize::MAX,
            chain_level: None,
            children: Arc::default(),
        }
    }

    /// The family whose rules they change.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The same programs, taken from one folder.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        for program in [&mut self.iptables, &mut self.save, &mut self.restore] {
            *program = folder.join(program.file_name().unwrap_or_default());
        }
        self
    }

    /// Sets a variable in the environment of the programs.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the time after which a program is killed; a restore gets more, by its size.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Lets the nft variant take large transactions of the nat table in several steps, which is much faster. `level` orders the
    /// chains: a chain leads only to chains of lower levels, so that each step leaves the table whole. Without it a table always
    /// changes in one step. Takes effect with [`detect_variant`](Self::detect_variant).
    pub fn split_by_level(mut self, level: fn(&str) -> u8) -> Self {
        self.chain_level = Some(level);
        self
    }

    /// The command lines of the programs that are running.
    pub fn running(&self) -> Vec<String> {
        self.children.running()
    }

    /// Kills the programs that are running, and all that would be started later: they end with [`Error::Stopped`].
    pub fn kill_all(&self) {
        self.children.kill_all();
    }

    /// Whether the family can be used at all: the programs run, and the kernel has the nat table.
    pub fn check(&self) -> Result<(), Error> {
        self.iptables(&["-S", "POSTROUTING", "-t", "nat"])?.successful()
    }

    /// Asks the programs which variant they are, and adapts to it.
    pub fn detect_variant(&mut self) -> Result<Variant, Error> {
        let version = self.process(&self.iptables, &["--version"]).run(self.timeout, None)?;
        let variant =
            if version.into_output()?.contains("nf_tables") { Variant::Nft } else { Variant::Legacy };
        let splits = variant == Variant::Nft && self.chain_level.is_some();
        self.chains_per_step = if splits { NFT_CHAINS_PER_STEP } else { usize::MAX };
        Ok(variant)
    }

    /// Creates a chain; false if it existed.
    pub fn create_chain(&self, table: Table, chain: &str) -> Result<bool, Error> {
        let finished = self.iptables(&["-N", chain, "-t", table.as_str()])?;
        if finished.code == Some(1) { Ok(false) } else { finished.successful().map(|()| true) }
    }

    /// Whether a chain exists.
    pub fn has_chain(&self, table: Table, chain: &str) -> Result<Presence, Error> {
        let finished = self.iptables(&["-S", chain, "-t", table.as_str()])?;
        Ok(match finished.code {
            Some(0) => Presence::Present,
            // A resource problem, such as a lock that another process holds: it says nothing about the chain.
            Some(4) => Presence::Unknown,
            _ => Presence::Absent,
        })
    }

    /// Deletes an empty chain.
    pub fn delete_chain(&self, table: Table, chain: &str) -> Result<(), Error> {
        self.iptables(&["-X", chain, "-t", table.as_str()])?.successful()
    }

    /// Whether a chain has a rule, given as arguments of `iptables -C`. False if the chain or the rule's target does not exist.
    pub fn has_rule(&self, table: Table, chain: &str, rule: &[&str]) -> Result<bool, Error> {
        let arguments = [&["-C", chain, "-t", table.as_str()], rule].concat();
        let finished = self.iptables(&arguments)?;
        if finished.code == Some(1) || finished.means_absent() {
            return Ok(false);
        }
        finished.successful().map(|()| true)
    }

    /// Deletes a rule, given as arguments of `iptables -D`, if it exists.
    pub fn delete_rule(&self, table: Table, chain: &str, rule: &[&str]) -> Result<(), Error> {
        if !self.has_rule(table, chain, rule)? {
            return Ok(());
        }
        let arguments = [&["-D", chain, "-t", table.as_str()], rule].concat();
        let finished = self.iptables(&arguments)?;
        if finished.means_absent() { Ok(()) } else { finished.successful() }
    }

    /// Puts a rule, given as arguments of `iptables -I`, at the front of a chain, whether it exists or not.
    pub fn insert_rule(&self, table: Table, chain: &str, rule: &[&str]) -> Result<(), Error> {
        self.iptables(&[&["-I", chain, "-t", table.as_str()], rule].concat())?.successful()
    }

    /// The chains and rules of a table, parsed while they are printed. Of chains for which `keep_text` is false only a fingerprint
    /// is kept.
    pub fn save(&self, table: Table, keep_text: fn(&str) -> bool) -> Result<SavedTable, Error> {
        let mut reader = SaveReader::new(keep_text);
        self.process(&self.save, &["-t", table.as_str()])
            .stream(self.timeout, None, &mut |piece| reader.push(piece))?
            .successful()?;
        Ok(reader.finish())
    }

    /// The chains and rules of all tables that the kernel has, by one program. Of chains for which `keep_text` is false only a fingerprint
    /// is kept.
    pub fn save_all(&self, keep_text: fn(&str) -> bool) -> Result<SavedTables, Error> {
        let mut reader = TablesReader::new(keep_text);
        self.process(&self.save, &[])
            .stream(self.timeout, None, &mut |piece| reader.push(piece))?
            .successful()?;
        Ok(reader.finish())
    }

    /// Commits a transaction, without flushing what it does not name. An empty one runs nothing.
    pub fn restore(&self, transaction: &Transaction) -> Result<(), RestoreError> {
        if transaction.is_empty() {
            return Ok(());
        }
        let input = Input::new(transaction, self.chains_per_step, self.chain_level);
        let finished = self.run_restore(transaction.len(), Box::new(|stdin| input.write_to(stdin)))?;
        restore::outcome(&finished, Some(&input))
    }

    /// Commits a transaction that is rendered while the program creates its chains. `chains` are all that it has in the nat table.
    pub fn restore_while_rendering(
        &self,
        mut chains: Vec<&str>,
        render: impl FnOnce() -> Transaction + Send,
    ) -> Result<Transaction, RestoreError> {
        // Two rules of an endpoint's own, and two that may lead to it.
        let lines = chains.len().saturating_mul(4);
        let rendered = OnceLock::new();
        let write = |stdin: &mut dyn Write| {
            restore::announce(&mut chains, stdin)?;
            Input::announced(rendered.get_or_init(render)).write_rest(stdin)
        };
        let finished = self.run_restore(lines, Box::new(write))?;
        restore::outcome(&finished, rendered.get().map(Input::announced).as_ref())?;
        rendered.into_inner().ok_or_else(|| RestoreError::Other(finished.unread()))
    }

    /// Whether transactions are committed in several steps, see [`split_by_level`](Self::split_by_level).
    pub fn splits_transactions(&self) -> bool {
        self.chains_per_step != usize::MAX
    }

    fn run_restore(&self, lines: usize, write: process::Input<'_>) -> Result<Finished, RestoreError> {
        let lines = u32::try_from(lines).unwrap_or(u32::MAX);
        let timeout = self.timeout + TIMEOUT_PER_LINE.saturating_mul(lines);
        let process = self.process(&self.restore, &["-w", LOCK_WAIT, "--noflush", "--counters"]);
        process.run(timeout, Some(write)).map_err(RestoreError::Other)
    }

    /// The error for rejected lines, with the first of them in full.
    pub fn rejection(&self, lines: &[RejectedLine]) -> Error {
        let program = self.restore.display().to_string();
        match lines.first() {
            Some(RejectedLine { number, text, message, .. }) => {
                Error::Rejected { program, number: *number, text: text.clone(), message: message.clone() }
            }
            None => Error::Rejected { program, number: 0, text: String::new(), message: String::new() },
        }
    }

    pub(crate) fn children(&self) -> &Children {
        &self.children
    }

    fn iptables(&self, arguments: &[&str]) -> Result<Finished, Error> {
        let arguments = [&["-w", LOCK_WAIT], arguments].concat();
        self.process(&self.iptables, &arguments).run(self.timeout, None)
    }

    fn process<'a>(&'a self, program: &'a Path, arguments: &'a [&'a str]) -> Process<'a> {
        Process::new(program, arguments, &self.environment, &self.children)
    }
}

/// The path of a program. One that is in none of the folders gets a path at which there is nothing: the start fails and says so.
fn locate(name: &str) -> PathBuf {
    let mut candidates = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    candidates.find(|path| path.exists()).unwrap_or_else(|| Path::new("/usr/sbin").join(name))
}

//! The command line: kube-proxy's, to the letter, and a few flags of our own.
//!
//! kube-proxy's command line has rules that general-purpose parsers do not know (a boolean takes a value only after `=`, a
//! repeated list is appended, underscores stand for dashes, an empty address changes nothing), so there is a small parser
//! of our own. The flags themselves are in the table of [options](crate::config::options).
//!
//! | file | what |
//! |---|---|
//! | `parse.rs` | arguments to flags |
//! | `text.rs` | Go's syntax of numbers and lists |
//! | `help.rs` | `--help` |
//! | `version.rs` | `--version` |

mod help;
mod parse;
pub(crate) mod text;
mod version;

pub use help::usage;
pub(crate) use help::wrap;
pub use parse::{FlagError, Invocation, Parsed, parse};
pub(crate) use parse::{distance, parse_command};
pub use version::{KUBERNETES_MINOR, VersionRequest, reported_version};

use crate::config::options::{
    self, CLEANUP, CONFIG, INIT_ONLY, Row, VERSION, Value, Values, WRITE_CONFIG_TO,
};

/// Under which name the program was called, which decides which command line it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// As a stand-in for kube-proxy: exactly its flags.
    KubeProxy,
    /// Under our own name: kube-proxy's flags and ours.
    Portwarden,
}

impl Program {
    /// Judges by the last part of the path the program was called with, such as a symlink's name.
    pub fn from_path(called_as: &str) -> Self {
        match called_as.rsplit('/').next() {
            Some("kube-proxy") => Program::KubeProxy,
            _ => Program::Portwarden,
        }
    }

    /// The name to use in messages.
    pub fn name(self) -> &'static str {
        match self {
            Program::KubeProxy => "kube-proxy",
            Program::Portwarden => "portwarden",
        }
    }

    /// Every flag that the program knows under this name, with its place in the table of options.
    pub(crate) fn flags(self) -> impl Iterator<Item = (usize, &'static Row)> {
        options::flags().filter(move |(_, row)| !row.own || self == Program::Portwarden)
    }
}

/// The flags that were given; defaults are not applied here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flags {
    /// What each was set to.
    pub values: Values,
}

/// What the program was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write the effective configuration to this path and end.
    WriteConfig(String),
    /// Remove every rule of every mode and end.
    Cleanup,
    /// Prepare the node and end.
    InitOnly,
    /// Run.
    Run,
}

impl Flags {
    /// The one thing to do: writing the configuration wins over cleaning up, which wins over preparing only.
    pub fn action(&self) -> Action {
        match self.values.get(WRITE_CONFIG_TO) {
            path if !path.is_empty() => Action::WriteConfig(path),
            _ if self.values.get(CLEANUP) => Action::Cleanup,
            _ if self.values.get(INIT_ONLY) => Action::InitOnly,
            _ => Action::Run,
        }
    }

    /// The path of the configuration file, if one was named.
    pub fn config_file(&self) -> Option<&str> {
        Some(self.values.text(CONFIG)).filter(|path| !path.is_empty())
    }

    /// What `--version` asked for, if it was given.
    pub fn version(&self) -> Option<&VersionRequest> {
        match self.values.value(VERSION) {
            Some(Value::Version(request)) => Some(request),
            _ => None,
        }
    }

    /// Every flag with its value in order of name, as `/flagz` and the log at start show them.
    pub fn listing(&self, program: Program) -> Vec<(&'static str, String)> {
        let shown = |(index, row): (usize, &'static Row)| {
            (row.flag, self.values.at(index).map_or_else(|| row.shown_default(), Value::to_text))
        };
        let mut listing: Vec<_> = program.flags().map(shown).collect();
        listing.sort_unstable_by_key(|(name, _)| *name);
        listing
    }

    /// The names of flags that were given although a configuration file makes them void.
    pub fn void_because_of_file(&self, program: Program) -> Vec<&'static str> {
        self.void(program).map(|(_, flag)| flag).collect()
    }

    /// The flags that count also where a file is given.
    pub(crate) fn beside_file(&self, program: Program) -> Flags {
        let mut flags = self.clone();
        self.void(program).for_each(|(index, _)| flags.values.set_at(index, None));
        flags
    }

    fn void(&self, program: Program) -> impl Iterator<Item = (usize, &'static str)> {
        program
            .flags()
            .filter(|(index, row)| !row.beside_file && self.values.at(*index).is_some())
            .map(|(index, row)| (index, row.flag))
    }
}

#[cfg(test)]
mod tests;

//! The command line: kube-proxy's, to the letter, and a few flags of our own.
//!
//! kube-proxy's command line has rules that general-purpose parsers do not know (a boolean takes a value only after `=`, a
//! repeated list is appended, underscores stand for dashes, an empty address changes nothing), so there is a small parser
//! of our own, driven by one table.
//!
//! | file | what |
//! |---|---|
//! | `written.rs` | [`Flags`]: what was given, every field optional |
//! | `table.rs` | every flag: name, type, default, help |
//! | `parse.rs` | arguments to flags |
//! | `value.rs`, `text.rs` | one value, by type; Go's number and list syntax |
//! | `help.rs` | `--help` |
//! | `version.rs` | `--version` |

mod help;
mod parse;
mod table;
mod text;
mod value;
mod version;
mod written;

pub use help::usage;
pub use parse::{FlagError, Invocation, Parsed, parse};
pub use version::{REFERENCE_MINOR, VersionRequest, reported_version};
pub use written::{Action, Flags};

use table::all;

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
}

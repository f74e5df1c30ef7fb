//! Why a sync or the construction of the dataplane failed.

use std::io;

use portwarden_model::Family;

/// All but [`Error::MasqueradeBit`] may be over at the next attempt.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The option is out of range.
    #[error("the masquerade bit must be one of 0 to 31, not {0}: packet marks have 32 bits")]
    MasqueradeBit(u32),
    /// One of the iptables programs failed.
    #[error(transparent)]
    Programs(#[from] portwarden_xtables::Error),
    /// A kernel setting could not be written.
    #[error(
        "cannot write {value} to {path}: node ports on loopback addresses need it; run with enough rights and a writable /proc/sys, or set iptables.localhostNodePorts to false"
    )]
    Sysctl {
        /// The file below `/proc/sys`.
        path: String,
        /// The value it should have.
        value: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A sync has not ended while its caller waited. It goes on in the background.
    #[error(
        "{family} rules are still being written{}; the other family is served meanwhile",
        running(commands)
    )]
    StillRunning {
        /// The family whose rules they are.
        family: Family,
        /// The programs that run.
        commands: Vec<String>,
    },
    /// No thread could be started for a sync.
    #[error("cannot start a thread; check the limit of processes and threads")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// The dataplane was not made for this family.
    #[error("this dataplane does not serve {0}")]
    NotServed(Family),
}

/// Everything that went wrong while cleaning up.
#[derive(Debug, thiserror::Error)]
#[error("{} of the clean-up's steps failed: {}", .0.len(), list(.0))]
pub struct CleanupError(pub Vec<portwarden_xtables::Error>);

fn running(commands: &[String]) -> String {
    match commands {
        [] => String::new(),
        [command, ..] => format!(" (`{command}` runs)"),
    }
}

fn list(errors: &[portwarden_xtables::Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

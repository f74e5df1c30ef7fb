//! What can go wrong between us and the iptables programs.

use std::io;
use std::time::Duration;

/// Why something did not happen. All but [`Error::MasqueradeBit`] may be over at the next try.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The option makes no sense.
    #[error("the masquerade bit must be one of 0 to 31, not {0}: packet marks have 32 bits")]
    MasqueradeBit(u32),
    /// A program could not be started.
    #[error("cannot start {program}{}", start_hint(source))]
    Start {
        /// Its name or path.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The conversation with a program broke off.
    #[error("cannot talk to `{command}`")]
    Pipe {
        /// The program and its arguments.
        command: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A program did not end by itself.
    #[error("`{command}` did not end within {} s and was killed; the node may be overloaded, or another program may hold the kernel's packet filter", limit.as_secs())]
    TimedOut {
        /// The program and its arguments.
        command: String,
        /// How long it was given.
        limit: Duration,
    },
    /// Another program kept the lock that legacy iptables programs share.
    #[error(
        "`{command}` waited in vain for the xtables lock: {message}; `fuser -v /run/xtables.lock` shows who holds it"
    )]
    Locked {
        /// The program and its arguments.
        command: String,
        /// What it said.
        message: String,
    },
    /// `iptables-restore` did not like a line. Its table is as before; the filter table may have been changed before nat was refused.
    #[error("{program} rejected line {number} (`{text}`): {message}{}", hint(message))]
    Rejected {
        /// The program.
        program: String,
        /// The number of the line; the first is 1.
        number: usize,
        /// The line.
        text: String,
        /// What the program said.
        message: String,
    },
    /// A program ended with an error.
    #[error("`{command}` failed ({status}): {message}{}", hint(message))]
    Failed {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        message: String,
    },
    /// A kernel setting could not be written.
    #[error(
        "cannot write {value} to {path}: node ports on loopback addresses need it; run with enough rights and a writable /proc/sys, or set iptables.localhostNodePorts to false"
    )]
    Sysctl {
        /// The setting.
        path: String,
        /// The value it should have.
        value: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A timer could not be made.
    #[error("cannot make the timer of the rules monitor")]
    Timer {
        /// The system's reason.
        source: io::Error,
    },
}

/// Everything that went wrong while cleaning up.
#[derive(Debug, thiserror::Error)]
#[error("{} of the clean-up's steps failed: {}", .0.len(), list(.0))]
pub struct CleanupError(pub Vec<Error>);

fn list(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn start_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => {
            ": it is not installed; install iptables 1.6.2 or newer, or choose --proxy-mode=nftables"
        }
        io::ErrorKind::PermissionDenied => ": it may not be executed; check its mode and that of its folder",
        _ => "",
    }
}

/// What experience says about a message of the programs.
pub(crate) fn hint(message: &str) -> &'static str {
    const HINTS: [(&str, &str); 10] = [
        ("Permission denied", "; run as root with CAP_NET_ADMIN and CAP_NET_RAW"),
        ("you must be root", "; run as root with CAP_NET_ADMIN and CAP_NET_RAW"),
        (
            "do you need to insmod",
            "; load the kernel module of this table, for example `modprobe iptable_nat`, or use iptables-nft",
        ),
        (
            "missing kernel module",
            "; load the kernel module of this match or target, for example `modprobe xt_recent`",
        ),
        (
            "Couldn't load match",
            "; the installed iptables lacks this extension, or it names a chain that does not exist",
        ),
        (
            "Couldn't load target",
            "; the installed iptables lacks this extension, or it names a chain that does not exist",
        ),
        (
            "is incompatible, use 'nft' tool",
            "; somebody changed this table with nft in a way that iptables cannot show: look at it with `nft list ruleset`, or use --proxy-mode=nftables",
        ),
        (
            "CHAIN_USER_ADD failed (File exists)",
            "; a chain of this name exists that iptables cannot use: look at it with `nft list ruleset` and remove it",
        ),
        (
            "Device or resource busy",
            "; a rule that is not ours leads to this chain: find it with `iptables-save | grep` and remove it",
        ),
        (
            "Too many links",
            "; a rule that is not ours leads to this chain: find it with `iptables-save | grep` and remove it",
        ),
    ];
    HINTS.iter().find(|(text, _)| message.contains(text)).map_or("", |(_, hint)| hint)
}

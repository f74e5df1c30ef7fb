//! What can go wrong between us and the iptables programs.

use std::io;
use std::time::Duration;

/// Why a program did not do what it was asked. Each of them may be over at the next attempt.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started.
    #[error("cannot start {program}{}", start_hint(source))]
    Start {
        /// The path that was tried.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The pipes to or from a program failed.
    #[error("cannot exchange data with `{command}`")]
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
    /// The program was killed because [`Programs::kill_all`](crate::Programs::kill_all) was called.
    #[error("`{command}` was killed: Portwarden no longer needs it")]
    Stopped {
        /// The program and its arguments.
        command: String,
    },
    /// Another process kept the lock that legacy iptables programs share.
    #[error(
        "`{command}` waited in vain for the xtables lock: {message}; `fuser -v /run/xtables.lock` shows which process holds it"
    )]
    Locked {
        /// The program and its arguments.
        command: String,
        /// What the program printed.
        message: String,
    },
    /// `iptables-restore` rejected a line. Its table has not changed; tables before it in the same transaction may have.
    #[error("{program} rejected line {number} (`{text}`): {message}{}", hint(message))]
    Rejected {
        /// The path of `iptables-restore`.
        program: String,
        /// The number of the line; the first is 1.
        number: usize,
        /// The line of the input that was refused.
        text: String,
        /// The program's message.
        message: String,
    },
    /// A program ended with an error.
    #[error("`{command}` failed ({status}): {message}{}", hint(message))]
    Failed {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What the program printed on standard error.
        message: String,
    },
}

fn start_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => {
            ": it is not installed in the sbin and bin folders of /usr/local, /usr and /; install iptables 1.6.2 or newer, or choose --proxy-mode=nftables"
        }
        io::ErrorKind::PermissionDenied => ": it may not be executed; check its mode and that of its folder",
        _ => "",
    }
}

/// Advice for messages of the programs whose cause is known; starts with "; " unless empty.
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
            "; another process changed this table with nft in a way that iptables cannot show: look at it with `nft list ruleset`, or use --proxy-mode=nftables",
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

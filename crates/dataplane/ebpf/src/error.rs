//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::programs::ProgramError;

/// The verifier's log ends with the reason and some statistics.
const LAST_LINES: usize = 8;

/// An error of the eBPF dataplane. Services stay reachable: the nftables dataplane below serves them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No cgroup v2 on this host.
    #[error(
        "no cgroup v2 is mounted on this host; mount it (mount -t cgroup2 cgroup2 PATH) and give --ebpf-cgroup-root=PATH"
    )]
    NoCgroup,
    /// The cgroup is not there, or not usable.
    #[error(
        "cannot use {path} as a cgroup; give the mount point of cgroup v2, or a directory in it, as --ebpf-cgroup-root"
    )]
    Cgroup {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The pin directory is not on a BPF file system.
    #[error(
        "{path} is not on a BPF file system; mount one (mount -t bpf bpf /sys/fs/bpf; in a container: mount the host's /sys/fs/bpf) or give --ebpf-pin-directory"
    )]
    NotBpfFileSystem {
        /// The directory.
        path: PathBuf,
    },
    /// A directory or file of the pin directory.
    #[error("cannot {action} {path}")]
    Pin {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The object file or one of its maps.
    #[error(
        "cannot create the eBPF maps; the kernel must be 5.10 or later, and the process needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (or CAP_SYS_ADMIN)"
    )]
    Maps(#[source] Box<EbpfError>),
    /// The kernel's verifier or a missing feature.
    #[error(
        "the kernel refuses the eBPF program {program}{log}; Linux 5.10 or later with CONFIG_CGROUP_BPF is needed, and CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (or CAP_SYS_ADMIN). Where all that is given, use another mode and report this message with the kernel's version"
    )]
    Program {
        /// The hook.
        program: &'static str,
        /// The end of the verifier's log, if there is one.
        log: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The object file lacks a program: a mistake in Portwarden.
    #[error("the object file has no program {0}; this is a mistake in Portwarden")]
    NoProgram(&'static str),
    /// A call on a map.
    #[error("cannot {action} the eBPF map {map}")]
    Map {
        /// What was tried.
        action: &'static str,
        /// On which map.
        map: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Attaching a program.
    #[error(
        "cannot attach the eBPF program {program} to {cgroup}; another program may be attached there without allowing others (bpftool cgroup show)"
    )]
    Attach {
        /// The hook.
        program: &'static str,
        /// The cgroup.
        cgroup: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The node's addresses.
    #[error("cannot list the addresses of this node")]
    Addresses(#[source] portwarden_netlink::Error),
    /// The cookie of a network namespace.
    #[error("cannot read the cookie of a network namespace")]
    NamespaceCookie(#[source] io::Error),
}

impl Error {
    /// The kernel refused a program. Its log may have thousands of lines; the reason is at the end.
    pub(crate) fn program(program: &'static str, refusal: ProgramError) -> Error {
        let ProgramError::LoadError { io_error: source, verifier_log } = refusal else {
            return Error::Program { program, log: String::new(), source: io::Error::other(refusal) };
        };
        let whole = verifier_log.to_string();
        let lines: Vec<&str> = whole.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ");
        let log = if last.is_empty() { last } else { format!(" (the verifier's last lines: {last})") };
        Error::Program { program, log, source }
    }
}

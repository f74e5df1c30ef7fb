//! What this kernel can do.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tracing::debug;

use crate::error::Error;
use crate::sys::{has_helper, network_namespace_cookie};

/// Features that differ between the kernels that we support, each probed by trying it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    /// A program may choose the error of a call (5.18). Without it, nftables refuses.
    pub(crate) can_set_error: bool,
    /// The cookie of this network namespace (5.14); `None` means that of the initial one.
    pub(crate) node_namespace: Option<u64>,
}

/// The cookie of a network namespace, given as a file.
pub(crate) fn namespace_cookie(path: &Path) -> Result<u64, Error> {
    let read = || -> io::Result<u64> {
        setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
        // Any socket will do, and nothing has to be up for this one.
        let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        network_namespace_cookie(socket.as_fd())
    };
    // On a thread of its own, which ends in that namespace.
    let answer = thread::scope(|scope| scope.spawn(read).join());
    answer.unwrap_or_else(|_| Err(io::Error::other("the thread panicked"))).map_err(Error::NamespaceCookie)
}

impl Features {
    pub(crate) fn probe() -> Features {
        const SET_RETVAL: i32 = 187;
        let cookie =
            UdpSocket::bind("127.0.0.1:0").and_then(|socket| network_namespace_cookie(socket.as_fd()));
        let features = Features { can_set_error: has_helper(SET_RETVAL), node_namespace: cookie.ok() };
        debug!(
            refusalsInSocketCall = features.can_set_error,
            ownNamespaceKnown = features.node_namespace.is_some(),
            "Probed the kernel's eBPF features"
        );
        features
    }
}

//! What this kernel can do.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use tracing::debug;

use crate::sys::{has_helper, network_namespace_cookie};

/// Features that differ between the kernels that we support, each probed by trying it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    /// A program may choose the error of a call (5.18). Without it, nftables refuses.
    pub(crate) can_set_error: bool,
    /// The cookie of this network namespace (5.14); `None` means that of the initial one.
    pub(crate) node_namespace: Option<u64>,
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

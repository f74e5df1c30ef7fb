//! What this kernel can do.

use tracing::debug;

use crate::namespaces::CookieReader;
use crate::sys::has_helper;

/// Features that differ between the kernels that we support, each probed by trying it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    /// A program may choose the error of a call (5.18). Without it, nftables refuses.
    pub(crate) can_set_error: bool,
    /// The cookie of this network namespace; `None` means that of the initial one.
    pub(crate) node_namespace: Option<u64>,
}

impl Features {
    pub(crate) fn probe(cookies: Option<&CookieReader>) -> Features {
        const SET_RETVAL: i32 = 187;
        let cookie = cookies.and_then(|cookies| cookies.own().ok());
        let features = Features { can_set_error: has_helper(SET_RETVAL), node_namespace: cookie };
        debug!(
            refusalsInSocketCall = features.can_set_error,
            ownNamespaceKnown = features.node_namespace.is_some(),
            "Probed the kernel's eBPF features"
        );
        features
    }
}

//! Virtual servers in a real kernel; one without IPVS says so.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::in_namespace;
use portwarden_netlink::ipvs::VirtualServers;

#[test]
fn a_kernel_without_ipvs_is_no_error() {
    in_namespace(|| {
        // Where the kernel has it, a new namespace has no virtual servers.
        if let Some(mut servers) = VirtualServers::open().unwrap() {
            assert_eq!(servers.list().unwrap(), []);
        }
    });
}

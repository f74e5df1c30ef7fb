//! Socket options that the `nix` crate does not offer: the only unsafe code of the project's netlink layer.
#![allow(unsafe_code, reason = "setsockopt(2) has no safe wrapper for the options of SOL_NETLINK")]

use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SOL_NETLINK` of linux/netlink.h.
const SOL_NETLINK: libc::c_int = 270;

/// Options of level `SOL_NETLINK` with an integer argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NetlinkOption {
    /// Join the multicast group whose number is the argument.
    AddMembership = 1,
    /// Leave the multicast group whose number is the argument.
    DropMembership = 2,
    /// Don't echo the failed request's payload in error answers.
    CapAck = 10,
    /// Add the kernel's own words and the offending attribute's offset to error answers.
    ExtAck = 11,
}

/// Sets a netlink option of an open netlink socket.
pub(crate) fn set_netlink_option(fd: BorrowedFd<'_>, option: NetlinkOption, value: u32) -> Result<(), Errno> {
    let size = libc::socklen_t::try_from(size_of::<u32>()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: `fd` is borrowed and therefore open for the whole call. The kernel reads `size` bytes from the
    // pointer, which is the size of `value`; `value` lives on this frame until the call returns, and the
    // kernel keeps no reference to it.
    let answer = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            SOL_NETLINK,
            option as libc::c_int,
            std::ptr::from_ref(&value).cast::<libc::c_void>(),
            size,
        )
    };
    Errno::result(answer).map(drop)
}

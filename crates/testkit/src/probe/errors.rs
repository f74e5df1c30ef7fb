//! The error queue of a socket: ICMP messages that answered what it sent.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

/// Takes the next ICMP error out of the socket's queue, as the kernel translates it.
pub(super) fn next_icmp(socket: &impl AsFd) -> Option<Errno> {
    loop {
        let error = next(socket)?;
        let from_icmp =
            error.ee_origin == libc::SO_EE_ORIGIN_ICMP || error.ee_origin == libc::SO_EE_ORIGIN_ICMP6;
        if from_icmp {
            return i32::try_from(error.ee_errno).ok().map(Errno::from_raw);
        }
    }
}

/// Takes the next entry; `None` when the queue is empty.
fn next(socket: &impl AsFd) -> Option<libc::sock_extended_err> {
    let mut payload = [0; 512];
    let mut parts = [IoSliceMut::new(&mut payload)];
    let mut control = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let descriptor = socket.as_fd().as_raw_fd();
    let message = recvmsg::<SockaddrStorage>(descriptor, &mut parts, Some(&mut control), flags).ok()?;
    message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
            Some(error)
        }
        _ => None,
    })
}

//! The one door to the kernel: netlink sockets and codecs.

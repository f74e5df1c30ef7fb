//! Sockets as the proxy wants them.

use std::io;
use std::net::{
    IpAddr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream, UdpSocket as StdUdpSocket,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt,
};
use rustix::net::sockopt::set_tcp_quickack;
use tokio::net::{TcpStream, UdpSocket};

/// Seconds without a byte until the kernel checks whether a peer is still there, and between two such checks.
const KEEP_ALIVE: u32 = 15;

/// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Bytes of datagrams that may wait to be read.
const UDP_BUFFER: usize = 1 << 20;

/// Whether others may already have the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The port must be free. From then on it can be shared.
    New,
    /// Another worker, or the process before this one, may have it.
    Existing,
}

/// A listening socket for clients of the address's own family. Accepted sockets inherit its options.
///
/// With `SO_REUSEPORT`, each worker has a socket of its own, and the next process can listen before this one ends.
pub(crate) fn listen(address: SocketAddr, sharing: Sharing) -> io::Result<StdListener> {
    let socket = bind(address, SockType::Stream, sharing)?;
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    keep_alive(&socket)?;
    socket::listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(StdListener::from(socket))
}

/// A UDP socket for clients of the address's own family.
pub(crate) fn bind_udp(address: SocketAddr, sharing: Sharing) -> io::Result<StdUdpSocket> {
    let socket = bind(address, SockType::Datagram, sharing)?;
    // The kernel caps it at `net.core.rmem_max`.
    let _ = setsockopt(&socket, sockopt::RcvBuf, &UDP_BUFFER);
    Ok(StdUdpSocket::from(socket))
}

fn bind(address: SocketAddr, kind: SockType, sharing: Sharing) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    if kind == SockType::Stream {
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    // Set before binding, it would let the kernel choose a port of another group for a UDP socket.
    if sharing == Sharing::Existing {
        setsockopt(&socket, sockopt::ReusePort, &true)?;
    }
    socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    Ok(socket)
}

/// Starts to connect to an endpoint. Small messages will leave at once. `mark` keeps our own rules from redirecting the connection back to us.
pub(crate) fn start_connecting(to: SocketAddr, mark: Option<u32>) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(family, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    // The last packet of the handshake waits for the first bytes; see `acknowledge_now`. If that fails, it goes out by itself.
    let _ = set_tcp_quickack(&socket, false);
    if let Some(mark) = mark {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => TcpStream::from_std(StdStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// A UDP socket that only speaks with one endpoint.
pub(crate) fn dialler_udp(to: SocketAddr, mark: Option<u32>) -> io::Result<UdpSocket> {
    let own = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let socket = StdUdpSocket::bind(SocketAddr::new(own, 0))?;
    socket.set_nonblocking(true)?;
    if let Some(mark) = mark {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    socket.connect(to)?;
    UdpSocket::from_std(socket)
}

/// Completes the handshake with an endpoint for which there are no bytes yet: it may be the one that speaks first.
pub(crate) fn acknowledge_now(socket: &impl AsFd) -> io::Result<()> {
    Ok(set_tcp_quickack(socket, true)?)
}

/// A peer that vanished does not hold its place for ever.
pub(crate) fn keep_alive(socket: &impl AsFd) -> nix::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &KEEP_ALIVE)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &KEEP_ALIVE)
}

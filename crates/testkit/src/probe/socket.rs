//! A client socket of either transport, opened inside a namespace and never blocking.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use super::Transport;
use crate::netns::Namespace;

/// A connected or connecting socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Socket {
    /// Opens a socket and starts to connect; the second value is an error that showed at once.
    pub(super) fn connect(
        namespace: &Namespace,
        transport: Transport,
        source: Option<SocketAddr>,
        target: SocketAddr,
    ) -> Result<(Socket, Option<Errno>)> {
        let descriptor = {
            let _entered = namespace.enter()?;
            open(transport, target).context("cannot open a socket")?
        };
        if let Some(source) = source {
            bind(descriptor.as_raw_fd(), &SockaddrStorage::from(source))
                .with_context(|| format!("cannot speak from {source} in namespace {}", namespace.name()))?;
        }
        let error = match connect(descriptor.as_raw_fd(), &SockaddrStorage::from(target)) {
            Ok(()) | Err(Errno::EINPROGRESS) => None,
            Err(error) => Some(error),
        };
        let socket = match transport {
            Transport::Tcp => Socket::Tcp(descriptor.into()),
            Transport::Udp => Socket::Udp(descriptor.into()),
        };
        Ok((socket, error))
    }

    /// The address it speaks from.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        match self {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
        }
    }

    /// Which transport it speaks.
    pub(super) fn transport(&self) -> Transport {
        match self {
            Socket::Tcp(_) => Transport::Tcp,
            Socket::Udp(_) => Transport::Udp,
        }
    }

    /// Takes the error the kernel keeps for this socket.
    pub(super) fn take_error(&self) -> Option<Errno> {
        let error = match self {
            Socket::Tcp(stream) => stream.take_error(),
            Socket::Udp(socket) => socket.take_error(),
        };
        error.ok().flatten().map(|error| errno(&error))
    }

    /// Sends a line, which always fits: at most one is under way.
    pub(super) fn send(&mut self, line: &str) -> Result<(), Errno> {
        let sent = match self {
            Socket::Tcp(stream) => stream.write_all(line.as_bytes()),
            Socket::Udp(socket) => socket.send(line.as_bytes()).map(|_| ()),
        };
        sent.map_err(|error| errno(&error))
    }

    /// Appends what has arrived; 0 bytes from TCP means that the other side has closed.
    pub(super) fn receive(&mut self, received: &mut Vec<u8>) -> Result<usize, Errno> {
        let mut buffer = [0; 1024];
        let length = match self {
            Socket::Tcp(stream) => stream.read(&mut buffer),
            Socket::Udp(socket) => socket.recv(&mut buffer),
        }
        .map_err(|error| errno(&error))?;
        received.extend(&buffer[..length]);
        Ok(length)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        }
    }
}

/// The source to bind to for speaking to `target`.
pub(super) fn source(ip: Option<IpAddr>, port: Option<u16>, target: SocketAddr) -> Option<SocketAddr> {
    let any = || if target.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    (ip.is_some() || port.is_some()).then(|| SocketAddr::new(ip.unwrap_or_else(any), port.unwrap_or(0)))
}

fn open(transport: Transport, target: SocketAddr) -> nix::Result<OwnedFd> {
    let kind = match transport {
        Transport::Tcp => SockType::Stream,
        Transport::Udp => SockType::Datagram,
    };
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let descriptor = socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&descriptor, sockopt::ReuseAddr, &true)?;
    // Has the kernel keep ICMP errors in a queue of their own: the only way to tell them from resets, and to learn
    // of a rejection by this host's own rules without waiting for TCP to try again.
    if target.is_ipv4() {
        setsockopt(&descriptor, sockopt::Ipv4RecvErr, &true)?;
    } else {
        setsockopt(&descriptor, sockopt::Ipv6RecvErr, &true)?;
    }
    Ok(descriptor)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

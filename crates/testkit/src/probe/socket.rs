//! A client socket of either transport, opened inside a namespace and never blocking.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use super::Transport;
use crate::netns::Namespace;

/// A connected or connecting socket.
#[derive(Debug)]
pub(super) enum Socket {
    /// TCP or SCTP, which are read and written alike.
    Stream(TcpStream, Transport),
    Udp(UdpSocket),
}

impl Socket {
    /// Opens a socket and starts to connect; the second value is an error that showed at once.
    pub(super) fn connect(
        namespace: &Namespace,
        transport: Transport,
        source: Source,
        target: SocketAddr,
    ) -> Result<(Socket, Option<Errno>)> {
        let descriptor = {
            let _entered = namespace.enter()?;
            open(transport, target).context("cannot open a socket")?
        };
        bind_source(&descriptor, namespace, transport, source, target)?;
        let error = match connect(descriptor.as_raw_fd(), &SockaddrStorage::from(target)) {
            Ok(()) | Err(Errno::EINPROGRESS) => None,
            Err(error) => Some(error),
        };
        let socket = match transport {
            Transport::Tcp | Transport::Sctp => Socket::Stream(descriptor.into(), transport),
            Transport::Udp => Socket::Udp(descriptor.into()),
        };
        Ok((socket, error))
    }

    /// The address it speaks from.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        match self {
            Socket::Stream(stream, _) => stream.local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
        }
    }

    /// Which transport it speaks.
    pub(super) fn transport(&self) -> Transport {
        match self {
            Socket::Stream(_, transport) => *transport,
            Socket::Udp(_) => Transport::Udp,
        }
    }

    /// Takes the error the kernel keeps for this socket.
    pub(super) fn take_error(&self) -> Option<Errno> {
        let error = match self {
            Socket::Stream(stream, _) => stream.take_error(),
            Socket::Udp(socket) => socket.take_error(),
        };
        error.ok().flatten().map(|error| errno(&error))
    }

    /// Sends a line, which always fits: at most one is under way.
    pub(super) fn send(&mut self, line: &str) -> Result<(), Errno> {
        let sent = match self {
            Socket::Stream(stream, _) => stream.write_all(line.as_bytes()),
            Socket::Udp(socket) => socket.send(line.as_bytes()).map(|_| ()),
        };
        sent.map_err(|error| errno(&error))
    }

    /// Appends what has arrived; 0 bytes from TCP means that the other side has closed.
    pub(super) fn receive(&mut self, received: &mut Vec<u8>) -> Result<usize, Errno> {
        let mut buffer = [0; 1024];
        let length = match self {
            Socket::Stream(stream, _) => stream.read(&mut buffer),
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
            Socket::Stream(stream, _) => stream.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        }
    }
}

/// Where a client speaks from; what is not given is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Source {
    pub(super) ip: Option<IpAddr>,
    pub(super) port: Option<u16>,
}

/// Binds the socket to its source, where that is not the kernel's choice.
fn bind_source(
    socket: &OwnedFd,
    namespace: &Namespace,
    transport: Transport,
    source: Source,
    target: SocketAddr,
) -> Result<()> {
    let any = if target.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let try_port = |port| {
        let address = SocketAddr::new(source.ip.unwrap_or(any), port);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address))
            .with_context(|| format!("cannot speak from {address} in namespace {}", namespace.name()))
    };
    match (source, transport) {
        (Source { ip: None, port: None }, Transport::Tcp | Transport::Sctp) => Ok(()),
        (Source { port: None, .. }, Transport::Tcp | Transport::Sctp) => try_port(0),
        (Source { port: Some(port), .. }, _) => try_port(port),
        (Source { port: None, .. }, Transport::Udp) => {
            // A port may be taken, but hardly that many in a row.
            let ports = std::iter::repeat_with(|| namespace.next_udp_port()).take(64);
            let mut results = ports.map(try_port).skip_while(is_taken);
            results.next().context("no port is free to speak from")?
        }
    }
}

fn is_taken(result: &Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.downcast_ref() == Some(&Errno::EADDRINUSE))
}

fn open(transport: Transport, target: SocketAddr) -> nix::Result<OwnedFd> {
    let (kind, protocol) = transport.socket_type();
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let descriptor = socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, protocol)?;
    // Lets a chosen TCP port be used again while its last connection lingers. UDP sockets that ask for this may
    // be given a port that another one has, and then take each other's answers.
    if transport == Transport::Tcp {
        setsockopt(&descriptor, sockopt::ReuseAddr, &true)?;
    }
    // Makes the kernel keep ICMP errors in a separate queue: the only way to distinguish them from resets, and to learn
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

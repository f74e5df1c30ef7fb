//! Several datagrams with one system call, through buffers that all sockets of a worker share.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use portwarden_model::{Family, PerFamily};

/// Datagrams of one call.
const MOST: usize = 16;

/// No datagram is longer.
const LONGEST: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        buffers: vec![0; MOST * LONGEST],
        received: PerFamily::from_fn(|_| MultiHeaders::preallocate(MOST, None)),
        sent: MultiHeaders::preallocate(MOST, None),
    });
}

struct Scratch {
    buffers: Vec<u8>,
    /// The kernel leaves the length of the last address in a header, and that is the room for the next one: headers of IPv4 are too short for IPv6.
    received: PerFamily<MultiHeaders<SockaddrStorage>>,
    sent: MultiHeaders<SockaddrStorage>,
}

/// Reads datagrams that are there and hands them to `forward`, in order: those of one sender that follow each other together. The sender is unknown
/// for a connected socket.
pub(crate) fn receive(
    from: &impl AsRawFd,
    family: Family,
    mut forward: impl FnMut(Option<SocketAddr>, Datagrams<'_>),
) -> io::Result<()> {
    SCRATCH.with_borrow_mut(|Scratch { buffers, received, sent }| {
        let messages = read(from, buffers, &mut received[family])?;
        let mut rest: Vec<&[u8]> = buffers
            .chunks(LONGEST)
            .zip(&messages)
            .map(|(chunk, (_, length))| chunk.get(..*length).unwrap_or_default())
            .collect();
        for run in messages.chunk_by(|(one, _), (next, _)| one == next) {
            let Some((sender, _)) = run.first() else { continue };
            let after = rest.split_off(run.len());
            forward(*sender, Datagrams { datagrams: &rest, sent });
            rest = after;
        }
        Ok(())
    })
}

/// Reads one datagram into each chunk of the buffers; returns senders and lengths.
fn read(
    from: &impl AsRawFd,
    buffers: &mut [u8],
    headers: &mut MultiHeaders<SockaddrStorage>,
) -> nix::Result<Vec<(Option<SocketAddr>, usize)>> {
    let mut slices: Vec<_> = buffers.chunks_mut(LONGEST).map(|chunk| [IoSliceMut::new(chunk)]).collect();
    let messages = recvmmsg(from.as_raw_fd(), headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
    Ok(messages.map(|message| (message.address.and_then(|a| address(&a)), message.bytes)).collect())
}

/// Datagrams of one sender.
pub(crate) struct Datagrams<'a> {
    datagrams: &'a [&'a [u8]],
    sent: &'a mut MultiHeaders<SockaddrStorage>,
}

impl Datagrams<'_> {
    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.datagrams.len() as u64
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.datagrams.iter().map(|datagram| datagram.len() as u64).sum()
    }

    /// Sends them; a connected socket needs no address. What the socket does not take at once is lost, as datagrams may be.
    pub(crate) fn send(&mut self, through: &impl AsRawFd, to: Option<SocketAddr>) -> io::Result<()> {
        let slices: Vec<_> = self.datagrams.iter().map(|datagram| [IoSlice::new(datagram)]).collect();
        let addresses = vec![to.map(SockaddrStorage::from); slices.len()];
        let no_control: [ControlMessage<'_>; 0] = [];
        match sendmmsg(
            through.as_raw_fd(),
            self.sent,
            &slices,
            &addresses,
            no_control,
            MsgFlags::MSG_DONTWAIT,
        ) {
            Ok(_) | Err(nix::errno::Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::new(IpAddr::V4(v4.ip()), v4.port()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::new(IpAddr::V6(v6.ip()), v6.port())))
}

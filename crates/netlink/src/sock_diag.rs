//! Sockets of other processes, over sock_diag: lists connected UDP sockets, and ends some.

use crate::error::{Error, Result};
use crate::family::IpFamily;
use crate::socket::{Consistency, DUMP_ATTEMPTS, Protocol, Socket};
use crate::wire::{Malformed, Message, Writer};
use nix::errno::Errno;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;

/// `IPPROTO_UDP`.
const UDP: u8 = 17;
/// The state of a UDP socket with a peer, as a bit.
const CONNECTED: u32 = 1 << 1;

/// The length of `struct inet_diag_sockid`: ports, addresses, device, cookie.
const IDENTITY: usize = 48;
/// Where it starts in an answer, after family, state, timer and retransmissions.
const IDENTITY_OFFSET: usize = 4;
/// The length of `struct inet_diag_msg`.
const ANSWER: usize = 72;

/// A UDP socket with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedSocket {
    /// Where it sends to. An IPv4 peer of an IPv6 socket is an IPv4 address here.
    pub peer: SocketAddr,
    /// The kernel's number for it, which no other socket ever has. eBPF programs see the same one.
    pub cookie: u64,
    family: u8,
    identity: [u8; IDENTITY],
}

impl ConnectedSocket {
    /// Reads a message; `None` if it contains no socket.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        if message.kind != BY_FAMILY {
            return Ok(None);
        }
        let malformed = Malformed { what: "sock_diag answer" };
        let fixed = message.payload.get(..ANSWER).ok_or(malformed)?;
        let mut identity = [0; IDENTITY];
        identity.copy_from_slice(&fixed[IDENTITY_OFFSET..IDENTITY_OFFSET + IDENTITY]);
        let family = fixed[0];
        let port = u16::from_be_bytes([identity[2], identity[3]]);
        let mut ip = [0; 16];
        ip.copy_from_slice(&identity[20..36]);
        let peer = match family {
            family if family == IpFamily::Ipv4.byte() => IpAddr::from([ip[0], ip[1], ip[2], ip[3]]),
            _ => Ipv6Addr::from(ip).to_canonical(),
        };
        // Two words, the lower one first, each in host byte order.
        let word =
            |at: usize| u64::from(identity[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)));
        let cookie = word(40) | word(44) << 32;
        Ok(Some(ConnectedSocket { peer: SocketAddr::new(peer, port), cookie, family, identity }))
    }
}

/// A connection to the sockets of the network namespace in which it was opened.
#[derive(Debug)]
pub struct SockDiag {
    socket: Socket,
}

impl SockDiag {
    /// Opens a connection.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::SockDiag)? })
    }

    /// Ends the connected UDP sockets of a family that are `unwanted`: their processes get `ECONNABORTED`. Returns how many.
    ///
    /// Sockets of IPv4 peers may be of either family.
    pub fn destroy_connected_udp(
        &mut self,
        family: IpFamily,
        mut unwanted: impl FnMut(&ConnectedSocket) -> bool,
    ) -> Result<usize> {
        let mut destroyed = 0;
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let consistency = self.dump(family, |socket| {
                if unwanted(&socket) {
                    found.push(socket);
                }
            })?;
            for socket in &found {
                destroyed += usize::from(self.destroy(socket)?);
            }
            if consistency == Consistency::Complete {
                break;
            }
        }
        Ok(destroyed)
    }

    fn dump(&mut self, family: IpFamily, mut on_socket: impl FnMut(ConnectedSocket)) -> Result<Consistency> {
        self.socket.dump(
            "for connected UDP sockets",
            |writer, flags, sequence| {
                let mark = writer.begin_message(BY_FAMILY, flags, sequence);
                request(writer, family.byte(), &[0; IDENTITY]);
                writer.end_message(mark);
            },
            |message| {
                if let Some(socket) = ConnectedSocket::decode(message)? {
                    on_socket(socket);
                }
                Ok(())
            },
        )
    }

    /// Returns false if the socket went by itself.
    fn destroy(&mut self, socket: &ConnectedSocket) -> Result<bool> {
        let answer = self.socket.request(
            "to end a UDP socket",
            |writer, flags, sequence| {
                let mark = writer.begin_message(DESTROY, flags, sequence);
                request(writer, socket.family, &socket.identity);
                writer.end_message(mark);
            },
            |_| Ok(()),
        );
        match answer {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
            Err(error) => Err(about(error, socket)),
        }
    }
}

/// `struct inet_diag_req_v2`.
fn request(writer: &mut Writer, family: u8, identity: &[u8; IDENTITY]) {
    writer.raw(&[family, UDP, 0, 0]);
    writer.raw(&CONNECTED.to_ne_bytes());
    writer.raw(identity);
}

fn about(error: Error, socket: &ConnectedSocket) -> Error {
    match error {
        Error::Refused { answer, .. } => {
            Error::Refused { request: format!("to end a UDP socket that sends to {}", socket.peer), answer }
        }
        error => error,
    }
}

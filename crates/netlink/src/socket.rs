//! A blocking netlink socket: requests, dumps, batches and multicast groups.

use crate::error::{Answer, Error, Result};
use crate::sys::{NetlinkOption, set_netlink_option};
use crate::wire::{Attributes, Malformed, Message, Messages, Writer, control, flags};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, getsockopt,
    recvmsg, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Seconds to wait for an answer. The kernel answers within the call unless it is in deep trouble.
const ANSWER_SECONDS: i64 = 60;

/// Large enough for any datagram the kernel builds: it limits dumps to 32 KiB.
const RECEIVE_BUFFER: usize = 128 * 1024;

/// Requests in one datagram. If the kernel refuses all of them, their answers still fit into the receive buffer.
const REQUESTS_AT_ONCE: usize = 128;

/// How often an inconsistent dump is tried before it counts as failed.
pub const DUMP_ATTEMPTS: u32 = 5;

/// The netlink protocols that Portwarden speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses and routes.
    Route,
    /// nf_tables, conntrack, ipset and nfacct.
    Netfilter,
    /// Families with dynamic numbers, such as IPVS.
    Generic,
    /// Sockets of all processes.
    SockDiag,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Netfilter => "netfilter",
            Self::Generic => "generic",
            Self::SockDiag => "sock_diag",
        }
    }

    fn number(self) -> SockProtocol {
        match self {
            Self::Route => SockProtocol::NetlinkRoute,
            Self::Netfilter => SockProtocol::NetlinkNetFilter,
            Self::Generic => SockProtocol::NetlinkGeneric,
            Self::SockDiag => SockProtocol::NetlinkSockDiag,
        }
    }
}

/// Whether a dump shows one state of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Consistency {
    /// Nothing changed while the dump was read.
    Complete,
    /// Something changed meanwhile: entries may be missing or twice.
    Interrupted,
}

/// An open netlink socket, bound to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    protocol: Protocol,
    port: u32,
    sequence: u32,
    send_limit: usize,
    receive_limit: usize,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket of the given protocol.
    pub fn open(protocol: Protocol) -> Result<Self> {
        let failed = |action| move |source| Error::Open { action, protocol: protocol.name(), source };
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol.number())
            .map_err(failed("open"))?;
        // A port of 0 lets the kernel choose one, so that several sockets of one process do not collide.
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(failed("bind"))?;
        let port = getsockname::<NetlinkAddr>(fd.as_raw_fd()).map_err(failed("ask for the port of"))?.pid();
        set_netlink_option(fd.as_fd(), NetlinkOption::ExtAck, 1).map_err(failed("ask for error texts of"))?;
        set_netlink_option(fd.as_fd(), NetlinkOption::CapAck, 1)
            .map_err(failed("ask for short errors of"))?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(ANSWER_SECONDS))
            .map_err(failed("set the receive timeout of"))?;
        setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(ANSWER_SECONDS))
            .map_err(failed("set the send timeout of"))?;
        let send_limit = getsockopt(&fd, sockopt::SndBuf).map_err(failed("ask for the send buffer of"))?;
        let receive_limit =
            getsockopt(&fd, sockopt::RcvBuf).map_err(failed("ask for the receive buffer of"))?;
        Ok(Self {
            fd,
            protocol,
            port,
            sequence: 0,
            send_limit,
            receive_limit,
            buffer: vec![0; RECEIVE_BUFFER],
        })
    }

    /// The socket's netlink port: unique among the sockets of its protocol and network namespace.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// How long to wait for an answer: at most a minute, which is the default.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let failed = |source| Error::Open {
            action: "set the receive timeout of",
            protocol: self.protocol.name(),
            source,
        };
        // A timeout of zero would mean no limit.
        let micros =
            i64::try_from(timeout.as_micros()).unwrap_or(i64::MAX).clamp(1, ANSWER_SECONDS * 1_000_000);
        setsockopt(&self.fd, sockopt::ReceiveTimeout, &TimeVal::microseconds(micros)).map_err(failed)
    }

    /// Joins a multicast group by its number.
    pub fn join(&self, group: u32) -> Result<()> {
        set_netlink_option(self.fd.as_fd(), NetlinkOption::AddMembership, group).map_err(|source| {
            Error::Open { action: "join a multicast group with", protocol: self.protocol.name(), source }
        })
    }

    /// Waits until there is something to receive; false if the time is over before.
    pub fn wait(&self, request: &'static str, timeout: Duration) -> Result<bool> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(ready) => Ok(ready > 0),
            // The caller looks at its own stop condition and calls again.
            Err(Errno::EINTR) => Ok(false),
            Err(source) => Err(Error::Receive { request, source }),
        }
    }

    /// Reserves `count` sequence numbers and returns the first.
    pub fn reserve_sequences(&mut self, count: u32) -> u32 {
        // 0 marks notifications, so numbers start again at 1 before they would wrap.
        if self.sequence.checked_add(count).is_none_or(|last| last == u32::MAX) {
            self.sequence = 0;
        }
        let first = self.sequence + 1;
        self.sequence += count;
        first
    }

    /// Sends bytes to the kernel in one piece, growing the send buffer if need be.
    pub fn send(&mut self, request: &'static str, bytes: &[u8]) -> Result<()> {
        self.grow_send_buffer(bytes.len())?;
        tracing::trace!(protocol = self.protocol.name(), request, bytes = bytes.len(), "netlink request");
        loop {
            match sendto(self.fd.as_raw_fd(), bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(source) => return Err(Error::Send { request, bytes: bytes.len(), source }),
            }
        }
    }

    /// Makes room for at least `bytes` of answers.
    ///
    /// A refusal is not an error: lost answers are reported as [`Error::Overrun`] when they are read.
    pub fn grow_receive_buffer(&mut self, bytes: usize) {
        if bytes <= self.receive_limit {
            return;
        }
        let forced = setsockopt(&self.fd, sockopt::RcvBufForce, &bytes);
        if forced.is_err() {
            let _ = setsockopt(&self.fd, sockopt::RcvBuf, &bytes);
        }
        self.receive_limit = getsockopt(&self.fd, sockopt::RcvBuf).unwrap_or(self.receive_limit);
    }

    /// Receives one datagram from the kernel; `None` if there is none and `wait` is false.
    pub fn receive(&mut self, request: &'static str, wait: bool) -> Result<Option<&[u8]>> {
        let length = loop {
            match self.receive_once(wait) {
                Ok((length, true)) => break length,
                // Only the kernel has port 0; a datagram of another process is none of our business.
                Ok((_, false)) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if wait => return Err(Error::Timeout { request }),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::ENOBUFS) => return Err(Error::Overrun { request }),
                Err(source) => return Err(Error::Receive { request, source }),
            }
        };
        self.buffer.get(..length).map(Some).ok_or(Error::Truncated { request, bytes: length })
    }

    /// Sends one request and hands the answers up to its acknowledgement to `on_message`.
    ///
    /// `build` writes the message with the flags and sequence number it is given.
    pub fn request(
        &mut self,
        request: &'static str,
        build: impl FnOnce(&mut Writer, u16, u32),
        mut on_message: impl FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<()> {
        let sequence = self.reserve_sequences(1);
        let mut writer = Writer::new();
        build(&mut writer, flags::REQUEST | flags::ACK, sequence);
        self.send(request, writer.bytes())?;
        loop {
            let datagram = self.receive(request, true)?.unwrap_or_default();
            for message in Messages::new(datagram) {
                let message = message.map_err(|source| Error::Answer { request, source })?;
                if message.sequence != sequence {
                    continue;
                }
                if message.kind == control::ERROR {
                    return match error_answer(&message).map_err(|source| Error::Answer { request, source })? {
                        None => Ok(()),
                        Some(answer) => Err(Error::Refused { request: request.to_owned(), answer }),
                    };
                }
                on_message(&message).map_err(|source| Error::Answer { request, source })?;
            }
        }
    }

    /// Sends one request for each item, many at a time, and returns the answers of those that the kernel refused, each with its
    /// item's index.
    ///
    /// Only the last request of a datagram asks for an acknowledgement: the kernel works in order and answers errors unasked. A
    /// request that lists or returns objects does not belong here.
    pub fn request_all<T>(
        &mut self,
        request: &'static str,
        items: &[T],
        mut build: impl FnMut(&mut Writer, u16, u32, &T),
    ) -> Result<Vec<(usize, Answer)>> {
        let mut refused = Vec::new();
        let mut offset = 0;
        for chunk in items.chunks(REQUESTS_AT_ONCE) {
            let count = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            let first = self.reserve_sequences(count);
            let mut writer = Writer::new();
            for (sequence, item) in (first..).zip(chunk) {
                let acknowledge = if sequence + 1 == first + count { flags::ACK } else { 0 };
                build(&mut writer, flags::REQUEST | acknowledge, sequence, item);
            }
            self.send(request, writer.bytes())?;
            self.collect_refusals(request, first, count, |index, answer| {
                refused.push((offset + index, answer));
            })?;
            offset += chunk.len();
        }
        Ok(refused)
    }

    /// Reads the answers to `count` requests up to that to the last one.
    fn collect_refusals(
        &mut self,
        request: &'static str,
        first: u32,
        count: u32,
        mut on_refusal: impl FnMut(usize, Answer),
    ) -> Result<()> {
        loop {
            let datagram = self.receive(request, true)?.unwrap_or_default();
            for message in Messages::new(datagram) {
                let message = message.map_err(|source| Error::Answer { request, source })?;
                let Some(index) = message.sequence.checked_sub(first).filter(|index| *index < count) else {
                    continue;
                };
                if message.kind != control::ERROR {
                    continue;
                }
                let answer = error_answer(&message).map_err(|source| Error::Answer { request, source })?;
                if let Some(answer) = answer {
                    on_refusal(usize::try_from(index).unwrap_or(usize::MAX), answer);
                }
                if index + 1 == count {
                    return Ok(());
                }
            }
        }
    }

    /// Lists objects once, handing every message to `on_message`.
    pub fn dump(
        &mut self,
        request: &'static str,
        build: impl FnOnce(&mut Writer, u16, u32),
        mut on_message: impl FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<Consistency> {
        let sequence = self.reserve_sequences(1);
        let mut writer = Writer::new();
        build(&mut writer, flags::REQUEST | flags::DUMP, sequence);
        self.send(request, writer.bytes())?;
        let mut consistency = Consistency::Complete;
        let mut unreadable = None;
        loop {
            let datagram = self.receive(request, true)?.unwrap_or_default();
            for message in Messages::new(datagram) {
                let message = message.map_err(|source| Error::Answer { request, source })?;
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & flags::DUMP_INTERRUPTED != 0 {
                    consistency = Consistency::Interrupted;
                }
                match message.kind {
                    control::DONE | control::ERROR => {
                        let answer =
                            end_of_dump(&message).map_err(|source| Error::Answer { request, source })?;
                        return match (answer, unreadable) {
                            (Some(answer), _) if answer.errno == Errno::EINTR => Ok(Consistency::Interrupted),
                            (Some(answer), _) => Err(Error::Refused { request: request.to_owned(), answer }),
                            (None, Some(source)) => Err(Error::Answer { request, source }),
                            (None, None) => Ok(consistency),
                        };
                    }
                    // The dump is read to its end even if a message makes no sense: the kernel allows no
                    // second dump on a socket while one is under way.
                    _ if unreadable.is_some() => {}
                    _ => unreadable = on_message(&message).err(),
                }
            }
        }
    }

    /// Lists objects, again from the start if they changed meanwhile.
    ///
    /// `start` makes the empty collection that `on_message` fills, once for each attempt.
    pub fn dump_consistently<T>(
        &mut self,
        request: &'static str,
        build: impl Fn(&mut Writer, u16, u32),
        start: impl Fn() -> T,
        on_message: impl Fn(&mut T, &Message<'_>) -> Result<(), Malformed>,
    ) -> Result<T> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut collected = start();
            match self.dump(request, &build, |message| on_message(&mut collected, message))? {
                Consistency::Complete => return Ok(collected),
                Consistency::Interrupted => {}
            }
        }
        Err(Error::Interrupted { request, attempts: DUMP_ATTEMPTS })
    }

    fn receive_once(&mut self, wait: bool) -> Result<(usize, bool), Errno> {
        let fd = self.fd.as_raw_fd();
        // MSG_TRUNC makes the kernel report the datagram's real size also if it did not fit.
        let flags = if wait { MsgFlags::MSG_TRUNC } else { MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT };
        let mut slices = [IoSliceMut::new(&mut self.buffer)];
        let received = recvmsg::<NetlinkAddr>(fd, &mut slices, None, flags)?;
        Ok((received.bytes, received.address.is_none_or(|sender| sender.pid() == 0)))
    }

    fn grow_send_buffer(&mut self, bytes: usize) -> Result<()> {
        // The kernel keeps some of the buffer for itself and compares strictly.
        let needed = bytes.saturating_add(4096);
        if needed <= self.send_limit {
            return Ok(());
        }
        if setsockopt(&self.fd, sockopt::SndBufForce, &needed).is_err() {
            // Without CAP_NET_ADMIN the limit of the sysctl applies; it may still be enough.
            let _ = setsockopt(&self.fd, sockopt::SndBuf, &needed);
        }
        self.send_limit = getsockopt(&self.fd, sockopt::SndBuf).unwrap_or(self.send_limit);
        if self.send_limit < needed {
            return Err(Error::SendBuffer { needed, granted: self.send_limit });
        }
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Reads an error message: `None` is an acknowledgement.
pub fn error_answer(message: &Message<'_>) -> Result<Option<Answer>, Malformed> {
    let (code, rest) = message.payload.split_first_chunk::<4>().ok_or(Malformed { what: "error answer" })?;
    let code = i32::from_ne_bytes(*code);
    if code == 0 {
        return Ok(None);
    }
    let mut answer = Answer::from_code(code);
    if message.flags & flags::ACK_TLVS != 0 {
        // Behind the code stands the request's header, and its payload unless it was left out.
        let echoed = if message.flags & flags::CAPPED != 0 {
            crate::wire::HEADER
        } else {
            rest.first_chunk::<4>().map_or(0, |length| u32::from_ne_bytes(*length) as usize)
        };
        read_extended(rest.get(crate::wire::align(echoed)..).unwrap_or_default(), &mut answer)?;
    }
    Ok(Some(answer))
}

/// Reads the last message of a dump: a failed one ends in an error or carries a code in its end mark.
fn end_of_dump(message: &Message<'_>) -> Result<Option<Answer>, Malformed> {
    if message.kind == control::ERROR {
        return error_answer(message);
    }
    let Some((code, rest)) = message.payload.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let code = i32::from_ne_bytes(*code);
    // Some dumps end with a positive count.
    if code >= 0 {
        return Ok(None);
    }
    let mut answer = Answer::from_code(code);
    if message.flags & flags::ACK_TLVS != 0 {
        read_extended(rest, &mut answer)?;
    }
    Ok(Some(answer))
}

fn read_extended(bytes: &[u8], answer: &mut Answer) -> Result<(), Malformed> {
    const TEXT: u16 = 1;
    const OFFSET: u16 = 2;
    for attribute in Attributes::new(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            TEXT => answer.text = Some(attribute.text().into_owned()),
            OFFSET => answer.offset = Some(attribute.u32_host()?),
            _ => {}
        }
    }
    Ok(())
}

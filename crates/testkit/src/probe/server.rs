//! Servers that answer with their own name and the address of the client, all on one thread.
//!
//! Sockets belong to the namespace they were opened in, whatever thread uses them, so one loop serves all hosts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};

use super::{Transport, wire};
use crate::netns::Namespace;

/// What a server does with those who reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// Answers every question.
    #[default]
    Answer,
    /// Accepts connections and resets them at the first question (TCP); like `Mute` for UDP.
    Reset,
    /// Accepts connections, reads, and never answers.
    Mute,
}

/// All servers of a topology. They end when this is dropped.
#[derive(Debug)]
pub struct Servers {
    orders: Sender<Order>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    /// Starts the thread, with nothing to serve yet.
    pub fn start() -> Result<Servers> {
        let (wake, woken) = UnixStream::pair().context("cannot make a socket pair")?;
        woken.set_nonblocking(true)?;
        let (orders, received) = channel();
        let thread = thread::Builder::new()
            .name("servers".into())
            .spawn(move || Loop { orders: received, woken, sockets: Vec::new() }.run())
            .context("cannot start a thread")?;
        Ok(Servers { orders, wake, thread: Some(thread) })
    }

    /// Listens on an address in a namespace, whose name is given in answers. Ready when this returns.
    pub fn listen(
        &self,
        namespace: &Namespace,
        transport: Transport,
        address: SocketAddr,
        behaviour: Behaviour,
    ) -> Result<()> {
        let what = || format!("cannot listen on {transport:?} {address} in namespace {}", namespace.name());
        let kind = {
            let _entered = namespace.enter()?;
            Kind::listen(transport, address).with_context(what)?
        };
        let role = Role { host: namespace.name().into(), transport, port: address.port(), behaviour };
        self.order(Order::Add(Socket { kind, role }))
    }

    /// Closes the sockets of a host: all, or those of one port. Done when this returns.
    pub fn close(&self, host: &str, port: Option<(Transport, u16)>) -> Result<()> {
        let (done, closed) = channel();
        self.order(Order::Close { host: host.to_owned(), port, done })?;
        closed.recv().context("the server thread has ended")
    }

    fn order(&self, order: Order) -> Result<()> {
        self.orders.send(order).ok().context("the server thread has ended")?;
        (&self.wake).write_all(&[1]).context("cannot wake the server thread")
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Without a sender the thread ends as soon as it wakes.
        self.orders = channel().0;
        let _ = (&self.wake).write_all(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A command for the thread.
enum Order {
    Add(Socket),
    Close { host: String, port: Option<(Transport, u16)>, done: Sender<()> },
}

/// The thread's state.
struct Loop {
    orders: Receiver<Order>,
    woken: UnixStream,
    sockets: Vec<Socket>,
}

impl Loop {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            // From the back, as sockets that are over leave the list and new connections join at its end.
            for index in ready.into_iter().rev() {
                match self.sockets[index].serve() {
                    Ok(accepted) => self.sockets.extend(accepted),
                    Err(_) => drop(self.sockets.swap_remove(index)),
                }
            }
            if !self.obey() {
                return;
            }
        }
    }

    /// The indexes of the sockets that have something to read.
    fn wait(&self) -> Vec<usize> {
        let sockets = self.sockets.iter().map(AsFd::as_fd).chain([self.woken.as_fd()]);
        let mut polled: Vec<_> = sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN)).collect();
        // An interrupted wait is an empty one.
        let _ = poll(&mut polled, PollTimeout::NONE);
        let ready = |(index, polled): (usize, &PollFd<'_>)| polled.any().unwrap_or(true).then_some(index);
        polled.iter().take(self.sockets.len()).enumerate().filter_map(ready).collect()
    }

    /// Executes the received commands; returns false when the sender is gone.
    fn obey(&mut self) -> bool {
        let mut bytes = [0; 64];
        while (&self.woken).read(&mut bytes).is_ok_and(|length| length > 0) {}
        loop {
            match self.orders.try_recv() {
                Ok(Order::Add(socket)) => self.sockets.push(socket),
                Ok(Order::Close { host, port, done }) => {
                    self.sockets.retain(|socket| !socket.is_of(&host, port));
                    // The sender may have stopped waiting.
                    let _ = done.send(());
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}

/// A socket with what is needed to answer on it.
struct Socket {
    kind: Kind,
    role: Role,
}

/// Whose socket it is, where it was opened, and what it is there for.
#[derive(Clone)]
struct Role {
    host: Arc<str>,
    transport: Transport,
    port: u16,
    behaviour: Behaviour,
}

enum Kind {
    Listener(TcpListener),
    Connection { stream: TcpStream, received: Vec<u8> },
    Datagrams(UdpSocket),
}

impl Kind {
    fn listen(transport: Transport, address: SocketAddr) -> io::Result<Kind> {
        match transport {
            Transport::Tcp => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Kind::Listener(listener))
            }
            Transport::Sctp => {
                let (kind, protocol) = transport.socket_type();
                let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
                let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
                let socket = socket(family, kind, flags, protocol)?;
                bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
                listen(&socket, Backlog::MAXCONN)?;
                Ok(Kind::Listener(socket.into()))
            }
            Transport::Udp => {
                let socket = UdpSocket::bind(address)?;
                socket.set_nonblocking(true)?;
                Ok(Kind::Datagrams(socket))
            }
        }
    }
}

impl Socket {
    fn is_of(&self, host: &str, port: Option<(Transport, u16)>) -> bool {
        let role = &self.role;
        *role.host == *host && port.is_none_or(|port| port == (role.transport, role.port))
    }

    /// Does what there is to do: new connections, or an error if this one is over.
    fn serve(&mut self) -> io::Result<Vec<Socket>> {
        let role = &self.role;
        let mut accepted = Vec::new();
        match &mut self.kind {
            Kind::Listener(listener) => {
                while let Some((stream, _)) = unless_blocking(listener.accept())? {
                    stream.set_nonblocking(true)?;
                    let kind = Kind::Connection { stream, received: Vec::new() };
                    accepted.push(Socket { kind, role: role.clone() });
                }
            }
            Kind::Connection { stream, received } => converse(stream, received, role)?,
            Kind::Datagrams(socket) => answer_datagrams(socket, role)?,
        }
        Ok(accepted)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Listener(listener) => listener.as_fd(),
            Kind::Connection { stream, .. } => stream.as_fd(),
            Kind::Datagrams(socket) => socket.as_fd(),
        }
    }
}

/// Reads what a connection has and answers; an error when it is over.
fn converse(stream: &mut TcpStream, received: &mut Vec<u8>, role: &Role) -> io::Result<()> {
    let mut buffer = [0; 1024];
    while let Some(length) = unless_blocking(stream.read(&mut buffer))? {
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        received.extend(&buffer[..length]);
    }
    while let Some(question) = wire::take_line(received) {
        match role.behaviour {
            Behaviour::Answer => {
                let (endpoint, source) = (stream.local_addr()?, stream.peer_addr()?);
                stream.write_all(wire::answer(&question, &role.host, endpoint, source).as_bytes())?;
            }
            Behaviour::Reset => {
                // Closing with this option set sends a reset instead of an orderly end.
                setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
                return Err(ErrorKind::ConnectionAborted.into());
            }
            Behaviour::Mute => {}
        }
    }
    Ok(())
}

/// Answers every datagram from the address it was sent to.
fn answer_datagrams(socket: &UdpSocket, role: &Role) -> io::Result<()> {
    let endpoint = socket.local_addr()?;
    let mut buffer = [0; 1024];
    loop {
        let (length, source) = match unless_blocking(socket.recv_from(&mut buffer)) {
            Ok(Some(datagram)) => datagram,
            Ok(None) => return Ok(()),
            // An earlier answer did not get there; the socket is as good as before.
            Err(_) => continue,
        };
        if role.behaviour == Behaviour::Answer {
            let question = String::from_utf8_lossy(&buffer[..length]);
            let answer = wire::answer(question.trim_end(), &role.host, endpoint, source);
            // An unreachable client notices by its timeout.
            let _ = socket.send_to(answer.as_bytes(), source);
        }
    }
}

/// `None` when there is nothing more to take.
fn unless_blocking<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

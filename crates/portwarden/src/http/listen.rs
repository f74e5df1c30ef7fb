//! Listening sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};

/// The clients that a socket on a wildcard address accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sockets {
    /// Both families, for either wildcard.
    DualStack,
    /// The family of the address only.
    OneFamily,
}

/// Connections that may wait to be accepted. The kernel's default of 128 fills up when many clients connect at once, and probes are lost.
const BACKLOG: u32 = 4096;

/// Listens on an address.
pub fn bind(address: SocketAddr, sockets: Sockets) -> io::Result<TcpListener> {
    if sockets == Sockets::DualStack && address.ip().is_unspecified() {
        let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
        return match listen(v6, false) {
            Err(error) if lacks_ipv6(&error) => {
                listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()), false)
            }
            other => other,
        };
    }
    listen(address, true)
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        let socket = TcpSocket::new_v6()?;
        setsockopt(&socket, sockopt::Ipv6V6Only, &only_v6)?;
        socket
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Whether the kernel has no IPv6, or has it switched off.
fn lacks_ipv6(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(nix::errno::Errno::from_raw);
    matches!(errno, Some(nix::errno::Errno::EAFNOSUPPORT | nix::errno::Errno::EADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn reachable(listener: &TcpListener, ip: &str) -> bool {
        let port = listener.local_addr().expect("bound").port();
        let address = SocketAddr::new(ip.parse().expect("an address"), port);
        tokio::net::TcpStream::connect(address).await.is_ok()
    }

    /// Nothing accepts them yet; with the kernel's default of 128 the later ones would wait for a second attempt.
    #[tokio::test]
    async fn hundreds_of_connections_can_wait_to_be_accepted() {
        let listener = bind("127.0.0.1:0".parse().expect("an address"), Sockets::OneFamily).expect("binds");
        let address = listener.local_addr().expect("bound");
        let limit = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("readable");
        let count = limit.trim().parse::<usize>().expect("a number").min(1000);
        let mut waiting = Vec::new();
        for number in 0..count {
            let stream =
                std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(900));
            waiting.push(stream.unwrap_or_else(|error| panic!("connection {number}: {error}")));
        }
    }

    #[tokio::test]
    async fn a_wildcard_takes_both_families_or_its_own() {
        let any: SocketAddr = "0.0.0.0:0".parse().expect("an address");
        let both = bind(any, Sockets::DualStack).expect("binds");
        assert!(reachable(&both, "127.0.0.1").await && reachable(&both, "::1").await);
        let v6: SocketAddr = "[::]:0".parse().expect("an address");
        let one = bind(v6, Sockets::OneFamily).expect("binds");
        assert!(!reachable(&one, "127.0.0.1").await && reachable(&one, "::1").await);
    }
}

//! Whether the next process listens on our ports already.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

/// The kernel's number for the state of a listening socket.
const LISTENING: &str = "0A";

/// The inodes of the sockets that listen on this address in the network namespace of the calling thread, of any process.
pub(crate) fn listening(address: SocketAddr) -> BTreeSet<u64> {
    let path = if address.is_ipv4() { "/proc/thread-self/net/tcp" } else { "/proc/thread-self/net/tcp6" };
    let Ok(file) = File::open(path) else { return BTreeSet::new() };
    let wanted = kernel_text(address);
    let lines = BufReader::new(file).lines().map_while(Result::ok).skip(1);
    // Listening sockets come first; connections may be many.
    let listening = lines.map_while(|line| {
        let mut words = line.split_ascii_whitespace().skip(1).map(str::to_owned);
        let (local, _, state) = (words.next()?, words.next()?, words.next()?);
        (state == LISTENING).then(|| Some((local, words.nth(5)?.parse().ok()?)))?
    });
    listening.filter(|(local, _)| *local == wanted).map(|(_, inode)| inode).collect()
}

/// An address as `/proc/net/tcp` writes it: words in the order of the host.
fn kernel_text(address: SocketAddr) -> String {
    let octets: Vec<u8> = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).filter_map(|word| Some(u32::from_ne_bytes(word.try_into().ok()?)));
    let ip: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn own_listeners_are_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = std::net::TcpListener::bind(address).expect("binds");
            let address = listener.local_addr().expect("bound");
            let file = File::from(OwnedFd::from(listener.try_clone().expect("a second descriptor")));
            let inode = file.metadata().expect("a socket").ino();
            drop(file);
            assert_eq!(listening(address), BTreeSet::from([inode]), "{address}");
            drop(listener);
            assert_eq!(listening(address), BTreeSet::new(), "{address}");
        }
    }
}

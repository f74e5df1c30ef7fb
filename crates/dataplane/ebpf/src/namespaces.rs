//! The cookies by which programs know network namespaces.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns};

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::sys::{
    COOKIE_PROBE_ADDRESS, HashMapFd, create_array, create_link, load_cookie_probe, network_namespace_cookie,
};

/// Reads the cookies of network namespaces.
#[derive(Debug)]
pub(crate) enum CookieReader {
    /// By a socket option, from 5.14 on.
    SocketOption,
    /// By a program that writes the cookie of a certain connection into a map.
    Program {
        /// One cookie.
        map: HashMapFd<4, 8>,
        /// Attached as long as it is open.
        _link: OwnedFd,
    },
}

impl CookieReader {
    /// The way that this kernel offers. A program works only below its cgroup, in which this process need not be: the root serves as well.
    pub(crate) fn new(cgroup: &Cgroup) -> io::Result<CookieReader> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        if network_namespace_cookie(socket.as_fd()).is_ok() {
            return Ok(CookieReader::SocketOption);
        }
        Self::with_program(cgroup).and_then(CookieReader::tried).or_else(|_| {
            let root = Cgroup::open(None).map_err(io::Error::other)?;
            Self::with_program(&root)?.tried()
        })
    }

    fn tried(self) -> io::Result<CookieReader> {
        self.own().map(|_| self)
    }

    fn with_program(cgroup: &Cgroup) -> io::Result<CookieReader> {
        const INET4_CONNECT: u32 = 10;
        let map = create_array(8)?;
        let program = load_cookie_probe(map.as_fd())?;
        let link = create_link(program.as_fd(), cgroup.directory.as_fd(), INET4_CONNECT)?;
        Ok(CookieReader::Program { map: HashMapFd::new(map), _link: link })
    }

    /// The cookie of the network namespace that the calling thread is in.
    pub(crate) fn own(&self) -> io::Result<u64> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        match self {
            CookieReader::SocketOption => network_namespace_cookie(socket.as_fd()),
            CookieReader::Program { map, .. } => {
                let key = 0_u32.to_ne_bytes();
                map.insert(&key, &0_u64.to_ne_bytes())?;
                // The program runs before the kernel looks for a way to the address, and there is none.
                drop(socket.connect(COOKIE_PROBE_ADDRESS));
                let found = map.get(&key)?.map(u64::from_ne_bytes).filter(|cookie| *cookie != 0);
                found.ok_or_else(|| io::Error::other("this process is not below the cgroup"))
            }
        }
    }

    /// The cookie of a network namespace, given as a file.
    pub(crate) fn of(&self, path: &Path) -> Result<u64, Error> {
        let read = || -> io::Result<u64> {
            setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
            self.own()
        };
        // On a thread of its own, which ends in that namespace.
        let answer = thread::scope(|scope| scope.spawn(read).join());
        answer
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
            .map_err(Error::NamespaceCookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_testkit::{Namespace, bpf};

    #[test]
    fn a_program_reads_the_same_cookies_as_the_socket_option() {
        let cgroup = Cgroup::open(Some(&bpf::cgroup().unwrap())).unwrap();
        let program = CookieReader::with_program(&cgroup).unwrap();
        let other = Namespace::new("cookie").unwrap();
        let own = program.own().unwrap();
        let of_other = program.of(&other.path()).unwrap();
        assert_ne!(own, of_other);
        if let CookieReader::SocketOption = CookieReader::new(&cgroup).unwrap() {
            assert_eq!(CookieReader::SocketOption.own().unwrap(), own);
            assert_eq!(CookieReader::SocketOption.of(&other.path()).unwrap(), of_other);
        }
    }
}

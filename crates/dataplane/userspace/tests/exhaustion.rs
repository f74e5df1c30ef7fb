//! When file descriptors run out. Alone in its binary: the limit holds for the whole process.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use support::{CLUSTER_IP, TIMEOUT, ask, counted, on_node, start, wait_until, web};

#[test]
fn accepting_pauses_and_goes_on() -> Result<()> {
    on_node(|_| {
        let listener = TcpListener::bind("10.244.0.10:8080")?;
        thread::spawn(move || {
            let mut held = Vec::new();
            loop {
                match listener.accept() {
                    Ok((mut stream, _)) => {
                        let _ = stream.write_all(b"a");
                        held.push(stream);
                    }
                    // It shares the limit.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                }
            }
        });
        let (mut node, counters) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let service = SocketAddr::new(CLUSTER_IP.parse()?, 80);
        ensure!(ask(service) == Some(b'a'));
        let flags = SockFlag::SOCK_CLOEXEC;
        let clients: Vec<OwnedFd> = (0..40)
            .map(|_| socket(AddressFamily::Inet, SockType::Stream, flags, None))
            .collect::<Result<_, _>>()?;
        let highest = clients.last().context("clients")?.as_raw_fd();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, u64::try_from(highest)? + 10, hard)?;
        let mut clients: Vec<TcpStream> = clients
            .into_iter()
            .map(|client| {
                connect(client.as_raw_fd(), &SockaddrStorage::from(service))?;
                Ok(TcpStream::from(client))
            })
            .collect::<Result<_>>()?;
        wait_until("a pause", || Ok(counted(&counters, "accept_pauses_total") > 0))?;
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
        wait_until("service as before", || Ok(ask(service) == Some(b'a')))?;
        // Each client was served or reset; none hangs.
        for client in &mut clients {
            client.set_read_timeout(Some(TIMEOUT))?;
            let outcome = client.read(&mut [0]);
            let waited = outcome.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            ensure!(!waited, "a client hangs");
        }
        Ok(())
    })
}

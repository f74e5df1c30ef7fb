//! Connected UDP sockets whose endpoint has left: nothing runs when they send, so they are ended, and their processes connect again.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, setns};
use portwarden_netlink::IpFamily;
use portwarden_netlink::sock_diag::{ConnectedSocket, SockDiag};
use tracing::{debug, info, warn};

use crate::layout::{PoolEndpoint, datagram_peer, with_backend};
use crate::maps::PeerMap;
use crate::pools::Pools;

/// The thread that looks for sockets, started when it is first needed. It visits network namespaces, which the engine's thread must not.
#[derive(Debug)]
pub(crate) struct StaleSockets {
    /// The sockets that were pointed at an endpoint. Those that were connected there directly are not among them.
    peers: Arc<PeerMap>,
    namespaces: Option<Vec<PathBuf>>,
    worker: Option<Sender<Vec<PoolEndpoint>>>,
}

impl StaleSockets {
    /// `namespaces` are those to look at; `None` means all that can be found.
    pub(crate) fn new(peers: PeerMap, namespaces: Option<Vec<PathBuf>>) -> Self {
        StaleSockets { peers: Arc::new(peers), namespaces, worker: None }
    }

    /// Ends the sockets that are connected to these endpoints by way of a Service, soon.
    pub(crate) fn end(&mut self, endpoints: Vec<PoolEndpoint>) {
        if endpoints.is_empty() {
            return;
        }
        let unsent = match &self.worker {
            Some(worker) => worker.send(endpoints).err().map(|unsent| unsent.0),
            None => Some(endpoints),
        };
        let Some(endpoints) = unsent else { return };
        match self.start() {
            Ok(worker) => {
                // It has just started, so it receives this.
                let _ = worker.send(endpoints);
                self.worker = Some(worker);
            }
            Err(error) => {
                warn!(err = %error, "Cannot start a thread; UDP sockets stay connected to endpoints that left");
            }
        }
    }

    /// Takes over the sockets that were connected before this process started. After a change of the tables' size or version they have numbers of the old
    /// tables. Ends those whose endpoint is gone, or serves several Services, so that it is unknown which of them the socket belongs to.
    pub(crate) fn take_over(&mut self, pools: &Pools) {
        match self.renumber(pools) {
            Ok(unknown) => self.end(unknown),
            Err(error) => {
                warn!(err = %error, "Cannot read the map of connected UDP sockets; they stay connected to endpoints that leave");
            }
        }
    }

    fn renumber(&self, pools: &Pools) -> std::io::Result<Vec<PoolEndpoint>> {
        let mut unknown = Vec::new();
        let mut numbers = None;
        for cookie in self.peers.keys()? {
            let Some(value) = self.peers.get(&cookie)? else { continue };
            let endpoint = datagram_peer(&value);
            match pools.serves(&endpoint) {
                Some(true) => pools.note_datagram_socket(endpoint.backend),
                // It left, and the earlier process may not have come so far as to end the socket.
                Some(false) => unknown.push(endpoint),
                None => {
                    let numbers = numbers.get_or_insert_with(|| pools.numbers_by_address());
                    let Some(number) = numbers.get(&endpoint.address).copied().flatten() else {
                        unknown.push(endpoint);
                        continue;
                    };
                    self.peers.insert(&cookie, &with_backend(value, number))?;
                    pools.note_datagram_socket(number);
                }
            }
        }
        Ok(unknown)
    }

    fn start(&self) -> std::io::Result<Sender<Vec<PoolEndpoint>>> {
        let (sender, receiver) = channel();
        let peers = Arc::clone(&self.peers);
        let namespaces = self.namespaces.clone();
        thread::Builder::new()
            .name("stale-sockets".to_owned())
            .spawn(move || work(&receiver, &peers, namespaces.as_deref()))?;
        Ok(sender)
    }
}

fn work(receiver: &Receiver<Vec<PoolEndpoint>>, peers: &PeerMap, given: Option<&[PathBuf]>) {
    while let Ok(first) = receiver.recv() {
        // One visit for all that is waiting.
        let endpoints: HashSet<PoolEndpoint> = receiver.try_iter().chain([first]).flatten().collect();
        let files = match given {
            Some(paths) => paths.iter().filter_map(|path| File::open(path).ok()).collect(),
            None => all_namespaces(),
        };
        let mut ended = 0;
        for file in &files {
            match setns(file, CloneFlags::CLONE_NEWNET) {
                Ok(()) => ended += end_here(&endpoints, peers),
                // A namespace that ends has no sockets either.
                Err(error) => debug!(err = %error, "Cannot enter a network namespace"),
            }
        }
        if ended > 0 {
            info!(sockets = ended, endpoints = endpoints.len(), "Ended UDP sockets of endpoints that left");
        }
    }
}

fn end_here(endpoints: &HashSet<PoolEndpoint>, peers: &PeerMap) -> usize {
    let addresses: HashSet<SocketAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
    let stale = |socket: &ConnectedSocket| {
        let pointed = || peers.get(&socket.cookie.to_ne_bytes()).ok().flatten();
        // The same address may still serve another Service.
        let is_stale = |peer: PoolEndpoint| peer.address == socket.peer && endpoints.contains(&peer);
        addresses.contains(&socket.peer) && pointed().is_some_and(|peer| is_stale(datagram_peer(&peer)))
    };
    let end = || -> Result<usize, portwarden_netlink::Error> {
        let mut diag = SockDiag::open()?;
        let v4 = diag.destroy_connected_udp(IpFamily::Ipv4, stale)?;
        Ok(v4 + diag.destroy_connected_udp(IpFamily::Ipv6, stale)?)
    };
    end().unwrap_or_else(|error| {
        warn!(err = %error, "Cannot end UDP sockets of endpoints that left");
        0
    })
}

/// Every network namespace that a process or a file of the container runtime shows, each once.
fn all_namespaces() -> Vec<File> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers =
        processes.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()));
    let of_processes = numbers.map(|entry| entry.path().join("ns/net"));
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: BTreeMap<u64, File> = BTreeMap::new();
    for path in of_processes.chain(named) {
        if let Ok(metadata) = fs::metadata(&path)
            && !found.contains_key(&metadata.ino())
            && let Ok(file) = File::open(&path)
        {
            found.insert(metadata.ino(), file);
        }
    }
    found.into_values().collect()
}

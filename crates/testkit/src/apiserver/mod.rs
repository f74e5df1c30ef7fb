//! An API server for tests: real HTTP on loopback, with or without TLS, and with faults on demand.
//!
//! ```no_run
//! use portwarden_testkit::apiserver::{ApiServer, Fault, Schedule};
//! use portwarden_testkit::build::{port, service};
//!
//! let server = ApiServer::builder().tls().start()?;
//! server.apply(service("web").cluster_ip("10.96.0.10").port(port(80)));
//! server.set_schedule(Schedule::random(7, 0.2, Fault::examples()));
//! let kubeconfig = server.kubeconfig(std::path::Path::new("."), "")?;
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `store.rs`, `object.rs` | objects, versions, history; the bytes of one object in both media |
//! | `encode.rs`, `status.rs` | lists, watch events, refusals: the bytes of a real server |
//! | `resource.rs`, `query.rs`, `selector.rs` | what a request asks for |
//! | `read.rs`, `watch.rs`, `write.rs` | what it gets |
//! | `access.rs`, `tls.rs`, `kubeconfig.rs` | who may ask, and how clients find the server |
//! | `fault.rs`, `body.rs`, `switch.rs` | what goes wrong when; damaged answers; broken connections |
//! | `serve.rs`, `shared.rs`, `log.rs` | connections and requests; the state behind them; what was asked |

mod access;
mod body;
mod encode;
mod fault;
mod kubeconfig;
mod log;
mod object;
mod query;
mod read;
mod resource;
mod selector;
mod serve;
mod shared;
mod status;
mod store;
mod switch;
mod tls;
mod watch;
mod write;

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::sync::oneshot;

pub use access::{Rights, User};
pub use fault::{Fault, Garbage, GoneAs, Occasion, Schedule, When};
pub use log::{Seen, busiest};
pub use resource::Resource;
pub use shared::{Behaviour, StreamingLists};

use crate::rig::Object;
use shared::{Shared, lock};
use tls::Tls;

/// A server in the making.
#[derive(Debug, Default)]
pub struct Builder {
    behaviour: Behaviour,
    tls: bool,
}

impl Builder {
    /// Speaks TLS, and HTTP/2 with those who can.
    pub fn tls(mut self) -> Builder {
        self.tls = true;
        self
    }

    /// Adds a user. Without users, every client may do everything.
    pub fn user(mut self, token: &str, name: &str, rights: Rights) -> Builder {
        self.behaviour.users.push(User::new(token, name, rights));
        self
    }

    /// Changes how the server behaves.
    pub fn behaviour(mut self, change: impl FnOnce(&mut Behaviour)) -> Builder {
        change(&mut self.behaviour);
        self
    }

    /// Starts the server on a thread of its own.
    pub fn start(self) -> Result<ApiServer> {
        self.start_in(Home::Thread)
    }

    /// Starts the server as a task of the runtime that this is called from, and thereby on that runtime's clock.
    pub fn start_here(self) -> Result<ApiServer> {
        self.start_in(Home::Here)
    }

    fn start_in(self, home: Home) -> Result<ApiServer> {
        let tls = if self.tls { Some(Tls::of_process()?) } else { None };
        let shared = Arc::new(Shared::new(self.behaviour, Schedule::healthy(), tls));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = ApiServer { shared, address, home, running: None };
        server.resume()?;
        Ok(server)
    }
}

/// Where a server runs.
#[derive(Debug, Clone, Copy)]
enum Home {
    Thread,
    Here,
}

/// A running server. Dropping it ends it and all connections.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    home: Home,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A write that the server accepted.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// The version that it led to.
    pub version: u64,
    /// When it was done.
    pub at: Instant,
}

impl ApiServer {
    /// By default without TLS and open to every client.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as clients write it.
    pub fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Writes a kubeconfig file into a folder. `user` is the content of the user in YAML, such as `token: secret`, or empty.
    pub fn kubeconfig(&self, folder: &Path, user: &str) -> Result<PathBuf> {
        self.kubeconfig_as(folder, "test", user)
    }

    /// The same for a user of this name, which the file has, too.
    pub fn kubeconfig_as(&self, folder: &Path, name: &str, user: &str) -> Result<PathBuf> {
        // Named even without TLS, or else clients read all the authorities that the system trusts.
        kubeconfig::write(folder, &self.url(), &Tls::of_process()?.authority, name, user)
    }

    /// Writes what a pod gets of its service account into a folder: a token and the authority that the server's certificate is from.
    pub fn service_account(&self, folder: &Path, token: &str) -> Result<()> {
        for (name, text) in
            [("token", token), ("ca.crt", &Tls::of_process()?.authority), ("namespace", "kube-system")]
        {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// Creates or changes an object.
    pub fn apply(&self, object: impl Into<Object>) -> Written {
        self.write(|store| store.apply(object.into()).version)
    }

    /// Creates or changes many objects at once.
    pub fn load(&self, objects: impl IntoIterator<Item: Into<Object>>) -> Written {
        self.write(|store| {
            for object in objects {
                store.apply(object.into());
            }
            store.version()
        })
    }

    /// Deletes an object; nothing if there is none. The namespace is empty for objects without one.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> Option<Written> {
        let version = self.shared.write(|store| store.delete(resource, namespace, name))?.version;
        Some(Written { version, at: Instant::now() })
    }

    /// Forgets the past: every version but the newest is too old from now on.
    pub fn compact(&self) {
        self.compact_until(u64::MAX);
    }

    /// Forgets the past up to a version: those before it are too old from now on.
    pub fn compact_until(&self, version: u64) {
        self.shared.write(|store| store.compact_until(version));
    }

    /// Writes all objects as protobuf ahead of time, which is otherwise done for the first client that asks.
    pub fn prepare(&self) {
        self.shared.store().prepare();
    }

    /// The version of the last write.
    pub fn version(&self) -> u64 {
        self.shared.store().version()
    }

    /// All objects of a kind, in order.
    pub fn objects(&self, resource: Resource) -> Vec<Object> {
        self.shared.store().now(resource).into_values().map(|stored| stored.object.clone()).collect()
    }

    /// The Events that clients recorded.
    pub fn events(&self) -> Vec<Value> {
        self.shared.store().events.values().cloned().collect()
    }

    /// The keys of a Node's taints.
    pub fn taints(&self, node: &str) -> Vec<String> {
        let node = self.shared.store().get(Resource::Nodes, "", node);
        let node: Value = node.and_then(|node| serde_json::from_slice(node.json()).ok()).unwrap_or_default();
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        taints.filter_map(|taint| taint["key"].as_str()).map(str::to_owned).collect()
    }

    /// Changes how the server behaves from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut lock(&self.shared.behaviour));
    }

    /// Decides what goes wrong from now on; what has gone wrong already stays so.
    pub fn set_schedule(&self, schedule: Schedule) {
        *lock(&self.shared.schedule) = schedule;
    }

    /// The requests so far, in order.
    pub fn requests(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// When connections came, counted as in [`Seen::at`].
    pub fn connections(&self) -> Vec<Duration> {
        lock(&self.shared.connections).clone()
    }

    /// Closes all connections.
    pub fn disconnect(&self) {
        self.shared.disconnects.send_modify(|count| *count += 1);
    }

    /// Stops serving and closes all connections; objects stay.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            // A closed connection needs no signal.
            let _ = running.stop.send(());
            if let Some(thread) = running.thread {
                let _ = thread.join();
            }
            self.disconnect();
        }
    }

    /// Serves again at the same address.
    pub fn resume(&mut self) -> Result<()> {
        self.stop();
        let listener = self.listen()?;
        let (stop, stopped) = oneshot::channel();
        let (shared, address) = (self.shared.clone(), self.address);
        let serve = async move {
            let listener = match listener.map(tokio::net::TcpListener::from_std) {
                Some(Ok(listener)) => listener,
                _ => serve::listen_again(address).await,
            };
            serve::serve(listener, shared, stopped).await;
        };
        let thread = match self.home {
            Home::Here => {
                tokio::spawn(serve);
                None
            }
            Home::Thread => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.context("cannot start a runtime")?;
                let thread = thread::Builder::new().name("apiserver".to_owned());
                Some(thread.spawn(move || runtime.block_on(serve)).context("cannot start a thread")?)
            }
        };
        self.running = Some(Running { stop, thread });
        Ok(())
    }

    /// A socket at our address, unless our last one is still about to be closed by the runtime that we are in.
    fn listen(&mut self) -> Result<Option<TcpListener>> {
        let listener = match TcpListener::bind(self.address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && matches!(self.home, Home::Here) => {
                return Ok(None);
            }
            other => other.with_context(|| format!("cannot listen on {}", self.address))?,
        };
        self.address = listener.local_addr().context("a socket without address")?;
        listener.set_nonblocking(true).context("cannot make a socket non-blocking")?;
        Ok(Some(listener))
    }

    fn write(&self, change: impl FnOnce(&mut store::Store) -> u64) -> Written {
        Written { version: self.shared.write(change), at: Instant::now() }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

//! Detects another Portwarden on the same node.
//!
//! Each process listens on an abstract Unix socket. Such a name belongs to a network namespace, as rules do, and disappears with its
//! process, so nothing is left behind.

use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::task::JoinSet;
use tracing::{debug, error, info};

/// The abstract name.
const NAME: &str = "portwarden/instance";

/// How often a process that is not the only one looks whether it is by now.
const RETRY: Duration = Duration::from_secs(5);

/// Shows other processes that this one serves the node, until it is dropped.
#[derive(Debug)]
pub struct Instance {
    _task: JoinSet<()>,
}

/// Another process that serves this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherInstance {
    /// Its number; `None` if it cannot be seen from here, as in another container.
    pub process: Option<u32>,
}

impl fmt::Display for OtherInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(id) => write!(f, "process {id}"),
            None => f.write_str("a process of another container"),
        }
    }
}

impl Instance {
    /// Registers this process. If another one has done so, the log says which; this is no reason to end, because the other one may be about
    /// to stop, as during a rolling update. Then this one takes its place. Must run inside a runtime.
    pub fn register() -> Self {
        let listener = Self::listen(NAME);
        if let Err(error) = &listener {
            report(error);
        }
        let mut task = JoinSet::new();
        task.spawn(async move {
            let listener = match listener {
                Ok(listener) => listener,
                Err(_) => Self::wait().await,
            };
            Self::answer(listener).await;
        });
        Instance { _task: task }
    }

    /// The process that serves this node, if there is one.
    pub fn other() -> Option<OtherInstance> {
        Self::owner(NAME)
    }

    /// Waits until no other process serves this node.
    async fn wait() -> UnixListener {
        loop {
            tokio::time::sleep(RETRY).await;
            if let Ok(listener) = Self::listen(NAME) {
                info!("The other Portwarden has ended; this one serves the node alone");
                return listener;
            }
        }
    }

    /// Accepts connections and closes them: what waits in the queue would make others wait.
    async fn answer(listener: UnixListener) {
        let listener =
            listener.set_nonblocking(true).and_then(|()| tokio::net::UnixListener::from_std(listener));
        let Ok(listener) = listener else { return };
        loop {
            if listener.accept().await.is_err() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    fn listen(name: &str) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
    }

    fn owner(name: &str) -> Option<OtherInstance> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        // The kernel says 0 for a process that is not in this namespace of processes.
        Some(OtherInstance { process: u32::try_from(peer.pid()).ok().filter(|id| *id != 0) })
    }
}

fn report(error: &io::Error) {
    if error.kind() != io::ErrorKind::AddrInUse {
        return debug!(err = %error, "Cannot find out whether another instance runs on this node");
    }
    let other = Instance::other().map_or_else(|| "it has just ended".to_owned(), |other| other.to_string());
    error!(
        other,
        "Another Portwarden runs on this node; two instances with different settings undo each other's rules: stop one of them, unless it is \
         about to end, as during an update"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_owner_until_it_ends() {
        let name = format!("portwarden/test/{}", std::process::id());
        assert_eq!(Instance::owner(&name), None);
        let first = Instance::listen(&name).expect("free");
        assert_eq!(Instance::listen(&name).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        assert_eq!(Instance::owner(&name), Some(OtherInstance { process: Some(std::process::id()) }));
        drop(first);
        assert!(Instance::listen(&name).is_ok());
    }
}

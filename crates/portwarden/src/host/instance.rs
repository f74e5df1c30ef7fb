//! Detects another Portwarden on the same node.
//!
//! Each process listens on an abstract Unix socket. Such a name belongs to a network namespace, as rules do, and disappears with its
//! process, so nothing is left behind.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::task::JoinSet;
use tracing::{debug, error};

/// The abstract name.
const NAME: &str = "portwarden/instance";

/// Shows other processes that this one serves the node, until it is dropped.
#[derive(Debug)]
pub struct Instance {
    _task: JoinSet<()>,
}

impl Instance {
    /// Registers this process. If another one has done so, the log says which; this is no reason to end, because the other one may be about
    /// to stop, as during a rolling update. Must run inside a runtime.
    pub fn register() -> Option<Self> {
        match Self::listen(NAME) {
            Ok(listener) => Self::answer(listener).ok(),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let other = Self::other().map_or_else(|| "unknown".to_owned(), |id| id.to_string());
                error!(
                    process = other,
                    "Another Portwarden runs on this node; two instances with different settings undo each other's rules: stop one of them"
                );
                None
            }
            Err(error) => {
                debug!(err = %error, "Cannot find out whether another instance runs on this node");
                None
            }
        }
    }

    /// The process that serves this node, if there is one.
    pub fn other() -> Option<i32> {
        Self::owner(NAME)
    }

    /// Accepts connections and closes them: what waits in the queue would make others wait.
    fn answer(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                if listener.accept().await.is_err() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
        Ok(Instance { _task: task })
    }

    fn listen(name: &str) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
    }

    fn owner(name: &str) -> Option<i32> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        Some(peer.pid())
    }
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
        assert_eq!(Instance::owner(&name), i32::try_from(std::process::id()).ok());
        drop(first);
        assert!(Instance::listen(&name).is_ok());
    }
}

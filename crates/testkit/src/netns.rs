//! Real network namespaces, held by a file descriptor instead of a name.
//!
//! A namespace lives as long as something refers to it: this handle, a socket, a process or a link in it. Nothing
//! is mounted, so nothing is left behind, not even after a panic or a kill.

mod command;

use std::fs::File;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::panic;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns, unshare};

pub use command::{NamespaceCommand, Output, Process};

/// The network namespace of the calling thread; `/proc/self` would be that of the main thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// A network namespace. Cloning gives another handle to the same one; it ends with the last handle.
#[derive(Clone, Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    file: File,
    udp_ports: AtomicU16,
}

/// The ports that UDP clients speak from: those the kernel would choose from, too.
const UDP_PORTS: RangeInclusive<u16> = 32768..=60999;

impl Namespace {
    /// Makes a new, empty namespace; `name` only appears in messages.
    pub fn new(name: impl Into<String>) -> Result<Namespace> {
        let name = name.into();
        // A thread of its own: unsharing must not move the caller out of its namespace.
        let file = on_thread(&name, || {
            unshare(CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("cannot make a network namespace; {}", advice()))?;
            File::open(OWN_NAMESPACE).with_context(|| format!("cannot open {OWN_NAMESPACE}"))
        })
        .with_context(|| format!("namespace {name}"))?;
        Ok(Namespace { inner: Arc::new(Inner { name, file, udp_ports: AtomicU16::new(*UDP_PORTS.start()) }) })
    }

    /// The name given at birth.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// A path that other programs can open (as in `nsenter --net=PATH`) while this process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.inner.file.as_raw_fd()).into()
    }

    /// Moves the calling thread into the namespace until the guard is dropped.
    ///
    /// Sockets belong for life to the namespace they were opened in, so a guard around opening one is enough.
    pub fn enter(&self) -> Result<Entered> {
        let previous = File::open(OWN_NAMESPACE).with_context(|| format!("cannot open {OWN_NAMESPACE}"))?;
        setns(&self.inner.file, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("cannot enter namespace {}; {}", self.name(), advice()))?;
        Ok(Entered { previous, stays_on_thread: PhantomData })
    }

    /// Runs `work` inside, on a thread of its own, and waits for it. A panic in `work` continues in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_thread(self.name(), || {
            let _entered = self.enter()?;
            work()
        })
    }

    /// Starts `work` inside on a thread that outlives this call.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let namespace = self.clone();
        thread::Builder::new()
            .name(self.name().to_owned())
            .spawn(move || {
                let _entered = namespace.enter()?;
                Ok(work())
            })
            .context("cannot start a thread")
    }

    /// A program that will run inside.
    pub fn command(&self, program: &str) -> NamespaceCommand {
        NamespaceCommand::new(self.clone(), program)
    }

    /// A port for a UDP client, one not used before until all have been.
    ///
    /// Left to the kernel, a port may soon be used again, and then the new datagram belongs to the old flow.
    pub(crate) fn next_udp_port(&self) -> u16 {
        let next = |port| Some(if port >= *UDP_PORTS.end() { *UDP_PORTS.start() } else { port + 1 });
        let taken = self.inner.udp_ports.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.unwrap_or(*UDP_PORTS.start())
    }
}

/// For messages to the kernel that name a namespace by a descriptor.
impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

/// Keeps one thread inside a namespace. Not sendable: namespaces belong to threads, so leaving must happen on the
/// thread that entered.
#[must_use = "the thread leaves the namespace when this is dropped"]
pub struct Entered {
    previous: File,
    stays_on_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        setns(&self.previous, CloneFlags::CLONE_NEWNET)
            .expect("a thread that may enter a namespace may go back to one it holds open");
    }
}

/// Runs `work` on a new thread called `name` and hands back its result or its panic.
fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)
            .context("cannot start a thread")?;
        worker.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    })
}

/// What to do when the kernel refuses.
fn advice() -> &'static str {
    if nix::unistd::geteuid().is_root() {
        "this needs CAP_SYS_ADMIN and CAP_NET_ADMIN (in a container: run it privileged)"
    } else {
        "run as root: sudo make test"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_ports_come_back_only_after_all_others() {
        let namespace = Namespace::new("ports").unwrap();
        let count = UDP_PORTS.len();
        let first: Vec<_> = std::iter::repeat_with(|| namespace.next_udp_port()).take(count).collect();
        assert_eq!(first, UDP_PORTS.collect::<Vec<_>>());
        assert_eq!(namespace.next_udp_port(), first[0]);
    }
}

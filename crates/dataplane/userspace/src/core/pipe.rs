//! Pipes for `splice(2)`, kept by each worker and lent to a connection only while bytes are in them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;

/// Bytes that one pipe holds. Larger ones mean fewer calls for one bulk transfer, and more of the cache.
const CAPACITY: usize = 1 << 20;

/// Idle pipes that a worker keeps; each takes two descriptors.
const KEPT: usize = 16;

thread_local! {
    static IDLE: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// An empty pipe, or one with bytes on their way.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    /// An idle pipe or a new one. Fails where descriptors or pipe pages run out; a buffer does as well then.
    pub(crate) fn take() -> io::Result<Pipe> {
        if let Some(pipe) = IDLE.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let (read, write) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        // A smaller pipe works, too: an unprivileged user has a limit of pages.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(i32::try_from(CAPACITY).unwrap_or(i32::MAX)));
        Ok(Pipe { read, write })
    }

    /// Gives back an empty pipe.
    pub(crate) fn put_back(self) {
        IDLE.with_borrow_mut(|idle| {
            if idle.len() < KEPT {
                idle.push(self);
            }
        });
    }

    /// Moves bytes from a socket into the pipe, which must be empty; 0 is the end of the stream.
    pub(crate) fn fill(&self, from: &impl AsFd) -> io::Result<usize> {
        Ok(splice(from, None, &self.write, None, CAPACITY, flags())?)
    }

    /// Moves up to `count` bytes from the pipe to a socket.
    pub(crate) fn drain(&self, to: &impl AsFd, count: usize) -> io::Result<usize> {
        Ok(splice(&self.read, None, to, None, count, flags())?)
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

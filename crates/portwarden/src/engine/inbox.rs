//! The way into the engine thread: a queue, and a descriptor that is readable when there is something in it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Message;

/// Creates both ends.
pub fn inbox() -> io::Result<(Handle, Inbox)> {
    let (sender, receiver) = mpsc::channel();
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let bell = Arc::new(Bell { wake, rung: AtomicBool::new(false) });
    Ok((Handle { sender, bell: bell.clone() }, Inbox { receiver, woken, bell }))
}

/// Sends messages to the engine. Never blocks; sources are held back by their own limit.
#[derive(Clone)]
pub struct Handle {
    sender: mpsc::Sender<Message>,
    bell: Arc<Bell>,
}

struct Bell {
    wake: UnixStream,
    rung: AtomicBool,
}

impl Handle {
    /// Sends a message. Returns false if the engine has ended.
    pub fn send(&self, message: Message) -> bool {
        if self.sender.send(message).is_err() {
            return false;
        }
        // One byte is enough for any number of messages; a full buffer means that the engine is awake anyway.
        if !self.bell.rung.swap(true, Ordering::AcqRel) {
            let _ = (&self.bell.wake).write(&[1]);
        }
        true
    }
}

/// The engine's end.
pub struct Inbox {
    receiver: mpsc::Receiver<Message>,
    woken: UnixStream,
    bell: Arc<Bell>,
}

impl Inbox {
    /// Sleeps until there is a message, one of `others` is readable, or the deadline has come. Returns which of `others` are readable.
    pub fn wait(&self, deadline: Option<Instant>, others: &[BorrowedFd<'_>]) -> io::Result<Vec<bool>> {
        let mut fds = Vec::with_capacity(1 + others.len());
        fds.push(PollFd::new(self.woken.as_fd(), PollFlags::POLLIN));
        fds.extend(others.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        match poll(&mut fds, timeout(deadline)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(fds.iter().skip(1).map(|fd| fd.any().unwrap_or(false)).collect())
    }

    /// The next message, if there is one. To be called until there is none.
    pub fn next(&self) -> Option<Message> {
        if let Ok(message) = self.receiver.try_recv() {
            return Some(message);
        }
        // Drain the descriptor first and look again: a message sent in between is either seen here or makes it readable again.
        self.silence();
        self.receiver.try_recv().ok()
    }

    fn silence(&self) {
        let mut sink = [0; 16];
        while matches!((&self.woken).read(&mut sink), Ok(count) if count > 0) {}
        self.bell.rung.swap(false, Ordering::AcqRel);
    }
}

/// The time until the deadline, rounded up: waking too early would make the engine spin.
fn timeout(deadline: Option<Instant>) -> PollTimeout {
    let Some(deadline) = deadline else { return PollTimeout::NONE };
    let left = deadline.saturating_duration_since(Instant::now());
    let rounded = left + Duration::from_micros(999);
    PollTimeout::try_from(rounded.as_millis()).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_wakes_and_is_read_once() {
        let (handle, inbox) = inbox().expect("a socket pair");
        assert!(handle.send(Message::Stop) && handle.send(Message::Stop));
        assert!(inbox.wait(None, &[]).expect("polls").is_empty());
        assert!(matches!(inbox.next(), Some(Message::Stop)));
        assert!(matches!(inbox.next(), Some(Message::Stop)));
        assert!(inbox.next().is_none());
        handle.send(Message::Stop);
        inbox.wait(None, &[]).expect("the bell rings again after it was silenced");
        assert!(inbox.next().is_some());
    }

    #[test]
    fn a_deadline_ends_the_wait_and_other_descriptors_are_told_apart() {
        let (_handle, inbox) = inbox().expect("a socket pair");
        let (mut one, other) = UnixStream::pair().expect("a socket pair");
        let past = Some(Instant::now());
        assert_eq!(inbox.wait(past, &[other.as_fd(), one.as_fd()]).expect("polls"), [false, false]);
        one.write_all(&[1]).expect("writes");
        assert_eq!(inbox.wait(None, &[other.as_fd(), one.as_fd()]).expect("polls"), [true, false]);
    }

    #[test]
    fn a_sender_learns_that_the_engine_is_gone() {
        let (handle, inbox) = inbox().expect("a socket pair");
        drop(inbox);
        assert!(!handle.send(Message::Stop));
    }
}

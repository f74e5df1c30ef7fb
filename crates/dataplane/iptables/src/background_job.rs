//! Work that runs on a thread of its own, so that a program that hangs keeps only its own family waiting.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Work that has been started.
#[derive(Debug)]
pub(crate) struct Job<T> {
    thread: JoinHandle<T>,
    /// Its other end is closed when the work is done.
    done: PipeReader,
}

impl<T: Send + 'static> Job<T> {
    /// Starts the work in the network namespace of the calling thread. Gives the input back if no thread can be started.
    pub(crate) fn start<I: Send + 'static>(
        name: String,
        input: I,
        work: impl FnOnce(I) -> T + Send + 'static,
    ) -> Result<Job<T>, (io::Error, I)> {
        let (done, open_until_done) = match io::pipe() {
            Ok(pipe) => pipe,
            Err(error) => return Err((error, input)),
        };
        let slot = Arc::new(Mutex::new(Some(input)));
        let take = |slot: &Mutex<Option<I>>| {
            let input = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            input.expect("only the thread takes the input, once, or the caller if there is no thread")
        };
        let in_thread = slot.clone();
        let thread = thread::Builder::new().name(name).spawn(move || {
            let _open_until_done = open_until_done;
            work(take(&in_thread))
        });
        match thread {
            Ok(thread) => Ok(Job { thread, done }),
            Err(error) => Err((error, take(&slot))),
        }
    }

    /// Readable when the work is done.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// The result if it is there within this time, or the job again.
    pub(crate) fn wait(self, limit: Duration) -> Result<T, Self> {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let ready = loop {
            match poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], timeout) {
                Err(Errno::EINTR) => {}
                answer => break answer.is_ok_and(|ready| ready > 0),
            }
        };
        if !ready {
            return Err(self);
        }
        Ok(self.thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_result_is_there_when_the_work_is_done() {
        let (finish, finished) = mpsc::channel();
        let job = Job::start("test".to_owned(), finished, |finished| finished.recv()).unwrap();
        let job = job.wait(Duration::ZERO).expect_err("it is not done");
        finish.send(7).unwrap();
        assert_eq!(job.wait(Duration::from_secs(60)).expect("it is done"), Ok(7));
    }
}

//! Sockets that stay open: established connections must survive what happens to the rules.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::dialogue::Dialogue;
use super::load::Tally;
use super::outcome::Outcome;

/// A TCP connection, or a UDP socket that keeps its source port.
#[derive(Debug)]
pub struct Connection {
    dialogue: Dialogue,
    timeout: Duration,
}

impl Connection {
    pub(super) fn new(dialogue: Dialogue, timeout: Duration) -> Connection {
        Connection { dialogue, timeout }
    }

    /// Asks once more on the same socket.
    pub fn exchange(&mut self) -> Result<Outcome> {
        self.dialogue.again(Instant::now() + self.timeout)?;
        self.dialogue.finish()
    }

    /// The address it speaks from.
    pub fn client(&self) -> Option<SocketAddr> {
        self.dialogue.client()
    }

    /// Waits so long for an answer from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Exchanges in the background, with `pause` between an answer and the next question.
    pub fn keep_exchanging(mut self, pause: Duration) -> Result<Exchanging> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let mut tally = Tally::default();
            while !stopped.load(Ordering::Relaxed) {
                tally.count(&self.exchange()?);
                thread::park_timeout(pause);
            }
            Ok(tally)
        };
        let thread =
            thread::Builder::new().name("exchanging".into()).spawn(work).context("cannot start a thread")?;
        Ok(Exchanging { stop, thread: Some(thread) })
    }
}

/// A connection in use in the background.
#[derive(Debug)]
pub struct Exchanging {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Tally>>>,
}

impl Exchanging {
    /// Ends it and returns the outcomes of all exchanges.
    pub fn stop(mut self) -> Result<Tally> {
        let thread = self.signal().context("stopped before")?;
        thread.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
    }

    fn signal(&mut self) -> Option<JoinHandle<Result<Tally>>> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        if let Some(thread) = &thread {
            thread.thread().unpark();
        }
        thread
    }
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        self.signal();
    }
}

//! A thread that writes log lines, so that a reader who does not read (a full pipe) never stops the threads that log.
//!
//! Lines wait in a queue of bounded length. When it is full, lines are dropped and counted.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

/// How many lines may wait.
const QUEUE: usize = 4096;

/// How long the end of the process waits for lines that are still in the queue.
const LAST_LINES: Duration = Duration::from_secs(1);

static QUEUED: OnceLock<SyncSender<Entry>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Where a line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Output,
    Error,
}

enum Entry {
    Line(Stream, Vec<u8>),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

/// Starts the thread. Until then, and if it cannot start, lines are written by the thread that logs.
pub(super) fn start() {
    let (sender, receiver) = sync_channel(QUEUE);
    let started = thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&receiver));
    if started.is_ok() {
        let _ = QUEUED.set(sender);
    }
}

/// How many lines were dropped because nothing read the log, since the start.
pub fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Waits until all lines are written, but not for long.
pub(super) fn flush() {
    let Some(queue) = QUEUED.get() else { return };
    let (done, wait) = sync_channel(1);
    let mut entry = Entry::Flush(done);
    // A full queue may have room in a moment.
    for _ in 0..10 {
        match queue.try_send(entry) {
            Ok(()) => {
                let _ = wait.recv_timeout(LAST_LINES);
                return;
            }
            Err(TrySendError::Full(back)) => entry = back,
            Err(TrySendError::Disconnected(_)) => return,
        }
        thread::sleep(LAST_LINES / 10);
    }
}

impl Write for Stream {
    /// Takes whole lines, and never blocks once the thread runs.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match QUEUED.get() {
            None => write_to(*self, line)?,
            Some(queue) => {
                if queue.try_send(Entry::Line(*self, line.to_vec())).is_err() {
                    DROPPED.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(queue: &Receiver<Entry>) {
    for entry in queue {
        match entry {
            // A stream that is closed has no reader to report to.
            Entry::Line(stream, line) => drop(write_to(stream, &line)),
            Entry::Flush(done) => drop(done.try_send(())),
        }
    }
}

fn write_to(stream: Stream, line: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Output => {
            let mut output = io::stdout().lock();
            output.write_all(line)?;
            output.flush()
        }
        Stream::Error => io::stderr().write_all(line),
    }
}

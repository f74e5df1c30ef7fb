//! A buffer for info lines: `infoBufferSize` and `flushFrequency`, with separate streams.
//!
//! The process has one buffer, as it has one standard output. Warnings and errors are not buffered.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::writer::Stream;

static HELD: Mutex<Held> = Mutex::new(Held(Vec::new()));
/// The size of the buffer in bytes; 0 disables it.
static SIZE: AtomicUsize = AtomicUsize::new(0);
/// The longest time that a line stays in the buffer, in milliseconds.
static WAIT: AtomicU64 = AtomicU64::new(5000);
static FLUSHES: AtomicBool = AtomicBool::new(false);

/// Buffered standard output.
pub(super) struct Buffered;

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        held(|held| held.add(bytes, SIZE.load(Ordering::Relaxed), &mut Stream::Output))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Changes the size and the time, after a flush.
pub(super) fn configure(size: usize, wait: Duration) {
    flush();
    SIZE.store(size, Ordering::Relaxed);
    WAIT.store(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    if size > 0 && !FLUSHES.swap(true, Ordering::Relaxed) {
        let work = || {
            loop {
                thread::sleep(Duration::from_millis(WAIT.load(Ordering::Relaxed)));
                flush();
            }
        };
        if thread::Builder::new().name("log flush".to_owned()).spawn(work).is_err() {
            // Without the thread that flushes, lines must not be buffered.
            SIZE.store(0, Ordering::Relaxed);
        }
    }
}

/// Writes what is held.
pub(super) fn flush() {
    // If standard output is gone, there is no reader to report to.
    let _ = held(|held| held.flush(&mut Stream::Output));
}

fn held<T>(with: impl FnOnce(&mut Held) -> T) -> T {
    with(&mut HELD.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whole lines, in order.
struct Held(Vec<u8>);

impl Held {
    fn add(&mut self, line: &[u8], size: usize, out: &mut impl Write) -> io::Result<()> {
        if self.0.len() + line.len() > size {
            self.flush(out)?;
        }
        if line.len() > size {
            return out.write_all(line);
        }
        self.0.extend_from_slice(line);
        Ok(())
    }

    fn flush(&mut self, out: &mut impl Write) -> io::Result<()> {
        let lines = std::mem::take(&mut self.0);
        if lines.is_empty() {
            return Ok(());
        }
        out.write_all(&lines)?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_until_there_is_no_room_and_keep_their_order() {
        let (mut held, mut out) = (Held(Vec::new()), Vec::new());
        held.add(b"one\n", 10, &mut out).expect("writes");
        held.add(b"two\n", 10, &mut out).expect("writes");
        assert_eq!(out, b"", "there is room");
        held.add(b"three\n", 10, &mut out).expect("writes");
        assert_eq!(out, b"one\ntwo\n");
        held.add(b"longer than all the room\n", 10, &mut out).expect("writes");
        assert_eq!(out, b"one\ntwo\nthree\nlonger than all the room\n");
        held.add(b"four\n", 10, &mut out).expect("writes");
        held.flush(&mut out).expect("writes");
        assert!(out.ends_with(b"room\nfour\n"));
        held.add(b"five\n", 0, &mut out).expect("writes");
        assert!(out.ends_with(b"four\nfive\n"), "nothing waits without a buffer");
    }
}

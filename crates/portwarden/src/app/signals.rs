//! Signals. The handlers are explicit: as PID 1 of a container a process without them would not even hear SIGTERM.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP.
    Reload,
}

/// The signals that come in from now on.
pub struct Signals {
    terminate: Stream,
    interrupt: Stream,
    hang_up: Stream,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP. Must run inside a runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }
}

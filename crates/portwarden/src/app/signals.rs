//! Signals. The handlers are explicit: as PID 1 of a container, a process without handlers ignores SIGTERM.

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
    /// SIGQUIT.
    Quit,
}

/// The signals that come in from now on.
pub struct Signals {
    terminate: Stream,
    interrupt: Stream,
    hang_up: Stream,
    quit: Stream,
    /// Ignored: by default it would end the process.
    user: Stream,
}

impl Signals {
    /// Handles SIGTERM, SIGINT, SIGHUP, SIGQUIT and SIGUSR1. Must run inside a runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    /// The next signal that asks for something.
    pub async fn next(&mut self) -> Signal {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Signal::Terminate,
                _ = self.interrupt.recv() => return Signal::Interrupt,
                _ = self.hang_up.recv() => return Signal::Reload,
                _ = self.quit.recv() => return Signal::Quit,
                _ = self.user.recv() => {}
            }
        }
    }
}

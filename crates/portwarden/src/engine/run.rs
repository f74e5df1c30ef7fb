//! The loop of the engine's thread.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use portwarden_model::Event;
use portwarden_netlink::memory::return_free_memory;
use tracing::warn;

use super::{Engine, EngineError, Inbox};
use crate::host::{HostAddressError, HostAddresses};

/// After this many messages the engine checks its deadlines, even if more are waiting.
const MESSAGES_AT_ONCE: usize = 256;

/// Free memory is returned to the system after this much idle time.
const QUIET: Duration = Duration::from_secs(1);

/// Runs until a message asks the engine to stop. Returning drops nothing from the kernel.
pub fn run(
    mut engine: Engine,
    inbox: &Inbox,
    mut addresses: Option<HostAddresses>,
) -> Result<(), EngineError> {
    if let Some(addresses) = &mut addresses {
        take_addresses(&mut engine, addresses.list().map(Some));
    }
    let heartbeat = engine.heartbeat().clone();
    let mut quiet_at = None;
    loop {
        heartbeat.wake(Instant::now());
        for message in std::iter::from_fn(|| inbox.next()).take(MESSAGES_AT_ONCE) {
            engine.take(message);
            quiet_at = Some(Instant::now() + QUIET);
        }
        if engine.is_stopped() {
            return Ok(());
        }
        let deadline = engine.turn()?;
        if quiet_at.is_some_and(|at| at <= Instant::now()) {
            return_free_memory();
            quiet_at = None;
        }
        let deadline = [deadline, quiet_at].into_iter().flatten().min();
        let (notified, moved) = {
            let mut fds: Vec<BorrowedFd<'_>> = engine.watch_fds();
            let watched = fds.len();
            fds.extend(addresses.as_ref().map(HostAddresses::fd));
            heartbeat.sleep();
            let readable = inbox.wait(deadline, &fds).map_err(EngineError::Wait)?;
            heartbeat.wake(Instant::now());
            let (watches, others) = readable.split_at(watched.min(readable.len()));
            (watches.contains(&true), others.contains(&true))
        };
        if notified {
            engine.poll_dataplanes();
        }
        if let Some(addresses) = addresses.as_mut().filter(|_| moved) {
            take_addresses(&mut engine, addresses.changed());
        }
    }
}

fn take_addresses(engine: &mut Engine, addresses: Result<Option<Event>, HostAddressError>) {
    match addresses {
        Ok(now) => engine.apply(now.into_iter().collect()),
        Err(error) => warn!(
            err = crate::logging::chain(&error),
            "Cannot read this host's addresses; node ports stay on the last known ones"
        ),
    }
}

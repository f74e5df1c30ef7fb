//! The loop of the engine's thread.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use portwarden_model::Event;
use portwarden_netlink::memory::{return_code_pages, return_free_memory};
use tracing::warn;

use super::memory_return::MemoryReturn;
use super::{Engine, EngineError, Inbox};
use crate::host::{HostAddressError, HostAddresses};

/// After this many messages the engine checks its deadlines, even if more are waiting.
const MESSAGES_AT_ONCE: usize = 256;

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
    let mut memory = MemoryReturn::default();
    loop {
        heartbeat.wake(Instant::now());
        for message in std::iter::from_fn(|| inbox.next()).take(MESSAGES_AT_ONCE) {
            memory.handled(&message, Instant::now());
            engine.take(message);
        }
        if engine.is_stopped() {
            return Ok(());
        }
        let deadline = engine.turn()?;
        if memory.is_due(Instant::now()) {
            return_free_memory();
            return_code_pages();
        }
        let deadline = [deadline, memory.next()].into_iter().flatten().min();
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

//! The engine's thread, and what it does before the first message.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use portwarden_model::{GoneFrontend, PerFamily};
use tokio::sync::oneshot;
use tracing::error;

use crate::engine::{self, Engine, EngineError, EngineParts, Handle};
use crate::host::HostAddresses;
use crate::logging::chain;

/// How long the first sync waits for what an earlier process left in the kernel. It only serves to remove stale UDP flows.
const EARLIER_RULES: Duration = Duration::from_secs(5);

/// Starts the engine on a thread of its own. `earlier` reads there which UDP frontends an earlier process left.
pub(super) fn start_engine(
    parts: EngineParts,
    earlier: impl FnOnce() -> PerFamily<BTreeSet<GoneFrontend>> + Send + 'static,
) -> anyhow::Result<(Handle, oneshot::Receiver<Result<(), EngineError>>)> {
    let (handle, inbox) = engine::inbox().context("cannot create the engine's inbox")?;
    let (ended, ended_out) = oneshot::channel();
    let work = move || {
        // In the thread that uses them: a network namespace belongs to a thread.
        let addresses = HostAddresses::open();
        if let Err(error) = &addresses {
            error!(
                err = chain(error),
                "Cannot follow this host's addresses; node ports on chosen addresses will not answer"
            );
        }
        let mut engine = Engine::new(parts);
        engine.take_over(&within(EARLIER_RULES, earlier));
        let _ = ended.send(engine::run(engine, &inbox, addresses.ok()));
    };
    thread::Builder::new()
        .name("engine".to_owned())
        .spawn(work)
        .context("cannot start the engine's thread")?;
    Ok((handle, ended_out))
}

/// Runs this on a thread of its own and waits for its result for so long: a program that hangs must not keep the engine from starting.
fn within<T: Default + Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let started = thread::Builder::new().name("earlier rules".to_owned()).spawn(move || done.send(work()));
    match started {
        Ok(_) => result.recv_timeout(limit).unwrap_or_default(),
        Err(_) => T::default(),
    }
}

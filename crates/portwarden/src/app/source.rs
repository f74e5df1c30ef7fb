//! Where objects come from.

use anyhow::{Context, bail};
use portwarden_source::Sink;
use portwarden_source::files::Files;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::config::{Settled, Source};
use crate::engine::{Handle, Message};
use crate::events::Event;

/// So many events may wait for the engine before the source is held back.
const EVENTS_IN_FLIGHT: u32 = 16 * 1024;

/// A source that runs; it ends with this value.
pub(super) struct RunningSource {
    task: JoinHandle<()>,
}

impl RunningSource {
    /// Starts the source that the configuration names.
    pub(super) fn start(settled: &Settled, node: &str, engine: &Handle) -> anyhow::Result<Self> {
        let engine = engine.clone();
        let sink = Sink::new(EVENTS_IN_FLIGHT, move |update| engine.send(Message::Update(update)));
        let task = match &settled.source {
            Source::Manifests(path) => {
                let files = Files::new(path, node)
                    .with_context(|| format!("cannot follow the manifests in {path:?}"))?;
                tokio::spawn(files.run(sink))
            }
            Source::Api(_) => bail!("no API source yet"),
        };
        Ok(RunningSource { task })
    }

    /// Waits until the source ends, which it only does when the engine has ended.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.task).await;
    }
}

impl Drop for RunningSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Takes Events to the API, if there is one.
pub(super) async fn deliver(mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        tracing::trace!(?event, "No API to tell an Event to");
    }
}

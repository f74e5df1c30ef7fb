//! Starts the source of objects: an API server or a folder of manifests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use portwarden_source::Sink;
use portwarden_source::files::Files;
use portwarden_source::kubernetes::{
    Client, ClientOptions, EventRecorder, Kubernetes, NewEvent, Observer, remove_startup_taint,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::config::gates::Feature;
use crate::config::{ApiClient, Config, Source};
use crate::engine::{Handle, Message};
use crate::metrics::{RestClientMetrics, go_architecture};

/// How many events may wait for the engine before the source is held back.
const EVENTS_IN_FLIGHT: u32 = 4 * 1024;

/// How long a process that cannot start waits until its last Event is sent.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The reporting controller of Events, the same as kube-proxy's.
const CONTROLLER: &str = "kube-proxy";

/// A source that runs; it ends with this value.
pub(crate) struct RunningSource {
    tasks: JoinSet<()>,
    recorder: Option<EventRecorder>,
    client: Option<Client>,
}

/// A source whose path and credentials were found to be usable; nothing is read or sent yet.
pub(crate) enum PreparedSource {
    /// A folder of manifests.
    Files(Files),
    /// An API server.
    Api {
        /// Connects with the first request.
        client: Client,
        /// Whether lists are requested as streams.
        streaming_lists: bool,
    },
}

impl PreparedSource {
    /// Checks what the configuration names: that the manifests exist, or that there are credentials.
    pub(crate) async fn new(
        config: &Config,
        node: &str,
        version: &str,
        metrics: &RestClientMetrics,
    ) -> anyhow::Result<Self> {
        match &config.source {
            Source::Manifests(path) => {
                let files = Files::new(path, node)
                    .with_context(|| format!("cannot follow the manifests in {path:?}"))?;
                check_manifests(path)?;
                Ok(PreparedSource::Files(files))
            }
            Source::Api(api) => {
                let client = Client::new(options(api, version), Some(observer(metrics.clone()))).await?;
                let streaming_lists = config.gates.enabled(Feature::WatchListClient);
                Ok(PreparedSource::Api { client, streaming_lists })
            }
        }
    }

    /// Starts to read and to send events to the engine.
    pub(crate) fn start(self, node: &str, engine: &Handle, metrics: &RestClientMetrics) -> RunningSource {
        let engine = engine.clone();
        let sink = Sink::new(EVENTS_IN_FLIGHT, move |update| engine.send(Message::Update(update)));
        let mut tasks = JoinSet::new();
        match self {
            PreparedSource::Files(files) => {
                tasks.spawn(files.run(sink));
                RunningSource { tasks, recorder: None, client: None }
            }
            PreparedSource::Api { client, streaming_lists } => {
                info!(server = client.server(), identity = client.identity(), "Following an API server");
                let (recorder, record) = recorder(&client);
                metrics.connected();
                tasks.spawn(Kubernetes::new(client.clone(), node).streaming_lists(streaming_lists).run(sink));
                // Ends with the last recorder, and is not part of the source whose end matters.
                tokio::spawn(record);
                RunningSource { tasks, recorder: Some(recorder), client: Some(client) }
            }
        }
    }
}

/// A path that does not exist is a typing error far more often than a folder that appears later.
fn check_manifests(path: &str) -> anyhow::Result<()> {
    let readable = std::fs::metadata(path).and_then(|metadata| {
        if metadata.is_dir() {
            std::fs::read_dir(path).map(drop)
        } else {
            std::fs::File::open(path).map(drop)
        }
    });
    readable.with_context(|| {
        format!("cannot read the manifests in {path:?}; --manifests takes a folder with .yaml, .yml or .json files, or one such file")
    })
}

impl RunningSource {
    /// Prepares and starts the source that the configuration names.
    pub(crate) async fn start(
        config: &Config,
        node: &str,
        version: &str,
        engine: &Handle,
        metrics: &RestClientMetrics,
    ) -> anyhow::Result<Self> {
        Ok(PreparedSource::new(config, node, version, metrics).await?.start(node, engine, metrics))
    }

    /// Sends Events to the API server; `None` with a folder of manifests.
    pub(super) fn recorder(&self) -> Option<EventRecorder> {
        self.recorder.clone()
    }

    /// Removes the startup taint from the Node as soon as everything is installed, if the configuration names one.
    pub(super) fn remove_startup_taint(
        &self,
        config: &Config,
        node: &str,
        mut installed: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let work = config.startup_taint.clone().zip(self.client.clone());
        if config.startup_taint.is_some() && work.is_none() {
            warn!("--remove-startup-taint has no effect with --manifests");
        }
        let node = node.to_owned();
        async move {
            let Some((key, client)) = work else { return };
            if installed.wait_for(|installed| *installed).await.is_ok() {
                remove_startup_taint(client, node, key).await;
            }
        }
    }

    /// Waits until the source ends, which it only does when the engine has ended.
    pub(super) async fn ended(&mut self) {
        self.tasks.join_next().await;
    }
}

/// Sends a last Event before the process ends, if there is an API server and it answers in time.
pub(super) async fn send_last_event(config: &Config, version: &str, event: NewEvent) {
    let Source::Api(api) = &config.source else { return };
    let sent = tokio::time::timeout(LAST_EVENT_TIMEOUT, async {
        let client = Client::new(options(api, version), None).await?;
        let (recorder, record) = recorder(&client);
        recorder.record(event);
        // The task ends when everything is sent and no recorder is left.
        drop(recorder);
        record.await;
        anyhow::Ok(())
    });
    if !matches!(sent.await, Ok(Ok(()))) {
        warn!("Cannot send an Event about the reason why the process ends");
    }
}

fn recorder(client: &Client) -> (EventRecorder, impl Future<Output = ()> + Send + use<>) {
    EventRecorder::new(client.clone(), CONTROLLER, &format!("{CONTROLLER}-{}", host_name()))
}

fn options(api: &ApiClient, version: &str) -> ClientOptions {
    ClientOptions {
        kubeconfig: api.kubeconfig.as_ref().map(PathBuf::from),
        master: api.master.clone(),
        content_type: api.content_type.clone(),
        accept_content_types: api.accept.clone(),
        qps: api.limit.map_or(-1.0, |limit| limit.qps),
        burst: api.limit.map_or(0, |limit| limit.burst),
        user_agent: user_agent(version),
    }
}

/// kube-proxy's user agent, with our name in the place of the commit.
fn user_agent(version: &str) -> String {
    let version = version.split(['-', '+']).next().unwrap_or_default();
    format!("{CONTROLLER}/{version} (linux/{}) portwarden/{}", go_architecture(), crate::version::OWN)
}

fn observer(metrics: RestClientMetrics) -> Observer {
    Arc::new(move |seen| {
        let text = |code: Option<u16>| code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        metrics.answered(&text(seen.code), seen.method, seen.host);
        metrics.took(seen.method, seen.host, seen.duration);
        metrics.waited(seen.method, seen.host, seen.limited);
        metrics.sent(seen.method, seen.host, seen.request_size);
        if let Some(before) = seen.repeats {
            metrics.repeated(&text(before), seen.method, seen.host);
        }
        seen.resolutions.iter().for_each(|(name, took)| metrics.resolved(name, *took));
        if let Some(size) = seen.response_size {
            metrics.received(seen.method, seen.host, size);
        }
    })
}

/// Identifies this process among others, independent of the Node's name.
fn host_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_agent_names_kube_proxy_and_us() {
        let agent = user_agent("v1.37.0+portwarden.0.1.0");
        assert!(agent.starts_with("kube-proxy/v1.37.0 (linux/"), "{agent}");
        assert!(agent.ends_with(&format!(") portwarden/{}", crate::version::OWN)), "{agent}");
    }
}

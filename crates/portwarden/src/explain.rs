//! Reads objects from the source that a configuration names and resolves them with the same model as the running proxy, for commands. Nothing is
//! written to the kernel.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use portwarden_model::{Cluster, Kind};
use portwarden_source::{Health, Update};

use crate::app::RunningSource;
use crate::config::Config;
use crate::engine::{self, Inbox, Message, Moment};
use crate::host::{self, HostAddresses};
use crate::metrics::Metrics;

/// The longest time for the source to list everything.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time if failures are part of the answer.
const TIMEOUT_WITH_FAILURES: Duration = Duration::from_secs(10);

/// What a source lists, and what is wrong with it.
pub(crate) struct Gathered {
    /// Resolved, as far as objects are known.
    pub(crate) cluster: Cluster,
    /// Parts of the source that cannot be followed, with the reason.
    pub(crate) failures: BTreeMap<String, String>,
    /// Fields of objects that cannot be used.
    pub(crate) problems: Vec<String>,
}

/// All objects, resolved. Problems of objects go to standard error.
pub(crate) fn read_cluster(config: &Config, version: &str) -> anyhow::Result<Cluster> {
    let Gathered { cluster, failures, problems } = gather(config, version, TIMEOUT)?;
    for problem in problems {
        eprintln!("{problem}");
    }
    if !is_complete(&cluster) {
        let failures: Vec<String> =
            failures.iter().map(|(part, reason)| format!("; {part}: {reason}")).collect();
        bail!("the source did not list all objects within {TIMEOUT:?}{}", failures.concat());
    }
    Ok(cluster)
}

/// The same with what fails. Returns early if everything that is missing fails.
pub(crate) fn gather_with_failures(config: &Config, version: &str) -> anyhow::Result<Gathered> {
    gather(config, version, TIMEOUT_WITH_FAILURES)
}

fn gather(config: &Config, version: &str, timeout: Duration) -> anyhow::Result<Gathered> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime for the source of objects")?;
    let gathered = runtime.block_on(read(config, version, timeout));
    runtime.shutdown_background();
    gathered
}

/// Reads from the source until all kinds of objects are listed, or the time is over.
async fn read(config: &Config, version: &str, timeout: Duration) -> anyhow::Result<Gathered> {
    let node = host::node_name(config.hostname_override.as_deref())?;
    let cluster = Cluster::new(config.model_settings(&node, Moment::now().wall));
    let mut gathered = Gathered { cluster, failures: BTreeMap::new(), problems: Vec::new() };
    gathered.cluster.apply(HostAddresses::open().and_then(|mut addresses| addresses.list())?);
    let metrics = Metrics::new(&crate::version::build_info(version))?;
    let (handle, inbox) = engine::inbox().context("cannot create the inbox for objects")?;
    let _source = RunningSource::start(config, &node, version, &handle, &metrics.rest_client).await?;
    let deadline = Instant::now() + timeout;
    while !is_complete(&gathered.cluster) && Instant::now() < deadline {
        gathered.take(&inbox);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gathered.take(&inbox);
    gathered.cluster.resolve();
    let problems = gathered.cluster.take_problems();
    gathered.problems.extend(problems.iter().map(ToString::to_string));
    Ok(gathered)
}

/// ServiceCIDRs are not needed: they affect no Service, and old clusters do not have them.
fn is_complete(cluster: &Cluster) -> bool {
    cluster.is_synced() && cluster.is_listed(Kind::Node)
}

impl Gathered {
    fn take(&mut self, inbox: &Inbox) {
        while let Some(message) = inbox.next() {
            match message {
                Message::Update(Update::Events(batch)) => {
                    for event in batch.into_events() {
                        self.cluster.apply(event);
                    }
                }
                Message::Update(Update::Problems(problems)) => {
                    self.problems.extend(problems.iter().map(ToString::to_string));
                }
                Message::Update(Update::Status(status)) => {
                    match status.health {
                        Health::Failing(reason) => self.failures.insert(status.part, reason),
                        Health::Following => self.failures.remove(&status.part),
                    };
                }
                Message::Reconfigure(_) | Message::Inspect(_) | Message::Stop => {}
            }
        }
    }
}

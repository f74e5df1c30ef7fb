//! `portwarden explain SERVICE`: why each endpoint of a Service is used or not on this node.
//!
//! It reads objects from the same source as the running proxy and resolves them with the same model. It writes nothing to the kernel.

mod text;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use portwarden_model::{Cluster, Family, Kind, NamespacedName};
use portwarden_source::Update;

use crate::app::RunningSource;
use crate::config::Config;
use crate::engine::{self, Inbox, Message, Moment};
use crate::host::{self, HostAddresses};
use crate::metrics::Metrics;

/// The longest time for the source to list everything.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Explains one Service, given as `NAME` or `NAMESPACE/NAME`.
pub fn explain(service: &str, config: &Config, version: &str) -> anyhow::Result<String> {
    let (namespace, name) = service.split_once('/').unwrap_or(("default", service));
    let service = NamespacedName::new(namespace, name);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime for the source of objects")?;
    let cluster = runtime.block_on(gather(config, version))?;
    runtime.shutdown_background();
    let found: Vec<String> = Family::BOTH
        .into_iter()
        .filter_map(|family| Some(text::explanation(&service, family, &cluster.explain(&service, family)?)))
        .collect();
    if found.is_empty() {
        bail!("{}", text::unknown(&service, cluster.service_names()));
    }
    Ok(found.join("\n"))
}

/// Reads from the source until all kinds of objects are listed.
async fn gather(config: &Config, version: &str) -> anyhow::Result<Cluster> {
    let node = host::node_name(config.hostname_override.as_deref())?;
    let mut cluster = Cluster::new(config.model_settings(&node, Moment::now().wall));
    cluster.apply(HostAddresses::open().and_then(|mut addresses| addresses.list())?);
    let metrics = Metrics::new(&crate::version::build_info(version))?;
    let (handle, inbox) = engine::inbox().context("cannot create the inbox for objects")?;
    let _source = RunningSource::start(config, &node, version, &handle, &metrics.rest_client).await?;
    let deadline = Instant::now() + TIMEOUT;
    let mut failure = String::new();
    while !is_complete(&cluster) {
        if Instant::now() > deadline {
            bail!("the source did not list all objects within {TIMEOUT:?}{failure}");
        }
        take(&inbox, &mut cluster, &mut failure);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.resolve();
    Ok(cluster)
}

/// ServiceCIDRs are not needed: they affect no Service, and old clusters do not have them.
fn is_complete(cluster: &Cluster) -> bool {
    cluster.is_synced() && cluster.is_listed(Kind::Node)
}

fn take(inbox: &Inbox, cluster: &mut Cluster, failure: &mut String) {
    while let Some(message) = inbox.next() {
        match message {
            Message::Update(Update::Events(batch)) => {
                for event in batch.into_events() {
                    cluster.apply(event);
                }
            }
            Message::Update(Update::Problems(problems)) => {
                for problem in problems {
                    eprintln!("{problem}");
                }
            }
            Message::Update(Update::Status(status)) => {
                if let portwarden_source::Health::Failing(reason) = status.health {
                    *failure = format!("; {}: {reason}", status.part);
                }
            }
            Message::Reconfigure(_) | Message::Inspect(_) | Message::Stop => {}
        }
    }
}

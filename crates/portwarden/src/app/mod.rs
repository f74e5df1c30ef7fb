//! All parts together: built in one place, run, changed while they run, and stopped.
//!
//! | file | what |
//! |---|---|
//! | `source.rs` | where objects come from |
//! | `servers.rs` | the health and metrics servers |
//! | `notices.rs` | what the engine noticed, told as Events |
//! | `config_file.rs`, `reload.rs` | a changed configuration file and what it means |
//! | `watchdog.rs` | reports a stuck engine and a log that nothing reads |
//! | `signals.rs` | what signals ask for |

mod config_file;
mod notices;
mod reload;
mod servers;
mod signals;
mod source;
mod watchdog;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use portwarden_model::{DetectLocal, PacerConfig, PerFamily, PodTraffic};
use portwarden_source::kubernetes::{NewEvent, Regarding, Severity};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};

use crate::config::options::DETECT_LOCAL_MODE;
use crate::config::{self, Config, NodeFacts, Notice, Source};
use crate::engine::{
    self, Check, ConntrackFlows, Engine, EngineError, EngineOutputs, EngineReceivers, Handle, Heartbeat,
    Message, Moment, NodeWait, Parts, RemoveLeftovers,
};
use crate::events::Events;
use crate::flags::{Flags, Program};
use crate::health::{ServicePorts, ServicePortsContext, SharedHealth};
use crate::host::{self, FamilySupport, HostAddresses, Kernel};
use crate::http::BindError;
use crate::logging::{Logs, chain};
use crate::metrics::Metrics;
use crate::modes;

pub use signals::{Signal, Signals};

use config_file::ConfigFile;
use servers::Servers;
pub(crate) use source::RunningSource;

/// How long a sync that is under way may take when the process is to stop.
const LAST_SYNC: Duration = Duration::from_secs(5);

/// What the process was asked to do.
#[derive(Debug)]
pub struct Order {
    /// Under which name it was called.
    pub program: Program,
    /// The flags that were given.
    pub flags: Flags,
    /// What follows from flags and file.
    pub config: Config,
    /// What the operator should know about that.
    pub notices: Vec<Notice>,
    /// The version to show.
    pub version: String,
}

/// The running process.
pub struct App {
    order: Order,
    families: FamilySupport,
    started: Moment,
    engine: Handle,
    engine_ended: oneshot::Receiver<Result<(), EngineError>>,
    source: RunningSource,
    servers: Servers,
    health: SharedHealth,
    metrics: Metrics,
    events: Events,
    logs: Arc<Logs>,
    _tasks: JoinSet<()>,
}

impl App {
    /// Builds and starts everything. Must run inside a runtime.
    pub async fn start(order: Order, logs: Arc<Logs>) -> anyhow::Result<App> {
        let started = Moment::now();
        let config = &order.config;
        // First: a heap profile knows nothing of what was allocated before.
        crate::status::sample_heap(config.servers.profiling);
        let node = host::node_name(config.hostname_override.as_deref())?;
        let metrics = Metrics::new(&crate::version::build_info(&order.version))?;
        metrics.feature_gates(config.gates.iter().map(|(gate, on)| (gate.name, gate.stage.label(), on)))?;
        prepare_host(config)?;
        set_oom_score(config);
        let families = modes::families(config.mode)?;
        config.mode.entry().operations.publish_metrics(config, &metrics)?;
        let health = SharedHealth::new(config.pacing.sync_period);
        let heartbeat = Heartbeat::new(started.instant);
        health.follow(heartbeat.clone());
        let events = Events::default();
        let (outputs, receivers) = EngineOutputs::new(1000);
        let (engine, engine_ended) = start_engine(Parts {
            settings: config.model_settings(&node, started.wall),
            words: config.mode.words(),
            dataplanes: modes::build(config, families)?,
            pacing: pacing(config),
            node_wait: node_wait(config),
            remove_leftovers: Some(remove_leftovers_of_others(config)),
            check: check_against_node(config.clone(), families),
            flows: Box::new(ConntrackFlows::default()),
            health: health.clone(),
            metrics: metrics.clone(),
            outputs,
            heartbeat: heartbeat.clone(),
            clock: Box::new(Moment::now),
        })?;
        let servers = match Servers::start(&order, &health, &metrics, &logs).await {
            Ok(servers) => servers,
            Err(error) => {
                source::last_words(config, &order.version, cannot_listen(&node, &error)).await;
                return Err(error.into());
            }
        };
        engine::log_waiting_for_caches();
        let source =
            RunningSource::start(config, &node, &order.version, &engine, &metrics.rest_client).await?;
        events.attach(&node, source.recorder());
        let mut tasks = JoinSet::new();
        start_followers(&mut tasks, receivers, &node, &health, &metrics, &events);
        tasks.spawn(watchdog::watch(health.clone(), heartbeat, metrics.clone()));
        events.started();
        tell_deprecations(&order.notices, &events);
        Ok(App {
            order,
            families,
            started,
            engine,
            engine_ended,
            source,
            servers,
            health,
            metrics,
            events,
            logs,
            _tasks: tasks,
        })
    }

    /// Where the health and the metrics server listen, as far as they do.
    pub fn bound(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        self.servers.bound()
    }

    /// The way into the engine.
    pub fn engine(&self) -> &Handle {
        &self.engine
    }

    /// Runs until a signal asks for the end, or something that everything depends on has failed.
    pub async fn run(mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut file = ConfigFile::follow(self.order.flags.config_file());
        loop {
            tokio::select! {
                // In this order: when the engine gives up, the source ends, too, and is not to be blamed.
                biased;
                signal = signals.next() => match signal {
                    Signal::Reload => self.reload().await,
                    Signal::Quit => {
                        error!("Ended by SIGQUIT; the rules stay in place");
                        crate::logging::flush();
                        std::process::exit(2);
                    }
                    Signal::Terminate | Signal::Interrupt => {
                        info!(?signal, "Stopping; the rules stay in place");
                        return self.stop(signals).await;
                    }
                },
                ended = &mut self.engine_ended => {
                    ended.context("the engine's thread ended without a word")?.context("the engine gave up")?;
                    bail!("the engine ended by itself");
                }
                () = file.changed() => self.reload().await,
                () = self.source.ended() => bail!("the source of objects ended by itself"),
            }
        }
    }

    async fn stop(self, signals: &mut Signals) -> anyhow::Result<()> {
        self.engine.send(Message::Stop);
        if tokio::time::timeout(LAST_SYNC, self.engine_ended).await.is_err() {
            warn!("A sync is still under way; the kernel finishes it or drops it whole");
        }
        let mode = self.order.config.mode;
        tokio::select! {
            _ = tokio::task::spawn_blocking(move || mode.entry().operations.drain()) => {}
            signal = signals.next() => info!(?signal, "Stopping at once"),
        }
        Ok(())
    }
}

/// Makes the kernel's settings. What cannot be set is told loudly; only an operator who asked for it gets an error.
pub fn prepare_host(config: &Config) -> anyhow::Result<()> {
    let failures = Kernel::default().set_conntrack(&config.conntrack);
    for failure in &failures {
        error!(err = chain(failure), fatal = config.sysctl_hard_fail, "Cannot set a conntrack parameter");
    }
    match failures.into_iter().next().filter(|_| config.sysctl_hard_fail) {
        Some(first) => Err(first).context("could not set conntrack parameters from kube-proxy configuration"),
        None => Ok(()),
    }
}

/// `--init-only`: what needs privileges, and nothing that stays.
pub fn prepare_only(config: &Config) -> anyhow::Result<()> {
    prepare_host(config)?;
    for dataplane in modes::build(config, modes::families(config.mode)?)? {
        for family in dataplane.families() {
            info!(ipFamily = %family, "System initialized and --init-only specified");
        }
    }
    config.mode.entry().operations.prepare_host(config)
}

fn set_oom_score(config: &Config) {
    if let Err(error) = host::set_oom_score(Path::new("/proc"), config.oom_score_adj) {
        debug!(err = %error, score = config.oom_score_adj, "Cannot set the out-of-memory score");
    }
}

fn pacing(config: &Config) -> PacerConfig {
    PacerConfig {
        min_interval: config.fixed_min_sync_period().unwrap_or_default(),
        sync_period: config.pacing.sync_period,
        ..PacerConfig::default()
    }
}

fn node_wait(config: &Config) -> NodeWait {
    match config.source {
        Source::Manifests(_) => NodeWait::NONE,
        Source::Api(_) => NodeWait::FOR_API_SERVER,
    }
}

/// What is wrong with the configuration on this very node, once its addresses are known.
fn check_against_node(config: Config, families: FamilySupport) -> Check {
    Box::new(move |cluster| {
        let primary = cluster.primary_family();
        if !families.families().contains(&primary) {
            return Err(format!("no support for primary IP family {:?}", primary.as_str()));
        }
        let facts = NodeFacts {
            primary,
            dual_stack: families.is_dual_stack(),
            ips: PerFamily::from_fn(|family| cluster.desired(family).node.ip),
            pod_cidrs: cluster.node().map(|node| node.pod_cidrs.clone()).unwrap_or_default(),
        };
        let verdict = config::check(&config, &facts);
        for warning in &verdict.warnings {
            error!(err = warning, "Kube-proxy configuration may be incomplete or incorrect");
        }
        if facts.ips[primary].is_loopback() {
            info!(ip = %facts.ips[primary], "Can't determine this node's IP, assuming loopback; if this is incorrect, please set the --bind-address flag");
        }
        config.mode.entry().operations.log_node_notes(&config, families, cluster);
        if cluster.desired(primary).node.pod_traffic == PodTraffic::Unknown {
            info!(detectLocalMode = config.document.text(DETECT_LOCAL_MODE), ipFamily = %primary, "{}", unknown_pods(&config.detect_local));
        }
        verdict.fatal.map_or(Ok(()), Err)
    })
}

/// Says why pod traffic cannot be identified.
fn unknown_pods(detect_local: &DetectLocal) -> &'static str {
    match detect_local {
        DetectLocal::ClusterCidr(_) => {
            "Detect-local-mode set to ClusterCIDR, but no cluster CIDR specified for primary IP family"
        }
        DetectLocal::NodeCidr => {
            "Detect-local-mode set to NodeCIDR, but no PodCIDR defined at node for primary IP family"
        }
        DetectLocal::BridgeInterface(_) | DetectLocal::InterfaceNamePrefix(_) | DetectLocal::Off => {
            "Pod traffic cannot be identified"
        }
    }
}

/// What to tell about a server that cannot have its address when the operator wants the process to end then.
fn cannot_listen(node: &str, error: &BindError) -> NewEvent {
    let reason = match error.server() {
        servers::HEALTH => "FailedToStartProxierHealthcheck",
        _ => "FailedToStartMetricServer",
    };
    NewEvent {
        regarding: Regarding::Node(node.to_owned()),
        severity: Severity::Warning,
        reason: reason.to_owned(),
        action: "StartKubeProxy".to_owned(),
        note: chain(error),
    }
}

/// Logs what the operator should know about a configuration that can be used.
pub fn tell(notice: &Notice) {
    match notice {
        Notice::LenientDecoding(_) => info!("{notice}"),
        Notice::FlagsIgnored(_) | Notice::Gate(_) | Notice::InvalidExcludedRanges(_) => warn!("{notice}"),
        Notice::ModeDefaulted | Notice::ModeDeprecated(_) => {
            error!(err = %notice, "Kube-proxy configuration may be incomplete or incorrect");
        }
    }
}

/// Deprecations are worth an Event; the log has them already.
fn tell_deprecations(notices: &[Notice], events: &Events) {
    for notice in notices {
        let reason = match notice {
            Notice::ModeDefaulted => "KubeProxyDefaultMode",
            Notice::ModeDeprecated(deprecation) => deprecation.reason,
            Notice::LenientDecoding(_)
            | Notice::FlagsIgnored(_)
            | Notice::Gate(_)
            | Notice::InvalidExcludedRanges(_) => continue,
        };
        events.node_warning(reason, notice.to_string());
    }
}

/// Removes what other modes, and kube-proxy in other modes, left behind. Ours is in force by then, so no connection is lost.
fn remove_leftovers_of_others(config: &Config) -> RemoveLeftovers {
    let config = config.clone();
    let remove = move || {
        for error in modes::clean_up(Some(config.mode), &config) {
            warn!(err = format!("{error:#}"), "Cannot remove what another proxy mode left behind");
        }
    };
    // On a thread of its own: a program that hangs must not keep changes out of the kernel.
    Box::new(move || {
        if let Err(error) = thread::Builder::new().name("leftovers".to_owned()).spawn(remove) {
            warn!(err = %error, "Cannot start removing what other proxy modes left behind; run portwarden --cleanup later");
        }
    })
}

/// Starts the engine on a thread of its own.
fn start_engine(parts: Parts) -> anyhow::Result<(Handle, oneshot::Receiver<Result<(), EngineError>>)> {
    let (handle, inbox) = engine::inbox().context("cannot make the engine's inbox")?;
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
        let _ = ended.send(engine::run(Engine::new(parts), &inbox, addresses.ok()));
    };
    thread::Builder::new()
        .name("engine".to_owned())
        .spawn(work)
        .context("cannot start the engine's thread")?;
    Ok((handle, ended_out))
}

/// Starts what follows the engine's findings.
fn start_followers(
    tasks: &mut JoinSet<()>,
    receivers: EngineReceivers,
    node: &str,
    health: &SharedHealth,
    metrics: &Metrics,
    events: &Events,
) {
    let context = ServicePortsContext {
        health: health.clone(),
        events: events.clone(),
        node: node.to_owned(),
        refused: metrics.own.refused_connections.with_label_values(&["service health"]),
    };
    tasks.spawn(ServicePorts::new(context).follow(receivers.health_checks));
    tasks.spawn(notices::forward(receivers.notices, events.clone()));
}

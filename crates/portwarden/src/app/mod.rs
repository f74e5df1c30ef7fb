//! Builds all parts of the process, runs them, applies a changed configuration, and stops them.
//!
//! | file | what |
//! |---|---|
//! | `engine_thread.rs` | the thread of the engine |
//! | `source.rs` | the source of objects: API server or manifests |
//! | `servers.rs` | the health and metrics servers, and that of the live page |
//! | `notices.rs` | notices of the engine, recorded as Events |
//! | `config_file.rs`, `reload.rs` | detects and applies a changed configuration file |
//! | `watchdog.rs` | reports a stuck engine and a log that nothing reads |
//! | `signals.rs` | signals |

mod config_file;
mod engine_thread;
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
    self, Check, ConntrackFlows, EngineError, EngineOutputs, EngineParts, EngineReceivers, Handle, Heartbeat,
    Message, Moment, NodeWait, RemoveLeftovers,
};
use crate::events::Events;
use crate::flags::{Flags, Program};
use crate::health::{ServicePorts, ServicePortsContext, SharedHealth};
use crate::host::{self, FamilySupport, Kernel};
use crate::http::{BindError, ConnectionLimit};
use crate::introspection::api::TimelineKind;
use crate::introspection::{self, Activity, Introspection};
use crate::logging::{Logs, chain};
use crate::metrics::Metrics;
use crate::modes;

pub use signals::{Signal, Signals};

use config_file::ConfigFile;
use engine_thread::start_engine;
use servers::Servers;
pub(crate) use source::{PreparedSource, RunningSource};

/// Open connections of the health-check ports of all Services together.
const SERVICE_HEALTH_CONNECTIONS: usize = 256;

/// How long the process waits for a running sync when it stops.
const LAST_SYNC: Duration = Duration::from_secs(5);

/// What the process is started with.
#[derive(Debug)]
pub struct StartupOptions {
    /// The name by which it was called decides which flags exist.
    pub program: Program,
    /// Kept, because a reload applies them again over the file.
    pub flags: Flags,
    /// The validated result of flags and file.
    pub config: Config,
    /// Warnings about the configuration, already logged.
    pub notices: Vec<Notice>,
    /// The version that pages and metrics show.
    pub version: String,
}

/// The running process.
pub struct App {
    options: StartupOptions,
    families: FamilySupport,
    started: Moment,
    engine: Handle,
    engine_ended: oneshot::Receiver<Result<(), EngineError>>,
    source: RunningSource,
    servers: Servers,
    health: SharedHealth,
    metrics: Metrics,
    activity: Activity,
    events: Events,
    logs: Arc<Logs>,
    _instance: host::Instance,
    _tasks: JoinSet<()>,
}

impl App {
    /// Builds and starts everything. Must run inside a runtime.
    ///
    /// Everything that can show that the start cannot work comes first: privileges, the source of objects, the mode, the servers'
    /// addresses. The kernel's settings change only after that.
    pub async fn start(options: StartupOptions, logs: Arc<Logs>) -> anyhow::Result<App> {
        let started = Moment::now();
        let config = &options.config;
        // First: a heap profile does not contain earlier allocations.
        crate::status::sample_heap(config.servers.profiling);
        let node = host::node_name(config.hostname_override.as_deref())?;
        host::check_privileges(Path::new("/proc"))?;
        let metrics = Metrics::new(&crate::version::build_info(&options.version))?;
        metrics.feature_gates(config.gates.iter().map(|(gate, on)| (gate.name, gate.stage.label(), on)))?;
        let source = PreparedSource::new(config, &node, &options.version, &metrics.rest_client).await?;
        let families = modes::families(config.mode)?;
        let dataplanes = modes::build(config, families)?;
        let instance = host::Instance::register();
        raise_descriptor_limit();
        config.mode.entry().operations.publish_metrics(config, &metrics)?;
        let health = SharedHealth::new(config.pacing.sync_period);
        let heartbeat = Heartbeat::new(started.instant);
        health.follow(heartbeat.clone());
        let activity = Activity::default();
        let version = format!("Portwarden {} started as {}", crate::version::OWN, options.version);
        activity.happened(TimelineKind::Started, version, started);
        let events = Events::default();
        let (outputs, receivers) = EngineOutputs::new(1000);
        let mode = config.mode;
        let earlier = move || modes::earlier_udp_frontends(mode, families);
        let parts = EngineParts {
            settings: config.model_settings(&node, started.wall),
            words: config.mode.words(),
            dataplanes,
            pacing: pacing(config),
            node_wait: node_wait(config),
            remove_leftovers: Some(remove_leftovers_of_others(config)),
            check: check_against_node(config.clone(), families),
            flows: Box::new(ConntrackFlows::default()),
            health: health.clone(),
            metrics: metrics.clone(),
            outputs,
            heartbeat: heartbeat.clone(),
            activity: activity.clone(),
            clock: Box::new(Moment::now),
        };
        let (engine, engine_ended) = start_engine(parts, earlier)?;
        let identity =
            introspection::Identity { node: node.clone(), version: options.version.clone(), started };
        let sources = introspection::Sources {
            activity: activity.clone(),
            health: health.clone(),
            heartbeat: heartbeat.clone(),
        };
        let introspection = Introspection::new(identity, sources, engine.clone());
        let servers = match Servers::start(&options, &health, &metrics, &logs, introspection).await {
            Ok(servers) => servers,
            Err(error) => {
                source::send_last_event(config, &options.version, bind_failure_event(&node, &error)).await;
                return Err(error.into());
            }
        };
        prepare_host(config)?;
        set_oom_score(config);
        engine::log_waiting_for_caches();
        let source = source.start(&node, &engine, &metrics.rest_client);
        events.attach(&node, source.recorder());
        let mut tasks = JoinSet::new();
        tasks.spawn(source.remove_startup_taint(config, &node, receivers.installed.clone()));
        start_followers(&mut tasks, receivers, &node, &health, &metrics, &events);
        tasks.spawn(watchdog::watch(health.clone(), heartbeat, metrics.clone(), activity.clone()));
        events.started();
        record_deprecations(&options.notices, &events);
        Ok(App {
            options,
            families,
            started,
            engine,
            engine_ended,
            source,
            servers,
            health,
            metrics,
            activity,
            events,
            logs,
            _instance: instance,
            _tasks: tasks,
        })
    }

    /// The bound addresses of the health and the metrics server; `None` for one that does not listen.
    pub fn bound(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        self.servers.bound()
    }

    /// The bound address of the live page; `None` if it does not listen.
    pub fn page_bound(&self) -> Option<SocketAddr> {
        self.servers.page_bound()
    }

    /// Sends messages to the engine.
    pub fn engine(&self) -> &Handle {
        &self.engine
    }

    /// Runs until a signal ends the process, or the engine or the source fails.
    pub async fn run(mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut file = ConfigFile::follow(self.options.flags.config_file());
        self.catch_up().await;
        loop {
            tokio::select! {
                // In this order: when the engine fails, the source ends, too, but it is not the root cause.
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
                    ended.context("the engine's thread ended without a result")?.context("the engine gave up")?;
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
            warn!("A sync is still running; the next process completes what it leaves out");
        }
        let mode = self.options.config.mode;
        tokio::select! {
            _ = tokio::task::spawn_blocking(move || mode.entry().operations.drain()) => {}
            signal = signals.next() => info!(?signal, "Stopping at once"),
        }
        Ok(())
    }
}

/// Writes kernel settings. A failure is logged; it is an error only with `--sysctl-hard-fail`.
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

/// `--init-only`: does what needs privileges and ends.
pub fn prepare_only(config: &Config) -> anyhow::Result<()> {
    host::check_privileges(Path::new("/proc"))?;
    let dataplanes = modes::build(config, modes::families(config.mode)?)?;
    prepare_host(config)?;
    for dataplane in dataplanes {
        for family in dataplane.families() {
            info!(ipFamily = %family, "System initialized and --init-only specified");
        }
    }
    config.mode.entry().operations.prepare_host(config)
}

fn raise_descriptor_limit() {
    if let Err(error) = host::raise_descriptor_limit() {
        warn!(err = %error, "Cannot raise the limit of open files; many Services with health-check ports may not fit");
    }
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

/// Checks the configuration against this node, once its addresses are known.
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
            info!(detectLocalMode = config.document.text(DETECT_LOCAL_MODE), ipFamily = %primary, "{}", pod_traffic_hint(&config.detect_local));
        }
        verdict.fatal.map_or(Ok(()), Err)
    })
}

/// Why pod traffic cannot be identified, in kube-proxy's words.
fn pod_traffic_hint(detect_local: &DetectLocal) -> &'static str {
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

/// The Event for a server that cannot bind its address, where that ends the process.
fn bind_failure_event(node: &str, error: &BindError) -> NewEvent {
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

/// Logs a warning about a valid configuration.
pub fn log_notice(notice: &Notice) {
    match notice {
        Notice::LenientDecoding(_)
        | Notice::FlagsIgnored(_)
        | Notice::Gate(_)
        | Notice::NoEffect { .. }
        | Notice::InvalidExcludedRanges(_) => {
            warn!("{notice}");
        }
        Notice::ModeDefaulted | Notice::ModeDeprecated(_) => {
            error!(err = %notice, "Kube-proxy configuration may be incomplete or incorrect");
        }
    }
}

/// Records deprecations as Events; they are logged already.
fn record_deprecations(notices: &[Notice], events: &Events) {
    for notice in notices {
        let reason = match notice {
            Notice::ModeDefaulted => "KubeProxyDefaultMode",
            Notice::ModeDeprecated(deprecation) => deprecation.reason,
            Notice::LenientDecoding(_)
            | Notice::FlagsIgnored(_)
            | Notice::Gate(_)
            | Notice::NoEffect { .. }
            | Notice::InvalidExcludedRanges(_) => continue,
        };
        events.node_warning(reason, notice.to_string());
    }
}

/// Removes the leftovers of other modes and of kube-proxy. The new rules are in force by then, so no connection is lost.
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

/// Starts the tasks that follow the engine's outputs.
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
        connections: ConnectionLimit::new(
            SERVICE_HEALTH_CONNECTIONS,
            metrics.own.refused_connections.with_label_values(&["service health"]),
        ),
    };
    tasks.spawn(ServicePorts::new(context).follow(receivers.health_checks));
    tasks.spawn(notices::forward(receivers.notices, events.clone()));
}

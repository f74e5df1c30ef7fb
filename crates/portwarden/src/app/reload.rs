//! A changed configuration, applied to the running process.

use std::collections::BTreeSet;

use anyhow::Context;
use portwarden_model::Family;
use tracing::{error, info, warn};

use super::{
    App, RunningSource, check_against_node, log_notice, pacing, prepare_host, remove_leftovers_of_others,
    set_oom_score,
};
use crate::config::{self, Config, LoadedConfig, Part, Plan, reload_plan};
use crate::engine::{Message, Moment, Reconfiguration, Replacement};
use crate::host::{self, FamilySupport};
use crate::introspection::api::TimelineKind;
use crate::logging::chain;
use crate::modes;

impl App {
    /// Loads the configuration again. A valid one is applied; an invalid one is reported, and the current one stays in force.
    pub(super) async fn reload(&mut self) {
        let outcome = match self.read_config().await {
            Ok(loaded) => {
                let known = std::mem::replace(&mut self.options.notices, loaded.notices);
                self.options.notices.iter().filter(|notice| !known.contains(notice)).for_each(log_notice);
                let plan = reload_plan(&self.options.config, &loaded.config);
                for change in &plan.changes {
                    info!(%change, "The configuration changes");
                }
                if plan.is_empty() {
                    info!("The configuration was read again; nothing changed");
                    self.options.config = loaded.config;
                    return self.count_reload("unchanged");
                }
                self.apply(loaded.config, &plan).await
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {
                info!("The new configuration is in force");
                let text = "A new configuration is in force".to_owned();
                self.activity.happened(TimelineKind::ConfigurationApplied, text, Moment::now());
                self.count_reload("applied");
            }
            Err(error) => {
                let note = format!("{error:#}");
                error!(
                    err = note.as_str(),
                    "The new configuration cannot be used; the current one stays in force"
                );
                let text =
                    format!("A new configuration cannot be used; the current one stays in force: {note}");
                self.activity.happened(TimelineKind::ConfigurationRejected, text, Moment::now());
                self.events.node_warning("InvalidConfiguration", note);
                self.count_reload("rejected");
            }
        }
    }

    /// Applies what was written to the file after its first reading and before it was watched.
    pub(super) async fn catch_up(&mut self) {
        if self.options.flags.config_file().is_none() {
            return;
        }
        let unchanged = self
            .read_config()
            .await
            .is_ok_and(|loaded| reload_plan(&self.options.config, &loaded.config).is_empty());
        if !unchanged {
            self.reload().await;
        }
    }

    /// Reads the file on another thread: a file system that hangs must not stop the servers.
    async fn read_config(&self) -> anyhow::Result<LoadedConfig> {
        let bytes = match self.options.flags.config_file().map(str::to_owned) {
            Some(path) => Some(tokio::task::spawn_blocking(move || config::read_file(&path)).await?),
            None => None,
        };
        let read = |_: &str| bytes.unwrap_or_else(|| Ok(Vec::new()));
        Ok(config::load(self.options.program, &self.options.flags, read)?)
    }

    /// Applies what differs. Steps that can fail come first, so that a failure changes nothing.
    async fn apply(&mut self, config: Config, plan: &Plan) -> anyhow::Result<()> {
        let (restarts, live) = (plan.restarts(), plan.live());
        let node = host::node_name(config.hostname_override.as_deref())?;
        let served = self.families;
        let dataplanes =
            restarts.contains(&Part::Dataplane).then(|| self.replacement(&config)).transpose()?;
        if restarts.contains(&Part::Source) {
            let (version, metrics) = (&self.options.version, &self.metrics.rest_client);
            self.source = RunningSource::start(&config, &node, version, &self.engine, metrics)
                .await
                .context("cannot restart the source of objects")?;
            self.events.attach(&node, self.source.recorder());
        }
        self.engine.send(Message::Reconfigure(Box::new(Reconfiguration {
            settings: config.model_settings(&node, self.started.wall),
            pacing: pacing(&config),
            dataplanes,
        })));
        self.remove_lost_families(served, &config);
        self.check(&config);
        self.health.set_sync_period(config.pacing.sync_period);
        self.logs.apply(&config.logging);
        if live.contains(&Part::Kernel)
            && let Err(error) = prepare_host(&config)
        {
            warn!(err = format!("{error:#}"), "Some kernel settings were not changed");
        }
        if live.contains(&Part::Process) {
            set_oom_score(&config);
        }
        self.servers.show(&config);
        self.restart_servers(&config, &restarts).await;
        self.options.config = config;
        Ok(())
    }

    /// Removes the rules of families that this host can no longer serve: nothing would keep them up to date.
    fn remove_lost_families(&self, served: FamilySupport, config: &Config) {
        let now = self.families.families();
        let lost: Vec<Family> =
            served.families().into_iter().filter(|family| !now.contains(family)).collect();
        // Of another mode, everything is a leftover.
        if lost.is_empty() || config.mode != self.options.config.mode {
            return;
        }
        let config = config.clone();
        let remove = move || {
            for family in &lost {
                warn!(ipFamily = %family, "This host can no longer serve a family; its rules are removed");
            }
            for error in modes::clean_up_families(config.mode, &lost, &config) {
                warn!(
                    err = format!("{error:#}"),
                    "Cannot remove the rules of a family that is no longer served"
                );
            }
        };
        // Behind the reconfiguration: the dataplane of that family would restore its rules.
        self.engine.send(Message::Inspect(Box::new(move |_| {
            // On a thread of its own: a program that hangs must not keep changes out of the kernel.
            if let Err(error) = std::thread::Builder::new().name("leftovers".to_owned()).spawn(remove) {
                warn!(err = %error, "Cannot remove the rules of a family that is no longer served");
            }
        })));
    }

    /// Checks the configuration against the node. Errors are only logged: the process already serves traffic.
    fn check(&self, config: &Config) {
        let check = check_against_node(config.clone(), self.families);
        self.engine.send(Message::Inspect(Box::new(move |cluster| {
            if let Err(error) = check(cluster) {
                error!(err = error, "Kube-proxy configuration may be incomplete or incorrect");
            }
        })));
    }

    /// Restarts servers whose address changed. One that cannot bind keeps trying: the running process must not end for it.
    async fn restart_servers(&mut self, config: &Config, restarts: &BTreeSet<Part>) {
        let mut retrying = config.clone();
        retrying.servers.hard_fail = false;
        if restarts.contains(&Part::HealthServer)
            && let Err(error) = self.servers.restart_health(&retrying).await
        {
            error!(err = chain(&error), "Healthz server failed");
        }
        if restarts.contains(&Part::MetricsServer)
            && let Err(error) = self.servers.restart_status(&retrying).await
        {
            error!(err = chain(&error), "starting metrics server failed");
        }
        if restarts.contains(&Part::PageServer) {
            self.servers.restart_page(&retrying).await;
        }
    }

    /// The dataplanes of another mode, or of the same one with other options.
    fn replacement(&mut self, config: &Config) -> anyhow::Result<Replacement> {
        let families = modes::families(config.mode)?;
        let dataplanes = modes::build(config, families)?;
        config.mode.entry().operations.publish_metrics(config, &self.metrics)?;
        self.families = families;
        let other_mode = config.mode != self.options.config.mode;
        Ok(Replacement {
            words: config.mode.words(),
            dataplanes,
            remove_leftovers: other_mode.then(|| remove_leftovers_of_others(config)),
        })
    }

    fn count_reload(&self, result: &str) {
        self.metrics.own.reloads.with_label_values(&[result]).inc();
    }
}

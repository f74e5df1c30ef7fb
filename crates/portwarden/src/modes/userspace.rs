//! Mode userspace, which kube-proxy had until 1.25: a proxy that accepts connections and dials endpoints. It shares the periods of mode iptables.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, OnceLock};

use anyhow::Context;
use portwarden_model::{Dataplane, Family, FrontendKey, ObservedFrontend};
use portwarden_userspace::{Counters, Drain, Options, Userspace};
use tracing::{debug, info};

use super::leftovers::{Leftover, Phase};
use super::{BuildContext, Entry, Mode, Operations, ReadBack, Section, SourceAddress};
use crate::config::Config;
use crate::engine::ModeWords;
use crate::metrics::{MetricError, Metrics};

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords { name: "userspace", sync_failed: "userspace sync failed", counters: &[] },
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Iptables,
    masquerade: Section::Iptables,
    source_address: SourceAddress::Node,
    node_port_addresses: &[],
    operations: &UserspaceMode,
};

/// One set of counters and connections for the life of the process: a reload makes new dataplanes, and those before them drain.
static COUNTERS: LazyLock<Arc<Counters>> = LazyLock::new(Arc::default);
static DRAIN: LazyLock<Drain> = LazyLock::new(Drain::default);
static PUBLISHED: OnceLock<()> = OnceLock::new();

struct UserspaceMode;

impl Operations for UserspaceMode {
    /// The dataplane tries out what it needs when it is made.
    fn probe(&self, _family: Family) -> anyhow::Result<()> {
        Ok(())
    }

    /// Where iptables redirects, there is nothing to read: the sockets in its rules are not compared.
    fn read_back(&self, family: Family) -> anyhow::Result<Option<Box<dyn ReadBack>>> {
        let read = portwarden_userspace::ReadBack::read(family)?;
        Ok(read.map(|read| Box::new(read) as Box<dyn ReadBack>))
    }

    fn build(&self, context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        let config = context.config;
        let own = config
            .userspace
            .as_ref()
            .context("mode userspace has no settings; this is a mistake in Portwarden")?;
        let options = Options {
            bind_address: config.bind_address,
            port_range: own.port_range.clone(),
            udp_timeout: own.udp_idle_timeout,
            drain: own.drain_timeout,
            mark_bit: config.masquerade.bit,
            loopback_node_ports: config.localhost_node_ports,
            sync_period: config.pacing.sync_period,
            ..Options::new(context.families)
        };
        let dataplane = Userspace::new(options, Arc::clone(&COUNTERS), &DRAIN)
            .context("cannot create the userspace proxier")?;
        Ok(vec![Box::new(dataplane)])
    }

    fn publish_metrics(&self, _config: &Config, metrics: &Metrics) -> Result<(), MetricError> {
        if PUBLISHED.set(()).is_err() {
            return Ok(());
        }
        metrics.connections(Box::new(|| COUNTERS.read()))
    }

    fn drain(&self) {
        let connections = COUNTERS.active();
        if connections > 0 {
            info!(connections, "Waiting for connections to end; another signal ends them");
        }
        DRAIN.wait();
    }

    fn leftovers(&self, kept: Option<Mode>, _config: &Config) -> Vec<Leftover> {
        if kept == Some(Mode::Userspace) {
            return Vec::new();
        }
        let table = |family: Family| {
            Leftover::new(Phase::Rules, format!("redirection rules for {family}"), move || {
                let found = portwarden_userspace::cleanup(family)?;
                debug!(ipFamily = %family, found, "Looked for leftovers of mode userspace");
                Ok(())
            })
            .of(family)
        };
        Family::BOTH.map(table).into()
    }
}

impl ReadBack for portwarden_userspace::ReadBack {
    fn frontend(&mut self, key: &FrontendKey) -> anyhow::Result<ObservedFrontend> {
        Ok(portwarden_userspace::ReadBack::frontend(self, key))
    }

    fn frontends(&mut self) -> anyhow::Result<BTreeSet<FrontendKey>> {
        Ok(portwarden_userspace::ReadBack::frontends(self))
    }
}

//! Mode ebpf, which kube-proxy does not have: sockets of this node are pointed at endpoints. It stands on the nftables dataplane, which serves everything
//! else, and shares its settings.

mod conntrack_users;

use std::sync::{LazyLock, OnceLock};

use anyhow::Context;
use portwarden_ebpf::{Ebpf, Options, ServiceCounters, Sizes};
use portwarden_model::{Dataplane, Family, Layers};
use portwarden_nftables::{Nftables, Options as NftablesOptions};
use tracing::debug;

use super::leftovers::{Leftover, Phase};
use super::{BuildContext, Entry, Mode, Operations, ReadBack, Section, SourceAddress};
use crate::config::{Config, Notrack};
use crate::engine::ModeWords;
use crate::metrics::{MetricError, Metrics};

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords { name: "ebpf", sync_failed: "ebpf sync failed", counters: &[] },
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Nftables,
    masquerade: Section::Nftables,
    source_address: SourceAddress::Client,
    node_port_addresses: &["primary"],
    operations: &EbpfMode,
};

/// One set of counters for the life of the process: a reload makes new dataplanes over the same maps.
static COUNTERS: LazyLock<ServiceCounters> = LazyLock::new(ServiceCounters::default);
static PUBLISHED: OnceLock<()> = OnceLock::new();

struct EbpfMode;

impl Operations for EbpfMode {
    /// The dataplanes probe what they need when they are made.
    fn probe(&self, _family: Family) -> anyhow::Result<()> {
        Ok(())
    }

    /// The nftables dataplane below has everything that the programs have.
    fn read_back(&self, family: Family) -> anyhow::Result<Option<Box<dyn ReadBack>>> {
        Mode::Nftables.read_back(family)
    }

    fn stands_on(&self) -> Option<Mode> {
        Some(Mode::Nftables)
    }

    fn is_on_top(&self, config: &Config) -> bool {
        portwarden_ebpf::is_attached(&config.ebpf.pin_directory)
    }

    fn build(&self, context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        let config = &context.config;
        let untracked_pods = config.ebpf.notrack != Notrack::Disabled;
        if untracked_pods {
            conntrack_users::check(config.ebpf.notrack == Notrack::Force)?;
        }
        let below = NftablesOptions {
            masquerade_bit: config.masquerade.bit,
            loopback_node_ports: false,
            untracked_pods,
        };
        let nftables = Nftables::new(context.families, below)
            .context("cannot create the nftables proxier, on which mode ebpf stands")?;
        let sizes = Sizes::for_endpoints(config.ebpf.max_endpoints);
        let options = Options {
            cgroup: config.ebpf.cgroup_root.clone(),
            pin_directory: config.ebpf.pin_directory.clone(),
            sizes,
            ..Options::new(context.families)
        };
        let ebpf = Ebpf::new(options, COUNTERS.clone()).context("cannot create the ebpf proxier")?;
        Ok(vec![Box::new(Layers::new(Box::new(nftables), vec![Box::new(ebpf)]))])
    }

    fn publish_metrics(&self, _config: &Config, metrics: &Metrics) -> Result<(), MetricError> {
        if PUBLISHED.set(()).is_err() {
            return Ok(());
        }
        metrics.socket_connections(Box::new(|| COUNTERS.read()))
    }

    fn leftovers(&self, kept: Option<Mode>, config: &Config) -> Vec<Leftover> {
        if kept == Some(Mode::Ebpf) {
            return Vec::new();
        }
        let directory = config.ebpf.pin_directory.clone();
        // Before any rules: what the programs leave alone needs those rules until the end.
        vec![Leftover::new(Phase::Jumps, "eBPF programs", move || {
            let found = portwarden_ebpf::cleanup(&directory)?;
            debug!(found, path = %directory.display(), "Looked for leftovers of mode ebpf");
            Ok(())
        })]
    }
}

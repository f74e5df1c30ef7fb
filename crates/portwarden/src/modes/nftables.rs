//! Mode nftables: a table per family, and a proxy in user space for node ports on loopback addresses behind kube-proxy's gate.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context;
use portwarden_model::{Dataplane, Family, FrontendKey, Layers, ObservedFrontend, Protocol};
use portwarden_nftables::{Nftables, Options};
use portwarden_userspace::{CREATION_FAILURES, LoopbackProxy};
use tracing::debug;

use super::leftovers::{Leftover, Phase};
use super::{BuildContext, Entry, Mode, Operations, ReadBack, Section, SourceAddress};
use crate::config::Config;
use crate::config::gates::Feature;
use crate::engine::ModeWords;
use crate::logging::chain;
use crate::metrics::{MetricError, Metrics};

/// A scrape of metrics waits no longer than this for the kernel.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords {
        name: "nftables",
        sync_failed: "nftables sync failed",
        counters: &[
            (
                "sync_proxy_rules_nftables_sync_failures_total",
                "[ALPHA] Syncs that the kernel's nf_tables refused",
            ),
            (
                "sync_proxy_rules_nftables_cleanup_failures_total",
                "[ALPHA] Removals of stale chains that failed; Portwarden removes in the sync itself, so this stays empty",
            ),
            (
                CREATION_FAILURES,
                "[ALPHA] Attempts to listen for a node port on a loopback address that failed",
            ),
        ],
    },
    known_to_kube_proxy: true,
    gate: None,
    deprecation: None,
    periods: Section::Nftables,
    masquerade: Section::Nftables,
    source_address: SourceAddress::Client,
    node_port_addresses: &["primary"],
    operations: &NftablesMode,
};

struct NftablesMode;

impl Operations for NftablesMode {
    /// The dataplane probes what it needs when it is made.
    fn probe(&self, _family: Family) -> anyhow::Result<()> {
        Ok(())
    }

    fn check(&self, config: &Config, family: Family) -> anyhow::Result<()> {
        Nftables::new(&[family], options(config))?;
        Ok(())
    }

    fn read_back(&self, family: Family) -> anyhow::Result<Option<Box<dyn ReadBack>>> {
        Ok(Some(Box::new(portwarden_nftables::ReadBack::open(family)?)))
    }

    fn build(&self, context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        let options = options(context.config);
        let dataplane =
            Nftables::new(context.families, options).context("cannot create the nftables proxier")?;
        if !options.loopback_node_ports {
            return Ok(vec![Box::new(dataplane)]);
        }
        let proxy =
            LoopbackProxy::new().context("cannot start the proxy for node ports on loopback addresses")?;
        Ok(vec![Box::new(Layers::new(Box::new(dataplane), vec![Box::new(proxy)]))])
    }

    /// What is refused on loopback addresses, counted by the kernel.
    fn publish_metrics(&self, config: &Config, metrics: &Metrics) -> Result<(), MetricError> {
        if !proxies_loopback(config) {
            return Ok(());
        }
        metrics.loopback.show(Box::new(|| {
            let until = Instant::now() + SCRAPE_TIMEOUT;
            Family::BOTH.into_iter().flat_map(|family| rejected(family, until)).collect()
        }))
    }

    fn leftovers(&self, kept: Option<Mode>, _config: &Config) -> Vec<Leftover> {
        // Mode ebpf stands on the same tables.
        if matches!(kept, Some(Mode::Nftables | Mode::Ebpf)) {
            return Vec::new();
        }
        let table = |family: Family| {
            Leftover::new(Phase::Rules, format!("nftables rules for {family}"), move || {
                let found = portwarden_nftables::cleanup(family)?;
                debug!(ipFamily = %family, found, "Looked for nftables leftovers");
                Ok(())
            })
            .of(family)
        };
        Family::BOTH.map(table).into()
    }
}

impl ReadBack for portwarden_nftables::ReadBack {
    fn frontend(&mut self, key: &FrontendKey) -> anyhow::Result<ObservedFrontend> {
        Ok(self.frontend(key)?)
    }

    fn frontends(&mut self) -> anyhow::Result<BTreeSet<FrontendKey>> {
        Ok(self.frontends()?)
    }

    fn unreadable(&self) -> Option<String> {
        self.table_of_another_program().map(|table| format!("the table {table}"))
    }
}

fn options(config: &Config) -> Options {
    Options {
        masquerade_bit: config.masquerade.bit,
        loopback_node_ports: proxies_loopback(config),
        untracked_pods: false,
    }
}

/// Whether a proxy serves node ports on loopback addresses.
fn proxies_loopback(config: &Config) -> bool {
    config.gates.enabled(Feature::NftablesLocalhostNodePorts)
}

fn rejected(family: Family, until: Instant) -> Vec<(Family, Protocol, u64)> {
    let timeout = until.saturating_duration_since(Instant::now());
    match portwarden_nftables::loopback_rejected_packets(family, timeout) {
        Ok(packets) => packets.into_iter().map(|(protocol, count)| (family, protocol, count)).collect(),
        Err(error) => {
            debug!(ipFamily = %family, err = chain(&error), "Cannot read counters of nftables");
            Vec::new()
        }
    }
}

//! Mode ebpf, which kube-proxy does not have. It stands on the nftables dataplane and shares its settings.

use portwarden_model::{Dataplane, Family};

use super::leftovers::Leftover;
use super::{BuildContext, Entry, Mode, Operations, Section, not_built_in};
use crate::config::Config;
use crate::engine::ModeWords;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords { name: "ebpf", sync_failed: "ebpf sync failed", counters: &[] },
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Nftables,
    masquerade: Section::Nftables,
    node_port_addresses: &["primary"],
    operations: &EbpfMode,
};

struct EbpfMode;

impl Operations for EbpfMode {
    fn probe(&self, _family: Family) -> anyhow::Result<()> {
        Ok(())
    }

    fn build(&self, _context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        not_built_in(Mode::Ebpf)
    }

    fn leftovers(&self, _kept: Option<Mode>, _config: &Config) -> Vec<Leftover> {
        Vec::new()
    }
}

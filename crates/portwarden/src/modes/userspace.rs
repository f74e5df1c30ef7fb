//! Mode userspace, which kube-proxy had until 1.25; it shared the periods of mode iptables.

use portwarden_model::{Dataplane, Family};

use super::leftovers::Leftover;
use super::{BuildContext, Entry, Mode, Operations, Section, not_built_in};
use crate::config::Config;
use crate::engine::ModeWords;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords { name: "userspace", sync_failed: "userspace sync failed", counters: &[] },
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Iptables,
    masquerade: Section::Iptables,
    node_port_addresses: &[],
    operations: &UserspaceMode,
};

struct UserspaceMode;

impl Operations for UserspaceMode {
    fn probe(&self, _family: Family) -> anyhow::Result<()> {
        Ok(())
    }

    fn build(&self, _context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        not_built_in(Mode::Userspace)
    }

    fn leftovers(&self, _kept: Option<Mode>, _config: &Config) -> Vec<Leftover> {
        Vec::new()
    }
}

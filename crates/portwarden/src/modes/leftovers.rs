//! Removes what other modes, and kube-proxy in other modes, left in the kernel.

use anyhow::Context;

use super::Mode;
use crate::config::Config;

/// The order of removal: rules go before the sets that they refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Jumps into a mode's chains, and rules in chains that lead to those of other modes.
    Jumps,
    /// Chains and tables.
    Rules,
    /// Chains that were emptied before and to which those of other modes led.
    EmptyChains,
    /// Virtual servers, devices, and sets that rules referred to.
    Devices,
}

/// Something that a mode may have left in the kernel.
pub(crate) struct Leftover {
    phase: Phase,
    what: String,
    remove: Box<dyn FnOnce() -> anyhow::Result<()>>,
}

impl Leftover {
    pub(super) fn new(
        phase: Phase,
        what: impl Into<String>,
        remove: impl FnOnce() -> anyhow::Result<()> + 'static,
    ) -> Self {
        Leftover { phase, what: what.into(), remove: Box::new(remove) }
    }
}

/// Removes what all modes but `kept` may have left. Goes on after failures and returns all of them.
pub fn clean_up(kept: Option<Mode>, config: &Config) -> Vec<anyhow::Error> {
    let all = Mode::ALL.into_iter().flat_map(|mode| mode.entry().operations.leftovers(kept, config));
    let mut all: Vec<Leftover> = all.collect();
    all.sort_by_key(|leftover| leftover.phase);
    all.into_iter().filter_map(|leftover| (leftover.remove)().context(leftover.what).err()).collect()
}

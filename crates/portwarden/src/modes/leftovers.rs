//! Removes what other modes, and kube-proxy in other modes, left in the kernel.

use std::time::{Duration, Instant};

use anyhow::Context;
use portwarden_model::Family;
use portwarden_xtables::{Programs, Variant};

use super::Mode;
use crate::config::Config;

/// A program that takes longer hangs; what depends on it is given up.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// While a mode is in force, nothing further is begun after this time. Connections through what is left may end meanwhile, which takes as long as it
/// takes.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(300);

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
    /// The family whose rules these are; `None` if both share them.
    family: Option<Family>,
    remove: Box<dyn FnOnce() -> anyhow::Result<()>>,
}

impl Leftover {
    pub(super) fn new(
        phase: Phase,
        what: impl Into<String>,
        remove: impl FnOnce() -> anyhow::Result<()> + 'static,
    ) -> Self {
        Leftover { phase, what: what.into(), family: None, remove: Box::new(remove) }
    }

    /// The same, of one family only.
    pub(super) fn of(self, family: Family) -> Self {
        Leftover { family: Some(family), ..self }
    }
}

/// The programs that look for leftovers and remove them.
pub(super) fn programs(family: Family, variant: Variant) -> Programs {
    Programs::new(family, variant).timeout(PROGRAM_TIMEOUT)
}

/// Removes what all modes but `kept` may have left. Goes on after failures and returns all of them.
pub fn clean_up(kept: Option<Mode>, config: &Config) -> Vec<anyhow::Error> {
    let started = Instant::now();
    let all = Mode::ALL.into_iter().flat_map(|mode| mode.entry().operations.leftovers(kept, config));
    remove(all.collect(), || kept.is_none() || started.elapsed() < TOTAL_TIMEOUT)
}

/// Removes the rules of a mode for families that it no longer serves, although it goes on serving another.
pub(crate) fn clean_up_families(mode: Mode, families: &[Family], config: &Config) -> Vec<anyhow::Error> {
    let modes = [Some(mode), mode.entry().operations.stands_on()];
    let all = modes.into_iter().flatten().flat_map(|mode| mode.entry().operations.leftovers(None, config));
    let lost = |leftover: &Leftover| leftover.family.is_some_and(|family| families.contains(&family));
    let started = Instant::now();
    remove(all.filter(lost).collect(), || started.elapsed() < TOTAL_TIMEOUT)
}

/// Removes them in the order of their phases, as long as there is time.
fn remove(mut all: Vec<Leftover>, in_time: impl Fn() -> bool) -> Vec<anyhow::Error> {
    all.sort_by_key(|leftover| leftover.phase);
    let mut errors = Vec::new();
    let mut late = Vec::new();
    for Leftover { what, remove, .. } in all {
        if in_time() {
            errors.extend(remove().context(what).err());
        } else {
            late.push(what);
        }
    }
    if !late.is_empty() {
        errors.push(anyhow::anyhow!(
            "it took too long, and these were not looked for: {}; run portwarden --cleanup when the cause is gone",
            late.join(", ")
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn phases_come_in_order_and_what_is_late_is_named() {
        let done = Rc::new(RefCell::new(Vec::new()));
        let step = |phase, what: &'static str, fails: bool| {
            let done = Rc::clone(&done);
            Leftover::new(phase, what, move || {
                done.borrow_mut().push(what);
                if fails { anyhow::bail!("it hangs") } else { Ok(()) }
            })
        };
        let all = vec![
            step(Phase::Devices, "device", false),
            step(Phase::EmptyChains, "chains", false),
            step(Phase::Rules, "rules", true),
            step(Phase::Jumps, "jumps", false),
        ];
        let errors = remove(all, || done.borrow().len() < 3);
        assert_eq!(*done.borrow(), ["jumps", "rules", "chains"], "a failure stops nothing");
        let texts: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert_eq!(texts[0], "rules: it hangs");
        assert!(texts[1].contains("not looked for: device;"), "{}", texts[1]);
    }
}

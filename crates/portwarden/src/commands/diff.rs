//! `portwarden diff`: what a configuration, a mode or a folder of manifests would change in the kernel, without touching it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use portwarden_model::{Cluster, Desired, Family, FrontendKey, ObservedFrontend, Treatment};
use serde::Serialize;
use serde_json::json;

use super::{Answer, Command, CommandFlag, GOOD, Request};
use crate::config::Config;
use crate::explain;
use crate::flags;
use crate::host::{Kernel, has_ipv6};
use crate::modes::Mode;

/// The exit status if something would change, as that of diff(1).
const DIFFERENT: u8 = 1;

pub(super) const COMMAND: Command = Command {
    name: "diff",
    arguments: "[flags]",
    summary: "what a configuration, a mode or manifests would change in the kernel",
    about: "Reads what the kernel holds, in whatever mode and by whichever proxy it was written, and compares it with what Portwarden would \
            hold with these flags. Without --config, --kubeconfig, --master or --manifests, the running process's own configuration counts, \
            with the flags that are given in place of what it says. Nothing is changed. In mode iptables it also compares \
            rule by rule, so that it shows what Portwarden would do on this node that kube-proxy does not.",
    flags: &[CommandFlag {
        name: "show",
        letter: None,
        placeholder: "WHAT",
        help: "frontends: each address of a Service whose connections would be treated differently. rules: in mode iptables also each rule \
               that would be added or removed, and the chains whose rules would be in another order.",
        values: &["frontends", "rules"],
    }],
    takes_proxy_flags: true,
    examples: &[
        ("sudo portwarden diff --config new.yaml", "what a changed configuration would change"),
        (
            "sudo portwarden diff --proxy-mode nftables",
            "another mode, with everything else as the running process has it",
        ),
        ("sudo portwarden diff --manifests examples --proxy-mode nftables", "a folder of manifests"),
        (
            "sudo portwarden diff --kubeconfig /var/lib/kube-proxy/kubeconfig.conf --proxy-mode iptables --show rules",
            "what Portwarden would change on a node where kube-proxy runs",
        ),
    ],
    exit_codes: &[
        (0, "nothing would change"),
        (1, "something would change"),
        (2, "that cannot be found out"),
    ],
    run,
};

/// One address of a Service whose connections would be treated differently.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    kind: ChangeKind,
    family: String,
    frontend: String,
    /// The Service that would have it.
    service: Option<String>,
    details: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ChangeKind {
    Added,
    Removed,
    Changed,
}

fn run(request: &Request) -> anyhow::Result<Answer> {
    let config = request.config()?.config;
    let families: Vec<Family> = Family::BOTH
        .into_iter()
        .filter(|family| *family == Family::V4 || has_ipv6(std::path::Path::new("/proc")))
        .collect();
    let before = Before::read(&config, &families)?;
    let cluster = explain::read_cluster(&config, flags::reported_version(None))?;
    let mut changes = Vec::new();
    for family in &families {
        let nothing = Frontends::new();
        let seen = before.frontends.get(family).unwrap_or(&nothing);
        changes.extend(compare(*family, seen, cluster.desired(*family), config.mode));
    }
    let settings = Kernel::default().pending(&config.conntrack);
    let rules = match request.value("show") {
        Some("rules") => rules(&config, &cluster, &families)?,
        _ => Some(Vec::new()),
    };
    let other_rules = before.mode != Some(config.mode) || before.unreadable.is_some();
    let changed_rules = rules.as_ref().is_some_and(|rules| !rules.is_empty());
    let different = other_rules || !changes.is_empty() || !settings.is_empty() || changed_rules;
    let text = text(&before, config.mode, &changes, &settings, rules.as_deref());
    let json = json!({
        "modeBefore": before.mode.map(Mode::as_str), "unreadable": before.unreadable, "modeAfter": config.mode.as_str(),
        "frontends": changes,
        "settings": settings.iter().map(|(name, before, after)| json!({"name": name, "before": before, "after": after})).collect::<Vec<_>>(),
        "rules": rules,
    });
    Ok(Answer { text, json, code: if different { DIFFERENT } else { GOOD } })
}

type Frontends = BTreeMap<FrontendKey, ObservedFrontend>;

/// What the kernel has for Services.
#[derive(Default)]
struct Before {
    /// The mode in which rules were written; `None` if there are none.
    mode: Option<Mode>,
    frontends: BTreeMap<Family, Frontends>,
    /// Rules that are there and cannot be read.
    unreadable: Option<String>,
}

impl Before {
    /// The wanted mode counts first: rules of others may be leftovers.
    fn read(config: &Config, families: &[Family]) -> anyhow::Result<Self> {
        let mut modes = Mode::ALL.to_vec();
        modes.sort_by_key(|mode| *mode != config.mode);
        let mut unreadable = Before::default();
        for mode in modes {
            let mut frontends: BTreeMap<Family, Frontends> = BTreeMap::new();
            for family in families {
                let found = frontends.entry(*family).or_default();
                // A mode that this host cannot have has no rules here.
                let Ok(Some(mut kernel)) = mode.read_back(*family) else { continue };
                for key in kernel.frontends()? {
                    let frontend = kernel.frontend(&key)?;
                    found.insert(key, frontend);
                }
                if let Some(what) = kernel.unreadable().filter(|_| unreadable.mode.is_none()) {
                    unreadable = Before { mode: Some(mode), unreadable: Some(what), ..Before::default() };
                }
            }
            if frontends.values().any(|found| !found.is_empty()) {
                let mode = Some(mode.in_force_over_rules(config));
                return Ok(Before { mode, frontends, unreadable: None });
            }
        }
        Ok(unreadable)
    }
}

fn compare(family: Family, seen: &Frontends, desired: &Desired, mode: Mode) -> Vec<Change> {
    let mut wanted: BTreeMap<FrontendKey, (String, ObservedFrontend)> = BTreeMap::new();
    for (name, service) in desired.services() {
        for port in &service.ports {
            let cluster = port.cluster.iter().map(|backend| backend.address()).collect();
            for frontend in port.active_frontends() {
                let observed = mode.adapt(ObservedFrontend::desired(port, frontend), &cluster);
                wanted.insert(FrontendKey::of(port, frontend), (name.to_string(), observed));
            }
        }
    }
    let keys: BTreeSet<&FrontendKey> = seen.keys().chain(wanted.keys()).collect();
    let change = |key: &FrontendKey| {
        let (before, after) = (seen.get(key), wanted.get(key));
        let row = |kind, details| {
            let service = after.map(|(service, _)| service.clone());
            Some(Change { kind, family: family.to_string(), frontend: key.to_string(), service, details })
        };
        match (before, after) {
            (None, Some((_, after))) => row(ChangeKind::Added, treatments(after)),
            (Some(before), None) => row(ChangeKind::Removed, treatments(before)),
            (Some(before), Some((_, after))) => {
                let details = before.changes_to(after);
                if details.is_empty() { None } else { row(ChangeKind::Changed, details) }
            }
            (None, None) => None,
        }
    };
    keys.into_iter().filter_map(change).collect()
}

fn treatments(frontend: &ObservedFrontend) -> Vec<String> {
    let words = |treatment: &Treatment| treatment.to_string();
    if frontend.from_node == frontend.from_elsewhere {
        return vec![words(&frontend.from_node)];
    }
    vec![
        format!("from this node: {}", words(&frontend.from_node)),
        format!("from elsewhere: {}", words(&frontend.from_elsewhere)),
    ]
}

/// Which rules would change; `None` if the mode writes no text.
fn rules(config: &Config, cluster: &Cluster, families: &[Family]) -> anyhow::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    for family in families {
        let Some(rules) = config.mode.preview(config, cluster.desired(*family))? else { return Ok(None) };
        lines.extend(rules.iter().map(|rule| format!("{family}: {rule}")));
    }
    Ok(Some(lines))
}

fn text(
    before: &Before,
    after: Mode,
    changes: &[Change],
    settings: &[(&'static str, u64, u64)],
    rules: Option<&[String]>,
) -> String {
    let mut text = match (before.mode, &before.unreadable) {
        (None, _) => {
            format!("The kernel has no rules for Services; they would be written in mode {after}.\n")
        }
        (Some(mode), Some(what)) => format!(
            "The kernel has {what} of another program, presumably kube-proxy in mode {mode}. Portwarden cannot read it, so every address is listed \
             as an addition. Mode {after} would replace it.\n"
        ),
        (Some(mode), None) if mode == after => {
            format!("The kernel has rules of mode {mode}, which stays.\n")
        }
        (Some(mode), None) => {
            let change = if mode.shares_rules_with(after) { "use them, too" } else { "replace them" };
            format!("The kernel has rules of mode {mode}; mode {after} would {change}.\n")
        }
    };
    // Writing to a string cannot fail.
    for Change { kind, family, frontend, service, details } in changes {
        let sign = match kind {
            ChangeKind::Added => '+',
            ChangeKind::Removed => '-',
            ChangeKind::Changed => '~',
        };
        let service = service.as_ref().map(|service| format!(" ({service})")).unwrap_or_default();
        let _ = writeln!(text, "{sign} {family} {frontend}{service}: {}", details.join("; "));
    }
    for (name, before, after) in settings {
        let _ = writeln!(text, "~ net.netfilter.{name}: {before}, would be {after}");
    }
    match rules {
        Some(rules) => rules.iter().for_each(|rule| {
            let _ = writeln!(text, "{rule}");
        }),
        None => {
            let _ = writeln!(text, "Mode {after} writes no rules as text, so none are shown.");
        }
    }
    let count = |kind| changes.iter().filter(|change| change.kind == kind).count();
    let _ = writeln!(
        text,
        "{} addresses added, {} removed, {} changed; {} kernel settings",
        count(ChangeKind::Added),
        count(ChangeKind::Removed),
        count(ChangeKind::Changed),
        settings.len()
    );
    text
}

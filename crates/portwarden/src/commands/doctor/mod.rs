//! `portwarden doctor`: what on this node could keep Services from working, each with its cure.
//!
//! A check is a function that returns a [`Finding`]. It reads, and changes nothing. docs/troubleshooting.md has a section for each.

mod cluster;
mod kernel;
mod programs;

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::{Answer, Command, GOOD, Request};
use crate::config::{Config, LoadedConfig, Notice};

/// The exit status if a check failed.
const FAILED: u8 = 1;

/// Where each check has a section.
const HANDBOOK: &str = "docs/troubleshooting.md";

pub(super) const COMMAND: Command = Command {
    name: "doctor",
    arguments: "[flags]",
    summary: "checks this node, and says how to cure what it finds",
    about: "Checks kernel features for each mode, other proxies and what they left, variants of iptables, room for connections, \
            rp_filter, bridges, forwarding, the clock, the way to the API server and the permissions there, and what later releases of \
            Kubernetes change for this node. It changes nothing. Without --config, --kubeconfig, --master or --manifests it takes the \
            configuration of the running process, with the flags that are given in place of what it says.",
    flags: &[],
    takes_proxy_flags: true,
    examples: &[
        ("sudo portwarden doctor", "with the configuration of the running process"),
        (
            "sudo portwarden doctor --config /etc/portwarden/config.yaml",
            "before the first start, or when something is wrong",
        ),
        ("sudo portwarden doctor --proxy-mode nftables --manifests examples", "with a folder of manifests"),
        ("sudo portwarden doctor -o json | jq '.checks[] | select(.level == \"failure\")'", "only failures"),
    ],
    exit_codes: &[
        (0, "no check failed; there may be warnings"),
        (1, "a check failed"),
        (2, "the checks could not be made"),
    ],
    run,
};

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    level: Level,
    /// What is the case.
    text: String,
    /// What to do; empty if nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    cure: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    Warning,
    Failure,
}

impl Finding {
    fn ok(text: impl Into<String>) -> Self {
        Finding { level: Level::Ok, text: text.into(), cure: String::new() }
    }

    fn warning(text: impl Into<String>, cure: impl Into<String>) -> Self {
        Finding { level: Level::Warning, text: text.into(), cure: cure.into() }
    }

    fn failure(text: impl Into<String>, cure: impl Into<String>) -> Self {
        Finding { level: Level::Failure, text: text.into(), cure: cure.into() }
    }
}

/// What checks look at.
pub(super) struct Node {
    config: Config,
    notices: Vec<Notice>,
    /// The process whose configuration this is; absent if it comes from flags.
    configured_by: Option<u32>,
    /// The path of `/proc`.
    proc: PathBuf,
}

/// One check: its name, which is also its section in the handbook, and what it does.
struct Check {
    name: &'static str,
    run: fn(&Node) -> Vec<Finding>,
}

/// Every check, in the order in which they are made.
static CHECKS: [Check; 16] = [
    Check { name: "privileges", run: kernel::privileges },
    Check { name: "configuration", run: programs::configuration },
    Check { name: "kubernetes-changes", run: programs::kubernetes_changes },
    Check { name: "mode", run: kernel::mode },
    Check { name: "other-modes", run: kernel::other_modes },
    Check { name: "other-proxies", run: programs::other_proxies },
    Check { name: "leftovers", run: kernel::leftovers },
    Check { name: "iptables-variants", run: kernel::iptables_variants },
    Check { name: "conntrack", run: kernel::conntrack },
    Check { name: "rp-filter", run: kernel::rp_filter },
    Check { name: "bridge-nf", run: kernel::bridge_nf },
    Check { name: "forwarding", run: kernel::forwarding },
    Check { name: "clock", run: kernel::clock },
    Check { name: "ports", run: programs::ports },
    Check { name: "source", run: cluster::source },
    Check { name: "running-process", run: cluster::running_process },
];

/// A finding with the name of its check.
#[derive(Serialize)]
struct Row {
    check: &'static str,
    #[serde(flatten)]
    finding: Finding,
    section: String,
}

fn run(request: &Request) -> anyhow::Result<Answer> {
    Ok(examine(&node(request.config()?, request.configured_by())))
}

/// Makes every check.
pub(super) fn examine(node: &Node) -> Answer {
    let rows: Vec<Row> = CHECKS
        .iter()
        .flat_map(|check| (check.run)(node).into_iter().map(move |finding| (check.name, finding)))
        .map(|(check, finding)| Row { check, finding, section: format!("{HANDBOOK}#{check}") })
        .collect();
    let count = |level| rows.iter().filter(|row| row.finding.level == level).count();
    let (failures, warnings) = (count(Level::Failure), count(Level::Warning));
    let mut text = String::new();
    for row in &rows {
        write_row(&mut text, row);
    }
    let _ = writeln!(text, "\n{} checks, {failures} failed, {warnings} warnings", CHECKS.len());
    let json = serde_json::json!({ "checks": rows, "failures": failures, "warnings": warnings });
    Answer { text, json, code: if failures > 0 { FAILED } else { GOOD } }
}

/// The node as the configuration describes it.
pub(super) fn node(loaded: LoadedConfig, configured_by: Option<u32>) -> Node {
    let LoadedConfig { config, notices, .. } = loaded;
    Node { config, notices, configured_by, proc: PathBuf::from("/proc") }
}

fn write_row(text: &mut String, row: &Row) {
    let level = match row.finding.level {
        Level::Ok => "ok",
        Level::Warning => "WARNING",
        Level::Failure => "FAILED",
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{level:<8} {:<18} {}", row.check, row.finding.text);
    if !row.finding.cure.is_empty() {
        let _ = writeln!(text, "{:27} cure: {}", "", row.finding.cure);
        let _ = writeln!(text, "{:27} see {}", "", row.section);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_section_in_the_handbook() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/troubleshooting.md");
        let handbook = std::fs::read_to_string(path).expect("the handbook");
        for check in &CHECKS {
            assert!(handbook.contains(&format!("\n### {}\n", check.name)), "{}", check.name);
        }
    }
}

//! `portwarden status`: the running process at a glance.

use std::fmt::{Display, Write};

use anyhow::bail;

use super::client::{Client, Reply};
use super::{Answer, Command, GOOD, Request};
use crate::introspection::api::{Status, Sync};

/// The exit status of a process that is not healthy.
const UNHEALTHY: u8 = 1;

/// Syncs that are shown.
const SYNCS: usize = 5;

/// Services that are shown by name.
const SERVICES: usize = 10;

pub(super) const COMMAND: Command = Command {
    name: "status",
    arguments: "[flags]",
    summary: "whether the running process is healthy, and what it does",
    about: "Asks the process on this node: mode and families, Services and endpoints in force, the oldest change that is not yet in the \
            kernel, the last syncs, repairs, Services that the kernel refuses, the source of objects, and the table of connections.",
    flags: &[],
    takes_proxy_flags: true,
    examples: &[
        ("portwarden status", "one screen about the process on this node"),
        ("portwarden status -o json | jq .verdict", "for a script"),
        ("kubectl -n kube-system exec ds/portwarden -- portwarden status", "in a cluster"),
    ],
    exit_codes: &[
        (0, "the process is healthy"),
        (1, "it is not; the first lines say why"),
        (2, "it does not answer"),
    ],
    run,
};

fn run(request: &Request) -> anyhow::Result<Answer> {
    let client = Client::connect(&request.config_or_defaults()?.config)?;
    let status: Status = match client.get("/api/status")? {
        Reply::Answer(status) => status,
        Reply::Refused(error) => bail!("{} answers: {}", client.address(), error.error),
    };
    let code = if status.verdict.healthy { GOOD } else { UNHEALTHY };
    Ok(Answer { text: text(&status), json: serde_json::to_value(&status)?, code })
}

/// One screen.
fn text(status: &Status) -> String {
    let verdict = if status.verdict.healthy { "healthy" } else { "NOT HEALTHY" };
    let mut text =
        format!("Portwarden {} ({}) on {}: {verdict}\n", status.portwarden, status.version, status.node);
    for reason in &status.verdict.reasons {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  ! {reason}");
    }
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<12} {value}");
    };
    let families: Vec<&str> = status.families.iter().map(|family| family.family.as_str()).collect();
    let next = status.next_mode.as_ref().map(|mode| format!(", changing to {mode}")).unwrap_or_default();
    row("mode", &format!("{}{next}, {}", status.mode, families.join(" and ")));
    row("since", &format!("{} ({})", to_the_millisecond(&status.started), duration(status.uptime)));
    for family in &status.families {
        let pending = match family.oldest_pending {
            Some(seconds) => format!("; a change waits for {}", duration(seconds)),
            None => String::new(),
        };
        let installed = if family.installed { "" } else { "; nothing is in the kernel yet" };
        let services = count(family.services, "Service");
        let of = format!("{services}, {}{installed}{pending}", count(family.endpoints, "endpoint"));
        row(&family.family, &of);
    }
    row(
        "oldest",
        &status.oldest_pending.map_or_else(
            || "every change is in the kernel".to_owned(),
            |seconds| format!("a change has waited for {} to be in the kernel", duration(seconds)),
        ),
    );
    let totals = &status.totals;
    row(
        "work",
        &format!(
            "{}, {} ({} failed), {}, {}",
            count(totals.changes, "change"),
            count(totals.syncs, "sync"),
            totals.failed_syncs,
            count(totals.repairs, "repair"),
            count(totals.problems, "object problem"),
        ),
    );
    for (place, sync) in status.syncs.iter().take(SYNCS).enumerate() {
        row(if place == 0 { "last syncs" } else { "" }, &sync_line(sync));
    }
    if status.refused.count == 0 {
        row("refused", "no Service");
    }
    for (place, refused) in status.refused.services.iter().take(SERVICES).enumerate() {
        row(
            if place == 0 { "refused" } else { "" },
            &format!("{} ({}): {}", refused.service, refused.family, refused.reason),
        );
    }
    if status.refused.count > SERVICES {
        row("", &format!("and {} more", status.refused.count - SERVICES));
    }
    for (place, part) in status.sources.iter().enumerate() {
        let since = to_the_millisecond(&part.since);
        let state = match &part.error {
            Some(error) => format!("failing since {since}: {error}"),
            None => format!("followed since {since}"),
        };
        row(if place == 0 { "source" } else { "" }, &format!("{}: {state}", part.part));
    }
    if let Some(table) = status.conntrack {
        let share = table.entries * 100 / table.limit.max(1);
        row("conntrack", &format!("{} of {} entries ({share} %)", table.entries, table.limit));
    }
    row("memory", &format!("{} MiB", status.memory >> 20));
    text
}

fn sync_line(sync: &Sync) -> String {
    let kind = if sync.full { "full" } else { "changes" };
    let waited = sync.change_to_kernel.map(|seconds| format!(", {} after the change", duration(seconds)));
    match &sync.error {
        Some(error) => format!("{} {} {kind}: FAILED: {error}", to_the_millisecond(&sync.at), sync.family),
        None => format!(
            "{} {} {kind}: {} written in {}{}",
            to_the_millisecond(&sync.at),
            sync.family,
            sync.written,
            duration(sync.duration),
            waited.unwrap_or_default()
        ),
    }
}

/// Seconds in words that fit their size.
/// `1 Service`, `2 Services`.
fn count(number: impl Display, what: &str) -> String {
    let plural = if number.to_string() == "1" { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A time without the digits after its milliseconds.
fn to_the_millisecond(time: &str) -> String {
    match time.split_once('.') {
        Some((seconds, fraction)) => format!("{seconds}.{}Z", fraction.chars().take(3).collect::<String>()),
        None => time.to_owned(),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_read_well() {
        let counts = [0, 1, 2].map(|number| count(number, "Service"));
        assert_eq!(counts, ["0 Services", "1 Service", "2 Services"]);
        assert_eq!(to_the_millisecond("2026-11-18T02:19:31.131482694Z"), "2026-11-18T02:19:31.131Z");
        assert_eq!(to_the_millisecond("2026-11-18T02:19:31Z"), "2026-11-18T02:19:31Z");
    }

    #[test]
    fn durations_have_a_fitting_unit() {
        let words = [0.0034, 2.0, 119.0, 600.0, 10_000.0, 200_000.0].map(duration);
        assert_eq!(words, ["3 ms", "2 s", "119 s", "10 min", "3 h", "2 days"]);
    }
}

//! `portwarden bundle`: everything that a bug report needs, in one file, without credentials.

mod collect;
mod redact;
mod tar;

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::{Answer, Command, CommandFlag, Request};
use redact::redact;
use tar::Archive;

pub(super) const COMMAND: Command = Command {
    name: "bundle",
    arguments: "[SERVICE...] [flags]",
    summary: "a tar file for bug reports, without credentials",
    about: "Collects the configuration, what the running process says (status, time line, metrics), `portwarden doctor`, the state of the \
            kernel (rules, addresses, routes, settings), the last lines of the log, and `portwarden explain` of the given Services. Tokens, \
            passwords, keys and certificates are cut out; addresses and names of Services are not.",
    flags: &[
        CommandFlag {
            name: "file",
            letter: Some('f'),
            placeholder: "FILE",
            help: "Where to write; by default portwarden-bundle-SECONDS.tar.gz in the current folder. Only its owner may read it.",
            values: &[],
        },
        CommandFlag {
            name: "log",
            letter: None,
            placeholder: "FILE",
            help: "The log of the process. Without it, the journal is asked. In a cluster, add the output of `kubectl logs` yourself.",
            values: &[],
        },
    ],
    takes_proxy_flags: true,
    examples: &[
        (
            "sudo portwarden bundle demo/web --config /etc/portwarden/config.yaml",
            "with one Service that does not work",
        ),
        (
            "sudo portwarden bundle -f /tmp/report.tar.gz && tar tzf /tmp/report.tar.gz",
            "look at what is in it",
        ),
    ],
    exit_codes: &[(0, "the file was written"), (2, "it could not be written")],
    run,
};

fn run(request: &Request) -> anyhow::Result<Answer> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let name = format!("portwarden-bundle-{seconds}");
    let path = request.value("file").map_or_else(|| format!("{name}.tar.gz"), str::to_owned);
    let files = collect::all(request);
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot write {path:?}; choose another place with --file"))?;
    let mut archive = Archive::new(GzEncoder::new(file, Compression::default()), &name, seconds);
    let mut written = Vec::new();
    for (name, content) in files {
        let content = redact(&content);
        archive.add(&name, content.as_bytes()).with_context(|| format!("cannot write {path:?}"))?;
        written.push((name, content.len()));
    }
    archive
        .finish()
        .and_then(GzEncoder::finish)
        .and_then(|mut file| file.flush())
        .with_context(|| format!("cannot write {path:?}"))?;
    let mut text = String::new();
    for (name, size) in &written {
        text.push_str(&format!("{size:>9}  {name}\n"));
    }
    text.push_str(&format!(
        "{path} has {} files. Credentials are cut out; look at it before you send it.\n",
        written.len()
    ));
    let names: Vec<&String> = written.iter().map(|(name, _)| name).collect();
    Ok(Answer::good(text, json!({ "file": path, "contents": names })))
}

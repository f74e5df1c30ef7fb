//! Scenarios: one file, one behaviour, tried on every dataplane in real network namespaces.
//!
//! `docs/scenarios.md` describes the files. [`format`](mod@format) is what can be written in them, `twins` lets one address stand for both
//! families, `objects` makes manifests of what is written, `run` does the steps.

pub mod format;
mod objects;
mod run;
mod twins;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::rig::Candidate;
use format::Content;

/// A scenario with its name, which is that of its file.
#[derive(Debug)]
pub struct Scenario {
    /// What it is called: `cluster-ip-from-a-pod`.
    pub name: String,
    file: PathBuf,
    content: Content,
}

impl Scenario {
    /// Reads one file.
    pub fn read(file: &Path) -> Result<Scenario> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let content = Content::parse(&text).with_context(|| file.display().to_string())?;
        Ok(Scenario { name, file: file.to_owned(), content })
    }

    /// Reads all files of a folder, in the order of their names.
    pub fn read_all(folder: &Path) -> Result<Vec<Scenario>> {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
        files.sort();
        ensure!(!files.is_empty(), "there is no scenario in {}", folder.display());
        files.iter().map(|file| Scenario::read(file)).collect()
    }

    /// What it shows, in a sentence or two.
    pub fn description(&self) -> &str {
        &self.content.description
    }

    /// Why a dataplane is left out, if it is. Names in files may be of a whole family: `iptables` means `iptables-nft` as well.
    pub fn reason_against(&self, candidate: &Candidate) -> Option<String> {
        let mut except = self.content.except.iter();
        if let Some((_, reason)) = except.find(|(name, _)| is_meant(name, candidate)) {
            return Some(reason.clone());
        }
        let only = &self.content.only;
        let left_out = !only.is_empty() && !only.keys().any(|name| is_meant(name, candidate));
        left_out.then(|| only.values().cloned().collect::<Vec<_>>().join("; "))
    }

    /// Whether it needs a kernel with SCTP.
    pub fn uses_sctp(&self) -> bool {
        self.content.uses_sctp()
    }

    /// A misspelt dataplane would leave a scenario out in silence, so each name must be one of these.
    pub fn check_dataplanes(&self, candidates: &[Candidate]) -> Result<()> {
        for name in self.content.except.keys().chain(self.content.only.keys()) {
            let known = candidates.iter().any(|candidate| is_meant(name, candidate));
            ensure!(known, "{}: there is no dataplane {name:?}", self.file.display());
        }
        Ok(())
    }

    /// Runs it. An error has the line of the step that failed.
    pub fn run(&self, candidate: Candidate) -> Result<()> {
        run::run(&self.content, candidate).with_context(|| {
            format!("{} on {}: {}", self.file.display(), candidate.name, self.content.description.trim())
        })
    }
}

fn is_meant(name: &str, candidate: &Candidate) -> bool {
    candidate.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

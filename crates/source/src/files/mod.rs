//! A folder of manifests, or a single file, as the source of objects, without a cluster.
//!
//! | file | what |
//! |---|---|
//! | `parse.rs`, `yaml.rs` | the text of a file to manifests |
//! | `kinds.rs` | which kinds that a proxy does not use are mistakes |
//! | `defaults.rs` | fields that an API server would fill in |
//! | `folder.rs` | the files, and the last valid content of each |
//! | `merge.rs` | all files as one set of objects, and its changes |
//! | `watched_paths.rs` | the directories to watch, symbolic links included |
//! | `watch.rs` | inotify |

mod defaults;
mod folder;
mod kinds;
mod merge;
mod parse;
mod watch;
mod watched_paths;
mod yaml;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use folder::Folder;
use merge::MergedFiles;
use watch::Watch;

use crate::sink::{Closed, Health, Running, Sink};

/// Files are also scanned at intervals: network file systems and renamed parent folders cause no inotify event.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// The interval without inotify.
const SCAN_INTERVAL_WITHOUT_INOTIFY: Duration = Duration::from_secs(2);
/// How often to start over while the folder changes during a scan.
const ATTEMPTS: usize = 5;

/// The source that reads manifests from a folder or a file.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    node_name: String,
}

impl Files {
    /// Reads `path`, and ignores Nodes with another name.
    pub fn new(path: impl Into<PathBuf>, node_name: impl Into<String>) -> io::Result<Self> {
        Ok(Files { path: std::path::absolute(path.into())?, node_name: node_name.into() })
    }

    /// Sends all objects and then every change, until the sink is closed.
    ///
    /// A file that cannot be read keeps its last valid content. Until the folder exists, no list is complete; if it disappears later, all
    /// objects stay until it is back.
    pub fn run(self, sink: Sink) -> Running {
        Box::pin(self.follow(sink))
    }

    async fn follow(self, sink: Sink) {
        let part = self.path.display().to_string();
        let (watch, health) = match Watch::new() {
            Ok(watch) => (Some(watch), Health::Following),
            Err(error) => (None, Health::Failing(no_inotify(&error))),
        };
        let folder = Folder::new(self.path, self.node_name);
        let merged = MergedFiles::default();
        let mut runner =
            Runner { sink, part, watch, health, reported: None, merged, reported_missing_node: false };
        // Only a closed sink ends this.
        let Err(Closed) = runner.run(folder).await else { return };
    }
}

/// Parses the text of a file as this source does. Returns how many objects it has that a proxy uses, or the line and the reason of the error.
pub fn check_manifests(text: &str) -> Result<usize, String> {
    parse::parse(text).map(|content| content.objects.len()).map_err(|error| error.to_string())
}

fn no_inotify(error: &io::Error) -> String {
    format!(
        "cannot watch for changes with inotify ({error}); scanning every {} s instead. If the limit is reached, raise \
         fs.inotify.max_user_instances and fs.inotify.max_user_watches",
        SCAN_INTERVAL_WITHOUT_INOTIFY.as_secs()
    )
}

struct Runner {
    sink: Sink,
    part: String,
    watch: Option<Watch>,
    /// The state while the folder can be read.
    health: Health,
    reported: Option<Health>,
    merged: MergedFiles,
    reported_missing_node: bool,
}

impl Runner {
    async fn run(&mut self, mut folder: Folder) -> Result<(), Closed> {
        loop {
            let scanned;
            (folder, scanned) = self.scan(folder).await?;
            match scanned {
                Ok(()) => {
                    let mut merged = std::mem::take(&mut self.merged);
                    // On another thread, as the scan: with many objects it takes a while, in which servers must answer.
                    let difference;
                    (folder, self.merged, difference) = tokio::task::spawn_blocking(move || {
                        let difference = merged.update(&folder);
                        (folder, merged, difference)
                    })
                    .await
                    .map_err(|_| Closed)?;
                    self.report_missing_node(&folder);
                    self.sink.problems(difference.problems)?;
                    self.sink.events(difference.events).await?;
                    self.report(self.health.clone())?;
                }
                Err(error) => self.report(Health::Failing(format!(
                    "cannot read it ({error}); objects stay unchanged until it is back"
                )))?,
            }
            self.wait().await;
        }
    }

    /// Scans all files until the set of directories stays the same: a directory must be watched before its files are read.
    async fn scan(&mut self, mut folder: Folder) -> Result<(Folder, io::Result<()>), Closed> {
        let mut scanned = Ok(());
        for _ in 0..ATTEMPTS {
            let before = folder.watched_paths();
            if let Some(watch) = &mut self.watch
                && let Err(error) = watch.set_paths(&before)
            {
                self.watch = None;
                self.health = Health::Failing(no_inotify(&error));
            }
            // A failed join means that the runtime shuts down.
            (folder, scanned) = tokio::task::spawn_blocking(move || {
                let scanned = folder.scan();
                (folder, scanned)
            })
            .await
            .map_err(|_| Closed)?;
            if folder.watched_paths() == before {
                break;
            }
        }
        Ok((folder, scanned))
    }

    fn report(&mut self, health: Health) -> Result<(), Closed> {
        if self.reported.as_ref() != Some(&health) {
            self.sink.status(&self.part, health.clone())?;
            self.reported = Some(health);
        }
        Ok(())
    }

    /// Logs once that the files describe other Nodes only.
    fn report_missing_node(&mut self, folder: &Folder) {
        if let Some((node, exist)) = folder.missing_node()
            && !std::mem::replace(&mut self.reported_missing_node, true)
        {
            tracing::warn!(
                node,
                exist,
                "The manifests have no Node of this name; set --hostname-override to the right one"
            );
        }
    }

    async fn wait(&mut self) {
        match &mut self.watch {
            Some(watch) => {
                if let Ok(Err(error)) = tokio::time::timeout(SCAN_INTERVAL, watch.changed()).await {
                    self.watch = None;
                    self.health = Health::Failing(no_inotify(&error));
                }
            }
            None => tokio::time::sleep(SCAN_INTERVAL_WITHOUT_INOTIFY).await,
        }
    }
}

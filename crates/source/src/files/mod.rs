//! A folder of manifests, or a single file, as the source of objects: no cluster is needed.
//!
//! | file | what |
//! |---|---|
//! | `parse.rs` | the text of a file to manifests |
//! | `defaults.rs` | what an API server would have filled in |
//! | `folder.rs` | which files there are, and the last good content of each |
//! | `merged.rs` | all files as one set of objects, and what changed in it |
//! | `route.rs` | which directories must be followed to notice every change |
//! | `watch.rs` | inotify |

mod defaults;
mod folder;
mod merged;
mod parse;
mod route;
mod watch;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use folder::{Folder, Look};
use merged::Merged;
use watch::Watch;

use crate::sink::{Closed, Health, Sink};

/// Even with inotify, look again now and then: network file systems and renamed parent folders tell nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Without inotify this is how changes are noticed.
const LOOK_WITHOUT_INOTIFY: Duration = Duration::from_secs(2);
/// How often to start over while the folder changes under our eyes.
const ATTEMPTS: usize = 5;

/// The source that reads manifests from a folder or a file.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    node_name: String,
}

impl Files {
    /// Reads `path`; of the Nodes in it, only the one with this name counts.
    pub fn new(path: impl Into<PathBuf>, node_name: impl Into<String>) -> io::Result<Self> {
        Ok(Files { path: std::path::absolute(path.into())?, node_name: node_name.into() })
    }

    /// Tells all objects and then every change, until nobody listens any more.
    ///
    /// What cannot be read keeps its last good content. As long as the folder itself has never been there, no list is
    /// complete; if it goes away later, all objects stay until it is back.
    pub async fn run(self, sink: Sink) {
        let part = self.path.display().to_string();
        let (watch, health) = match Watch::new() {
            Ok(watch) => (Some(watch), Health::Following),
            Err(error) => (None, Health::Failing(no_inotify(&error))),
        };
        let folder = Folder::new(self.path, self.node_name);
        let mut runner = Runner { sink, part, watch, health, told: None, merged: Merged::default() };
        // The only way to end is that nobody listens.
        let Err(Closed) = runner.run(folder).await else { return };
    }
}

fn no_inotify(error: &io::Error) -> String {
    format!(
        "cannot follow changes with inotify ({error}); looking every {} s instead. If the limit is reached, raise \
         fs.inotify.max_user_instances and fs.inotify.max_user_watches",
        LOOK_WITHOUT_INOTIFY.as_secs()
    )
}

struct Runner {
    sink: Sink,
    part: String,
    watch: Option<Watch>,
    /// What the state is when the folder can be read.
    health: Health,
    told: Option<Health>,
    merged: Merged,
}

impl Runner {
    async fn run(&mut self, mut folder: Folder) -> Result<(), Closed> {
        loop {
            let look;
            (folder, look) = self.look(folder).await?;
            match look {
                Ok(()) => {
                    let news = self.merged.update(&folder);
                    self.sink.problems(news.problems)?;
                    self.sink.events(news.events).await?;
                    self.tell(self.health.clone())?;
                }
                Err(error) => self.tell(Health::Failing(format!(
                    "cannot read it ({error}); objects stay as they are until it is back"
                )))?,
            }
            self.wait().await;
        }
    }

    /// Looks at all files while they hold still: a directory that must be followed is followed before its files are read.
    async fn look(&mut self, mut folder: Folder) -> Result<(Folder, Look), Closed> {
        let mut look = Ok(());
        for _ in 0..ATTEMPTS {
            let before = folder.points();
            if let Some(watch) = &mut self.watch
                && let Err(error) = watch.follow(&before)
            {
                self.watch = None;
                self.health = Health::Failing(no_inotify(&error));
            }
            // A failed join means that the runtime is going down.
            (folder, look) = tokio::task::spawn_blocking(move || {
                let look = folder.look();
                (folder, look)
            })
            .await
            .map_err(|_| Closed)?;
            if folder.points() == before {
                break;
            }
        }
        Ok((folder, look))
    }

    fn tell(&mut self, health: Health) -> Result<(), Closed> {
        if self.told.as_ref() != Some(&health) {
            self.sink.status(&self.part, health.clone())?;
            self.told = Some(health);
        }
        Ok(())
    }

    async fn wait(&mut self) {
        match &mut self.watch {
            Some(watch) => {
                if let Ok(Err(error)) = tokio::time::timeout(LOOK_AGAIN, watch.changed()).await {
                    self.watch = None;
                    self.health = Health::Failing(no_inotify(&error));
                }
            }
            None => tokio::time::sleep(LOOK_WITHOUT_INOTIFY).await,
        }
    }
}

//! A running source, and the state that its updates add up to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portwarden_model::{Cluster, Event, Kind, Problem, Settings};
use portwarden_source::kubernetes::{Client, Kubernetes};
use portwarden_source::{Health, Sink, Update};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How long a test waits for anything.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Follows a source. Lists are applied as a cluster applies them: what they do not bring is gone.
pub struct Follower {
    updates: mpsc::UnboundedReceiver<Update>,
    pub task: JoinHandle<()>,
    /// Every object, by kind and name.
    pub objects: BTreeMap<(Kind, String), Event>,
    listing: BTreeMap<Kind, BTreeSet<String>>,
    /// How often each kind was listed completely.
    pub lists: BTreeMap<Kind, usize>,
    pub problems: Vec<Problem>,
    /// The last state of each part.
    pub health: BTreeMap<String, Health>,
    /// All states of all parts.
    pub history: Vec<(String, Health)>,
    /// Objects that went, in order.
    pub gone: Vec<String>,
    /// What the model makes of it.
    pub cluster: Cluster,
}

impl Follower {
    pub fn start(client: Client, node_name: &str) -> Self {
        Follower::of(Kubernetes::new(client, node_name), node_name)
    }

    pub fn of(source: Kubernetes, node_name: &str) -> Self {
        let (sender, updates) = mpsc::unbounded_channel();
        let sink = Sink::new(10_000, move |update| sender.send(update).is_ok());
        Follower {
            updates,
            task: tokio::spawn(source.run(sink)),
            objects: BTreeMap::new(),
            listing: BTreeMap::new(),
            lists: BTreeMap::new(),
            problems: Vec::new(),
            health: BTreeMap::new(),
            history: Vec::new(),
            gone: Vec::new(),
            cluster: Cluster::new(Settings::new(node_name)),
        }
    }

    /// Takes updates until the condition holds.
    pub async fn until(&mut self, what: &str, condition: impl Fn(&Follower) -> bool) {
        self.until_within(DEADLINE, what, condition).await;
    }

    /// Takes updates for so long.
    pub async fn pass(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while let Ok(update) = tokio::time::timeout_at(end, self.updates.recv()).await {
            self.take(update.expect("the source does not end"));
        }
    }

    /// Takes updates until the condition holds, with another limit.
    pub async fn until_within(&mut self, limit: Duration, what: &str, condition: impl Fn(&Follower) -> bool) {
        let deadline = tokio::time::Instant::now() + limit;
        while !condition(self) {
            match tokio::time::timeout_at(deadline, self.updates.recv()).await {
                Ok(Some(update)) => self.take(update),
                Ok(None) => panic!("the source ended while waiting until {what}"),
                Err(_) => panic!(
                    "timed out:  {what}; objects: {:?}, health: {:?}, problems: {:?}",
                    self.objects.keys().collect::<Vec<_>>(),
                    self.health,
                    self.problems
                ),
            }
        }
    }

    /// Takes updates until all kinds are listed.
    pub async fn until_listed(&mut self) {
        self.until("all kinds are listed", |f| Kind::ALL.iter().all(|kind| f.lists.contains_key(kind))).await;
    }

    pub fn names(&self, kind: Kind) -> Vec<&str> {
        self.objects.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name.as_str()).collect()
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Problems(problems) => self.problems.extend(problems),
            Update::Status(status) => {
                self.history.push((status.part.clone(), status.health.clone()));
                self.health.insert(status.part, status.health);
            }
            Update::Events(batch) => batch.into_events().into_iter().for_each(|event| self.apply(event)),
        }
    }

    fn apply(&mut self, event: Event) {
        self.cluster.apply(event.clone());
        let (kind, name) = match &event {
            Event::ServiceApplied(object) => (Kind::Service, object.name.to_string()),
            Event::SliceApplied(object) => (Kind::EndpointSlice, object.name.to_string()),
            Event::NodeApplied(object) => (Kind::Node, object.name.to_string()),
            Event::ServiceCidrApplied(object) => (Kind::ServiceCidr, object.name.to_string()),
            Event::ServiceDeleted(name) => return self.remove(Kind::Service, name.to_string()),
            Event::SliceDeleted(name) => return self.remove(Kind::EndpointSlice, name.to_string()),
            Event::NodeDeleted(name) => return self.remove(Kind::Node, name.to_string()),
            Event::ServiceCidrDeleted(name) => return self.remove(Kind::ServiceCidr, name.to_string()),
            Event::ListStarted(kind) => {
                self.listing.insert(*kind, BTreeSet::new());
                return;
            }
            Event::ListDone(kind) => return self.list_done(*kind),
            other => panic!("no source sends {other:?}"),
        };
        if let Some(listed) = self.listing.get_mut(&kind) {
            listed.insert(name.clone());
        }
        self.objects.insert((kind, name), event);
    }

    fn list_done(&mut self, kind: Kind) {
        let listed = self.listing.remove(&kind).expect("a list begins before it ends");
        let missing: Vec<String> =
            self.names(kind).into_iter().filter(|name| !listed.contains(*name)).map(str::to_owned).collect();
        missing.into_iter().for_each(|name| self.remove(kind, name));
        *self.lists.entry(kind).or_default() += 1;
    }

    fn remove(&mut self, kind: Kind, name: String) {
        if self.objects.remove(&(kind, name.clone())).is_some() {
            self.gone.push(name);
        }
    }
}

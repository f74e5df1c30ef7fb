//! The same objects give the same desired state, whatever lists and watches delivered them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use portwarden_model::{Cluster, Event, Kind, PerFamily, Settings};
use portwarden_testkit::strategies::{Shape, host_addresses, settings};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::server::{Change, Server, changes, desired, feed, histories};

/// A cluster that gets the final objects only, each once, and resolves once.
fn from_scratch(settings: &Settings, server: &Server, host: &[IpAddr]) -> Cluster {
    let mut cluster = Cluster::new(settings.clone());
    cluster.apply(Event::HostAddresses(host.into()));
    feed(&mut cluster, server.events());
    cluster
}

/// One moment in the life of a client of the API server.
#[derive(Debug, Clone)]
enum Moment {
    /// An object is written; a connected client is notified, possibly more than once.
    Write(Box<Change>, usize),
    /// The watch of a kind breaks.
    Break(Kind),
    /// A list of a kind comes in and its watch starts; or it breaks off after some objects.
    List(Kind, Option<Index>),
    /// A sync.
    Resolve,
}

fn lives() -> impl Strategy<Value = Vec<Moment>> {
    let kinds = || proptest::sample::select(Kind::ALL.to_vec());
    let change = changes(&Shape::default());
    let moment = prop_oneof![
        10 => (change, 1..3usize).prop_map(|(change, times)| Moment::Write(Box::new(change), times)),
        1 => kinds().prop_map(Moment::Break),
        2 => (kinds(), any::<Option<Index>>()).prop_map(|(kind, broken)| Moment::List(kind, broken)),
        2 => Just(Moment::Resolve),
    ];
    prop::collection::vec(moment, 1..60)
}

/// A client that follows the server through lists and watches.
struct Client {
    cluster: Cluster,
    connected: [bool; 4],
}

impl Client {
    fn live(&mut self, server: &mut Server, moment: Moment) {
        match moment {
            Moment::Write(change, times) => {
                server.take(&change);
                if self.connected[change.key().0 as usize] {
                    for _ in 0..times {
                        self.cluster.apply(change.event());
                    }
                }
            }
            Moment::Break(kind) => self.connected[kind as usize] = false,
            Moment::List(kind, broken) => self.list(server, kind, broken),
            Moment::Resolve => {
                self.cluster.resolve();
            }
        }
    }

    fn list(&mut self, server: &Server, kind: Kind, broken: Option<Index>) {
        let objects = server.list(kind);
        let end = broken.map_or(objects.len(), |index| index.index(objects.len() + 1));
        self.cluster.apply(Event::ListStarted(kind));
        for event in objects.into_iter().take(end) {
            self.cluster.apply(event);
        }
        self.connected[kind as usize] = broken.is_none();
        if broken.is_none() {
            self.cluster.apply(Event::ListDone(kind));
        }
    }

    /// Lists whatever has no watch, as every source does in the end.
    fn catch_up(&mut self, server: &Server) {
        for kind in Kind::ALL {
            if !self.connected[kind as usize] {
                self.list(server, kind, None);
            }
        }
        self.cluster.resolve();
    }
}

/// The same writes in another order, each object's own ones in theirs.
fn interleaved(history: &[Change], order: &[Index]) -> Vec<Change> {
    let mut queues: BTreeMap<_, std::collections::VecDeque<Change>> = BTreeMap::new();
    for change in history {
        queues.entry(change.key()).or_default().push_back(change.clone());
    }
    let mut out = Vec::with_capacity(history.len());
    for index in order.iter().cycle() {
        queues.retain(|_, queue| !queue.is_empty());
        if queues.is_empty() {
            break;
        }
        let at = index.index(queues.len());
        let (_, queue) = queues.iter_mut().nth(at).expect("the index is in range");
        out.extend(queue.pop_front());
    }
    out
}

proptest! {
    #[test]
    fn the_order_of_events_across_objects_does_not_matter(
        history in histories(&Shape::default()),
        order in prop::collection::vec(any::<Index>(), 1..20),
        resolves in prop::collection::vec(any::<bool>(), 40),
        settings in settings(&Shape::default()),
    ) {
        let mut straight = Cluster::new(settings.clone());
        feed(&mut straight, history.iter().map(Change::event));
        let mut mixed = Cluster::new(settings);
        for (change, resolve) in interleaved(&history, &order).iter().zip(resolves) {
            mixed.apply(change.event());
            if resolve {
                mixed.resolve();
            }
        }
        mixed.resolve();
        prop_assert_eq!(desired(&straight), desired(&mixed));
    }

    /// Lists, watches, interruptions, lost and repeated events, syncs in between: the result equals that of one list.
    #[test]
    fn any_split_into_lists_and_watches_gives_the_same(
        life in lives(),
        settings in settings(&Shape::default()),
        host in host_addresses(),
    ) {
        let mut server = Server::default();
        let mut client = Client { cluster: Cluster::new(settings.clone()), connected: [false; 4] };
        client.cluster.apply(Event::HostAddresses(host.clone().into()));
        for moment in life {
            client.live(&mut server, moment);
        }
        client.catch_up(&server);
        prop_assert!(client.cluster.is_synced());
        let fresh = from_scratch(&settings, &server, &host);
        prop_assert_eq!(desired(&client.cluster), desired(&fresh));
        prop_assert_eq!(client.cluster.node(), fresh.node());
    }

    /// Settings that change at run time lead to the state that they would have led to from the start.
    #[test]
    fn settings_can_change_at_any_time(
        history in histories(&Shape::default()),
        before in settings(&Shape::default()),
        after in settings(&Shape::default()),
        moment in any::<Index>(),
        host in host_addresses(),
    ) {
        let server = Server::after(&history);
        let mut cluster = Cluster::new(before);
        cluster.apply(Event::HostAddresses(host.clone().into()));
        let at = moment.index(history.len());
        feed(&mut cluster, history[..at].iter().map(Change::event));
        cluster.set_settings(after.clone());
        feed(&mut cluster, history[at..].iter().map(Change::event));
        prop_assert_eq!(desired(&cluster), desired(&from_scratch(&after, &server, &host)));
    }

    #[test]
    fn applying_the_same_event_twice_changes_nothing(
        history in histories(&Shape::default()),
        settings in settings(&Shape::default()),
    ) {
        let mut cluster = Cluster::new(settings);
        for change in &history {
            cluster.apply(change.event());
            prop_assert!(!cluster.apply(change.event()), "{:?}", change);
            cluster.resolve();
            prop_assert!(!cluster.apply(change.event()), "{:?}", change);
            prop_assert_eq!(cluster.resolve(), PerFamily::default());
        }
        for event in Server::after(&history).events() {
            prop_assert!(!cluster.apply(event));
        }
        prop_assert_eq!(cluster.resolve(), PerFamily::default());
    }
}

proptest! {
    // Each case resolves a whole cluster for every event.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn incremental_equals_full_after_every_single_event(
        history in histories(&Shape::default()),
        settings in settings(&Shape::default()),
    ) {
        let mut server = Server::default();
        let mut cluster = Cluster::new(settings.clone());
        for change in &history {
            server.take(change);
            cluster.apply(change.event());
            cluster.resolve();
            prop_assert_eq!(desired(&cluster), desired(&from_scratch(&settings, &server, &[])));
        }
    }
}

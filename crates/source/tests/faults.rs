//! Whatever an API server does, the state in the end is that of the server, and it is never asked too often.
//!
//! All of it runs on a virtual clock with the very waiting times that nodes use, so that requests a minute are those of nodes.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portwarden_model::manifest::{LABEL_HEADLESS, LABEL_PROXY_NAME};
use portwarden_model::{Cluster, Desired, Event, Family, Interner, Kind, Settings};
use portwarden_source::kubernetes::{Client, ClientOptions};
use portwarden_testkit::apiserver::{
    ApiServer, Behaviour, Fault, Garbage, GoneAs, Resource, Schedule, StreamingLists, When, busiest,
};
use portwarden_testkit::build::{endpoint, node, port, service, service_cidr, slice};
use portwarden_testkit::rig::Object;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use support::follower::Follower;
use support::virtual_time;

const NODE: &str = "node-a";
const MINUTE: Duration = Duration::from_secs(60);
/// Time to recover after the last fault. The longest silence that only its own end reveals is that of a watch over
/// plain HTTP/1: ten and a half minutes.
const RECOVERY: Duration = Duration::from_secs(1800);
/// Four kinds, each at most seven attempts in the first minute after trouble begins, each attempt a list and a watch.
const BUSIEST_MINUTE: usize = 56;
/// Later, four kinds, each at most two attempts a minute.
const LATER_MINUTE: usize = 16;
/// A server that cannot even be reached is tried every eight seconds or more.
const LATER_CONNECTIONS: usize = 32;

/// How many schedules are tried: `FAULT_SCHEDULES`, or a thousand.
fn schedules() -> u32 {
    std::env::var("FAULT_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

/// A server, what goes wrong with it, and what is written to it meanwhile.
#[derive(Debug, Clone)]
struct Case {
    tls: bool,
    json: bool,
    streaming_lists: StreamingLists,
    watch_cache: bool,
    largest_page: usize,
    gone_as: GoneAs,
    /// One entry for each request.
    faults: Vec<Option<Fault>>,
    writes: Vec<(Duration, Write)>,
}

#[derive(Debug, Clone, Copy)]
enum Write {
    /// The Service of this number is this now.
    Service(u8, u8),
    Slice(u8, u8),
    Node(u8),
    Cidr(u8, u8),
    Delete(Resource, u8),
    /// Every version but the newest is too old from now on.
    Compact,
    /// All connections are closed.
    Disconnect,
}

fn case() -> impl Strategy<Value = Case> {
    let server = (any::<bool>(), any::<bool>(), streaming_lists(), any::<bool>(), 1usize..12, any::<bool>());
    let fault = prop::option::weighted(0.6, fault());
    let write = (0u64..60_000).prop_map(Duration::from_millis);
    let writes = prop::collection::vec((write, self::write()), 0..16);
    (server, prop::collection::vec(fault, 0..50), writes).prop_map(|(server, faults, writes)| {
        let (tls, json, streaming_lists, watch_cache, largest_page, gone) = server;
        let gone_as = if gone { GoneAs::Status } else { GoneAs::Event };
        Case { tls, json, streaming_lists, watch_cache, largest_page, gone_as, faults, writes }
    })
}

fn streaming_lists() -> impl Strategy<Value = StreamingLists> {
    prop_oneof![
        2 => Just(StreamingLists::Supported),
        1 => Just(StreamingLists::Refused),
        1 => Just(StreamingLists::Failing),
        1 => Just(StreamingLists::Unknown),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    let piece = || 0usize..12;
    let when = || prop_oneof![Just(When::Answer), piece().prop_map(When::Piece)];
    let garbage = prop_oneof![Just(Garbage::Structure), Just(Garbage::Content)];
    let retry_after = prop::option::of(0u32..40);
    prop_oneof![
        Just(Fault::Refuse),
        Just(Fault::Mute),
        Just(Fault::Noise),
        Just(Fault::UntrustedCertificate),
        when().prop_map(Fault::Drop),
        when().prop_map(Fault::Reset),
        when().prop_map(Fault::Freeze),
        when().prop_map(Fault::Silence),
        (0u64..90_000).prop_map(|time| Fault::Delay(Duration::from_millis(time))),
        (prop_oneof![Just(429), Just(500), Just(503), Just(504)], retry_after)
            .prop_map(|(code, retry_after)| Fault::Status { code, retry_after }),
        Just(Fault::WebPage),
        Just(Fault::Behind),
        Just(Fault::Expired(GoneAs::Status)),
        Just(Fault::Expired(GoneAs::Event)),
        piece().prop_map(Fault::Truncate),
        piece().prop_map(Fault::End),
        (piece(), garbage).prop_map(|(piece, garbage)| Fault::Garbage(piece, garbage)),
        (50usize..400, 10u64..500)
            .prop_map(|(bytes, every)| Fault::Drip { bytes, every: Duration::from_millis(every) }),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    let resource = prop::sample::select(vec![
        Resource::Services,
        Resource::EndpointSlices,
        Resource::Nodes,
        Resource::ServiceCidrs,
    ]);
    prop_oneof![
        4 => (0u8..6, any::<u8>()).prop_map(|(number, content)| Write::Service(number, content)),
        4 => (0u8..8, any::<u8>()).prop_map(|(number, content)| Write::Slice(number, content)),
        1 => any::<u8>().prop_map(Write::Node),
        1 => (0u8..2, any::<u8>()).prop_map(|(number, content)| Write::Cidr(number, content)),
        3 => (resource, 0u8..6).prop_map(|(resource, number)| Write::Delete(resource, number)),
        1 => Just(Write::Compact),
        1 => Just(Write::Disconnect),
    ]
}

impl Write {
    /// Does it; gives the name of an object that may be missed from now on.
    fn perform(self, server: &ApiServer) -> Option<String> {
        match self {
            Write::Service(number, content) => {
                let built = service(&format!("s{number}")).port(port(80 + u16::from(content)));
                let ip = if content % 5 == 0 { "None".to_owned() } else { format!("10.96.0.{}", number + 1) };
                let built = built.cluster_ip(ip);
                let foreign = content % 7 == 0;
                server.apply(if foreign { built.label(LABEL_PROXY_NAME, "other") } else { built });
                (foreign || content % 5 == 0).then(|| format!("demo/s{number}"))
            }
            Write::Slice(number, content) => {
                let built = slice(&format!("s{}", number % 6), &format!("e{number}")).port(port(8080));
                let mut built = built.endpoint(endpoint(format!("10.244.0.{content}")).on(NODE)).build();
                let headless = content % 7 == 0;
                if headless {
                    built.metadata.labels.insert(LABEL_HEADLESS.to_owned(), String::new());
                }
                server.apply(Object::Slice(built));
                headless.then(|| format!("demo/e{number}"))
            }
            Write::Node(content) => {
                server.apply(node(NODE).ip(format!("192.0.2.{content}")).zone(&format!("z{}", content % 3)));
                None
            }
            Write::Cidr(number, content) => {
                server.apply(service_cidr(&format!("c{number}"), [format!("10.{content}.0.0/16")]));
                None
            }
            Write::Delete(resource, number) => {
                let (namespace, name) = match resource {
                    Resource::Services => ("demo", format!("s{number}")),
                    Resource::EndpointSlices => ("demo", format!("e{number}")),
                    Resource::Nodes => ("", NODE.to_owned()),
                    _ => ("", format!("c{number}")),
                };
                server.delete(resource, namespace, &name)?;
                Some(if namespace.is_empty() { name } else { format!("{namespace}/{name}") })
            }
            Write::Compact => {
                server.compact();
                None
            }
            Write::Disconnect => {
                server.disconnect();
                None
            }
        }
    }
}

/// A server with a few objects, some of which never change.
fn start(tls: bool, behave: impl FnOnce(&mut Behaviour)) -> ApiServer {
    let builder = ApiServer::builder().behaviour(behave);
    let server = if tls { builder.tls() } else { builder }.start_here().expect("a server");
    server.load([service("stable").cluster_ip("10.96.1.1").port(port(80))]);
    server.load([slice("stable", "stable-1").port(port(8080)).endpoint(endpoint("10.244.1.1").on(NODE))]);
    for number in 0..4 {
        Write::Service(number, number + 1).perform(&server);
        Write::Slice(number, number + 1).perform(&server);
    }
    Write::Node(1).perform(&server);
    Write::Cidr(0, 96).perform(&server);
    server.apply(node("node-b").ip("192.0.2.200"));
    server
}

async fn client(server: &ApiServer, folder: &tempfile::TempDir, json: bool) -> Client {
    let kubeconfig = server.kubeconfig(folder.path(), "").expect("a kubeconfig");
    let mut options = ClientOptions { kubeconfig: Some(kubeconfig), ..ClientOptions::default() };
    if json {
        options.content_type = "application/json".to_owned();
    }
    Client::new(options, None).await.expect("the kubeconfig is good")
}

/// What a node should know of the server's objects.
fn expected(server: &ApiServer) -> BTreeMap<(Kind, String), Event> {
    let mut names = Interner::default();
    let kinds = [
        (Kind::Service, Resource::Services),
        (Kind::EndpointSlice, Resource::EndpointSlices),
        (Kind::Node, Resource::Nodes),
        (Kind::ServiceCidr, Resource::ServiceCidrs),
    ];
    let mut objects = BTreeMap::new();
    for (kind, resource) in kinds {
        for object in server.objects(resource) {
            let (name, wanted) = match &object {
                Object::Service(service) => {
                    let foreign = service.metadata.labels.contains_key(LABEL_PROXY_NAME);
                    (format!("demo/{}", service.metadata.name), !foreign && service.spec.cluster_ip != "None")
                }
                Object::Slice(slice) => {
                    let headless = slice.metadata.labels.contains_key(LABEL_HEADLESS);
                    (format!("demo/{}", slice.metadata.name), !headless)
                }
                Object::Node(node) => (node.metadata.name.clone(), node.metadata.name == NODE),
                Object::ServiceCidr(cidr) => (cidr.metadata.name.clone(), true),
            };
            if wanted {
                objects.insert((kind, name), object.event(&mut names));
            }
        }
    }
    objects
}

/// What the model makes of these objects.
fn desired(objects: &BTreeMap<(Kind, String), Event>) -> Cluster {
    let mut cluster = Cluster::new(Settings::new(NODE));
    for event in objects.values() {
        cluster.apply(event.clone());
    }
    cluster.resolve();
    cluster
}

async fn play(case: Case) -> Result<Vec<Duration>, TestCaseError> {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(case.tls, |behaviour| {
        behaviour.streaming_lists = case.streaming_lists;
        behaviour.watch_cache = case.watch_cache;
        behaviour.largest_page = case.largest_page;
        behaviour.gone_as = case.gone_as;
    });
    server.set_schedule(Schedule::script(case.faults));
    let mut follower = Follower::start(client(&server, &folder, case.json).await, NODE);
    let mut may_be_missed = BTreeSet::new();
    for (pause, write) in case.writes {
        follower.pass(pause).await;
        may_be_missed.extend(write.perform(&server));
    }
    server.set_schedule(Schedule::healthy());
    let objects = expected(&server);
    // All objects can be known before the end of the first list is.
    let recovered = |f: &Follower| f.objects == objects && f.cluster.is_synced();
    follower.until_within(RECOVERY, "all is as the server says", recovered).await;
    for name in &follower.gone {
        prop_assert!(may_be_missed.contains(name), "{} went although it was always there", name);
    }

    // Further pages belong to one attempt, and are as many as the server makes them.
    let seen = server.requests().into_iter().filter(|request| !request.query.contains("continue="));
    let attempts = seen.map(|request| request.at).collect();

    let mut undisturbed = Follower::start(client(&server, &folder, case.json).await, NODE);
    undisturbed.until_listed().await;
    prop_assert_eq!(&undisturbed.objects, &objects, "without faults");
    follower.cluster.resolve();
    let wanted = desired(&objects);
    for family in Family::BOTH {
        let (found, wanted_here) = (follower.cluster.desired(family), wanted.desired(family));
        // What a deleted Node said is retained by those who saw it.
        if wanted.node().is_some() {
            prop_assert_eq!(found, wanted_here);
        }
        let services = |desired: &Desired| -> BTreeMap<_, _> {
            desired.services().map(|(name, service)| (name.clone(), service.clone())).collect()
        };
        prop_assert_eq!(services(found), services(wanted_here));
    }
    Ok(attempts)
}

#[test]
fn a_thousand_schedules_of_faults_end_in_the_state_without_them() {
    let threads =
        std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    let (busiest_minute, requests) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let schedules = schedules();
    let run = |thread: u32| {
        let share = schedules / threads + u32::from(schedules % threads > thread);
        let config =
            Config { cases: share, max_shrink_iters: 500, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let result = runner.run(&case(), |case| {
            let attempts = virtual_time::run(play(case))?;
            let most = busiest(&attempts, MINUTE);
            busiest_minute.fetch_max(most, Ordering::Relaxed);
            requests.fetch_add(attempts.len(), Ordering::Relaxed);
            prop_assert!(most <= BUSIEST_MINUTE, "{} requests within a minute: {:?}", most, attempts);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        running
            .into_iter()
            .for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    println!(
        "{schedules} schedules, {} requests, at most {} within a minute",
        requests.into_inner(),
        busiest_minute.into_inner()
    );
}

/// Requests under one fault that never ends; connections, if there is not even a request.
#[derive(Debug)]
struct Rate {
    /// Within the busiest minute.
    most: usize,
    /// Within the busiest minute after the first five.
    later: usize,
}

/// Follows a healthy server for a while, and one with this fault for a quarter of an hour, with changes at intervals.
async fn endure(tls: bool, fault: Fault, healthy_first: bool) -> Rate {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(tls, |_| {});
    if !healthy_first {
        server.set_schedule(Schedule::always(fault));
    }
    let mut follower = Follower::start(client(&server, &folder, false).await, NODE);
    follower.pass(MINUTE).await;
    server.set_schedule(Schedule::always(fault));
    server.disconnect();
    for content in 0..60u8 {
        follower.pass(MINUTE / 4).await;
        Write::Service(content % 4, content).perform(&server);
        Write::Slice(content % 4, content).perform(&server);
        Write::Node(content).perform(&server);
        Write::Cidr(0, content).perform(&server);
    }
    let requests: Vec<Duration> = server.requests().iter().map(|request| request.at).collect();
    let attempts = if fault.is_of_connections() { server.connections() } else { requests };
    let later = attempts.partition_point(|at| *at < 6 * MINUTE);
    let rate = Rate { most: busiest(&attempts, MINUTE), later: busiest(&attempts[later..], MINUTE) };
    server.set_schedule(Schedule::healthy());
    let objects = expected(&server);
    follower.until_within(RECOVERY, "all is as the server says", |f| f.objects == objects).await;
    rate
}

#[test]
fn no_fault_makes_a_busy_loop() {
    println!("requests of one node within the busiest minute, and within the busiest one later on:");
    println!("{:<44} {:>12} {:>12} {:>12} {:>12}", "", "HTTP/1", "from start", "HTTP/2", "from start");
    for fault in Fault::examples() {
        let rates = [(false, true), (false, false), (true, true), (true, false)]
            .map(|(tls, healthy_first)| virtual_time::run(endure(tls, fault, healthy_first)));
        let columns = rates.each_ref().map(|Rate { most, later }| format!("{most:>5} / {later:>3} "));
        println!("{:<44} {}", fault.to_string(), columns.join("  "));
        let limit = if fault.is_of_connections() { LATER_CONNECTIONS } else { LATER_MINUTE };
        for Rate { most, later } in rates {
            assert!(most <= BUSIEST_MINUTE, "{fault}: {most} requests within a minute");
            assert!(later <= limit, "{fault}: {later} requests within a minute, long after it began");
        }
    }
}

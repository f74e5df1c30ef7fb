//! What the fuzz targets do with their input. The same functions run on the corpus in `make test` (`crates/portwarden/tests/fuzz_corpus.rs`).
//!
//! Nothing here may panic, whatever the input is; some functions also compare two ways to the same result.

#![allow(clippy::unwrap_used, reason = "a failed comparison is what fuzzing looks for")]

#[path = "../crates/source/tests/support/decoders.rs"]
mod api;
#[path = "../crates/netlink/tests/common/decoders.rs"]
mod netlink;

use portwarden::config;
use portwarden::flags::{self, Invocation, Program};
use portwarden_model::manifest::{EndpointSlice, Service};
use portwarden_model::{
    Changes, Cluster, Event, Family, Interner, Kind, NamespacedName, Settings, StaleFlows, object,
};
use portwarden_netlink::wire::Messages;
use portwarden_netlink::{conntrack, ipset, ipvs, nftables, route};
use portwarden_source::files::check_manifests;
use portwarden_source::kubernetes::check_kubeconfig;
use portwarden_source::wire::{Item, Media, WatchEvent};
use portwarden_xtables::{PrintedForm, SavedTable};

/// What a target does with an input.
type Target = fn(&[u8]);

/// All targets, by name.
pub(crate) const ALL: [(&str, Target); 12] = [
    ("api_server_bytes", api_server_bytes),
    ("api_to_desired", api_to_desired),
    ("configuration", configuration),
    ("flags", command_line),
    ("iptables_save", iptables_save),
    ("kubeconfig", kubeconfig),
    ("manifests", manifests),
    ("netlink_conntrack", netlink_conntrack),
    ("netlink_ipset", netlink_ipset),
    ("netlink_ipvs", netlink_ipvs),
    ("netlink_messages", netlink::decode_everything),
    ("netlink_route", netlink_route),
];

/// Anything an API server could send. The first byte says in how large pieces the rest arrives.
pub(crate) fn api_server_bytes(input: &[u8]) {
    let Some((piece, bytes)) = input.split_first() else { return };
    api::decode_everything(bytes, usize::from(*piece) + 1);
}

/// From a list and a watch to what the kernel should have. The first byte chooses the media type and the kind of objects.
pub(crate) fn api_to_desired(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let media = if choice & 1 == 0 { Media::Json } else { Media::Protobuf };
    let mut names = Interner::default();
    let mut events = Vec::new();
    if choice & 2 == 0 {
        let objects = objects::<Service>(media, bytes);
        events.extend(objects.iter().map(|one| service_event(one, &mut names)));
    } else {
        // Slices need Services to belong to.
        let objects = objects::<EndpointSlice>(media, bytes);
        events.extend(objects.iter().flat_map(|one| slice_events(one, &mut names)));
    }
    let mut in_order = cluster(&events);
    events.reverse();
    let mut at_once = cluster(&events);
    for family in Family::BOTH {
        let changes = in_order.resolve()[family].clone();
        at_once.resolve();
        let desired = in_order.desired(family);
        drop(StaleFlows::after(&Changes { full: true, ..changes }, desired, &[]));
        for (name, _) in desired.services() {
            in_order.explain(name, family).unwrap();
        }
    }
}

fn cluster(events: &[Event]) -> Cluster {
    let mut cluster = Cluster::new(Settings::new("node-a"));
    for kind in Kind::ALL {
        cluster.apply(Event::ListStarted(kind));
    }
    for event in events {
        cluster.apply(event.clone());
    }
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster
}

fn objects<M: portwarden_source::wire::Manifest>(media: Media, bytes: &[u8]) -> Vec<M> {
    if let Ok((items, _)) = api::list::<M>(media, bytes, usize::MAX) {
        let usable = items.into_iter().filter_map(|item| match item {
            Item::Object(object) => Some(object),
            Item::Bad(_) => None,
        });
        return usable.collect();
    }
    let events = api::watch::<M>(media, bytes, usize::MAX).map(|(events, _)| events).unwrap_or_default();
    let applied = events.into_iter().filter_map(|event| match event {
        WatchEvent::Applied(object) | WatchEvent::Deleted(object) => Some(object),
        WatchEvent::Bookmark { .. } | WatchEvent::Error(_) => None,
    });
    applied.collect()
}

fn service_event(from: &Service, names: &mut Interner) -> Event {
    let name = NamespacedName::new(&from.metadata.namespace, &from.metadata.name);
    object::Service::from_manifest(from, names).0.map_or(Event::ServiceDeleted(name), Event::ServiceApplied)
}

fn slice_events(from: &EndpointSlice, names: &mut Interner) -> Vec<Event> {
    let Some(slice) = object::EndpointSlice::from_manifest(from, names).0 else { return Vec::new() };
    let mut owner = Service::default();
    owner.metadata.namespace.clone_from(&from.metadata.namespace);
    owner.metadata.name = from.metadata.labels.values().next().cloned().unwrap_or_default();
    owner.spec.cluster_ips = vec!["10.96.0.1".to_owned(), "fd00::1".to_owned()];
    for port in &from.ports {
        owner.spec.ports.push(portwarden_model::manifest::ServicePort {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_default(),
            port: 80,
            node_port: 0,
        });
    }
    vec![service_event(&owner, names), Event::SliceApplied(slice)]
}

/// A configuration file.
pub(crate) fn configuration(input: &[u8]) {
    let arguments = ["--config=file".to_owned()];
    for program in [Program::KubeProxy, Program::Portwarden] {
        let Ok(parsed) = flags::parse(program, &arguments) else { continue };
        let Invocation::Run(flags) = parsed.invocation else { continue };
        if let Err(error) = config::load(program, &flags, |_| Ok(input.to_vec())) {
            let _ = error.to_string();
        }
    }
}

/// A command line, one argument per line, with the configuration that it makes.
pub(crate) fn command_line(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let arguments: Vec<String> = text.lines().map(str::to_owned).collect();
    for program in [Program::KubeProxy, Program::Portwarden] {
        match flags::parse(program, &arguments) {
            Ok(parsed) => {
                if let Invocation::Run(flags) = parsed.invocation {
                    let _ = flags.listing(program);
                    let _ = config::load(program, &flags, |_| Ok(Vec::new()));
                }
            }
            Err(error) => drop(error.to_string()),
        }
    }
}

/// The output of `iptables-save`.
pub(crate) fn iptables_save(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut table = SavedTable::parse(&text);
    for family in Family::BOTH {
        let mut form = PrintedForm::new(family);
        for line in text.lines() {
            let _ = form.printed(line);
            let _ = table.has_rule(line, line, family);
        }
        let _ = form.fingerprint(&text);
    }
    let chains: Vec<String> = table.chains().map(str::to_owned).collect();
    for chain in &chains {
        assert!(table.has_chain(chain));
        let _ = table.rules(chain);
        let _ = table.claim(chain);
    }
    let _ = table.unclaimed().count();
}

/// A kubeconfig, which is read from a file as in the program.
pub(crate) fn kubeconfig(input: &[u8]) {
    // It may name other files, and some of them have no end.
    if input.windows(4).any(|part| part == b"/dev" || part == b"/pro" || part == b"/sys") {
        return;
    }
    let path = std::env::temp_dir().join(format!("portwarden-fuzz-kubeconfig-{}", std::process::id()));
    if std::fs::write(&path, input).is_ok()
        && let Err(error) = check_kubeconfig(&path)
    {
        let _ = error.to_string();
    }
    let _ = std::fs::remove_file(&path);
}

/// A file of manifests.
pub(crate) fn manifests(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = check_manifests(text);
}

/// A dump or notification of connection tracking.
pub(crate) fn netlink_conntrack(input: &[u8]) {
    for message in Messages::new(input).flatten() {
        if let Ok(flow) = conntrack::Flow::decode(&message) {
            let _ = format!("{flow:?}");
        }
    }
}

/// A dump of a set.
pub(crate) fn netlink_ipset(input: &[u8]) {
    let kinds = [
        ipset::SetType::HashIp,
        ipset::SetType::HashIpPort,
        ipset::SetType::HashIpPortIp,
        ipset::SetType::HashIpPortNet,
        ipset::SetType::BitmapPort,
    ];
    for message in Messages::new(input).flatten() {
        for kind in kinds {
            let _ = ipset::Listed::decode(&message, kind);
        }
    }
}

/// A dump of virtual servers.
pub(crate) fn netlink_ipvs(input: &[u8]) {
    for message in Messages::new(input).flatten() {
        let _ = ipvs::decode(&message);
    }
}

/// A dump or notification of links, addresses and routes, and of nf_tables as far as it shares their messages.
pub(crate) fn netlink_route(input: &[u8]) {
    for message in Messages::new(input).flatten() {
        let _ = route::RouteChange::decode(&message);
        let _ = nftables::Event::decode(&message);
    }
}

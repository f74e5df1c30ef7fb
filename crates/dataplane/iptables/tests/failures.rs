//! What happens when programs, kernel or other people get in the way.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Tables, VARIANTS, assert_same, cluster, full_sync, recorded_settings, sync};
use nix::fcntl::{Flock, FlockArg};
use portwarden_iptables::{Error, IptablesDataplane, Options, other_rules};
use portwarden_model::object::{EndpointSlice, Service};
use portwarden_model::{Changes, Cluster, Dataplane, Event, Family, Interner, NamespacedName, manifest};
use portwarden_xtables::{Programs, Variant};
use serde_json::json;

const FAMILY: Family = Family::V4;

fn reference_cluster() -> Cluster {
    cluster(recorded_settings(), "reference/objects.json", "reference/node.json")
}

/// Programs in a folder: the real ones, but for those that a test replaces by a script.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for name in ["iptables-nft", "iptables-nft-save", "iptables-nft-restore"] {
            std::os::unix::fs::symlink(installed(name), folder.0.path().join(name)).unwrap();
        }
        folder
    }

    fn replace(&self, name: &str, script: &str) {
        let path = self.0.path().join(name);
        fs::remove_file(&path).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn programs(&self) -> Programs {
        Programs::new(FAMILY, Variant::Nft).in_folder(self.0.path())
    }

    fn dataplane(&self, tables: &Tables, programs: Programs) -> IptablesDataplane {
        let _inside = tables.namespace.enter().unwrap();
        IptablesDataplane::with_programs(FAMILY, Options::default(), programs).unwrap()
    }
}

/// Where PATH finds a program.
fn installed(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed"))
}

#[test]
fn a_missing_program_is_named_with_advice() {
    let nowhere = tempfile::tempdir().unwrap();
    let programs = Programs::new(FAMILY, Variant::Installed).in_folder(nowhere.path());
    let error = IptablesDataplane::with_programs(FAMILY, Options::default(), programs).unwrap_err();
    assert!(matches!(error, Error::Programs(portwarden_xtables::Error::Start { .. })), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("iptables: it is not installed"), "{text}");
}

#[test]
fn packet_marks_have_32_bits() {
    let options = Options { masquerade_bit: 32, ..Options::default() };
    let error = IptablesDataplane::new(FAMILY, options).unwrap_err();
    assert!(matches!(error, Error::MasqueradeBit(32)), "{error:?}");
}

#[test]
fn a_rejected_line_is_shown() {
    let tables = Tables::new("rejected", Variant::Nft);
    let folder = Folder::new();
    folder.replace(
        "iptables-nft-restore",
        "cat > /dev/null; echo 'iptables-restore: line 2 failed' >&2; exit 1",
    );
    let mut dataplane = folder.dataplane(&tables, folder.programs());
    let failures = dataplane.failures();
    let error = sync(&mut dataplane, &tables, &reference_cluster(), &Changes::everything()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("rejected line 2 (`:KUBE-SERVICES`): line 2 failed"), "{text}");
    assert_eq!((failures.restore(), failures.partial()), (1, 0));
}

#[test]
fn a_program_that_hangs_is_stopped() {
    let tables = Tables::new("hanging", Variant::Nft);
    let folder = Folder::new();
    // The child holds the pipes too, as modprobe would.
    folder.replace("iptables-nft-restore", "sleep 1000 & wait");
    let programs = folder.programs();
    let mut dataplane = folder.dataplane(&tables, programs.timeout(Duration::from_secs(1)));
    let cluster = Cluster::new(recorded_settings());
    let error = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap_err();
    assert!(error.to_string().contains("did not end within 1 s and was killed"), "{error}");
}

#[test]
fn without_iptables_save_everything_is_written() {
    let cluster = reference_cluster();
    let fresh = Tables::new("fresh", Variant::Nft);
    full_sync(&mut fresh.dataplane(FAMILY, Options::default()), &fresh, &cluster);
    // What it prints before it fails does not count either.
    let prints = format!("{} \"$@\"; exit 1", installed("iptables-nft-save").display());
    for script in ["exit 1", &prints] {
        let tables = Tables::new("no-save", Variant::Nft);
        let folder = Folder::new();
        folder.replace("iptables-nft-save", script);
        let mut dataplane = folder.dataplane(&tables, folder.programs());
        full_sync(&mut dataplane, &tables, &cluster);
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
        assert!(report.written > 100, "{report:?}");
        assert_same(&tables.rules(FAMILY), &fresh.rules(FAMILY), "without iptables-save");
    }
}

/// A Service that the programs refuse: its name does not fit into a line.
fn refused_service() -> [Event; 2] {
    let name = "x".repeat(2500);
    let service: manifest::Service = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"clusterIP": "10.96.7.7", "ports": [{"port": 80}]}
    }))
    .unwrap();
    let slice: manifest::EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "slice", "namespace": "demo", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.244.9.9"], "conditions": {}}],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]
    }))
    .unwrap();
    let names = &mut Interner::default();
    [
        Event::ServiceApplied(Service::from_manifest(&service, names).0.unwrap()),
        Event::SliceApplied(EndpointSlice::from_manifest(&slice, names).0.unwrap()),
    ]
}

#[test]
fn a_service_that_is_refused_does_not_stop_the_others() {
    for variant in VARIANTS {
        let good = Tables::new("good", variant);
        let mut cluster = reference_cluster();
        full_sync(&mut good.dataplane(FAMILY, Options::default()), &good, &cluster);
        for event in refused_service() {
            cluster.apply(event);
        }
        let changes = cluster.resolve();
        let refused = NamespacedName::new("demo", &"x".repeat(2500));
        assert!(changes[FAMILY].services.contains(&refused));

        let tables = Tables::new("refused", variant);
        let mut dataplane = tables.dataplane(FAMILY, Options::default());
        for changes in [&Changes::everything(), &changes[FAMILY]] {
            let report = sync(&mut dataplane, &tables, &cluster, changes).unwrap();
            let services: Vec<_> = report.refused.iter().map(|refused| &refused.service).collect();
            assert_eq!(services, [&refused]);
            assert!(report.refused[0].reason.contains("--comment"), "{:?}", report.refused);
            assert_same(&tables.rules(FAMILY), &good.rules(FAMILY), "all but the refused service");
        }
        cluster.apply(Event::ServiceDeleted(refused));
        let changes = cluster.resolve();
        let report = sync(&mut dataplane, &tables, &cluster, &changes[FAMILY]).unwrap();
        assert_eq!((report.refused.len(), report.written), (0, 0));
    }
}

#[test]
fn a_name_that_would_break_out_of_a_rule_is_left_out() {
    let tables = Tables::new("injection", Variant::Nft);
    let mut cluster = reference_cluster();
    let [Event::ServiceApplied(mut service), _] = refused_service() else { unreachable!() };
    service.name = NamespacedName::new("demo", "x\"\n-F KUBE-SERVICES\n-A \"");
    let name = service.name.clone();
    cluster.apply(Event::ServiceApplied(service));
    cluster.resolve();
    let mut dataplane = tables.dataplane(FAMILY, Options::default());
    let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
    assert_eq!(report.refused.iter().map(|refused| &refused.service).collect::<Vec<_>>(), [&name]);
    assert!(!tables.rules(FAMILY).contains("10.96.7.7"));
}

#[test]
fn a_stale_chain_that_others_use_stays_empty_and_stops_nothing() {
    let cluster = reference_cluster();
    for variant in VARIANTS {
        let tables = Tables::new("used", variant);
        let foreign = "*nat\n:KUBE-SVC-STALE - [0:0]\n:OTHERS - [0:0]\n-A KUBE-SVC-STALE -j RETURN\n\
                       -A OTHERS -j KUBE-SVC-STALE\nCOMMIT\n";
        tables.run(FAMILY, "-restore", &["--noflush"], foreign).unwrap();
        full_sync(&mut tables.dataplane(FAMILY, Options::default()), &tables, &cluster);
        let rules = tables.rules(FAMILY);
        assert!(rules.contains("-A OTHERS -j KUBE-SVC-STALE"));
        assert!(rules.contains(":KUBE-SVC-STALE") && !rules.contains("-A KUBE-SVC-STALE"));
        assert!(rules.contains(":KUBE-SVC-XRY76EGRC3BSCIIJ"), "the rest is written");
    }
}

#[test]
fn a_chain_of_ours_that_nft_took_is_explained() {
    let tables = Tables::new("taken", Variant::Nft);
    let mut dataplane = tables.dataplane(FAMILY, Options::default());
    let nft = |command: &str| tables.namespace.command("nft").arg(command).run().unwrap();
    nft("add table ip nat");
    nft("add chain ip nat KUBE-SERVICES { type nat hook prerouting priority -100; }");
    let error = sync(&mut dataplane, &tables, &reference_cluster(), &Changes::everything()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("nft list ruleset"), "{text}");
    nft("delete chain ip nat KUBE-SERVICES");
    full_sync(&mut dataplane, &tables, &reference_cluster());
}

#[test]
fn what_somebody_deleted_is_noticed_when_needed_and_repaired() {
    for variant in VARIANTS {
        let mut cluster = reference_cluster();
        let tables = Tables::new("deleted", variant);
        let mut dataplane = tables.dataplane(FAMILY, Options::default());
        full_sync(&mut dataplane, &tables, &cluster);
        let expected = tables.rules(FAMILY);
        // Everything of the nat table goes, jumps included.
        for flush in [["-F"], ["-X"]] {
            tables.run(FAMILY, "", &[&["-w", "5", "-t", "nat"][..], &flush[..]].concat(), "").unwrap();
        }
        // A change that leads to a chain which is thought to be there.
        cluster.apply(Event::SliceDeleted(NamespacedName::new("demo", "web-1")));
        let changes = cluster.resolve();
        let report = sync(&mut dataplane, &tables, &cluster, &changes[FAMILY]).unwrap();
        assert!(report.full && report.refused.is_empty(), "{report:?}");
        assert_eq!(dataplane.failures().partial(), 1);
        let fresh = Tables::new("fresh", variant);
        full_sync(&mut fresh.dataplane(FAMILY, Options::default()), &fresh, &cluster);
        assert_same(&tables.rules(FAMILY), &fresh.rules(FAMILY), "repaired");
        assert_ne!(tables.rules(FAMILY), expected, "the change arrived");
    }
}

#[test]
fn a_lock_that_others_hold_is_waited_for_and_then_named() {
    let tables = Tables::new("locked", Variant::Legacy);
    let cluster = reference_cluster();
    let mut dataplane =
        tables.dataplane(FAMILY, Options { sync_period: Duration::from_millis(1), ..Options::default() });
    full_sync(&mut dataplane, &tables, &cluster);
    let before = tables.rules(FAMILY);
    let file = fs::File::options().create(true).append(true).open(tables.lock_file()).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    // The monitor cannot see its canary now, and does not take that for a flush.
    let watch = || nix::poll::PollFd::new(dataplane.watch_fds()[0], nix::poll::PollFlags::POLLIN);
    nix::poll::poll(&mut [watch()], 10_000u16).unwrap();
    let _inside = tables.namespace.enter().unwrap();
    assert_eq!(dataplane.poll(Instant::now()), []);
    assert_eq!(dataplane.poll(Instant::now()), []);
    let empty = Cluster::new(recorded_settings());
    let error = sync(&mut dataplane, &tables, &empty, &Changes::everything()).unwrap_err();
    assert!(error.to_string().contains("xtables lock"), "{error}");
    assert_eq!(tables.rules(FAMILY), before, "nothing was changed");
    drop(lock);
    full_sync(&mut dataplane, &tables, &empty);
    assert!(!tables.rules(FAMILY).contains("KUBE-SVC-"));
}

#[test]
fn rules_in_the_other_variant_are_found() {
    for (used, other) in [(Variant::Nft, Variant::Legacy), (Variant::Legacy, Variant::Nft)] {
        for family in Family::BOTH {
            let tables = Tables::new("other", other);
            let _inside = tables.namespace.enter().unwrap();
            assert_eq!(other_rules(family, used), None);
            full_sync(&mut tables.dataplane(family, Options::default()), &tables, &reference_cluster());
            assert_eq!(other_rules(family, used), Some(other));
            assert_eq!(other_rules(family, other), None);
        }
    }
}

/// More chains than the nf_tables variant gets in one step.
#[test]
fn a_large_change_goes_in_steps_and_can_be_set_aside_half_way() {
    for variant in VARIANTS {
        let mut cluster = Cluster::new(recorded_settings());
        for number in 0..40 {
            for event in numbered_service(number, 20) {
                cluster.apply(event);
            }
        }
        cluster.resolve();
        let good = Tables::new("good", variant);
        full_sync(&mut good.dataplane(FAMILY, Options::default()), &good, &cluster);
        let tables = Tables::new("steps", variant);
        let mut dataplane = tables.dataplane(FAMILY, Options::default());
        full_sync(&mut dataplane, &tables, &Cluster::new(recorded_settings()));
        for event in refused_service() {
            cluster.apply(event);
        }
        cluster.resolve();
        let mut changes = Changes::default();
        changes.services.extend(cluster.desired(FAMILY).services().map(|(name, _)| name.clone()));
        // Partial at first; the refusal makes it full.
        let report = sync(&mut dataplane, &tables, &cluster, &changes).unwrap();
        assert_eq!((report.full, report.refused.len()), (true, 1));
        assert_same(&tables.rules(FAMILY), &good.rules(FAMILY), "all but the refused service");
        // The engine tries again; the rest is still there.
        let report = sync(&mut dataplane, &tables, &cluster, &changes).unwrap();
        assert_eq!((report.full, report.refused.len(), report.written), (false, 1, 0));
        // And everything goes, in steps too.
        let empty = Cluster::new(recorded_settings());
        let report = sync(&mut dataplane, &tables, &empty, &changes).unwrap();
        assert!(!report.full && report.written > 40 * 21, "{report:?}");
        assert!(!tables.rules(FAMILY).contains("KUBE-SEP-"));
    }
}

fn numbered_service(number: usize, endpoints: usize) -> [Event; 2] {
    let service: manifest::Service = serde_json::from_value(json!({
        "metadata": {"name": format!("s{number}"), "namespace": "demo"},
        "spec": {"clusterIP": format!("10.96.8.{number}"), "ports": [{"port": 80}]}
    }))
    .unwrap();
    let endpoints: Vec<_> =
        (0..endpoints).map(|i| json!({"addresses": [format!("10.244.{number}.{i}")]})).collect();
    let slice: manifest::EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": format!("s{number}"), "namespace": "demo", "labels": {"kubernetes.io/service-name": format!("s{number}")}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]
    }))
    .unwrap();
    let names = &mut Interner::default();
    [
        Event::ServiceApplied(Service::from_manifest(&service, names).0.unwrap()),
        Event::SliceApplied(EndpointSlice::from_manifest(&slice, names).0.unwrap()),
    ]
}

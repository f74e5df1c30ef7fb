//! What happens when programs, the kernel or other processes get in the way.

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
use portwarden_model::{
    Changes, Cluster, Dataplane, Event, Family, Interner, NamespacedName, Notification, Report, Retry,
    manifest,
};
use portwarden_testkit::drive::{next_notifications, sync_to_end};
use portwarden_testkit::wait;
use portwarden_xtables::{Programs, Variant};
use serde_json::json;

const FAMILY: Family = Family::V4;

fn recorded_cluster() -> Cluster {
    cluster(recorded_settings(), "kube-proxy/objects.json", "kube-proxy/node.json")
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
        IptablesDataplane::with_programs(vec![programs], &Options::default()).unwrap()
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
    let error = IptablesDataplane::with_programs(vec![programs], &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Programs(portwarden_xtables::Error::Start { .. })), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("iptables: it is not installed"), "{text}");
}

#[test]
fn packet_marks_have_32_bits() {
    let options = Options { masquerade_bit: 32, ..Options::default() };
    let error = IptablesDataplane::new(&[FAMILY], &options).unwrap_err();
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
    let error = sync(&mut dataplane, &tables, &recorded_cluster(), &Changes::everything()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("rejected line 2 (`:KUBE-SERVICES`): line 2 failed"), "{text}");
    assert_eq!(failures(&error.report), (1, 0));
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

/// IPv6 does not wait for an `iptables-restore` that hangs, and IPv4 is in force when that goes on.
#[test]
fn a_restore_that_hangs_keeps_only_its_own_family_waiting() {
    let tables = Tables::new("two-families", Variant::Nft);
    let folder = Folder::new();
    let go = folder.0.path().join("go");
    let real = installed("iptables-nft-restore");
    folder.replace(
        "iptables-nft-restore",
        &format!("while ! test -e {}; do sleep 0.02; done; exec {} \"$@\"", go.display(), real.display()),
    );
    let options = Options { sync_wait: Duration::from_millis(100), ..Options::default() };
    let inside = tables.namespace.enter().unwrap();
    let programs = vec![folder.programs(), tables.programs(Family::V6)];
    let mut dataplane = IptablesDataplane::with_programs(programs, &options).unwrap();
    assert_eq!(dataplane.families(), [Family::V4, Family::V6]);
    let mut cluster = recorded_cluster();
    let everything = Changes::everything();
    let v4 = |dataplane: &mut IptablesDataplane, cluster: &Cluster| {
        dataplane.sync(cluster.desired(Family::V4), &everything, Instant::now())
    };
    let error = v4(&mut dataplane, &cluster).unwrap_err();
    assert_eq!(error.retry, Retry::OnNotification, "{error}");
    assert!(error.to_string().contains("iptables-nft-restore"), "{error}");
    // Again and again: it is not started twice.
    assert_eq!(v4(&mut dataplane, &cluster).unwrap_err().retry, Retry::OnNotification);
    let report = sync_to_end(&mut dataplane, cluster.desired(Family::V6), &everything).unwrap();
    assert!(report.full && report.written > 0, "{report:?}");
    let fresh = Tables::new("fresh", Variant::Nft);
    full_sync(&mut fresh.dataplane(Family::V6, &Options::default()), &fresh, &cluster);
    assert_same(&tables.rules(Family::V6), &fresh.rules(Family::V6), "IPv6 while IPv4 hangs");
    // What changes meanwhile is not lost.
    cluster.apply(Event::SliceDeleted(NamespacedName::new("demo", "web-1")));
    cluster.resolve();
    fs::write(go, "").unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let ready = Notification::Ready { family: Family::V4 };
    while !next_notifications(&mut dataplane, until).contains(&ready) {
        assert!(Instant::now() < until, "the restore ends and that is reported");
    }
    let report = sync_to_end(&mut dataplane, cluster.desired(Family::V4), &everything).unwrap();
    assert!(report.full, "everything was compared by the one that hung");
    drop(inside);
    full_sync(&mut fresh.dataplane(Family::V4, &Options::default()), &fresh, &cluster);
    assert_same(&tables.rules(Family::V4), &fresh.rules(Family::V4), "IPv4 afterwards");
}

/// They share the lock of the legacy variant, and the generation of the ruleset of the other.
#[test]
fn both_families_can_be_written_at_the_same_time() {
    for variant in VARIANTS {
        let mut cluster = recorded_cluster();
        for number in 0..40 {
            for event in numbered_service(number, 20) {
                cluster.apply(event);
            }
        }
        cluster.resolve();
        let tables = Tables::new("at-once", variant);
        let options = Options { sync_wait: Duration::ZERO, ..Options::default() };
        let inside = tables.namespace.enter().unwrap();
        let programs = Family::BOTH.map(|family| tables.programs(family)).into();
        let mut dataplane = IptablesDataplane::with_programs(programs, &options).unwrap();
        for family in Family::BOTH {
            let desired = cluster.desired(family);
            let error = dataplane.sync(desired, &Changes::everything(), Instant::now()).unwrap_err();
            assert_eq!(error.retry, Retry::OnNotification, "{error}");
        }
        let until = Instant::now() + Duration::from_secs(60);
        let mut ready = Vec::new();
        while ready.len() < 2 {
            assert!(Instant::now() < until, "both are reported: {ready:?}");
            ready.extend(next_notifications(&mut dataplane, until));
        }
        for family in Family::BOTH {
            let report =
                dataplane.sync(cluster.desired(family), &Changes::everything(), Instant::now()).unwrap();
            assert!(report.full && report.written > 0, "{report:?}");
        }
        drop(inside);
        let fresh = Tables::new("fresh", variant);
        for family in Family::BOTH {
            full_sync(&mut fresh.dataplane(family, &Options::default()), &fresh, &cluster);
            assert_same(&tables.rules(family), &fresh.rules(family), "written at the same time");
        }
    }
}

/// A restore of a proxy that was killed reads its input, and undoes what its successor wrote.
#[test]
fn what_a_restore_from_before_the_start_writes_is_repaired() {
    for variant in VARIANTS {
        let cluster = recorded_cluster();
        let tables = Tables::new("earlier", variant);
        let earlier = tables.start_restore(FAMILY);
        let mut dataplane = tables.dataplane(FAMILY, &Options::default());
        full_sync(&mut dataplane, &tables, &cluster);
        let expected = tables.rules(FAMILY);
        earlier.finish("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
        assert_ne!(tables.rules(FAMILY), expected, "the rules are undone");
        let _inside = tables.namespace.enter().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !matches!(next_notifications(&mut dataplane, until)[..], [Notification::Tampered { .. }]) {
            assert!(Instant::now() < until, "the end of the earlier restore is noticed");
        }
        sync(&mut dataplane, &tables, &cluster, &Changes::default()).unwrap();
        assert_same(&tables.rules(FAMILY), &expected, "repaired");
    }
}

/// A dataplane that is dropped, as at a change of mode, takes its programs along.
#[test]
fn no_program_outlives_the_dataplane() {
    let tables = Tables::new("dropped", Variant::Nft);
    let folder = Folder::new();
    let started = folder.0.path().join("started");
    folder.replace("iptables-nft-restore", &format!("echo $$ > {}; exec sleep 1000", started.display()));
    let programs = folder.programs();
    let _inside = tables.namespace.enter().unwrap();
    let options = Options { sync_wait: Duration::from_millis(10), ..Options::default() };
    let mut dataplane = IptablesDataplane::with_programs(vec![programs], &options).unwrap();
    let cluster = recorded_cluster();
    dataplane.sync(cluster.desired(FAMILY), &Changes::everything(), Instant::now()).unwrap_err();
    let limit = Duration::from_secs(60);
    let id = wait::until(limit, "the restore to start", || {
        fs::read_to_string(&started).ok().filter(|text| text.ends_with('\n'))
    });
    let process = PathBuf::from("/proc").join(id.unwrap().trim());
    drop(dataplane);
    wait::until(limit, "the restore to end", || (!process.exists()).then_some(())).unwrap();
}

#[test]
fn without_iptables_save_everything_is_written() {
    let cluster = recorded_cluster();
    let fresh = Tables::new("fresh", Variant::Nft);
    full_sync(&mut fresh.dataplane(FAMILY, &Options::default()), &fresh, &cluster);
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
        let mut cluster = recorded_cluster();
        full_sync(&mut good.dataplane(FAMILY, &Options::default()), &good, &cluster);
        for event in refused_service() {
            cluster.apply(event);
        }
        let changes = cluster.resolve();
        let refused = NamespacedName::new("demo", &"x".repeat(2500));
        assert!(changes[FAMILY].services.contains(&refused));

        let tables = Tables::new("refused", variant);
        let mut dataplane = tables.dataplane(FAMILY, &Options::default());
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
    let mut cluster = recorded_cluster();
    let [Event::ServiceApplied(mut service), _] = refused_service() else { unreachable!() };
    service.name = NamespacedName::new("demo", "x\"\n-F KUBE-SERVICES\n-A \"");
    let name = service.name.clone();
    cluster.apply(Event::ServiceApplied(service));
    cluster.resolve();
    let mut dataplane = tables.dataplane(FAMILY, &Options::default());
    let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
    assert_eq!(report.refused.iter().map(|refused| &refused.service).collect::<Vec<_>>(), [&name]);
    assert!(!tables.rules(FAMILY).contains("10.96.7.7"));
}

#[test]
fn a_stale_chain_that_others_use_stays_empty_and_stops_nothing() {
    let cluster = recorded_cluster();
    for variant in VARIANTS {
        let tables = Tables::new("used", variant);
        let foreign = "*nat\n:KUBE-SVC-STALE - [0:0]\n:OTHERS - [0:0]\n-A KUBE-SVC-STALE -j RETURN\n\
                       -A OTHERS -j KUBE-SVC-STALE\nCOMMIT\n";
        tables.run(FAMILY, "-restore", &["--noflush"], foreign).unwrap();
        full_sync(&mut tables.dataplane(FAMILY, &Options::default()), &tables, &cluster);
        let rules = tables.rules(FAMILY);
        assert!(rules.contains("-A OTHERS -j KUBE-SVC-STALE"));
        assert!(rules.contains(":KUBE-SVC-STALE") && !rules.contains("-A KUBE-SVC-STALE"));
        assert!(rules.contains(":KUBE-SVC-XRY76EGRC3BSCIIJ"), "the rest is written");
    }
}

#[test]
fn a_chain_of_ours_that_nft_took_is_explained() {
    let tables = Tables::new("taken", Variant::Nft);
    let mut dataplane = tables.dataplane(FAMILY, &Options::default());
    let nft = |command: &str| tables.namespace.command("nft").arg(command).run().unwrap();
    nft("add table ip nat");
    nft("add chain ip nat KUBE-SERVICES { type nat hook prerouting priority -100; }");
    let error = sync(&mut dataplane, &tables, &recorded_cluster(), &Changes::everything()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("nft list ruleset"), "{text}");
    nft("delete chain ip nat KUBE-SERVICES");
    full_sync(&mut dataplane, &tables, &recorded_cluster());
}

/// The failed restores that a report counts, and the partial ones.
fn failures(report: &Report) -> (u64, u64) {
    let count = |name| {
        let counts = report.counts.iter().filter(|count| count.metric == name);
        counts.map(|count| count.by).sum()
    };
    (
        count("sync_proxy_rules_iptables_restore_failures_total"),
        count("sync_proxy_rules_iptables_partial_restore_failures_total"),
    )
}

#[test]
fn what_another_process_deleted_is_noticed_when_needed_and_repaired() {
    for variant in VARIANTS {
        let mut cluster = recorded_cluster();
        let tables = Tables::new("deleted", variant);
        let mut dataplane = tables.dataplane(FAMILY, &Options::default());
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
        assert_eq!(failures(&report), (1, 1));
        let fresh = Tables::new("fresh", variant);
        full_sync(&mut fresh.dataplane(FAMILY, &Options::default()), &fresh, &cluster);
        assert_same(&tables.rules(FAMILY), &fresh.rules(FAMILY), "repaired");
        assert_ne!(tables.rules(FAMILY), expected, "the change arrived");
    }
}

#[test]
fn a_lock_that_others_hold_is_waited_for_and_then_named() {
    let tables = Tables::new("locked", Variant::Legacy);
    let cluster = recorded_cluster();
    let often = Options { sync_period: Duration::from_millis(1), ..Options::default() };
    let mut dataplane = tables.dataplane(FAMILY, &often);
    full_sync(&mut dataplane, &tables, &cluster);
    let before = tables.rules(FAMILY);
    let file = fs::File::options().create(true).append(true).open(tables.lock_file()).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let _inside = tables.namespace.enter().unwrap();
    // The canaries cannot be seen now, and that is not taken for a flush.
    let until = Instant::now() + Duration::from_secs(60);
    for _ in ["the check starts", "the check ends"] {
        assert_eq!(next_notifications(&mut dataplane, until), []);
    }
    // The caller is not kept until the lock is given up for.
    let empty = Cluster::new(recorded_settings());
    let error = dataplane.sync(empty.desired(FAMILY), &Changes::everything(), Instant::now()).unwrap_err();
    assert_eq!(error.retry, Retry::OnNotification, "{error}");
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
            full_sync(&mut tables.dataplane(family, &Options::default()), &tables, &recorded_cluster());
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
        full_sync(&mut good.dataplane(FAMILY, &Options::default()), &good, &cluster);
        let tables = Tables::new("steps", variant);
        let mut dataplane = tables.dataplane(FAMILY, &Options::default());
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

//! From kube-proxy to us and away again: its recorded rules are the starting state.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use common::{
    Tables, VARIANTS, assert_same, canonical, cluster, fixture, full_sync, recorded_settings, sync,
};
use portwarden_iptables::{Options, cleanup_with};
use portwarden_model::{Changes, Family};

const FAMILIES: [(Family, &str); 2] = [(Family::V4, "v4"), (Family::V6, "v6")];
/// Other recordings leave other rules behind.
const RECORDINGS: [&str; 7] = [
    "default",
    "default-legacy",
    "interface-prefix",
    "masquerade-all",
    "masquerade-bit-5",
    "no-localhost-nodeports",
    "nodeport-primary",
];

/// Rules of another program, which must stay.
const FOREIGN: &str = "\
*filter
:CNI-FORWARD - [0:0]
-A FORWARD -m comment --comment \"not ours\" -j CNI-FORWARD
-A CNI-FORWARD -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT - [0:0]
-A POSTROUTING -s 172.16.0.0/12 -j MASQUERADE
-A CNI-HOSTPORT -j RETURN
COMMIT
";

#[test]
fn equal_rules_stay_untouched() {
    let cluster = cluster(recorded_settings(), "kube-proxy/objects.json", "kube-proxy/node.json");
    for variant in VARIANTS {
        for (family, suffix) in FAMILIES {
            let tables = Tables::new("equal", variant);
            let recorded = fixture(&format!("kube-proxy/default.{suffix}.save"));
            tables.load(family, &recorded);
            let mut dataplane = tables.dataplane(family, &Options::default());
            let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
            assert_same(&tables.rules(family), &canonical(&recorded), "after the take-over");
            // Only the chains to which kube-proxy adds Services in random order may be written again.
            let shared = |line: &&str| {
                ["SERVICES", "NODEPORTS"].iter().any(|chain| line.contains(&format!("-A KUBE-{chain}")))
            };
            let at_most = recorded.lines().filter(shared).count();
            assert!(
                report.written <= at_most,
                "{} rules written, expected at most {at_most}",
                report.written
            );
        }
    }
}

#[test]
fn other_rules_of_kube_proxy_are_replaced() {
    let cluster = cluster(recorded_settings(), "kube-proxy/objects.json", "kube-proxy/node.json");
    for variant in VARIANTS {
        for (family, suffix) in FAMILIES {
            let fresh = Tables::new("fresh", variant);
            full_sync(&mut fresh.dataplane(family, &Options::default()), &fresh, &cluster);
            for recording in RECORDINGS {
                let tables = Tables::new(recording, variant);
                tables.load(family, &fixture(&format!("kube-proxy/{recording}.{suffix}.save")));
                full_sync(&mut tables.dataplane(family, &Options::default()), &tables, &cluster);
                assert_same(&tables.rules(family), &fresh.rules(family), &format!("{recording} taken over"));
            }
        }
    }
}

#[test]
fn stale_chains_of_kube_proxy_go() {
    let empty = portwarden_model::Cluster::new(recorded_settings());
    for variant in VARIANTS {
        let tables = Tables::new("stale", variant);
        tables.load(Family::V4, &fixture("kube-proxy/default.v4.save"));
        full_sync(&mut tables.dataplane(Family::V4, &Options::default()), &tables, &empty);
        let fresh = Tables::new("fresh", variant);
        full_sync(&mut fresh.dataplane(Family::V4, &Options::default()), &fresh, &empty);
        assert_same(&tables.rules(Family::V4), &fresh.rules(Family::V4), "nothing is left of the services");
    }
}

#[test]
fn foreign_rules_survive_sync_and_cleanup() {
    let cluster = cluster(recorded_settings(), "kube-proxy/objects.json", "kube-proxy/node.json");
    for variant in VARIANTS {
        let tables = Tables::new("foreign", variant);
        tables.run(Family::V4, "-restore", &["--noflush"], FOREIGN).unwrap();
        let before = tables.rules(Family::V4);
        full_sync(&mut tables.dataplane(Family::V4, &Options::default()), &tables, &cluster);
        let _inside = tables.namespace.enter().unwrap();
        cleanup_with(&tables.programs(Family::V4)).unwrap();
        let after = tables.rules(Family::V4);
        let lost: Vec<_> = before.lines().filter(|line| !after.lines().any(|kept| kept == *line)).collect();
        assert!(lost.is_empty(), "lost in sync or clean-up: {lost:#?}");
    }
}

#[test]
fn cleanup_leaves_what_the_references_leaves() {
    let cluster = cluster(recorded_settings(), "kube-proxy/objects.json", "kube-proxy/node.json");
    for variant in VARIANTS {
        for (family, suffix) in FAMILIES {
            let recorded = fixture(&format!("kube-proxy/default.{suffix}.save"));
            let theirs = Tables::new("theirs", variant);
            theirs.load(family, &recorded);
            let ours = Tables::new("ours", variant);
            full_sync(&mut ours.dataplane(family, &Options::default()), &ours, &cluster);
            // What stays is what the kubelet needs: the chain, its rule (IPv4 only), and the jumps.
            let kept = canonical(&fixture(&format!("kube-proxy/cleaned.{suffix}.save")));
            for tables in [&theirs, &ours] {
                let _inside = tables.namespace.enter().unwrap();
                for round in ["first", "second"] {
                    cleanup_with(&tables.programs(family)).unwrap();
                    assert_same(
                        &tables.rules(family),
                        &kept,
                        &format!("{variant:?} after the {round} clean-up"),
                    );
                }
            }
        }
    }
}

#[test]
fn cleanup_goes_on_after_an_error_and_reports_all() {
    let cluster = cluster(recorded_settings(), "kube-proxy/objects.json", "kube-proxy/node.json");
    for variant in VARIANTS {
        let tables = Tables::new("busy", variant);
        full_sync(&mut tables.dataplane(Family::V4, &Options::default()), &tables, &cluster);
        // Rules of another program lead to two of our chains.
        let jump = |table: &str, chain: &str| {
            tables
                .run(
                    Family::V4,
                    "",
                    &["-w", "5", "-t", table, "-A", "OUTPUT", "-d", "192.0.2.1", "-j", chain],
                    "",
                )
                .unwrap();
        };
        jump("nat", "KUBE-SVC-XRY76EGRC3BSCIIJ");
        jump("filter", "KUBE-FORWARD");
        let _inside = tables.namespace.enter().unwrap();
        let error = cleanup_with(&tables.programs(Family::V4)).unwrap_err();
        assert_eq!(error.0.len(), 2, "{error}");
        for chain in ["KUBE-SVC-XRY76EGRC3BSCIIJ", "KUBE-FORWARD"] {
            assert!(error.to_string().contains(chain), "{error}");
        }
        let saved = tables.save(Family::V4);
        let chains = saved.lines().filter(|line| line.starts_with(":KUBE-") && !line.contains("FIREWALL"));
        let chains: Vec<_> = chains.map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(chains, [":KUBE-FORWARD", ":KUBE-SVC-XRY76EGRC3BSCIIJ"], "only the used chains stay");
        assert!(!saved.contains("-A KUBE-FORWARD") && !saved.contains("-A KUBE-SVC"), "they are emptied");
    }
}

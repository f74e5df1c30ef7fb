//! Recorded rules of kube-proxy against ours, through the whole line: manifests, cluster, desired state, kernel, `iptables-save`.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use common::{Tables, VARIANTS, assert_same, canonical, cluster, fixture, full_sync, recorded_settings};
use portwarden_iptables::Options;
use portwarden_model::{DetectLocal, Family, Name, NodePortRange, Settings};
use portwarden_xtables::Variant;

fn check(recording: &str, settings: &Settings, options: &Options, variants: &[Variant]) {
    let cluster = cluster(settings.clone(), "kube-proxy/objects.json", "kube-proxy/node.json");
    for variant in variants {
        for (family, suffix) in [(Family::V4, "v4"), (Family::V6, "v6")] {
            let tables = Tables::new(recording, *variant);
            let mut dataplane = tables.dataplane(family, options);
            full_sync(&mut dataplane, &tables, &cluster);
            let expected = canonical(&fixture(&format!("kube-proxy/{recording}.{suffix}.save")));
            assert_same(&tables.rules(family), &expected, &format!("{recording} {family} {variant:?}"));
        }
    }
}

#[test]
fn default_settings() {
    check("default", &recorded_settings(), &Options::default(), &VARIANTS);
}

#[test]
fn default_settings_as_recorded_with_the_legacy_variant() {
    check("default-legacy", &recorded_settings(), &Options::default(), &VARIANTS);
}

#[test]
fn masquerade_all() {
    let settings = Settings { masquerade_all: true, ..recorded_settings() };
    check("masquerade-all", &settings, &Options::default(), &VARIANTS);
}

#[test]
fn no_node_ports_on_loopback() {
    let options = Options { loopback_node_ports: false, ..Options::default() };
    check("no-localhost-nodeports", &recorded_settings(), &options, &VARIANTS);
}

#[test]
fn node_ports_on_the_nodes_own_addresses() {
    let settings = Settings { node_port_addresses: vec![NodePortRange::Primary], ..recorded_settings() };
    check("nodeport-primary", &settings, &Options::default(), &VARIANTS);
}

#[test]
fn another_masquerade_bit() {
    let options = Options { masquerade_bit: 5, ..Options::default() };
    check("masquerade-bit-5", &recorded_settings(), &options, &VARIANTS);
}

#[test]
fn pods_recognized_by_their_interface() {
    let detect_local = DetectLocal::InterfaceNamePrefix(Name::from("veth"));
    let settings = Settings { detect_local, ..recorded_settings() };
    check("interface-prefix", &settings, &Options::default(), &VARIANTS);
}

/// The cluster of a worked example, recorded from kube-proxy.
fn worked_settings() -> Settings {
    let ranges = ["10.244.0.0/16", "fd00:10:244::/56"].map(|range| range.parse().unwrap());
    Settings { detect_local: DetectLocal::ClusterCidr(ranges.into()), ..Settings::new("node-a") }
}

#[test]
fn worked_example() {
    let cluster = cluster(worked_settings(), "worked-example/objects.json", "worked-example/node.json");
    for variant in VARIANTS {
        let tables = Tables::new("worked-example", variant);
        let mut dataplane = tables.dataplane(Family::V4, &Options::default());
        full_sync(&mut dataplane, &tables, &cluster);
        let expected = canonical(&fixture("worked-example/default.v4.save"));
        assert_same(&tables.rules(Family::V4), &expected, &format!("worked example {variant:?}"));
    }
}

/// The description leaves out the jumps of this family, which are those of the other.
#[test]
fn worked_example_without_ipv6_services() {
    let cluster = cluster(worked_settings(), "worked-example/objects.json", "worked-example/node.json");
    for variant in VARIANTS {
        let tables = Tables::new("worked-example", variant);
        let mut dataplane = tables.dataplane(Family::V6, &Options::default());
        full_sync(&mut dataplane, &tables, &cluster);
        let saved = tables.save(Family::V6);
        let mut rules: Vec<_> = saved.lines().filter(|line| line.starts_with("-A KUBE-")).collect();
        rules.sort_unstable();
        let expected = fixture("worked-example/default.v6.rules");
        let mut expected: Vec<_> = expected.lines().collect();
        expected.sort_unstable();
        assert_eq!(rules, expected);
    }
}

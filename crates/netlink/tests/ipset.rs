//! Sets of the real kernel.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::IpFamily::{Ipv4, Ipv6};
use portwarden_netlink::ipset::{Entry, Operation, SetSpec, SetType, Sets};
use portwarden_netlink::route::Route;

#[test]
fn sets_are_found_by_name_and_removed_unless_they_are_used() {
    in_namespace(|| {
        let mut sets = Sets::open().unwrap();
        assert_eq!(sets.names().unwrap(), Vec::<String>::new());
        run("ipset", &["create", "KUBE-CLUSTER-IP", "hash:ip,port"]);
        run("ipset", &["create", "KUBE-NODE-PORT-TCP", "bitmap:port", "range", "0-65535"]);
        run("ipset", &["create", "holder", "list:set"]);
        run("ipset", &["add", "holder", "KUBE-CLUSTER-IP"]);
        let mut names = sets.names().unwrap();
        names.sort();
        assert_eq!(names, ["KUBE-CLUSTER-IP", "KUBE-NODE-PORT-TCP", "holder"]);
        sets.destroy("KUBE-NODE-PORT-TCP").unwrap();
        let error = sets.destroy("KUBE-CLUSTER-IP").unwrap_err();
        assert!(error.to_string().contains("KUBE-CLUSTER-IP"), "{error}");
        sets.destroy("holder").unwrap();
        sets.destroy("KUBE-CLUSTER-IP").unwrap();
        assert_eq!(sets.names().unwrap(), Vec::<String>::new());
        sets.destroy("KUBE-CLUSTER-IP").unwrap();
    });
}

/// One set of each type and family, with two entries.
fn samples() -> Vec<(SetSpec, Vec<Entry>)> {
    let ip = |text: &str| text.parse().unwrap();
    let (four, six) = (ip("10.96.0.1"), ip("fd00::1"));
    vec![
        (SetSpec::new("ip-4", SetType::HashIp, Ipv4), vec![Entry::Ip(four), Entry::Ip(ip("10.96.0.2"))]),
        (SetSpec::new("ip-6", SetType::HashIp, Ipv6), vec![Entry::Ip(six), Entry::Ip(ip("fd00::2"))]),
        (
            SetSpec::new("ip-port", SetType::HashIpPort, Ipv4),
            vec![Entry::IpPort(four, 6, 443), Entry::IpPort(four, 132, 443)],
        ),
        (
            SetSpec::new("ip-port-ip", SetType::HashIpPortIp, Ipv6),
            vec![Entry::IpPortIp(six, 17, 53, six), Entry::IpPortIp(six, 6, 53, six)],
        ),
        (
            SetSpec::new("ip-port-net", SetType::HashIpPortNet, Ipv4),
            vec![
                Entry::IpPortNet(four, 6, 80, ip("192.0.2.0"), 24),
                Entry::IpPortNet(four, 6, 80, ip("198.51.100.7"), 32),
            ],
        ),
        (SetSpec::new("ports", SetType::BitmapPort, Ipv6), vec![Entry::Port(0), Entry::Port(30_080)]),
    ]
}

#[test]
fn every_type_of_set_is_written_and_read_back() {
    in_namespace(|| {
        let mut sets = Sets::open().unwrap();
        for (set, entries) in samples() {
            assert_eq!(sets.list(&set).unwrap(), None);
            sets.create(&set).unwrap();
            sets.create(&set).unwrap();
            assert_eq!(sets.list(&set).unwrap(), Some(vec![]));
            assert_eq!(sets.change(&set.name, Operation::Add, &entries).unwrap(), []);
            assert_eq!(sets.change(&set.name, Operation::Add, &entries).unwrap(), [], "as with -exist");
            let mut found = sets.list(&set).unwrap().unwrap();
            found.sort();
            let mut wanted = entries.clone();
            wanted.sort();
            assert_eq!(found, wanted);
            assert_eq!(sets.change(&set.name, Operation::Delete, &entries[..1]).unwrap(), []);
            assert_eq!(sets.change(&set.name, Operation::Delete, &entries[..1]).unwrap(), []);
            assert_eq!(sets.list(&set).unwrap(), Some(entries[1..].to_vec()));
            let other = SetSpec { kind: SetType::HashIpPort, family: Ipv6, ..set };
            assert_eq!(sets.list(&other).unwrap(), None, "another type or family");
        }
    });
}

#[test]
fn entries_are_written_as_the_program_writes_them() {
    in_namespace(|| {
        let mut sets = Sets::open().unwrap();
        for (set, entries) in samples() {
            sets.create(&set).unwrap();
            sets.change(&set.name, Operation::Add, &entries).unwrap();
            let listed = run("ipset", &["list", &set.name]);
            for entry in entries {
                let text = entry.to_string();
                let text = text.strip_suffix("/32").unwrap_or(&text);
                assert!(listed.lines().any(|line| line == text), "{text} in {listed}");
            }
        }
    });
}

#[test]
fn a_large_set_is_swapped_and_an_overfull_one_names_what_is_missing() {
    in_namespace(|| {
        let mut sets = Sets::open().unwrap();
        let entry = |number: u32| Entry::IpPort(std::net::Ipv4Addr::from(0x0a60_0000 + number).into(), 6, 80);
        let entries: Vec<_> = (0..5_000).map(entry).collect();
        let large = SetSpec::new("large", SetType::HashIpPort, Ipv4);
        let small = SetSpec { name: "small".into(), max_elements: 1_000, ..large.clone() };
        sets.create(&large).unwrap();
        sets.create(&small).unwrap();
        assert_eq!(sets.change("large", Operation::Add, &entries).unwrap(), []);
        assert_eq!(sets.list(&large).unwrap().unwrap().len(), 5_000);
        let refused = sets.change("small", Operation::Add, &entries[..1_500]).unwrap();
        let held = sets.list(&small).unwrap().unwrap().len();
        assert!(held >= 1_000, "{held}");
        assert_eq!(held + refused.len(), 1_500);
        assert!(refused[0].1.to_string().contains("full"), "{}", refused[0].1);
        sets.swap("large", "small").unwrap();
        assert_eq!(sets.list(&small).unwrap().unwrap().len(), 5_000);
        sets.flush("small").unwrap();
        assert_eq!(sets.list(&small).unwrap(), Some(vec![]));
        let error = sets.create(&SetSpec { kind: SetType::HashIp, ..large }).unwrap_err();
        assert!(error.to_string().contains("large"), "{error}");
    });
}

#[test]
fn a_link_is_removed_by_name_once() {
    in_namespace(|| {
        run("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
        let mut route = Route::open().unwrap();
        assert!(route.delete_link("kube-ipvs0").unwrap());
        assert!(!route.delete_link("kube-ipvs0").unwrap());
        assert!(route.delete_link("lo").is_err(), "the kernel keeps its own");
    });
}

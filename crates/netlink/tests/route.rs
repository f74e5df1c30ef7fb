//! Links and addresses of a real namespace.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::route::{Request, Route, RouteChange, RouteMonitor, RouteNotice, link_flags, scope};
use portwarden_netlink::{Errno, IpFamily};
use std::net::IpAddr;
use std::time::{Duration, Instant};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn addresses_are_listed_with_their_interfaces() {
    in_namespace(|| {
        run("ip", &["link", "add", "front", "type", "veth", "peer", "name", "back"]);
        run("ip", &["link", "set", "lo", "up"]);
        run("ip", &["addr", "add", "192.0.2.7/24", "dev", "front"]);
        run("ip", &["addr", "add", "192.0.2.9", "peer", "192.0.2.10/32", "dev", "back"]);
        run("ip", &["addr", "add", "2001:db8::7/64", "dev", "front", "nodad"]);
        let mut route = Route::open().unwrap();

        let links = route.links().unwrap();
        let loopback = links.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!(
            loopback.flags & (link_flags::UP | link_flags::LOOPBACK),
            link_flags::UP | link_flags::LOOPBACK
        );
        let front = links.iter().find(|link| link.name == "front").unwrap();
        assert_eq!(front.flags & link_flags::LOOPBACK, 0);

        let mut found: Vec<_> = route
            .addresses(None)
            .unwrap()
            .into_iter()
            .map(|address| {
                let link = links.iter().find(|link| link.index == address.index).unwrap();
                (link.name.clone(), address.address, address.prefix_length, address.scope)
            })
            .collect();
        found.sort();
        let expected = [
            ("back", "192.0.2.9", 32, scope::UNIVERSE),
            ("front", "192.0.2.7", 24, scope::UNIVERSE),
            ("front", "2001:db8::7", 64, scope::UNIVERSE),
            ("lo", "127.0.0.1", 8, scope::HOST),
            ("lo", "::1", 128, scope::HOST),
        ];
        let expected: Vec<_> = expected
            .map(|(name, text, length, scope)| (name.to_owned(), address(text), length, scope))
            .into();
        assert_eq!(found, expected);

        let ipv6 = route.addresses(Some(IpFamily::Ipv6)).unwrap();
        assert_eq!(ipv6.len(), 2);
        assert!(ipv6.iter().all(|address| address.address.is_ipv6()), "{ipv6:?}");
    });
}

#[test]
fn changes_of_links_and_addresses_are_reported() {
    in_namespace(|| {
        let mut monitor = RouteMonitor::open().unwrap();
        run("ip", &["link", "add", "front", "type", "veth", "peer", "name", "back"]);
        run("ip", &["addr", "add", "192.0.2.7/24", "dev", "front"]);
        run("ip", &["addr", "del", "192.0.2.7/24", "dev", "front"]);
        run("ip", &["link", "del", "front"]);
        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !seen.contains(&"link gone") {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(monitor.wait(left).unwrap(), "only {seen:?} within ten seconds");
            monitor
                .read(|notice| match notice {
                    RouteNotice::Change(RouteChange::LinkPresent(link)) if link.name == "front" => {
                        seen.push("link");
                    }
                    RouteNotice::Change(RouteChange::LinkGone(link)) if link.name == "front" => {
                        seen.push("link gone");
                    }
                    RouteNotice::Change(RouteChange::AddressPresent(found)) => {
                        assert_eq!(found.address, address("192.0.2.7"));
                        seen.push("address");
                    }
                    RouteNotice::Change(RouteChange::AddressGone(found)) => {
                        assert_eq!((found.address, found.prefix_length), (address("192.0.2.7"), 24));
                        seen.push("address gone");
                    }
                    RouteNotice::Change(_) => {}
                    RouteNotice::Missed => panic!("notifications were lost"),
                })
                .unwrap();
        }
        seen.dedup();
        assert_eq!(seen, ["link", "address", "address gone", "link gone"]);
    });
}

#[test]
fn addresses_are_added_and_removed_in_one_batch() {
    in_namespace(|| {
        run("ip", &["link", "add", "front", "type", "veth", "peer", "name", "back"]);
        let mut route = Route::open().unwrap();
        let front = route.link("front").unwrap().unwrap();
        assert_eq!(front.kind.as_deref(), Some("veth"));
        assert_eq!(route.link("nonesuch").unwrap(), None);
        let (four, six) = (address("10.96.0.1"), address("fd00:10:96::1"));
        assert!(!route.is_local(four).unwrap() && !route.is_local(six).unwrap(), "there is no route");
        let requests = [
            Request::add_address(front.index, four, 32),
            Request::add_address(front.index, six, 128),
            Request::add_address(front.index, four, 32),
            Request::delete_address(front.index, address("10.96.0.9"), 32),
        ];
        let refused: Vec<_> = route
            .apply(&requests)
            .unwrap()
            .into_iter()
            .map(|(index, answer)| (index, answer.errno))
            .collect();
        assert_eq!(refused, [(2, Errno::EEXIST), (3, Errno::EADDRNOTAVAIL)]);
        assert!(route.is_local(four).unwrap(), "also while the device is down");
        assert_eq!(route.apply(&[Request::delete_address(front.index, six, 128)]).unwrap(), []);
        let left: Vec<_> = route.addresses(None).unwrap().into_iter().map(|found| found.address).collect();
        assert_eq!(left, [four]);
    });
}

#[test]
#[ignore = "needs a kernel with dummy devices: scripts/uml"]
fn a_dummy_device_stays_down_and_its_addresses_are_local() {
    in_namespace(|| {
        let mut route = Route::open().unwrap();
        assert!(route.create_dummy("kube-ipvs0").unwrap());
        assert!(!route.create_dummy("kube-ipvs0").unwrap(), "there is one");
        let device = route.link("kube-ipvs0").unwrap().unwrap();
        assert_eq!((device.kind.as_deref(), device.flags & link_flags::UP), (Some("dummy"), 0));
        for text in ["10.96.0.1", "fd00:10:96::1"] {
            let ip = address(text);
            let length = if ip.is_ipv4() { 32 } else { 128 };
            assert_eq!(route.apply(&[Request::add_address(device.index, ip, length)]).unwrap(), []);
            assert!(route.is_local(ip).unwrap(), "{ip}");
        }
        assert!(route.delete_link("kube-ipvs0").unwrap());
    });
}

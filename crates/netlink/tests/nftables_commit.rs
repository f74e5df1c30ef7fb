//! Transactions against the real kernel.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::error::FailedPart;
use portwarden_netlink::nftables::{
    Chain, ChainKind, Client, DataType, Elements, Expr, Family, Hook, Image, Register, Rule, Set, SetFlags,
    Table, TableId, Transaction, Verdict,
    expr::{CmpOperator, MetaKey, NatKind, NumgenKind, PayloadBase},
};
use portwarden_netlink::{Errno, Error};
use std::net::Ipv4Addr;
use std::sync::Arc;

const FRONTEND: [DataType; 3] = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];

fn frontend(index: u32) -> Image {
    Image::new().ipv4(Ipv4Addr::from(0x0a60_0000 + index)).protocol(6).port(80)
}

fn load_frontend() -> Vec<Expr> {
    vec![
        Expr::Payload { base: PayloadBase::Network, offset: 16, length: 4, target: Register::word(0) },
        Expr::Meta { key: MetaKey::L4proto, target: Register::word(1) },
        Expr::Payload { base: PayloadBase::Transport, offset: 2, length: 2, target: Register::word(2) },
    ]
}

/// A table as the nftables dataplane lays it out, in small.
fn load(services: u32, endpoints: u32) -> (Transaction, Arc<Set>, Arc<Set>) {
    let table = TableId::new(Family::Ip, "portwarden-test");
    let mut key = FRONTEND.to_vec();
    key.push(DataType::Integer);
    let endpoint_map = Arc::new(
        Set::map(&table, "endpoints", key, [DataType::Ipv4Address, DataType::Service])
            .comment("one element per endpoint"),
    );
    let service_map = Arc::new(Set::verdict_map(&table, "services-by-ip", FRONTEND).comment("dispatch"));
    let mut transaction = Transaction::new();
    transaction.ensure_absent(&table);
    transaction.add(Table::new(&table).comment("rules of a test"));
    transaction.add(Chain::base(&table, "nat-prerouting", ChainKind::Nat, Hook::Prerouting, -100));
    transaction.add(Chain::new(&table, "pick-4"));
    transaction.add(&endpoint_map);
    transaction.add(&service_map);
    let mut pick = load_frontend();
    pick.push(Expr::Numgen { kind: NumgenKind::Random, modulus: 4, offset: 0, target: Register::word(3) });
    pick.push(Expr::Lookup {
        set: "endpoints".into(),
        key: Register::word(0),
        target: Some(Register::word(0)),
        inverted: false,
    });
    pick.push(Expr::Nat {
        kind: NatKind::Destination,
        family: Family::Ip,
        address: Some(Register::word(0)),
        port: Some(Register::word(1)),
        flags: 0,
    });
    transaction.add(Rule::new(&table, "pick-4", pick).comment("draw an endpoint"));
    let mut dispatch = load_frontend();
    dispatch.push(Expr::Lookup {
        set: "services-by-ip".into(),
        key: Register::word(0),
        target: Some(Register::VERDICT),
        inverted: false,
    });
    transaction.add(Rule::new(&table, "nat-prerouting", dispatch));

    let mut elements = Elements::with_capacity((services * endpoints) as usize, 24);
    let mut verdicts = Elements::new();
    let goto = Verdict::Goto("pick-4".into());
    for service in 0..services {
        for slot in 0..endpoints {
            let key = frontend(service).number(slot);
            let backend = Ipv4Addr::from(0x0af4_0000 + service * endpoints + slot);
            elements.push_data(key, Image::new().ipv4(backend).port(8080));
        }
        verdicts.push_verdict(frontend(service), &goto);
    }
    transaction.add_elements(&endpoint_map, elements);
    transaction.add_elements(&service_map, verdicts);
    (transaction, endpoint_map, service_map)
}

#[test]
fn a_large_transaction_is_committed_and_nft_lists_it() {
    in_namespace(|| {
        let mut client = Client::open().unwrap();
        let (transaction, ..) = load(250, 20);
        assert_eq!(transaction.element_count(), 5_250);
        client.commit(&transaction).unwrap();
        // Again over itself: the table is replaced in one transaction.
        client.commit(&transaction).unwrap();
        let listing = run("nft", &["list", "ruleset"]);
        for expected in [
            "comment \"rules of a test\"",
            "typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport",
            "10.96.0.1 . tcp . 80 . 3 : 10.244.0.23 . 8080",
            "10.96.0.249 . tcp . 80 : goto pick-4",
            "type nat hook prerouting priority dstnat; policy accept;",
            "ip daddr . meta l4proto . th dport vmap @services-by-ip",
            "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 4 map @endpoints comment \"draw an endpoint\"",
        ] {
            assert!(listing.contains(expected), "nft does not list {expected:?}:\n{listing}");
        }
    });
}

#[test]
fn a_rejected_element_is_named_and_nothing_is_taken() {
    in_namespace(|| {
        let mut client = Client::open().unwrap();
        let (transaction, endpoints, services) = load(2_000, 2);
        client.commit(&transaction).unwrap();

        let mut change = Transaction::new();
        let mut good = Elements::new();
        good.push_data(frontend(1).number(7), Image::new().ipv4(Ipv4Addr::LOCALHOST).port(1));
        change.add_elements(&endpoints, good);
        // Far enough that it stands in a later message of the same operation.
        let mut bad = Elements::new();
        for service in 0..2_000 {
            let port = if service == 1_777 { 9 } else { 8080 };
            let backend = Ipv4Addr::from(0x0af4_0000 + service * 2);
            bad.push_data(frontend(service).number(0), Image::new().ipv4(backend).port(port));
        }
        change.add_elements(&endpoints, bad);
        let error = client.commit(&change).unwrap_err();
        let Error::Rejected(rejected) = &error else { panic!("not rejected: {error}") };
        let [failure] = rejected.failures.as_slice() else { panic!("one failure, not {rejected:?}") };
        assert_eq!(failure.answer.errno, Errno::EEXIST);
        let FailedPart::Operation { index, element, description } = &failure.part else {
            panic!("no operation named: {failure:?}")
        };
        assert_eq!((*index, *element), (1, Some(1_777)));
        assert_eq!(
            description,
            "add element ip portwarden-test endpoints { 10.96.6.241 . tcp . 80 . 0 : 10.244.13.226 . 9 }"
        );
        assert!(!run("nft", &["list", "ruleset"]).contains("127.0.0.1"));

        let mut change = Transaction::new();
        let mut missing = Elements::new();
        missing.push_key(frontend(5_000));
        change.delete_elements(&services, missing);
        assert!(client.commit(&change).unwrap_err().is_not_found());
    });
}

#[test]
fn deleting_no_element_is_not_a_flush() {
    in_namespace(|| {
        let mut client = Client::open().unwrap();
        let (transaction, endpoints, _) = load(3, 3);
        client.commit(&transaction).unwrap();
        let mut change = Transaction::new();
        change.delete_elements(&endpoints, Elements::new());
        client.commit(&change).unwrap();
        assert!(run("nft", &["list", "ruleset"]).contains("10.96.0.2 . tcp . 80 . 2"));
        let mut change = Transaction::new();
        change.flush(&endpoints);
        client.commit(&change).unwrap();
        assert!(!run("nft", &["list", "ruleset"]).contains("10.96.0.2 . tcp . 80 . 2"));
    });
}

#[test]
fn ranges_of_concatenated_keys_are_listed_as_prefixes() {
    in_namespace(|| {
        let mut client = Client::open().unwrap();
        let table = TableId::new(Family::Ip, "portwarden-test");
        let mut key = FRONTEND.to_vec();
        key.push(DataType::Ipv4Address);
        let set = Arc::new(Set::new(&table, "source-ranges", key).flags(SetFlags::INTERVAL));
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&table));
        transaction.add(&set);
        let mut elements = Elements::new();
        elements.push(&portwarden_netlink::nftables::ElementParts {
            key: frontend(1).ipv4([10, 0, 0, 0].into()).as_bytes(),
            key_end: Some(frontend(1).ipv4([10, 255, 255, 255].into()).as_bytes()),
            comment: Some("ns/name:port"),
            ..Default::default()
        });
        transaction.add_elements(&set, elements);
        client.commit(&transaction).unwrap();
        let listing = run("nft", &["list", "ruleset"]);
        assert!(listing.contains("10.96.0.1 . tcp . 80 . 10.0.0.0/8 comment \"ns/name:port\""), "{listing}");
    });
}

#[test]
fn a_comparison_on_a_mark_is_listed() {
    in_namespace(|| {
        let mut client = Client::open().unwrap();
        let table = TableId::new(Family::Ip6, "portwarden-test");
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&table));
        transaction.add(Chain::new(&table, "masquerading"));
        let mark = Register::word(0);
        let expressions = vec![
            Expr::Meta { key: MetaKey::Mark, target: mark },
            Expr::Bitwise {
                source: mark,
                target: mark,
                mask: 0x4000_u32.to_ne_bytes().to_vec(),
                xor: vec![0; 4],
            },
            Expr::Cmp { source: mark, operator: CmpOperator::NotEqual, value: vec![0; 4] },
            Expr::Masquerade { flags: portwarden_netlink::nftables::expr::nat::FULLY_RANDOM },
        ];
        transaction.add(Rule::new(&table, "masquerading", expressions));
        client.commit(&transaction).unwrap();
        let listing = run("nft", &["list", "ruleset"]);
        assert!(
            listing.contains("meta mark & 0x00004000 != 0x00000000 masquerade fully-random"),
            "{listing}"
        );
    });
}

/// Elements are asked for by key, more than fit into one request, some of which the set does not have.
#[test]
fn elements_are_found_by_key_and_counted() {
    in_namespace(|| {
        let (transaction, endpoints, _) = load(100, 4);
        let mut client = Client::open().unwrap();
        client.commit(&transaction).unwrap();
        let keys: Vec<Image> =
            (0..110).flat_map(|service| (0..4).map(move |slot| frontend(service).number(slot))).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).rev().collect();
        let found = client.elements_at(&endpoints.table, "endpoints", &keys).unwrap();
        assert_eq!(found.len(), keys.len());
        for (index, (key, found)) in keys.iter().zip(&found).enumerate() {
            assert_eq!(found.as_ref().map(|found| found.key.as_slice()), (index >= 40).then_some(*key));
        }
        let counts = client.set_counts(&endpoints.table).unwrap();
        // Older kernels do not count.
        assert!(
            counts.is_empty() || (counts["endpoints"], counts["services-by-ip"]) == (400, 100),
            "{counts:?}"
        );
    });
}

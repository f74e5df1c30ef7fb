//! Notifications of the real kernel.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::nftables::{
    Change, Client, DataType, Elements, Event, Family, Generation, Image, Monitor, Notice, Set, Subject,
    Table, TableId, Transaction,
};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

fn read(monitor: &mut Monitor) -> Vec<Notice> {
    assert!(monitor.wait(Duration::from_secs(10)).unwrap(), "no notification within ten seconds");
    let mut notices = Vec::new();
    monitor.read(|notice| notices.push(notice)).unwrap();
    notices
}

fn generation(notices: &[Notice]) -> &Generation {
    match notices.last() {
        Some(Notice::Event(Event { subject: Subject::Generation(generation), .. })) => generation,
        other => panic!("a transaction ends with its generation, not with {other:?}"),
    }
}

fn ports(notices: &[Notice]) -> Vec<u32> {
    notices
        .iter()
        .filter_map(|notice| match notice {
            Notice::Event(event) => Some(event.port),
            Notice::Missed => None,
        })
        .collect()
}

#[test]
fn changes_are_reported_with_the_process_that_made_them() {
    in_namespace(|| {
        let mut monitor = Monitor::open().unwrap();
        let mut client = Client::open().unwrap();
        assert!(!monitor.wait(Duration::ZERO).unwrap());

        let table = TableId::new(Family::Ip, "portwarden-test");
        let set = Arc::new(Set::new(&table, "addresses", [DataType::Ipv4Address]));
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&table));
        transaction.add(&set);
        let mut elements = Elements::new();
        elements.push_key(Image::new().ipv4(Ipv4Addr::LOCALHOST));
        transaction.add_elements(&set, elements);
        client.commit(&transaction).unwrap();

        let notices = read(&mut monitor);
        let subjects: Vec<_> = notices
            .iter()
            .map(|notice| match notice {
                Notice::Event(Event { change: Change::Present, subject: Subject::Table(listed), .. }) => {
                    assert_eq!(listed.object, Table::new(&table));
                    "table"
                }
                Notice::Event(Event { change: Change::Present, subject: Subject::Set(listed), .. }) => {
                    assert_eq!(listed.object, *set);
                    "set"
                }
                Notice::Event(Event {
                    change: Change::Present, subject: Subject::Elements(found), ..
                }) => {
                    assert_eq!((&found.table, &*found.set), (&table, "addresses"));
                    assert_eq!(found.elements[0].key, [127, 0, 0, 1]);
                    "elements"
                }
                Notice::Event(Event { subject: Subject::Generation(_), .. }) => "generation",
                other => panic!("unexpected {other:?}"),
            })
            .collect();
        assert_eq!(subjects, ["table", "set", "elements", "generation"]);
        assert_eq!(ports(&notices), vec![client.port(); 4]);

        run("nft", &["delete", "table", "ip", "portwarden-test"]);
        let notices = read(&mut monitor);
        assert_eq!(generation(&notices).thread_name.as_deref(), Some("nft"));
        assert!(!ports(&notices).contains(&client.port()), "{notices:?}");
        let gone = notices.iter().any(|notice| {
            matches!(
                notice,
                Notice::Event(Event { change: Change::Gone, subject: Subject::Table(listed), .. })
                    if listed.object.id == table
            )
        });
        assert!(gone, "{notices:?}");
    });
}

#[test]
fn lost_notifications_are_reported() {
    in_namespace(|| {
        let mut monitor = Monitor::open().unwrap();
        let mut client = Client::open().unwrap();
        let table = TableId::new(Family::Ip, "portwarden-test");
        let set = Arc::new(Set::new(&table, "addresses", [DataType::Ipv4Address]));
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&table));
        transaction.add(&set);
        let mut elements = Elements::new();
        for address in 0..120_000 {
            elements.push_key(Image::new().ipv4(Ipv4Addr::from(address)));
        }
        transaction.add_elements(&set, elements);
        client.commit(&transaction).unwrap();
        assert!(read(&mut monitor).contains(&Notice::Missed));

        // The subscription goes on, and a pause keeps changes out of it.
        monitor.pause().unwrap();
        let mut transaction = Transaction::new();
        transaction.delete(&set);
        client.commit(&transaction).unwrap();
        monitor.resume().unwrap();
        let mut transaction = Transaction::new();
        transaction.delete(Table::new(&table));
        client.commit(&transaction).unwrap();
        let notices = read(&mut monitor);
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert_eq!(generation(&notices).id, client.generation().unwrap().id);
    });
}

#[test]
fn subscriptions_of_one_namespace_pause_together() {
    in_namespace(|| {
        let mut monitors = [Monitor::open().unwrap(), Monitor::open().unwrap()];
        let mut client = Client::open().unwrap();
        let mut change = |name: &str| {
            let mut transaction = Transaction::new();
            transaction.add(Table::new(&TableId::new(Family::Ip, name)));
            client.commit(&transaction).unwrap();
        };
        monitors[0].pause().unwrap();
        monitors[1].pause().unwrap();
        monitors[0].resume().unwrap();
        change("unseen");
        monitors[1].resume().unwrap();
        change("seen");
        for monitor in &mut monitors {
            let notices = read(monitor);
            assert_eq!(notices.len(), 2, "a table and its generation, nothing of before: {notices:?}");
        }
    });
    in_namespace(|| {
        let (mut here, mut client) = (Monitor::open().unwrap(), Client::open().unwrap());
        in_namespace(|| Monitor::open().unwrap().pause().unwrap());
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&TableId::new(Family::Ip, "seen")));
        client.commit(&transaction).unwrap();
        assert_eq!(read(&mut here).len(), 2, "a pause elsewhere is none here");
    });
}

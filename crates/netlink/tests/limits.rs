//! What happens at the limits: missing rights, changes while reading.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::Error;
use portwarden_netlink::nftables::{
    Client, DataType, Elements, Family, Image, Set, Table, TableId, Transaction,
};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A set of the size given: a hash table without a size is resized in the background, which no listing can see.
fn addresses(size: u32) -> Arc<Set> {
    let table = TableId::new(Family::Ip, "portwarden-test");
    Arc::new(Set::new(&table, "addresses", [DataType::Ipv4Address]).size(size))
}

fn filled(count: u32, first: u32) -> Elements {
    let mut elements = Elements::new();
    for address in first..first + count {
        elements.push_key(Image::new().ipv4(Ipv4Addr::from(address)));
    }
    elements
}

/// A user namespace grants everything but send buffers beyond the sysctl, as in a rootless container.
#[test]
fn a_batch_beyond_the_allowed_send_buffer_is_explained() {
    let own = std::env::current_exe().unwrap();
    let arguments = ["--user", "--map-root-user", "--net", own.to_str().unwrap()];
    let inner = ["--ignored", "--exact", "inside_of_a_user_namespace"];
    let printed = run("unshare", &[arguments.as_slice(), inner.as_slice()].concat());
    assert!(printed.contains("1 passed"), "{printed}");
}

#[test]
#[ignore = "started by a_batch_beyond_the_allowed_send_buffer_is_explained in a user namespace"]
fn inside_of_a_user_namespace() {
    let mut client = Client::open().unwrap();
    let set = addresses(4_000_000);
    let mut transaction = Transaction::new();
    transaction.add(Table::new(&set.table));
    transaction.add(&set);
    client.commit(&transaction).unwrap();
    let mut large = Transaction::new();
    // No sysctl allows this much: its limit is an int, and the batch is larger than any sane value of it.
    large.add_elements(&set, filled(4_000_000, 0));
    let error = client.commit(&large).unwrap_err();
    let Error::SendBuffer { needed, granted } = error else { panic!("not about the send buffer: {error}") };
    assert!(needed > granted);
    assert!(error.to_string().contains("net.core.wmem_max"), "{error}");
    // The connection is still of use.
    assert_eq!(client.sets(&set.table).unwrap().len(), 1);
}

#[test]
fn a_listing_never_mixes_two_states() {
    const COUNT: u32 = 3_000;
    in_namespace(|| {
        let set = addresses(2 * COUNT);
        let mut setup = Transaction::new();
        setup.add(Table::new(&set.table));
        setup.add(&set);
        setup.add_elements(&set, filled(COUNT, 0));
        // Opened here, as a thread started later would be in the same namespace anyway.
        let (mut writer, mut reader) = (Client::open().unwrap(), Client::open().unwrap());
        writer.commit(&setup).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=100 {
                    let mut change = Transaction::new();
                    change.flush(&set);
                    change.add_elements(&set, filled(COUNT, round * COUNT));
                    writer.commit(&change).unwrap();
                }
                done.store(true, Ordering::Release);
            });
            loop {
                let last = done.load(Ordering::Acquire);
                match reader.elements(&set.table, &set.name) {
                    Ok(elements) => {
                        let mut keys: Vec<_> = elements
                            .iter()
                            .map(|element| u32::from_be_bytes(element.key.clone().try_into().unwrap()))
                            .collect();
                        keys.sort_unstable();
                        let first = keys[0];
                        let one_state = keys.iter().copied().eq(first..first + COUNT);
                        assert!(one_state, "{} elements from {first} on", keys.len());
                        assert_eq!(first % COUNT, 0);
                    }
                    Err(Error::Interrupted { .. }) if !last => {}
                    Err(error) => panic!("{error}"),
                }
                if last {
                    break;
                }
            }
        });
    });
}

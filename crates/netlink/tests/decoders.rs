//! No bytes make a decoder panic, and what is encoded decodes back.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

#[path = "common/decoders.rs"]
mod decoders;
#[path = "common/values.rs"]
mod values;

use decoders::decode_everything;
use portwarden_netlink::nftables::{Batch, Event, Object, Subject, Transaction};
use portwarden_netlink::wire::{Messages, Writer};
use proptest::prelude::*;

/// Messages as the kernel sends them: a batch consists of the same messages as a listing.
fn genuine(transaction: &Transaction) -> Vec<u8> {
    let mut bytes = Batch::encode(transaction).unwrap().into_buffer();
    bytes.extend(flow_link_and_address());
    bytes.extend(set_and_servers());
    bytes
}

/// A conntrack entry, a link, an address, an accounting object and an error with an explanation.
fn flow_link_and_address() -> Vec<u8> {
    let mut writer = Writer::new();
    let mark = writer.begin_netfilter(0x0100, 2, 1, 2, 0);
    for direction in [1, 2] {
        writer.nest(direction, |writer| {
            writer.nest(1, |writer| {
                writer.attribute(1, &[10, 0, 0, 1]);
                writer.attribute(2, &[10, 0, 0, 2]);
            });
            writer.nest(2, |writer| {
                writer.u8(1, 17);
                writer.u16(2, 4_000);
                writer.u16(3, 53);
            });
        });
    }
    writer.u32(3, 0x20);
    writer.u16(18, 9);
    writer.end_message(mark);

    let mark = writer.begin_message(16, 0, 0);
    writer.raw(&[0, 0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    writer.string(3, "eth0");
    writer.end_message(mark);

    let mark = writer.begin_message(20, 0, 0);
    writer.raw(&[2, 24, 0, 0, 2, 0, 0, 0]);
    writer.attribute(1, &[192, 0, 2, 7]);
    writer.attribute(8, &128_u32.to_ne_bytes());
    writer.end_message(mark);

    let mark = writer.begin_netfilter(0x0700, 0, 1, 0, 0);
    writer.string(1, "dropped");
    writer.u64(2, 3);
    writer.u64(3, 180);
    writer.end_message(mark);

    let mark = writer.begin_message(2, 0x300, 4);
    writer.raw(&(-17_i32).to_ne_bytes());
    writer.raw(&[20, 0, 0, 0, 12, 10, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    writer.string(1, "Element already exists");
    writer.attribute(2, &36_u32.to_ne_bytes());
    writer.end_message(mark);
    writer.into_bytes()
}

/// A set with one entry, a virtual server, a real server and the timeouts of IPVS.
fn set_and_servers() -> Vec<u8> {
    let mut writer = Writer::new();
    let mark = writer.begin_netfilter(0x0607, 2, 1, 2, 0);
    writer.u8(1, 6);
    writer.string(2, "KUBE-CLUSTER-IP");
    writer.string(3, "hash:ip,port");
    writer.nest(8, |writer| {
        writer.nest(7, |writer| {
            writer.nest(1, |writer| writer.attribute(1, &[10, 96, 0, 1]));
            writer.u8(7, 6);
            writer.u16(4, 443);
        });
    });
    writer.end_message(mark);

    let mark = writer.begin_message(35, 2, 1);
    writer.raw(&[1, 1, 0, 0]);
    writer.nest(1, |writer| {
        writer.u16_host(1, 2);
        writer.u16_host(2, 6);
        writer.attribute(3, &[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        writer.u16(4, 443);
        writer.string(6, "rr");
        writer.attribute(7, &[2, 0, 0, 0, 255, 255, 255, 255]);
        writer.u32(9, u32::MAX);
    });
    writer.end_message(mark);

    let mark = writer.begin_message(35, 2, 1);
    writer.raw(&[5, 1, 0, 0]);
    writer.nest(2, |writer| {
        writer.attribute(1, &[10, 244, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        writer.u16(2, 8080);
        writer.u32_host(4, 1);
        writer.u16_host(11, 2);
    });
    writer.end_message(mark);

    let mark = writer.begin_message(35, 0, 1);
    writer.raw(&[12, 1, 0, 0]);
    writer.u32_host(4, 900);
    writer.end_message(mark);
    writer.into_bytes()
}

/// Where to change bytes, and to what; positions are taken modulo the length.
fn mutations() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((any::<usize>(), any::<u8>()), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        decode_everything(&bytes);
    }

    #[test]
    fn random_attributes_do_no_harm(
        kind in prop_oneof![(0x0a00_u16..0x0a20), Just(0x0100_u16), 0_u16..24, Just(0x0700_u16), Just(0x0607_u16), Just(35_u16)],
        flags in any::<u16>(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut writer = Writer::new();
        let mark = writer.begin_message(kind, flags, 1);
        writer.raw(&bytes);
        writer.end_message(mark);
        decode_everything(writer.bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_messages_do_no_harm(
        transaction in values::transaction(),
        mutations in mutations(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = genuine(&transaction);
        decode_everything(&bytes);
        let length = bytes.len();
        for (position, value) in mutations {
            bytes[position % length] = value;
        }
        decode_everything(&bytes);
        bytes.truncate(cut.index(length));
        decode_everything(&bytes);
    }

    #[test]
    fn what_is_encoded_decodes_back(transaction in values::transaction()) {
        let batch = Batch::encode(&transaction).unwrap();
        let messages: Vec<_> = Messages::new(batch.bytes()).collect::<Result<_, _>>().unwrap();
        // Without the marks of begin and end, which have no subsystem.
        let subjects = messages.iter().filter_map(|message| Event::decode(message).unwrap());
        let mut objects = transaction.operations().iter().map(|operation| &operation.object);
        for event in subjects {
            match (event.subject, objects.next().unwrap()) {
                (Subject::Table(found), Object::Table(made)) => prop_assert_eq!(&found.object, made),
                (Subject::Chain(found), Object::Chain(made)) => prop_assert_eq!(&found.object, made),
                (Subject::Rule(found), Object::Rule { rule: made, .. }) => {
                    // Printing must cope with registers that no rule of ours would use.
                    let _ = found.object.to_string();
                    prop_assert_eq!(&found.object, made);
                }
                (Subject::Set(found), Object::Set(made)) => prop_assert_eq!(&found.object, &**made),
                (Subject::Elements(found), Object::Elements { set, elements }) => {
                    prop_assert_eq!(&found.set, &set.name);
                    prop_assert_eq!(found.elements, elements.iter().collect::<Vec<_>>());
                }
                (Subject::Counter(found), Object::Counter(made)) => prop_assert_eq!(&found.object, made),
                (found, made) => prop_assert!(false, "{found:?} for {made:?}"),
            }
        }
        prop_assert!(objects.next().is_none());
    }
}

//! Every decoder on the same bytes; used by the property tests and by the fuzz target.

use portwarden_netlink::conntrack::Flow;
use portwarden_netlink::ipset::{Listed, SetType};
use portwarden_netlink::ipvs;
use portwarden_netlink::nfacct::Counted;
use portwarden_netlink::nftables::{Batch, Elements, Event, Set, Subject, Transaction};
use portwarden_netlink::route::RouteChange;
use portwarden_netlink::socket::error_answer;
use portwarden_netlink::wire::Messages;
use std::sync::Arc;

/// Decodes a datagram in all ways; what comes out is printed and encoded again. Nothing may panic.
pub(crate) fn decode_everything(datagram: &[u8]) {
    for message in Messages::new(datagram).flatten() {
        let _ = error_answer(&message);
        let _ = Flow::decode(&message);
        let _ = RouteChange::decode(&message);
        let _ = Counted::decode(&message);
        let _ = ipvs::decode(&message);
        for kind in [
            SetType::HashIp,
            SetType::HashIpPort,
            SetType::HashIpPortIp,
            SetType::HashIpPortNet,
            SetType::BitmapPort,
        ] {
            let _ = Listed::decode(&message, kind);
        }
        if let Ok(Some(event)) = Event::decode(&message) {
            print_and_encode(event.subject);
        }
    }
}

fn print_and_encode(subject: Subject) {
    let mut transaction = Transaction::new();
    match subject {
        Subject::Table(table) => transaction.add(table.object),
        Subject::Chain(chain) => transaction.add(chain.object),
        Subject::Rule(rule) => transaction.add(rule.object),
        Subject::Set(set) => transaction.add(set.object),
        Subject::Counter(counter) => transaction.add(counter.object),
        Subject::Elements(found) => {
            // The type of the set is not in the message; a wrong one must not matter either.
            use portwarden_netlink::nftables::DataType::{Integer, Ipv4Address, Protocol, Service};
            let set = Set::map(&found.table, found.set, [Ipv4Address, Protocol, Service, Integer], [Service]);
            let elements: Elements = found.elements.iter().map(|element| element.parts()).collect();
            assert_eq!(elements.len(), found.elements.len());
            transaction.add_elements(&Arc::new(set), elements);
        }
        Subject::Generation(_) | Subject::Other { .. } => {}
    }
    let _ = transaction.to_string();
    let _ = Batch::encode(&transaction);
}

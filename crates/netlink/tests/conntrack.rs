//! Conntrack entries of real traffic.
#![allow(clippy::unwrap_used, reason = "tests may unwrap, their helpers too")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::IpFamily;
use portwarden_netlink::conntrack::{Conntrack, Flow};
use portwarden_netlink::nftables::expr::{
    CmpOperator, CtKey, MetaKey, NatKind, PayloadBase, ct_state, ct_status,
};
use portwarden_netlink::nftables::{
    Chain, ChainKind, Client, Expr, Family, Hook, Image, Register, Rule, Table, TableId, Transaction,
};
use portwarden_netlink::socket::Consistency;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

const UDP: u8 = 17;
const SERVICE: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);

/// Lets the kernel track connections, sends UDP for the service to the backend's port, and sets a mark.
fn translate(backend: SocketAddr) {
    run("ip", &["link", "set", "lo", "up"]);
    let table = TableId::new(Family::Ip, "portwarden-test");
    let mut transaction = Transaction::new();
    transaction.add(Table::new(&table));
    transaction.add(Chain::base(&table, "nat-output", ChainKind::Nat, Hook::Output, -100));
    transaction.add(Chain::base(&table, "filter-input", ChainKind::Filter, Hook::Input, 0));
    let (first, second) = (Register::word(0), Register::word(1));
    transaction.add(Rule::new(
        &table,
        "nat-output",
        vec![
            Expr::Meta { key: MetaKey::L4proto, target: first },
            Expr::Cmp { source: first, operator: CmpOperator::Equal, value: vec![UDP] },
            Expr::Payload { base: PayloadBase::Network, offset: 16, length: 4, target: first },
            Expr::Cmp {
                source: first,
                operator: CmpOperator::Equal,
                value: Image::new().ipv4(SERVICE).into(),
            },
            Expr::Immediate { value: Image::new().address(backend.ip()).into(), target: first },
            Expr::Immediate { value: Image::new().port(backend.port()).into(), target: second },
            Expr::Nat {
                kind: NatKind::Destination,
                family: Family::Ip,
                address: Some(first),
                port: Some(second),
                flags: 0,
            },
        ],
    ));
    transaction.add(Rule::new(
        &table,
        "filter-input",
        vec![
            Expr::Ct { key: CtKey::State, direction: None, target: first },
            Expr::Bitwise {
                source: first,
                target: first,
                mask: ct_state::NEW.to_ne_bytes().to_vec(),
                xor: vec![0; 4],
            },
            Expr::Cmp { source: first, operator: CmpOperator::NotEqual, value: vec![0; 4] },
            Expr::Immediate { value: 77_u32.to_ne_bytes().to_vec(), target: first },
            Expr::SetCt { key: CtKey::Mark, direction: None, source: first },
        ],
    ));
    Client::open().unwrap().commit(&transaction).unwrap();
}

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Sends from a new socket through the service, and waits until the backend has it.
fn send(backend: &UdpSocket) -> UdpSocket {
    let client = socket("127.0.0.1:0");
    client.send_to(b"ping", (SERVICE, 53)).unwrap();
    backend.recv_from(&mut [0; 16]).unwrap();
    client
}

fn from_port(port: u16) -> impl Fn(&Flow) -> Option<Flow> {
    move |flow| (flow.original.source_port == port && flow.original.protocol == UDP).then_some(*flow)
}

#[test]
fn flows_are_listed_with_what_was_translated() {
    in_namespace(|| {
        run("ip", &["link", "set", "lo", "up"]);
        let backend = socket("127.0.0.1:0");
        let address = backend.local_addr().unwrap();
        translate(address);
        let client = send(&backend);
        let port = client.local_addr().unwrap().port();

        let mut conntrack = Conntrack::open().unwrap();
        let listing = conntrack.list(IpFamily::Ipv4, from_port(port)).unwrap();
        let [flow] = listing.found.as_slice() else { panic!("one flow, not {listing:?}") };
        assert_eq!((flow.original.destination, flow.original.destination_port), (SERVICE.into(), 53));
        assert_eq!((flow.reply.source, flow.reply.source_port), (address.ip(), address.port()));
        assert_eq!(flow.reply.destination_port, port);
        assert_eq!(flow.status & ct_status::DNAT, ct_status::DNAT);
        assert_eq!((flow.mark, flow.zone), (77, 0));
        assert!(flow.timeout.is_some() && flow.id.is_some());
        assert_eq!(conntrack.list(IpFamily::Ipv6, |flow| Some(*flow)).unwrap().found, []);
    });
}

#[test]
fn only_unwanted_flows_are_deleted() {
    in_namespace(|| {
        run("ip", &["link", "set", "lo", "up"]);
        let backend = socket("127.0.0.1:0");
        translate(backend.local_addr().unwrap());
        let clients: Vec<_> = (0..50).map(|_| send(&backend)).collect();
        let ports: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap().port()).collect();
        let (unwanted, kept) = ports.split_at(20);

        let mut conntrack = Conntrack::open().unwrap();
        let deletion = conntrack
            .delete(IpFamily::Ipv4, |flow| {
                flow.original.protocol == UDP && unwanted.contains(&flow.original.source_port)
            })
            .unwrap();
        assert!(deletion.errors.is_empty(), "{deletion:?}");
        assert_eq!((deletion.deleted, deletion.consistency), (20, Consistency::Complete));
        let listing = conntrack.list(IpFamily::Ipv4, |flow| Some(flow.original.source_port)).unwrap();
        let mut left = listing.found;
        left.retain(|port| ports.contains(port));
        left.sort_unstable();
        let mut kept = kept.to_vec();
        kept.sort_unstable();
        assert_eq!(left, kept);

        let again = conntrack.delete(IpFamily::Ipv4, |flow| unwanted.contains(&flow.original.source_port));
        assert_eq!(again.unwrap().deleted, 0);
    });
}

/// However many are unwanted, only some of them are remembered at a time.
#[test]
fn many_flows_are_deleted_in_several_passes() {
    in_namespace(|| {
        run("ip", &["link", "set", "lo", "up"]);
        let backend = socket("127.0.0.1:0");
        translate(backend.local_addr().unwrap());
        let clients: Vec<_> = (0..50).map(|_| send(&backend)).collect();
        let ports: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap().port()).collect();
        let mut conntrack = Conntrack::open().unwrap().most_at_once(7);
        let deletion =
            conntrack.delete(IpFamily::Ipv4, |flow| ports.contains(&flow.original.source_port)).unwrap();
        assert!(deletion.errors.is_empty(), "{deletion:?}");
        assert_eq!((deletion.deleted, deletion.consistency), (50, Consistency::Complete));
        let left = conntrack.list(IpFamily::Ipv4, |flow| Some(flow.original.source_port)).unwrap().found;
        assert!(!left.iter().any(|port| ports.contains(port)), "{left:?}");
    });
}

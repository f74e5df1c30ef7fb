//! Virtual servers in a real kernel; one without IPVS says so.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{in_namespace, run};
use portwarden_netlink::Errno;
use portwarden_netlink::ipvs::{Change, Ipvs, RealServer, ServerKey, Timeouts, VirtualServer, flags};

#[test]
fn a_kernel_without_ipvs_is_no_error() {
    in_namespace(|| {
        // Where the kernel has it, a new namespace has no virtual servers.
        if let Some(mut ipvs) = Ipvs::open().unwrap() {
            assert_eq!(ipvs.servers().unwrap(), []);
        }
    });
}

fn server(text: &str, protocol: u16) -> VirtualServer {
    let key = ServerKey { address: text.parse().unwrap(), protocol };
    VirtualServer { key, scheduler: "rr".into(), flags: 0, timeout: 0, mask_length: key.full_mask() }
}

/// Without a local routing table the kernel takes every address for a broadcast one.
fn prepare() {
    run("ip", &["link", "set", "lo", "up"]);
}

fn real(text: &str, weight: u32) -> RealServer {
    RealServer::masqueraded(text.parse().unwrap(), weight)
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/uml"]
fn servers_are_written_and_read_back() {
    in_namespace(|| {
        prepare();
        let mut ipvs = Ipvs::open().unwrap().unwrap();
        assert!(ipvs.info().unwrap().connection_table > 0);
        let mut sticky = server("[fd00:10:96::a]:80", 6);
        (sticky.flags, sticky.timeout, sticky.scheduler) = (flags::PERSISTENT, 10_800, "mh".into());
        let mut wanted = vec![server("10.96.0.10:80", 6), server("10.96.0.10:53", 17), sticky];
        wanted.push(server("10.96.0.10:9", 132));
        let changes: Vec<_> = wanted.iter().cloned().map(Change::AddServer).collect();
        assert_eq!(ipvs.apply(&changes).unwrap(), []);
        let mut found = ipvs.servers().unwrap();
        assert!(found.iter().all(|server| server.flags & flags::HASHED != 0));
        found.iter_mut().for_each(|server| server.flags &= !flags::HASHED);
        found.sort_by_key(|server| server.key);
        wanted.sort_by_key(|server| server.key);
        assert_eq!(found, wanted);

        let key = server("10.96.0.10:80", 6).key;
        let sticky = server("[fd00:10:96::a]:80", 6).key;
        let changes = [
            Change::AddReal(key, real("10.244.0.5:8080", 1)),
            Change::AddReal(key, real("10.244.0.6:8080", 1)),
            Change::AddReal(sticky, real("[fd00:10:244::5]:8080", 1)),
            Change::EditReal(key, real("10.244.0.6:8080", 0)),
            Change::AddReal(key, real("10.244.0.5:8080", 1)),
            Change::DeleteReal(key, "10.244.0.9:8080".parse().unwrap()),
        ];
        let refused: Vec<_> =
            ipvs.apply(&changes).unwrap().into_iter().map(|(index, answer)| (index, answer.errno)).collect();
        assert_eq!(refused, [(4, Errno::EEXIST), (5, Errno::ENOENT)]);
        let mut reals = ipvs.real_servers(&key).unwrap();
        reals.sort_by_key(|real| real.address);
        assert_eq!(reals, [real("10.244.0.5:8080", 1), real("10.244.0.6:8080", 0)]);
        assert_eq!(ipvs.real_servers(&sticky).unwrap(), [real("[fd00:10:244::5]:8080", 1)]);
        assert_eq!(ipvs.real_servers(&server("10.96.9.9:1", 6).key).unwrap(), []);

        assert!(ipvs.delete(&key).unwrap());
        assert!(!ipvs.delete(&key).unwrap());
        let mut unknown = server("10.96.0.11:80", 6);
        unknown.scheduler = "nonesuch".into();
        let error = ipvs.add(&unknown).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert!(error.to_string().contains("10.96.0.11:80/TCP"), "{error}");
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/uml"]
fn many_servers_are_listed_whole() {
    in_namespace(|| {
        prepare();
        let mut ipvs = Ipvs::open().unwrap().unwrap();
        let changes: Vec<_> = (0..1_000_u16)
            .flat_map(|number| {
                let server = server(&format!("10.96.{}.{}:80", number / 250, number % 250 + 1), 6);
                let key = server.key;
                let add = (0..3_u16).map(move |real_number| {
                    Change::AddReal(key, real(&format!("10.244.0.{}:8080", real_number + 1), 1))
                });
                [Change::AddServer(server)].into_iter().chain(add)
            })
            .collect();
        assert_eq!(ipvs.apply(&changes).unwrap(), []);
        let servers = ipvs.servers().unwrap();
        assert_eq!(servers.len(), 1_000);
        for server in servers {
            assert_eq!(ipvs.real_servers(&server.key).unwrap().len(), 3);
        }
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/uml"]
fn a_timeout_of_zero_stays() {
    in_namespace(|| {
        let mut ipvs = Ipvs::open().unwrap().unwrap();
        let before = ipvs.timeouts().unwrap();
        ipvs.set_timeouts(Timeouts { tcp: 1_800, tcp_fin: 0, udp: 60 }).unwrap();
        let wanted = Timeouts { tcp: 1_800, tcp_fin: before.tcp_fin, udp: 60 };
        assert_eq!(ipvs.timeouts().unwrap(), wanted);
    });
}

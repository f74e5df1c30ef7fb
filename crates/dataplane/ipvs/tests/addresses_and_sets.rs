//! Service addresses that other devices bear, and sets that are full. Needs a kernel with IPVS: `scripts/test-uml`.

mod common;

use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use common::{Node, written};
use portwarden_model::{Family, Notification};
use portwarden_netlink::ipset::{Entry, Operation, Sets};
use portwarden_testkit::build::{PortBuilder, port, service};

fn http() -> Vec<PortBuilder> {
    vec![port(8080)]
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn an_address_that_another_device_gets_leaves_ours() -> Result<()> {
    let mut node = Node::new()?;
    node.serve(
        service("web")
            .cluster_ip("10.96.0.10")
            .port(port(80))
            .external_ip("192.0.2.7")
            .ingress("192.0.2.8", None)
            .of_type("LoadBalancer"),
        &[(5, true)],
        http,
    );
    node.full_sync()?;
    let bound = |node: &Node| node.ip("-4 addr show kube-ipvs0");
    ensure!(bound(&node)?.contains("192.0.2.7/32") && bound(&node)?.contains("192.0.2.8/32"));
    // Such as a virtual address of keepalived.
    for ip in ["192.0.2.7", "192.0.2.8"] {
        node.ip(&format!("addr add {ip}/32 dev eth0"))?;
        ensure!(tampered(&node.poll(Instant::now())?), "{ip}: not noticed");
        node.full_sync()?;
        ensure!(!bound(&node)?.contains(ip), "{ip} is still on our device: {}", bound(&node)?);
        ensure!(!node.set("KUBE-IPVS-IPS")?.contains(ip), "the set has what the device has");
        ensure!(node.has_server(&format!("{ip}:80"), 6)?, "the virtual server stays");
        ensure!(node.poll(Instant::now())?.is_empty(), "{ip}: our own change is none of others");
        node.ip(&format!("addr del {ip}/32 dev eth0"))?;
        ensure!(tampered(&node.poll(Instant::now())?), "{ip}: its end was not noticed");
        node.full_sync()?;
        ensure!(bound(&node)?.contains(&format!("{ip}/32")) && node.set("KUBE-IPVS-IPS")?.contains(ip));
    }
    // A cluster address stays on our device in any case.
    node.ip("addr add 10.96.0.10/32 dev eth0")?;
    node.full_sync()?;
    ensure!(bound(&node)?.contains("10.96.0.10/32"));
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn a_loopback_external_address_is_bound() -> Result<()> {
    let mut node = Node::new()?;
    let web = || service("web").cluster_ip("10.96.0.10").port(port(80));
    node.serve(web().external_ip("127.0.0.7"), &[(5, true)], http);
    node.full_sync()?;
    let found = node.ip("addr show kube-ipvs0")?;
    ensure!(found.contains(" 127.0.0.7/32 "), "{found}");
    ensure!(node.has_server("127.0.0.7:80", 6)?);
    ensure!(node.poll(Instant::now())?.is_empty(), "our own changes are none of others");
    ensure!(written(&node.full_sync()?) == 0);
    node.apply(web());
    node.sync()?;
    let found = node.ip("addr show kube-ipvs0")?;
    ensure!(!found.contains("127.0.0.7/"), "{found}");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn an_address_that_no_device_can_bear_costs_only_its_service() -> Result<()> {
    let mut node = Node::new()?;
    let web = service("web").cluster_ip("fd00:10:96::10").port(port(80)).of_type("ClusterIP");
    node.serve(web, &[(5, true)], http);
    node.full_sync()?;
    // The kernel binds ::1 to the loopback device only.
    let odd = service("odd").cluster_ip("fd00:10:96::20").port(port(80));
    node.serve(odd.ingress("::1", None).of_type("LoadBalancer"), &[(6, true)], http);
    let new = service("new").cluster_ip("fd00:10:96::30").port(port(80)).of_type("ClusterIP");
    node.serve(new, &[(7, true)], http);
    for report in [node.sync()?, node.full_sync()?] {
        let [refused] = &report[Family::V6].refused[..] else { bail!("{report:?}") };
        ensure!(refused.service.as_str() == "demo/odd", "{refused:?}");
        ensure!(
            refused.reason.starts_with("the kernel refused the address ::1 on kube-ipvs0"),
            "{refused:?}"
        );
    }
    let found = node.ip("-6 addr show kube-ipvs0")?;
    for ip in ["fd00:10:96::10", "fd00:10:96::20", "fd00:10:96::30"] {
        ensure!(found.contains(&format!(" {ip}/128 ")), "{ip}: {found}");
    }
    ensure!(node.poll(Instant::now())?.is_empty(), "nothing was changed by others");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn a_full_set_costs_only_the_services_that_do_not_fit() -> Result<()> {
    let mut node = Node::new()?;
    let web = service("web").cluster_ip("10.96.0.10").port(port(80)).of_type("ClusterIP");
    node.serve(web, &[(5, true)], http);
    node.full_sync()?;
    // The kernel counts by parts of the set; only when all of them are full does it refuse whatever comes.
    let fill: Vec<Entry> = (0..80_000_u32)
        .map(|number| Entry::IpPort(Ipv4Addr::from(0xac10_0000 + number).into(), 6, 80))
        .collect();
    let refused =
        node.namespace.run(|| Ok(Sets::open()?.change("KUBE-CLUSTER-IP", Operation::Add, &fill)?))?;
    ensure!(!refused.is_empty(), "the set is not full");
    let late = service("late").cluster_ip("10.96.0.20").port(port(80)).of_type("ClusterIP");
    node.serve(late, &[(6, true)], http);
    let report = node.sync()?;
    let [refused] = &report[Family::V4].refused[..] else { bail!("{report:?}") };
    ensure!(refused.service.as_str() == "demo/late", "{refused:?}");
    ensure!(refused.reason.contains("KUBE-CLUSTER-IP: the set is full"), "{refused:?}");
    ensure!(node.has_server("10.96.0.20:80", 6)? && node.has_server("10.96.0.10:80", 6)?);
    // Another Service whose entries are there changes as ever.
    node.endpoints("web", &[(5, true), (7, false)], http);
    node.sync()?;
    ensure!(node.weights("10.96.0.10:80")?.len() == 2);
    // The comparison removes what nothing wants, and then there is room.
    node.full_sync()?;
    let report = node.full_sync()?;
    ensure!(report[Family::V4].refused.is_empty(), "{report:?}");
    let entries = node.set("KUBE-CLUSTER-IP")?;
    ensure!(entries.contains("10.96.0.10,tcp:80") && entries.contains("10.96.0.20,tcp:80"), "{entries}");
    ensure!(written(&node.full_sync()?) == 0);
    Ok(())
}

fn tampered(notifications: &[Notification]) -> bool {
    notifications.iter().any(|n| matches!(n, Notification::Tampered { family: Family::V4, .. }))
}

//! The rules in the kernel are kube-proxy's, as `iptables-save` prints them. Needs a kernel with IPVS: `scripts/test-uml`.

mod common;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use common::{Node, options, settings};
use portwarden_model::{DetectLocal, Family, Settings};
use portwarden_testkit::build::{PortBuilder, ServiceBuilder, port, service};

/// Every kind of frontend, policy and protocol.
fn everything(node: &mut Node) {
    let exposed = |name: &str, number: u8| -> ServiceBuilder {
        service(name)
            .cluster_ip(format!("10.96.0.{number}"))
            .cluster_ip(format!("fd00:10:96::{number}"))
            .external_ip(format!("192.0.2.{number}"))
            .external_ip(format!("2001:db8:2::{number}"))
            .vip(format!("198.51.100.{number}"))
            .vip(format!("2001:db8:51::{number}"))
            .of_type("LoadBalancer")
    };
    let ports = |first: u16| {
        vec![
            port(80).name("tcp").node_port(first),
            port(53).name("udp").udp().node_port(first + 1),
            port(36412).name("sctp").sctp().node_port(first + 2),
        ]
    };
    fn targets() -> Vec<PortBuilder> {
        vec![port(8080).name("tcp"), port(5353).name("udp").udp(), port(3868).name("sctp").sctp()]
    }
    let cluster = ports(30080).into_iter().fold(exposed("cluster", 10), ServiceBuilder::port);
    node.serve(cluster, &[(5, true), (6, false)], targets);
    let local = ports(30090).into_iter().fold(exposed("local", 11), ServiceBuilder::port);
    node.serve(local.external_policy_local().health_check_node_port(32000), &[(5, true)], targets);
    // One range holds the node's address, the other does not.
    let inside =
        exposed("inside", 12).port(port(80)).source_range("192.168.0.0/16").source_range("fd00:192:168::/48");
    node.serve(inside, &[(5, true)], || vec![port(8080)]);
    let outside =
        exposed("outside", 13).port(port(80)).source_range("203.0.113.0/24").source_range("2001:db8::/32");
    node.serve(outside, &[(5, true)], || vec![port(8080)]);
}

fn check(name: &str, settings: Settings, fill: impl Fn(&mut Node)) -> Result<()> {
    let mut node = Node::with(settings, options())?;
    fill(&mut node);
    node.full_sync()?;
    for family in Family::BOTH {
        let mut found = String::new();
        for table in ["nat", "filter"] {
            let saved = node.save(family, table)?;
            let rules = saved.lines().filter(|line| line.starts_with("-A "));
            found.push_str(&format!("*{table}\n"));
            rules.for_each(|rule| found.push_str(&format!("{rule}\n")));
        }
        let suffix = if family == Family::V4 { "4" } else { "6" };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}-{suffix}.rules"));
        let expected = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ensure!(found == expected, "{}:\n{found}", path.display());
    }
    let again = node.full_sync()?;
    ensure!(common::written(&again) == 0, "what is printed is what was written: {again:?}");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn without_services() -> Result<()> {
    check("empty", settings(), |_| {})
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn with_every_kind_of_service() -> Result<()> {
    check("everything", settings(), everything)
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn with_everything_masqueraded() -> Result<()> {
    let settings = Settings { masquerade_all: true, ..settings() };
    check("masquerade-all", settings, |node| {
        node.serve(
            service("web").cluster_ip("10.96.0.10").cluster_ip("fd00:10:96::10").port(port(80)),
            &[],
            || vec![port(8080)],
        );
    })
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn with_pods_that_cannot_be_identified() -> Result<()> {
    let settings = Settings { detect_local: DetectLocal::Off, ..settings() };
    check("detect-local-off", settings, |node| {
        node.serve(
            service("web").cluster_ip("10.96.0.10").cluster_ip("fd00:10:96::10").port(port(80)),
            &[],
            || vec![port(8080)],
        );
    })
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn with_pods_behind_devices() -> Result<()> {
    let settings = Settings { detect_local: DetectLocal::InterfaceNamePrefix("veth".into()), ..settings() };
    check("interface-prefix", settings, |node| {
        node.serve(
            service("web").cluster_ip("10.96.0.10").cluster_ip("fd00:10:96::10").port(port(80)),
            &[],
            || vec![port(8080)],
        );
    })
}

//! An older release is replaced by this one and back again, under open and new connections, and reads the same configuration.
//!
//! `make upgrade-test` builds the older release and names it in `PORTWARDEN_OLD`; without it there is nothing to test.

mod support;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portwarden_model::Family;
use portwarden_testkit::Transport;
use portwarden_testkit::probe::{Exchanging, Load};
use portwarden_testkit::topology::addresses::{NODE, SERVICE_CIDR};
use support::{Rig, TIMEOUT, cluster_cidr, node, service, slice};

const PORT: u16 = 8080;
const NODE_PORT: u16 = 30080;
/// How often each release replaces the other.
const ROUNDS: usize = 3;

#[test]
#[ignore = "needs an older release: make upgrade-test"]
fn nobody_notices_an_upgrade_in_nftables_mode() -> Result<()> {
    upgrade("nftables", None)
}

#[test]
#[ignore = "needs an older release: make upgrade-test"]
fn nobody_notices_an_upgrade_in_iptables_mode_with_nft() -> Result<()> {
    upgrade("iptables", Some("nft"))
}

#[test]
#[ignore = "needs an older release: make upgrade-test"]
fn nobody_notices_an_upgrade_in_iptables_mode_with_legacy() -> Result<()> {
    upgrade("iptables", Some("legacy"))
}

fn upgrade(mode: &str, variant: Option<&str>) -> Result<()> {
    let old =
        std::env::var("PORTWARDEN_OLD").context("PORTWARDEN_OLD names no program; run make upgrade-test")?;
    let new = std::env::var("PORTWARDEN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_portwarden").to_owned());
    let mut rig = Rig::new()?;
    if let Some(variant) = variant {
        rig.use_iptables(variant)?;
    }
    write_objects(&rig)?;
    write_configuration(&rig, mode)?;
    start(&mut rig, &old)?;

    let loads = new_connections(&rig)?;
    let established = open_connections(&rig)?;
    for _ in 0..ROUNDS {
        for release in [&new, &old] {
            ensure!(rig.stop()?.success(), "it ends well");
            start(&mut rig, release)?;
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    ensure!(rig.stop()?.success(), "it ends well");
    start(&mut rig, &new)?;
    for (what, load) in loads {
        load.wait_for(TIMEOUT, "answers", |tally| tally.answered() > 100)?;
        let tally = load.stop()?;
        println!("{mode}: new connections to {what}: {tally}");
        ensure!(tally.failed() == 0, "new connections to {what} during the upgrades: {tally}");
    }
    for (connection, host) in established {
        let tally = connection.stop()?;
        let always = tally.failed() == 0 && tally.answered_by().keys().all(|answered| *answered == host);
        println!("{mode}: an open connection to {host}: {tally}");
        ensure!(always && tally.answered() > 0, "an open connection to {host}: {tally}");
    }
    Ok(())
}

/// A Service with endpoints on this and on another node, reachable at its cluster address and its node port.
fn write_objects(rig: &Rig) -> Result<()> {
    let ip = SERVICE_CIDR.host(20);
    let mut objects = vec![node()];
    objects.push(service("web", &ip.v4.to_string(), &ip.v6.to_string(), "TCP", "  type: NodePort\n"));
    let hosts: Vec<_> = rig.topology.pods().iter().chain(rig.topology.remote_pods()).collect();
    for host in &hosts {
        host.serve(Transport::Tcp, PORT)?;
    }
    for family in Family::BOTH {
        let endpoints: Vec<(IpAddr, &str)> = hosts
            .iter()
            .map(|host| match family {
                Family::V4 => (host.ip().v4.into(), "node-a"),
                Family::V6 => (host.ip().v6.into(), "node-a"),
            })
            .collect();
        objects.push(slice("web", "TCP", &endpoints, PORT));
    }
    rig.objects(&objects)
}

/// A file with fields that the older release knows, in every section of the mode.
fn write_configuration(rig: &Rig, mode: &str) -> Result<()> {
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
         clusterCIDR: {}\nhostnameOverride: node-a\nnodePortAddresses: []\n\
         conntrack: {{maxPerCore: 0}}\nlogging: {{verbosity: 2}}\n\
         {mode}: {{masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 30s}}\n",
        cluster_cidr()
    );
    rig.write("config.yaml", &text)
}

/// Starts a release with that file and waits until it has synced both families.
fn start(rig: &mut Rig, release: &str) -> Result<()> {
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let config = format!("--config={}", rig.path("config.yaml").display());
    let command = rig.command(release).args([config.as_str(), manifests.as_str()]);
    rig.start_command(command)?;
    for family in ["IPv4", "IPv6"] {
        let series = format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}");
        rig.wait_until("the first sync", || Ok(rig.metric(&series)? > 0.0))?;
    }
    Ok(())
}

fn addresses() -> Vec<(&'static str, SocketAddr)> {
    let cluster = SERVICE_CIDR.host(20);
    vec![
        ("the cluster address", SocketAddr::new(cluster.v4.into(), 80)),
        ("the cluster address in IPv6", SocketAddr::new(cluster.v6.into(), 80)),
        ("the node port", SocketAddr::new(NODE.v4.into(), NODE_PORT)),
        ("the node port in IPv6", SocketAddr::new(NODE.v6.into(), NODE_PORT)),
    ]
}

/// New connections all the time: from a pod to the cluster address, from outside to the node port.
fn new_connections(rig: &Rig) -> Result<Vec<(&'static str, Load)>> {
    let mut loads = Vec::new();
    for (what, address) in addresses() {
        let client =
            if address.port() == NODE_PORT { rig.topology.outside() } else { &rig.topology.pods()[0] };
        loads.push((what, client.probe().load(Transport::Tcp, address, 50)?));
    }
    Ok(loads)
}

/// Connections that are in use all the time, and the hosts that answer them.
fn open_connections(rig: &Rig) -> Result<Vec<(Exchanging, String)>> {
    let mut connections = Vec::new();
    for (_, address) in addresses() {
        let client =
            if address.port() == NODE_PORT { rig.topology.outside() } else { &rig.topology.pods()[0] };
        let (connection, first) = client.probe().open(Transport::Tcp, address)?;
        let host = first.host().with_context(|| format!("an answer: {first}"))?.to_owned();
        connections.push((connection.keep_exchanging(Duration::from_millis(5))?, host));
    }
    Ok(connections)
}

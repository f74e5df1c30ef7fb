//! The program in mode ipvs: what it says on a kernel without IPVS, and, on one that has it (`scripts/test-uml`), how the mode begins, how other
//! modes take over from it, and what is removed.

mod support;

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use portwarden_testkit::probe::Connection;
use support::{HEALTH, Rig, node, service, slice};

const SERVERS: &str = "-A -t 10.96.0.10:80 -s rr\n\
                       -a -t 10.96.0.10:80 -r 10.244.0.5:8080 -m\n\
                       -A -u 10.96.0.53:53 -s rr\n\
                       -A -t [fd00:10:96::a]:80 -s rr\n\
                       -A -t 172.16.0.1:443 -s rr\n\
                       -A -t 10.99.0.1:443 -s rr\n\
                       -A -f 7 -s rr\n";

#[test]
fn a_kernel_without_ipvs_is_reported_with_advice() -> Result<()> {
    let rig = Rig::new()?;
    rig.write("manifests/objects.yaml", "")?;
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let error = rig.program().args(["--proxy-mode=ipvs", "--hostname-override=node-a", &manifests]).run();
    let text = format!("{:#}", error.err().context("it started")?);
    ensure!(text.contains("mode ipvs is deprecated") && text.contains("this kernel has no IPVS"), "{text}");
    ensure!(text.contains("modprobe ip_vs") && text.contains("--proxy-mode=nftables"), "{text}");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn virtual_servers_go_with_their_device_and_others_stay() -> Result<()> {
    let rig = Rig::new()?;
    let node = rig.node();
    let servers = || node.command("ipvsadm").args(["-S", "-n"]).run();
    node.command("ipvsadm").arg("-R").input(SERVERS).run()?;
    rig.write(
        "config.yaml",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nipvs:\n  excludeCIDRs: [172.16.0.0/12]\n",
    )?;
    let config = format!("--config={}", rig.path("config.yaml").display());
    let before = servers()?;
    rig.program().args(["--cleanup", &config]).run()?;
    ensure!(servers()? == before, "without the device they are another program's: {}", servers()?);

    node.command("ip").args(["link", "add", "kube-ipvs0", "type", "dummy"]).run()?;
    for ip in ["10.96.0.10/32", "10.96.0.53/32", "fd00:10:96::a/128", "172.16.0.1/32"] {
        node.command("ip").args(["addr", "add", ip, "dev", "kube-ipvs0"]).run()?;
    }
    rig.program().args(["--cleanup", &config]).run()?;
    let left = servers()?;
    let left: Vec<&str> = left.lines().filter(|line| line.starts_with("-A")).collect();
    ensure!(left.len() == 3, "{left:?}");
    ensure!(left.iter().any(|line| line.contains("172.16.0.1:443")), "excluded: {left:?}");
    ensure!(left.iter().any(|line| line.contains("10.99.0.1:443")), "not on the device: {left:?}");
    ensure!(left.iter().any(|line| line.starts_with("-A -f 7")), "of a packet mark: {left:?}");
    ensure!(node.command("ip").args(["link", "show", "kube-ipvs0"]).run().is_err(), "the device is gone");
    Ok(())
}

/// Two pods behind a Service with a cluster IP and a node port.
fn objects(rig: &Rig) -> Vec<String> {
    let pods = [0, 1].map(|index| rig.topology.pod(index).ip());
    let v4 = pods.map(|pod| (IpAddr::from(pod.v4), "node-a"));
    let v6 = pods.map(|pod| (IpAddr::from(pod.v6), "node-a"));
    vec![
        node(),
        service("web", "10.96.0.10", "fd00:10:96::10", "TCP", "  type: NodePort\n"),
        slice("web", "TCP", &v4, 8080),
        slice("web", "TCP", &v6, 8080),
    ]
}

const TARGETS: [&str; 2] = ["10.96.0.10:80", "192.168.0.2:30080"];

struct Node {
    rig: Rig,
}

impl Node {
    fn new() -> Result<Node> {
        let rig = Rig::new()?;
        for pod in [0, 1] {
            rig.topology.pod(pod).serve(Transport::Tcp, 8080)?;
        }
        rig.objects(&objects(&rig))?;
        Ok(Node { rig })
    }

    /// Starts the program, after the end of the one before, and waits until it serves.
    fn start(&mut self, mode: &str) -> Result<()> {
        if self.rig.is_running() {
            self.rig.stop()?;
        }
        self.rig.start_mode(mode)?;
        let healthy = || Ok(self.rig.get(HEALTH, "/healthz")?.0 == 200);
        self.rig.wait_until("a healthy program", healthy)?;
        self.rig.wait_until("an answer", || Ok(self.answers().is_ok()))
    }

    fn answers(&self) -> Result<()> {
        for target in TARGETS {
            let outcome = self.rig.topology.outside().probe().tcp(target.parse()?)?;
            ensure!(outcome.is_answered(), "{target}: {outcome}");
        }
        Ok(())
    }

    fn connections(&self) -> Result<Vec<Connection>> {
        let mut all = Vec::new();
        for (host, target) in [
            (self.rig.topology.outside(), TARGETS[0]),
            (self.rig.topology.outside(), TARGETS[1]),
            (self.rig.topology.pod(2), TARGETS[0]),
        ] {
            let (connection, outcome) = host.probe().open(Transport::Tcp, target.parse()?)?;
            ensure!(outcome.is_answered(), "{target}: {outcome}");
            all.push(connection);
        }
        Ok(all)
    }

    fn has_device(&self) -> bool {
        self.rig.node().command("ip").args(["link", "show", "kube-ipvs0"]).run().is_ok()
    }
}

fn still_answered(connections: &mut [Connection], when: &str) -> Result<()> {
    for connection in connections {
        let outcome = connection.exchange()?;
        ensure!(outcome.is_answered(), "{when}: {outcome}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn no_connection_is_lost_from_iptables_to_ipvs_and_back() -> Result<()> {
    let mut node = Node::new()?;
    node.start("iptables")?;
    let mut old = node.connections()?;
    let load = node.rig.topology.outside().probe().load(Transport::Tcp, TARGETS[0].parse()?, 50)?;

    node.start("ipvs")?;
    still_answered(&mut old, "after the change to ipvs")?;
    node.rig.wait_until("the device of ipvs mode", || Ok(node.has_device()))?;
    still_answered(&mut old, "with the device")?;
    node.rig.wait_until("the end of iptables mode's rules", || {
        let saved = node.rig.node().command("iptables-legacy-save").run()?;
        Ok(!saved.contains("KUBE-SVC-") && !saved.contains("KUBE-NODEPORTS"))
    })?;
    node.answers()?;
    still_answered(&mut old, "after the end of iptables mode's rules")?;
    let mut through_ipvs = node.connections()?;

    node.start("iptables")?;
    still_answered(&mut through_ipvs, "after the change to iptables")?;
    let tally = load.stop()?;
    ensure!(tally.failed() == 0 && tally.answered() > 0, "new connections were lost: {tally:?}");
    ensure!(node.has_device(), "it stays while connections pass its virtual servers");
    node.rig.wait_until("the end of ipvs mode's rules", || {
        let saved = node.rig.node().command("iptables-legacy-save").run()?;
        Ok(!saved.contains("KUBE-IPVS-FILTER") && !saved.contains("KUBE-NODE-PORT "))
    })?;
    still_answered(&mut through_ipvs, "after the end of ipvs mode's rules")?;
    Ok(())
}

/// Both modes share names of chains and lead to each other's: one run removes everything.
#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn one_clean_up_removes_everything_of_ipvs_mode() -> Result<()> {
    let mut node = Node::new()?;
    for modes in [["iptables", "ipvs"], ["ipvs", "iptables"]] {
        for mode in modes {
            node.start(mode)?;
        }
        // At once, so that leftovers of the mode before may still be there.
        node.rig.kill();
        node.rig.program().arg("--cleanup").run().with_context(|| format!("after {modes:?}"))?;
        for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
            let saved = node.rig.node().command(program).run()?;
            // The kubelet has that chain, too.
            let left = saved.lines().find(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"));
            ensure!(left.is_none(), "{program} after {modes:?}: {left:?}");
        }
        ensure!(!node.has_device(), "after {modes:?}");
        ensure!(
            !node.rig.node().command("ipset").args(["list", "-n"]).run()?.contains("KUBE-"),
            "after {modes:?}"
        );
    }
    Ok(())
}

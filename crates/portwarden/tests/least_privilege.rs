//! The containers of `deploy/`, each with exactly the privileges that the manifests state, serve traffic.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use portwarden_testkit::apiserver::{ApiServer, Rights};
use portwarden_testkit::build::{endpoint, node, port, service, slice};
use portwarden_testkit::topology::addresses::NODE;
use serde_json::Value;
use support::container::{Container, Image, merge};
use support::{HEALTH, Rig, cluster_cidr};

const WEB: &str = "10.96.0.10";
const NODE_PORT: u16 = 30080;
const TIMEOUT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";

const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;

/// One document of `deploy/`.
fn manifest(file: &str) -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    Ok(serde_saphyr::from_str(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)?)
}

/// The DaemonSet's pod, with a patch on top.
fn pod(patch: Option<&str>) -> Result<Value> {
    let mut set = manifest("daemonset.yaml")?;
    if let Some(file) = patch {
        merge(&mut set, &manifest(file)?)?;
    }
    Ok(set["spec"]["template"]["spec"].clone())
}

/// A node with an API server, and the pod's containers.
struct Deployment {
    rig: Rig,
    server: ApiServer,
    init: Container,
    main: Container,
}

impl Deployment {
    fn new(pod: &Value, mode: &str) -> Result<Deployment> {
        let rig = Rig::new()?;
        let server = {
            let _entered = rig.node().namespace().enter()?;
            ApiServer::builder().tls().user("secret", "system:kube-proxy", Rights::NodeProxier).start()?
        };
        for folder in ["config", "account", "modules"] {
            fs::create_dir(rig.path(folder))?;
        }
        server.service_account(&rig.path("account"), "secret")?;
        let map = manifest("configmap.yaml")?;
        let text = map["data"]["config.conf"].as_str().context("a file")?;
        // The size of the table belongs to the host, not to the namespace of this test.
        let text = format!("{text}conntrack: {{ maxPerCore: 0 }}\n")
            .replace("mode: nftables", &format!("mode: {mode}"))
            .replace("10.244.0.0/16", &cluster_cidr());
        fs::write(rig.path("config/config.conf"), text)?;
        fs::write(rig.path("xtables.lock"), "")?;
        let mut image = Image::new(&rig.path(""), mode != "nftables", &rig.path("account"))?;
        image.volumes = ["config", "modules"].map(|name| (name, rig.path(name))).into();
        image.volumes.push(("xtables-lock", rig.path("xtables.lock")));
        let environment = [
            ("NODE_NAME", "node-a".to_owned()),
            ("KUBERNETES_SERVICE_HOST", server.address().ip().to_string()),
            ("KUBERNETES_SERVICE_PORT", server.address().port().to_string()),
        ];
        let init = image.container(pod, "initContainers", &environment)?;
        let main = image.container(pod, "containers", &environment)?;
        Ok(Deployment { rig, server, init, main })
    }

    /// Runs the init container to its end and starts the other one.
    fn start(&mut self) -> Result<()> {
        self.init.command(&self.rig).run()?;
        self.rig.start_command(self.main.command(&self.rig))
    }

    /// `demo/web`, served by one pod of this node.
    fn serve_from(&self, pod: usize) -> Result<String> {
        let pod = self.rig.topology.pod(pod);
        self.server.apply(node("node-a").ip(NODE.v4).ip(NODE.v6));
        self.server.apply(
            service("web").cluster_ip(WEB).of_type("NodePort").port(port(80).name("p").node_port(NODE_PORT)),
        );
        let endpoint = endpoint(pod.ip().v4).on("node-a");
        self.server.apply(slice("web", "web-1").port(port(8080).name("p")).endpoint(endpoint));
        Ok(pod.name().to_owned())
    }

    /// Lines of `/proc/PID/status` of the program.
    fn status(&self) -> Result<BTreeMap<String, String>> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.main.process_id()?))?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }
}

/// Starts the pod in a mode, changes an endpoint, and stops it.
fn serves_with(mode: &str, patch: Option<&str>, user: &str, capabilities: u64) -> Result<()> {
    let mut deployment = Deployment::new(&pod(patch)?, mode)?;
    for pod in 0..2 {
        deployment.rig.topology.pod(pod).serve(Transport::Tcp, 8080)?;
    }
    let first = deployment.serve_from(0)?;
    deployment.start()?;
    let rig = &deployment.rig;
    rig.wait_for_service(format!("{WEB}:80").parse()?)?;
    let status = deployment.status()?;
    ensure!(status["Uid"].split_whitespace().all(|id| id == user), "{}", status["Uid"]);
    for set in ["CapBnd", "CapPrm", "CapEff"] {
        ensure!(u64::from_str_radix(&status[set], 16)? == capabilities, "{set}: {}", status[set]);
    }
    ensure!(status["CapInh"] == status["CapAmb"] && status["Seccomp"] == "2", "{status:?}");
    ensure!(rig.command("cat").arg(TIMEOUT).run()?.trim() == "86400", "the init container prepares the host");
    let outside = |address: SocketAddr| rig.topology.outside().tcp(address);
    let cluster_ip: SocketAddr = format!("{WEB}:80").parse()?;
    ensure!(outside(SocketAddr::new(NODE.v4.into(), NODE_PORT))?.host() == Some(first.as_str()));
    let second = deployment.serve_from(1)?;
    rig.wait_until("the other pod to answer", || Ok(outside(cluster_ip)?.host() == Some(second.as_str())))?;
    ensure!(rig.get(HEALTH, "/livez")?.0 == 200 && rig.metric("process_open_fds")? > 0.0);
    let log = rig.log();
    // The default of iptables mode, which is remarked upon.
    let complaint =
        |line: &&str| line.starts_with(['E', 'W']) && !line.contains("nodePortAddresses is empty");
    let complaints: Vec<&str> = log.lines().filter(complaint).collect();
    ensure!(complaints.is_empty(), "{complaints:#?}");
    let Deployment { mut rig, .. } = deployment;
    ensure!(rig.stop()?.success(), "{}", rig.log());
    Ok(())
}

#[test]
fn nftables_mode_serves_as_another_user_than_root_with_one_capability() -> Result<()> {
    serves_with("nftables", None, "65534", NET_ADMIN)
}

#[test]
fn iptables_mode_serves_with_two_capabilities() -> Result<()> {
    serves_with("iptables", Some("iptables-patch.yaml"), "0", NET_ADMIN | NET_RAW)
}

#[test]
fn a_missing_capability_is_named() -> Result<()> {
    let mut pod = pod(None)?;
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = Value::Array(Vec::new());
    let deployment = Deployment::new(&pod, "nftables")?;
    let error = deployment.main.command(&deployment.rig).run().err().context("it cannot run")?;
    let text = format!("{error:#}");
    ensure!(text.contains("CAP_NET_ADMIN") && text.contains("command failed"), "{text}");
    Ok(())
}

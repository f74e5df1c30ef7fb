//! A pod of `deploy/` on a node: its containers under runc, an API server, and a Service.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use portwarden_testkit::apiserver::{ApiServer, Rights};
use portwarden_testkit::build::{endpoint, node, port, service, slice};
use portwarden_testkit::topology::addresses::NODE;
use serde_json::Value;

use super::container::{Container, Image};
use super::{HEALTH, Rig, cluster_cidr};

const WEB: &str = "10.96.0.10";
const NODE_PORT: u16 = 30080;
const TIMEOUT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";

pub(crate) const NET_ADMIN: u64 = 1 << 12;
pub(crate) const NET_RAW: u64 = 1 << 13;
pub(crate) const PERFMON: u64 = 1 << 38;
pub(crate) const BPF: u64 = 1 << 39;

/// A node with an API server, and the pod's containers.
pub(crate) struct Deployment {
    pub(crate) rig: Rig,
    pub(crate) server: ApiServer,
    init: Option<Container>,
    pub(crate) main: Container,
}

impl Deployment {
    /// `config` is the file `config.conf` of the pod's ConfigMap; `image` makes the image with the node's temporary folder.
    pub(crate) fn new(
        pod: &Value,
        config: &str,
        image: impl FnOnce(&Rig) -> Result<Image>,
    ) -> Result<Deployment> {
        let rig = Rig::new()?;
        let server = {
            let _entered = rig.node().namespace().enter()?;
            ApiServer::builder().tls().user("secret", "system:kube-proxy", Rights::NodeProxier).start()?
        };
        for folder in ["config", "account", "modules"] {
            fs::create_dir(rig.path(folder))?;
        }
        server.service_account(&rig.path("account"), "secret")?;
        // The size of the table belongs to the host, not to the namespace of this test.
        let config =
            format!("{config}\nconntrack: {{ maxPerCore: 0 }}\n").replace("10.244.0.0/16", &cluster_cidr());
        fs::write(rig.path("config/config.conf"), config)?;
        fs::write(rig.path("config/kubeconfig.conf"), kubeconfig(&server))?;
        fs::write(rig.path("xtables.lock"), "")?;
        let mut image = image(&rig)?;
        for (name, path) in [
            ("config", "config"),
            ("modules", "modules"),
            ("xtables-lock", "xtables.lock"),
            // As kubeadm calls them.
            ("kube-proxy", "config"),
            ("lib-modules", "modules"),
        ] {
            image.volumes.push((name, rig.path(path)));
        }
        // The node is this machine as far as these are concerned.
        image.volumes.extend([("bpf", "/sys/fs/bpf".into()), ("cgroup", "/sys/fs/cgroup".into())]);
        let environment = [
            ("NODE_NAME", "node-a".to_owned()),
            ("KUBERNETES_SERVICE_HOST", server.address().ip().to_string()),
            ("KUBERNETES_SERVICE_PORT", server.address().port().to_string()),
        ];
        let init = pod["initContainers"].is_array();
        let init = init.then(|| image.container(pod, "initContainers", &environment)).transpose()?;
        let main = image.container(pod, "containers", &environment)?;
        Ok(Deployment { rig, server, init, main })
    }

    /// Runs the init container, if there is one, to its end, starts the other one, and waits until it serves `demo/web`.
    pub(crate) fn start(&mut self) -> Result<()> {
        for pod in 0..2 {
            self.rig.topology.pod(pod).serve(Transport::Tcp, 8080)?;
        }
        self.serve_from(0)?;
        if let Some(init) = &self.init {
            init.command(&self.rig).run()?;
        }
        self.rig.start_command(self.main.command(&self.rig))?;
        self.rig.wait_for_service(format!("{WEB}:80").parse()?)
    }

    /// Changes the Service's endpoint, and fails unless traffic follows. Then stops the program.
    pub(crate) fn check_traffic(self) -> Result<()> {
        let rig = &self.rig;
        ensure!(rig.command("cat").arg(TIMEOUT).run()?.trim() == "86400", "the host is prepared");
        let outside = |address: SocketAddr| rig.topology.outside().tcp(address);
        let cluster_ip: SocketAddr = format!("{WEB}:80").parse()?;
        let first = rig.topology.pod(0).name();
        ensure!(outside(SocketAddr::new(NODE.v4.into(), NODE_PORT))?.host() == Some(first));
        self.serve_from(1)?;
        let second = rig.topology.pod(1).name();
        rig.wait_until("the other pod to answer", || Ok(outside(cluster_ip)?.host() == Some(second)))?;
        ensure!(rig.get(HEALTH, "/livez")?.0 == 200 && rig.metric("process_open_fds")? > 0.0);
        let log = rig.log();
        // Defaults of iptables mode, which are remarked upon, and what kube-proxy says about mode ipvs, too.
        let remarks = ["nodePortAddresses is empty", "no proxy mode was chosen", "mode ipvs is deprecated"];
        let complaint =
            |line: &&str| line.starts_with(['E', 'W']) && !remarks.iter().any(|remark| line.contains(remark));
        let complaints: Vec<&str> = log.lines().filter(complaint).collect();
        ensure!(complaints.is_empty(), "{complaints:#?}");
        let Deployment { mut rig, .. } = self;
        ensure!(rig.stop()?.success(), "{}", rig.log());
        Ok(())
    }

    /// Fails unless the program runs as this user, with these capabilities and a filter for system calls.
    pub(crate) fn check_privileges(&self, user: &str, capabilities: u64) -> Result<()> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.main.process_id()?))?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let status: BTreeMap<&str, &str> = lines.map(|(name, value)| (name, value.trim())).collect();
        ensure!(status["Uid"].split_whitespace().all(|id| id == user), "{}", status["Uid"]);
        for set in ["CapBnd", "CapPrm", "CapEff"] {
            ensure!(u64::from_str_radix(status[set], 16)? == capabilities, "{set}: {}", status[set]);
        }
        ensure!(status["CapInh"] == status["CapAmb"] && status["Seccomp"] == "2", "{status:?}");
        Ok(())
    }

    /// `demo/web`, served by one pod of this node.
    fn serve_from(&self, pod: usize) -> Result<()> {
        let pod = self.rig.topology.pod(pod);
        self.server.apply(node("node-a").ip(NODE.v4).ip(NODE.v6));
        self.server.apply(
            service("web").cluster_ip(WEB).of_type("NodePort").port(port(80).name("p").node_port(NODE_PORT)),
        );
        let endpoint = endpoint(pod.ip().v4).on("node-a");
        self.server.apply(slice("web", "web-1").port(port(8080).name("p")).endpoint(endpoint));
        Ok(())
    }
}

/// What kubeadm puts beside the configuration: the server's address, and the pod's service account.
fn kubeconfig(server: &ApiServer) -> String {
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: default\n  cluster:\n    certificate-authority: {account}/ca.crt\n    \
         server: https://{}\ncontexts:\n- name: default\n  context: {{cluster: default, namespace: default, user: default}}\n\
         current-context: default\nusers:\n- name: default\n  user: {{tokenFile: {account}/token}}\n",
        server.address()
    )
}

/// The file in a ConfigMap.
pub(crate) fn config_file(map: &Value) -> Result<String> {
    Ok(map["data"]["config.conf"].as_str().context("config.conf")?.to_owned())
}

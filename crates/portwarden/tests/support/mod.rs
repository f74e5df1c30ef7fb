//! The real program in a real node made of namespaces.

#![allow(dead_code, reason = "every test file uses its own part of this")]

pub(crate) mod container;
pub(crate) mod deployment;
pub(crate) mod rendered;

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portwarden_testkit::netns::{NamespaceCommand, Process};
use portwarden_testkit::{Host, Topology, wait};

/// Long enough for anything on a loaded machine; nothing waits for it when all is well.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Where the program's servers listen on the node.
pub(crate) const HEALTH: u16 = 10256;
pub(crate) const METRICS: u16 = 10249;
pub(crate) const PAGE: u16 = 10266;

/// A node with the program on it.
pub(crate) struct Rig {
    pub(crate) topology: Topology,
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, OsString)>,
    process: Option<Process>,
}

impl Rig {
    /// A node with three pods, two more on another node, and no program yet.
    pub(crate) fn new() -> Result<Self> {
        let topology = Topology::builder().pods(3).remote_pods(2).build()?;
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("manifests"))?;
        Ok(Rig { topology, folder, environment: Vec::new(), process: None })
    }

    pub(crate) fn node(&self) -> &Host {
        self.topology.node()
    }

    /// Puts objects in place of all that were there.
    pub(crate) fn objects(&self, objects: &[String]) -> Result<()> {
        self.write("manifests/objects.yaml", &objects.join("---\n"))
    }

    /// Writes a file below the test's folder, in one step.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        let target = self.folder.path().join(path);
        let fresh = self.folder.path().join(".fresh");
        fs::write(&fresh, text)?;
        Ok(fs::rename(fresh, target)?)
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Starts the program with the test's manifests.
    pub(crate) fn start(&mut self, arguments: &[&str]) -> Result<()> {
        let manifests = format!("--manifests={}", self.path("manifests").display());
        self.start_following(&[&[manifests.as_str()], arguments].concat())
    }

    /// Starts the program with a source of the caller's choice; its log is kept for [`Rig::log`].
    pub(crate) fn start_following(&mut self, arguments: &[&str]) -> Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.path("log"))?;
        self.start_logging_to(log, arguments)
    }

    /// Starts the program with a source and a log of the caller's choice.
    pub(crate) fn start_logging_to(&mut self, log: fs::File, arguments: &[&str]) -> Result<()> {
        let command =
            self.program().args(["--hostname-override=node-a", "--conntrack-max-per-core=0"]).args(arguments);
        self.process = Some(command.spawn_logging(log)?);
        Ok(())
    }

    /// Starts another command in the place of the program.
    pub(crate) fn start_command(&mut self, command: NamespaceCommand) -> Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.path("log"))?;
        self.process = Some(command.spawn_logging(log)?);
        Ok(())
    }

    /// Sets a variable in the environment of everything that [`Rig::program`] and [`Rig::command`] run from now on.
    pub(crate) fn env(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.environment.push((name, value.into()));
    }

    /// Makes a variant of iptables (`nft` or `legacy`) the one that [`Rig::program`] and [`Rig::command`] find, in the folder `bin`, with
    /// a lock of its own.
    pub(crate) fn use_iptables(&mut self, variant: &str) -> Result<()> {
        fs::create_dir(self.path("bin"))?;
        for program in ["iptables", "ip6tables"] {
            for kind in ["", "-save", "-restore"] {
                self.link_iptables(program, variant, kind)?;
            }
        }
        self.env("XTABLES_LOCKFILE", self.path("xtables.lock"));
        Ok(())
    }

    /// Puts one of these programs (kind `""`, `-save` or `-restore`) where [`Rig::use_iptables`] has them.
    pub(crate) fn link_iptables(&self, program: &str, variant: &str, kind: &str) -> Result<()> {
        let target = find(&format!("{program}-{variant}{kind}"))?;
        let fresh = self.path(".link");
        symlink(target, &fresh)?;
        Ok(fs::rename(fresh, self.path("bin").join(format!("{program}{kind}")))?)
    }

    /// The program on the node, yet without arguments. `PORTWARDEN` names another binary than the one of this build.
    pub(crate) fn program(&self) -> NamespaceCommand {
        let other = std::env::var("PORTWARDEN").ok();
        self.command(other.as_deref().unwrap_or(env!("CARGO_BIN_EXE_portwarden")))
    }

    /// Another program on the node.
    pub(crate) fn command(&self, program: &str) -> NamespaceCommand {
        let bin = self.path("bin");
        let mut command = self.node().command(program);
        if bin.exists() {
            command = command.mount(bin, "/usr/local/sbin");
        }
        let environment = self.environment.iter();
        environment.fold(command, |command, (name, value)| command.env(name, value))
    }

    /// Starts it in a mode, with the cluster's ranges.
    pub(crate) fn start_mode(&mut self, mode: &str) -> Result<()> {
        let cidr = cluster_cidr();
        self.start(&["--proxy-mode", mode, "--cluster-cidr", &cidr, "-v=2"])
    }

    /// Asks the program to stop and returns its exit status.
    pub(crate) fn stop(&mut self) -> Result<ExitStatus> {
        self.process.take().context("it runs")?.terminate(TIMEOUT)
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_running)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.process.as_ref().context("it runs")?.id();
        Ok(kill(Pid::from_raw(i32::try_from(id)?), signal)?)
    }

    /// Everything it logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits for a line of its log.
    pub(crate) fn wait_for_log(&self, text: &str) -> Result<()> {
        let found =
            wait::until(TIMEOUT, &format!("{text:?} in the log"), || self.log().contains(text).then_some(()));
        found.with_context(|| self.log())
    }

    /// Asks one of its servers on the node.
    pub(crate) fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        let address = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port);
        let path = path.to_owned();
        self.node().namespace().run(move || get(address, &path))
    }

    /// One metric's value.
    pub(crate) fn metric(&self, series: &str) -> Result<f64> {
        let (_, text) = self.get(METRICS, "/metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("no {series} in {text}"))?.parse()?)
    }

    /// Waits until something answers as it should.
    pub(crate) fn wait_until(&self, what: &str, mut check: impl FnMut() -> Result<bool>) -> Result<()> {
        let found = wait::until(TIMEOUT, what, || matches!(check(), Ok(true)).then_some(()));
        found.with_context(|| self.log())
    }

    /// Waits until the node itself gets an answer from a Service.
    pub(crate) fn wait_for_service(&self, address: SocketAddr) -> Result<()> {
        self.wait_until(&format!("an answer from {address}"), || {
            Ok(self.node().probe().short_timeout().tcp(address)?.is_answered())
        })
    }
}

/// Where a program is installed.
fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").context("PATH is set")?;
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files.find(|file| file.exists()).with_context(|| format!("{program} is not installed; install iptables"))
}

pub(crate) fn cluster_cidr() -> String {
    let cidr = portwarden_testkit::topology::addresses::CLUSTER_CIDR;
    format!("{},{}", cidr.v4, cidr.v6)
}

/// Asks a server, and returns the status and the body of the answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// The Node, with its addresses.
pub(crate) fn node() -> String {
    let ip = portwarden_testkit::topology::addresses::NODE;
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\nstatus: {{addresses: [{{type: InternalIP, address: \"{}\"}}, {{type: InternalIP, address: \"{}\"}}]}}\n",
        ip.v4, ip.v6
    )
}

/// A Service of both families; `spec` is added to its spec.
pub(crate) fn service(name: &str, v4: &str, v6: &str, protocol: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: demo}}\nspec:\n  clusterIP: \"{v4}\"\n  clusterIPs: [\"{v4}\", \"{v6}\"]\n  \
         ipFamilies: [IPv4, IPv6]\n{spec}  ports: [{{name: p, port: 80, protocol: {protocol}{}}}]\n",
        if spec.contains("NodePort") || spec.contains("LoadBalancer") { ", nodePort: 30080" } else { "" }
    )
}

/// A Service's slice in one family; each endpoint is an address and whether it is ready.
pub(crate) fn slice(service: &str, protocol: &str, endpoints: &[(IpAddr, &str)], port: u16) -> String {
    let v6 = endpoints.first().is_some_and(|(ip, _)| ip.is_ipv6());
    let kind = if v6 { "IPv6" } else { "IPv4" };
    let lines: Vec<String> = endpoints
        .iter()
        .map(|(ip, node)| {
            format!("- {{addresses: [\"{ip}\"], conditions: {{ready: true}}, nodeName: {node}}}\n")
        })
        .collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {service}-{}, namespace: demo, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: {kind}\nports: [{{name: p, port: {port}, protocol: {protocol}}}]\nendpoints:\n{}",
        kind.to_lowercase(),
        if lines.is_empty() { "[]\n".to_owned() } else { lines.concat() }
    )
}

/// Fails unless a folder or file is there.
pub(crate) fn exists(path: &Path) -> Result<()> {
    ensure!(path.exists(), "{} is missing", path.display());
    Ok(())
}

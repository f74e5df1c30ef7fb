//! `make demo`: a small cluster in network namespaces, served by the release binary, shown live in the terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portwarden_testkit::netns::Process;
use portwarden_testkit::probe::Load;
use portwarden_testkit::{Host, Topology, Transport, wait};

/// Pods 0 to 4 can serve the web; pod 5 answers UDP.
const WEB_PODS: u8 = 5;
const TIMEOUT: Duration = Duration::from_secs(30);

/// What Portwarden is started with, besides manifests and mode.
const SETTINGS: &[&str] = &[
    "--hostname-override=node-a",
    "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
    "--nodeport-addresses=primary",
];

fn main() -> Result<()> {
    let demo = Demo::start()?;
    demo.show().inspect_err(|_| {
        let log = std::fs::read_to_string(demo.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!(
            "\nThe end of Portwarden's log:\n{}\n",
            lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
        );
    })?;
    demo.finish()
}

/// Lines of the log that a failure shows.
const LOG_LINES: usize = 20;

/// The mode that is shown.
fn mode() -> String {
    std::env::var("MODE").unwrap_or_else(|_| "nftables".to_owned())
}

struct Demo {
    topology: Topology,
    manifests: tempfile::TempDir,
    binary: PathBuf,
    portwarden: std::cell::RefCell<Option<Process>>,
}

impl Demo {
    fn show(&self) -> Result<()> {
        self.addresses()?;
        self.explain()?;
        self.scale()?;
        if mode() == "userspace" {
            self.lose_a_pod_that_stays_listed()?;
        } else {
            self.lose_a_pod()?;
        }
        self.flush_the_rules()?;
        // A proxy cannot serve while it is dead; other modes leave that to the kernel.
        if mode() != "userspace" {
            self.restart()?;
        }
        Ok(())
    }

    fn start() -> Result<Demo> {
        let binary = std::env::var_os("PORTWARDEN")
            .map_or_else(|| PathBuf::from("target/release/portwarden"), PathBuf::from);
        let binary = binary
            .canonicalize()
            .with_context(|| format!("no binary at {}; run `make build`", binary.display()))?;
        title("A cluster in network namespaces: a node, five web pods, a DNS pod, a client outside");
        let topology = Topology::builder().pods(WEB_PODS + 1).build()?;
        for pod in &topology.pods()[..usize::from(WEB_PODS)] {
            pod.serve(Transport::Tcp, 8080)?;
        }
        topology.pod(usize::from(WEB_PODS)).serve(Transport::Udp, 5353)?;
        let manifests = tempfile::tempdir()?;
        for file in ["node.yaml", "web.yaml", "web-endpoints.yaml", "dns.yaml"] {
            let from = Path::new("examples").join(file);
            std::fs::copy(&from, manifests.path().join(file))
                .with_context(|| format!("copy {}", from.display()))?;
        }
        let demo = Demo { topology, manifests, binary, portwarden: Default::default() };
        demo.run_portwarden()?;
        Ok(demo)
    }

    fn run_portwarden(&self) -> Result<()> {
        let folder = self.manifests.path().display().to_string();
        let mode = format!("--proxy-mode={}", mode());
        let arguments = [&["--manifests", &folder, &mode], SETTINGS].concat();
        say(&format!("$ portwarden {}", arguments.join(" ").replace(&folder, "examples/")));
        let log = std::fs::File::create(self.log())?;
        let start = Instant::now();
        *self.portwarden.borrow_mut() = Some(
            self.topology
                .node()
                .command(&self.binary.display().to_string())
                .args(arguments)
                .spawn_logging(log)?,
        );
        let ready = || self.web_answers().then_some(());
        if let Err(error) = wait::until(TIMEOUT, "the web service to answer", ready) {
            bail!("{error:#}; Portwarden said:\n{}", std::fs::read_to_string(self.log())?);
        }
        say(&format!(
            "the service answers {} ms after the start of the process",
            start.elapsed().as_millis()
        ));
        Ok(())
    }

    /// Every way to reach a service, and who is turned away.
    fn addresses(&self) -> Result<()> {
        title("Every kind of address");
        let rows: [(&str, &Host, Option<&str>, Transport, &str); 9] = [
            ("cluster address, from a pod", self.topology.pod(0), None, Transport::Tcp, "10.96.0.10:80"),
            ("cluster address, from the node", self.topology.node(), None, Transport::Tcp, "10.96.0.10:80"),
            ("cluster address, IPv6", self.topology.pod(0), None, Transport::Tcp, "[fd00:10:96::10]:80"),
            ("node port, from outside", self.client(), None, Transport::Tcp, "192.168.0.2:30080"),
            ("external address", self.client(), None, Transport::Tcp, "192.0.2.10:80"),
            (
                "load balancer, source allowed",
                self.client(),
                Some("203.0.113.10"),
                Transport::Tcp,
                "198.51.100.10:80",
            ),
            (
                "load balancer, source refused",
                self.client(),
                Some("203.0.113.13"),
                Transport::Tcp,
                "198.51.100.10:80",
            ),
            ("UDP", self.topology.pod(0), None, Transport::Udp, "10.96.0.53:53"),
            ("service without endpoints", self.client(), None, Transport::Tcp, "10.96.0.12:80"),
        ];
        for (what, host, from, transport, to) in rows {
            let mut probe = host.probe().short_timeout();
            if let Some(from) = from {
                probe = probe.from(from.parse::<std::net::IpAddr>()?);
            }
            let outcome = probe.send(transport, to.parse()?)?;
            say(&format!("{what:<32} {to:<22} {outcome}"));
        }
        Ok(())
    }

    /// Why packets go where they go.
    fn explain(&self) -> Result<()> {
        title("Why: every decision has a reason");
        self.ask(&["explain", "demo/web"])?;
        self.ask(&["explain", "--from", "203.0.113.13", "--to", "198.51.100.10:80"])?;
        title("How it is doing");
        self.ask(&["status"])
    }

    /// Runs a command of Portwarden on the node and shows what it prints.
    fn ask(&self, arguments: &[&str]) -> Result<()> {
        say(&format!("$ portwarden {}", arguments.join(" ")));
        let output =
            self.topology.node().command(&self.binary.display().to_string()).args(arguments).output()?;
        ensure!(output.code == Some(0), "{}{}", output.stdout, output.stderr);
        output.stdout.lines().for_each(|line| say(&format!("  {line}")));
        Ok(())
    }

    fn scale(&self) -> Result<()> {
        title("Scaling: who answers at 300 connections per second, after each change of the manifests");
        let load = self.load()?;
        for count in [3, 5, 2, 3] {
            let pods: Vec<usize> = (0..count).collect();
            self.set_web_pods(&pods)?;
            self.wait_for_pods(&load, &pods)?;
            self.watch(&load, &format!("{count} pods"), Duration::from_millis(2500))?;
        }
        report_failures(load)
    }

    fn lose_a_pod(&self) -> Result<()> {
        title("A pod dies");
        let load = self.load()?;
        self.watch(&load, "before", Duration::from_millis(1200))?;
        self.topology.pod(1).stop_serving(Transport::Tcp, 8080)?;
        let died = Instant::now();
        self.set_web_pods(&[0, 2])?;
        let gone = || {
            let tally = self.client().probe().volley(Transport::Tcp, web(), 30).ok()?;
            (tally.failed() == 0).then_some(())
        };
        wait::until(TIMEOUT, "connections to avoid the dead pod", gone)?;
        say(&format!(
            "no new connection goes there any more, {} ms after its endpoint left the slice",
            died.elapsed().as_millis()
        ));
        self.watch(&load, "after", Duration::from_millis(1200))?;
        self.topology.pod(1).serve(Transport::Tcp, 8080)?;
        self.set_web_pods(&[0, 1, 2])?;
        self.wait_for_pods(&load, &[0, 1, 2])
    }

    /// The pod finishes what it has begun and accepts nothing new; its endpoint stays in the slice.
    fn lose_a_pod_that_stays_listed(&self) -> Result<()> {
        title("A pod dies, and its endpoint stays in the slice");
        let load = self.load()?;
        self.watch(&load, "before", Duration::from_millis(1200))?;
        let rules = "add table inet ended; add chain inet ended input { type filter hook input priority 0; }; \
                     add rule inet ended input tcp dport 8080 ct state new reject with tcp reset";
        self.topology.pod(1).command("nft").args([rules]).run()?;
        self.watch(&load, "dead, still listed", Duration::from_millis(1200))?;
        self.topology.pod(1).command("nft").args(["delete", "table", "inet", "ended"]).run()?;
        self.watch(&load, "back", Duration::from_millis(1200))?;
        report_failures(load)
    }

    fn flush_the_rules(&self) -> Result<()> {
        title("Another process flushes all rules of the node");
        let (mut connection, _) = self.client().probe().open(Transport::Tcp, web())?;
        say("$ nft flush ruleset");
        // Portwarden may be done before nft has ended.
        let flushed = Instant::now();
        self.topology.node().command("nft").args(["flush", "ruleset"]).run()?;
        wait::until(TIMEOUT, "the rules to be repaired", || self.web_answers().then_some(()))?;
        say(&format!(
            "repaired: a new connection succeeds {} ms after the start of nft",
            flushed.elapsed().as_millis()
        ));
        ensure!(connection.exchange()?.is_answered(), "the connection from before the flush is broken");
        say("the connection that was open before is still the same");
        Ok(())
    }

    fn restart(&self) -> Result<()> {
        title("Portwarden is killed (SIGKILL) and started again, under load");
        let sticky: SocketAddr = "10.96.0.11:80".parse()?;
        let before = self.client().tcp(sticky)?;
        let load = self.load()?;
        drop(self.portwarden.borrow_mut().take());
        self.watch(&load, "without Portwarden", Duration::from_millis(1200))?;
        self.run_portwarden()?;
        self.watch(&load, "after the restart", Duration::from_millis(1200))?;
        let after = self.client().tcp(sticky)?;
        say(&format!("session affinity: {} before, {} after", host(&before), host(&after)));
        ensure!(before.host() == after.host(), "a client of a sticky service was moved to another pod");
        report_failures(load)
    }

    fn finish(self) -> Result<()> {
        title("Cleaning up");
        if let Some(process) = self.portwarden.borrow_mut().take() {
            say(&format!("SIGTERM: {}", process.terminate(TIMEOUT)?));
        }
        say("$ portwarden --cleanup");
        self.topology.node().command(&self.binary.display().to_string()).arg("--cleanup").run()?;
        let left = self.topology.node().command("nft").args(["list", "tables"]).run()?;
        ensure!(!left.contains("kube-proxy"), "rules are left: {left}");
        say("nothing of it is left");
        Ok(())
    }

    fn client(&self) -> &Host {
        self.topology.outside()
    }

    /// Whether a new connection succeeds. One that gets no answer is given up soon, so that waiting shows when the next one does.
    fn web_answers(&self) -> bool {
        let probe = self.client().probe().timeout(Duration::from_millis(50));
        probe.tcp(web()).is_ok_and(|outcome| outcome.is_answered())
    }

    fn log(&self) -> PathBuf {
        self.manifests.path().join("portwarden.log")
    }

    fn load(&self) -> Result<Load> {
        self.client().probe().load(Transport::Tcp, web(), 300)
    }

    /// Rewrites the manifest of endpoints, as an editor would: a new file over the old one.
    fn set_web_pods(&self, pods: &[usize]) -> Result<()> {
        let mut text = String::from("apiVersion: v1\nkind: List\nitems:\n");
        for (name, service, v6) in
            [("web-v4", "web", false), ("web-v6", "web", true), ("sticky-v4", "sticky", false)]
        {
            let family = if v6 { "IPv6" } else { "IPv4" };
            writeln!(text, "- apiVersion: discovery.k8s.io/v1\n  kind: EndpointSlice")?;
            writeln!(
                text,
                "  metadata: {{ namespace: demo, name: {name}, labels: {{ kubernetes.io/service-name: {service} }} }}"
            )?;
            writeln!(
                text,
                "  addressType: {family}\n  ports: [{{ name: http, port: 8080, protocol: TCP }}]\n  endpoints:"
            )?;
            for pod in pods {
                let ip = self.topology.pod(*pod).ip();
                let ip: std::net::IpAddr = if v6 { ip.v6.into() } else { ip.v4.into() };
                writeln!(text, "  - {{ addresses: [\"{ip}\"], nodeName: node-a }}")?;
            }
        }
        let new = self.manifests.path().join(".web-endpoints.new");
        std::fs::write(&new, text)?;
        std::fs::rename(new, self.manifests.path().join("web-endpoints.yaml"))?;
        Ok(())
    }

    /// Waits until exactly these pods answer a load.
    fn wait_for_pods(&self, load: &Load, pods: &[usize]) -> Result<()> {
        let wanted: Vec<String> = pods.iter().map(|pod| self.topology.pod(*pod).name().to_owned()).collect();
        let settled = || {
            let start = load.tally();
            std::thread::sleep(Duration::from_millis(200));
            since(&start, load).into_keys().eq(wanted.iter().cloned()).then_some(())
        };
        wait::until(TIMEOUT, "the new endpoints to be in force", settled)
    }

    /// Shows for a while how the answers of a load are spread.
    fn watch(&self, load: &Load, phase: &str, time: Duration) -> Result<()> {
        let live = std::io::stdout().is_terminal();
        let start = load.tally();
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
            if live {
                print!("\r\x1b[2K  {phase:<20} {}", bars(&since(&start, load)));
                std::io::stdout().flush()?;
            }
        }
        println!("{}  {phase:<20} {}", if live { "\r\x1b[2K" } else { "" }, bars(&since(&start, load)));
        Ok(())
    }
}

fn web() -> SocketAddr {
    SocketAddr::from(([10, 96, 0, 10], 80))
}

fn host(outcome: &portwarden_testkit::Outcome) -> String {
    outcome.host().map_or_else(|| outcome.to_string(), ToOwned::to_owned)
}

/// Answers since an earlier moment, by pod.
fn since(start: &portwarden_testkit::probe::Tally, load: &Load) -> BTreeMap<String, u32> {
    let now = load.tally();
    let before = |pod: &String| start.answered_by().get(pod).copied().unwrap_or(0);
    now.answered_by()
        .iter()
        .map(|(pod, count)| (pod.clone(), count - before(pod)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn bars(counts: &BTreeMap<String, u32>) -> String {
    let total: u32 = counts.values().sum();
    let share = |count: u32| f64::from(count) / f64::from(total.max(1));
    counts.iter().fold(String::new(), |mut line, (pod, count)| {
        let width = (share(*count) * 24.0).round().max(1.0);
        let bar: String = std::iter::repeat_n('█', format!("{width:.0}").parse().unwrap_or(1)).collect();
        let _ = write!(line, "{pod} {bar} {:.0} %  ", share(*count) * 100.0);
        line
    })
}

fn report_failures(load: Load) -> Result<()> {
    let tally = load.stop()?;
    say(&format!("{} connections, {} failed", tally.answered() + tally.failed(), tally.failed()));
    ensure!(tally.failed() == 0, "connections failed: {tally}");
    Ok(())
}

fn title(text: &str) {
    // Colours are for people.
    if std::io::stdout().is_terminal() {
        println!("\n\x1b[1m{text}\x1b[0m");
    } else {
        println!("\n{text}");
    }
}

fn say(text: &str) {
    println!("  {text}");
}

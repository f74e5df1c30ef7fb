//! The cluster under soak: hosts, API server, the process, and what happens to them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use portwarden_model::Family;
use portwarden_testkit::apiserver::{ApiServer, Fault, Resource, Schedule};
use portwarden_testkit::build::service_cidr;
use portwarden_testkit::build::{
    EndpointBuilder, NAMESPACE, PortBuilder, ServiceBuilder, SliceBuilder, endpoint, port, service, slice,
};
use portwarden_testkit::netns::Process;
use portwarden_testkit::oracle::Served;
use portwarden_testkit::rig::{Object, Rig};
use portwarden_testkit::topology::addresses::{CLUSTER_CIDR, EXTERNAL_IPS, NODE, SERVICE_CIDR, VIPS};
use portwarden_testkit::{Host, Topology, Transport, bpf, wait};

use crate::actions::{Action, Condition, Damage, Heal, Member, PODS, REMOTE_PODS, Reload, SERVICES, Shape};
use crate::damage;
use crate::evidence;
use crate::ledger::{Ledger, Target};
use crate::traffic::{Pace, Traffic};

/// A change reaches the kernel, and damage is repaired, within this time: after failures of the API server, up to a minute passes
/// before it is asked again.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Every endpoint answers here.
const TARGET_PORT: u16 = 8080;
/// The number of targets with a kept socket, all of the Service that always has endpoints.
const KEPT: usize = 6;
/// Requests that went wrong for which the kernel's state is shown: reading it takes time, in which it changes.
const EXAMINED: usize = 3;

/// Figures for the end.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) starts: u32,
    pub(crate) faults: u32,
    pub(crate) reloads: u32,
    pub(crate) damages: u32,
    /// Periods in which this machine stalled.
    pub(crate) stalls: u32,
    pub(crate) slowest_repair: Duration,
    pub(crate) slowest_change: Duration,
}

/// The hosts, the API server, the process and the traffic.
pub(crate) struct World {
    // Dropped first: traffic and process end before what they need.
    traffic: Option<Traffic>,
    process: Option<Process>,
    server: ApiServer,
    pub(crate) topology: Topology,
    pub(crate) ledger: Ledger,
    pub(crate) figures: Figures,
    shapes: Vec<Shape>,
    members: Vec<Vec<Member>>,
    config: Configuration,
    kubeconfig: PathBuf,
    folder: PathBuf,
    binary: PathBuf,
    marks: u16,
    /// Flags with the place where mode ebpf attaches and keeps its programs.
    place: Vec<String>,
}

/// What the configuration file says.
#[derive(Debug, Clone, Copy)]
struct Configuration {
    mode: &'static str,
    masquerade_all: bool,
    verbosity: u8,
    min_sync_period: u16,
}

impl World {
    /// A cluster with its Services, served by the binary and under traffic.
    pub(crate) fn start(binary: &Path, folder: &Path, mode: &'static str, pace: Pace) -> Result<World> {
        // Before any process starts, so that programs see the sockets of all of them, and of nothing else.
        let place = if mode == "ebpf" { place_of_programs()? } else { Vec::new() };
        let pods = (u8::try_from(PODS)?, u8::try_from(REMOTE_PODS)?);
        let topology = Topology::builder().pods(pods.0).remote_pods(pods.1).build()?;
        let mut served = Served::new();
        for host in topology.pods().iter().chain(topology.remote_pods()) {
            for transport in [Transport::Tcp, Transport::Udp] {
                host.serve(transport, TARGET_PORT)?;
                served.insert((host.name().to_owned(), transport, TARGET_PORT));
            }
        }
        let server = {
            let _inside = topology.node().namespace().enter()?;
            ApiServer::builder().tls().start()?
        };
        let kubeconfig = server.kubeconfig(folder, "")?;
        server.apply(Rig::node());
        server.apply(service_cidr("kubernetes", SERVICE_CIDR.both()));
        let ledger = Ledger::new(SERVICES, targets(), served, Instant::now());
        let everywhere = |host| Member { host, condition: Condition::Ready };
        let mut world = World {
            traffic: None,
            process: None,
            server,
            topology,
            ledger,
            figures: Figures::default(),
            shapes: vec![Shape::default(); SERVICES],
            members: vec![(0..PODS + REMOTE_PODS).map(everywhere).collect(); SERVICES],
            config: Configuration { mode, masquerade_all: false, verbosity: 2, min_sync_period: 0 },
            kubeconfig,
            folder: folder.to_owned(),
            binary: binary.to_owned(),
            marks: 0,
            place,
        };
        world.ledger.set_mode(mode);
        for number in 0..SERVICES {
            world.write_service(number);
            world.write_slices(number);
        }
        world.write_config(&world.config.text(&world.kubeconfig))?;
        world.run()?;
        if let Err(error) = world.confirm() {
            bail!("{error:#}\nthe process logged:\n{}", world.log());
        }
        world.traffic = Some(Traffic::start(&world.topology, &world.ledger.targets, KEPT, pace)?);
        Ok(world)
    }

    /// Does something, and returns when it is in the kernel.
    pub(crate) fn perform(&mut self, action: &Action) -> Result<()> {
        self.do_one(action)?;
        self.confirm()?;
        self.await_repair()
    }

    /// Judges all requests that ended since the last call.
    pub(crate) fn judge(&mut self) -> Result<()> {
        // Requests first: a stall is reported before the requests that it delayed end.
        let requests: Vec<_> = self.traffic.iter().flat_map(Traffic::ended).collect();
        for (start, end) in self.traffic.iter().flat_map(Traffic::stalls) {
            self.figures.stalls += 1;
            self.ledger.stalled(start, end);
        }
        for request in &requests {
            let failures = self.ledger.count.failures.len();
            self.ledger.judge(&self.topology, request)?;
            let target = &self.ledger.targets[request.target];
            if let Some(failure) =
                self.ledger.count.failures.get_mut(failures).filter(|_| failures < EXAMINED)
            {
                failure.push_str(&evidence::gather(&self.topology, target, request));
            }
        }
        self.ledger.forget();
        self.alive()
    }

    /// Ends the traffic and judges the rest of it.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(traffic) = &mut self.traffic {
            traffic.stop()?;
        }
        self.judge()
    }

    /// The end of what the process logged.
    pub(crate) fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn do_one(&mut self, action: &Action) -> Result<()> {
        match action {
            Action::Endpoints { service, members } => self.set_members(*service, members),
            Action::Roll { service, steps } => {
                for members in steps {
                    self.set_members(*service, members);
                    sleep(Duration::from_millis(5));
                }
            }
            Action::Reshape { service, shape } => {
                self.shapes[*service] = *shape;
                self.write_service(*service);
            }
            Action::Recreate { service, slices, pause } => self.recreate(*service, *slices, *pause),
            Action::Crowd { first, count, present } => self.crowd(*first, *count, *present),
            Action::Zone(zone) => drop(self.server.apply(Rig::node().zone(&format!("zone-{zone}")))),
            Action::Damage(damage) => self.damage(*damage)?,
            Action::Kill { pause, meanwhile } => {
                self.process = None;
                self.do_all(meanwhile, *pause)?;
                self.run()?;
            }
            Action::Restart => {
                if let Some(process) = self.process.take() {
                    let status = process.terminate(TIMEOUT)?;
                    if !status.success() {
                        bail!("after SIGTERM the process ended with {status}");
                    }
                }
                self.run()?;
            }
            Action::Reload(reload) => self.reload(*reload)?,
            Action::Faults { seed, pause, heal, meanwhile } => {
                self.figures.faults += 1;
                self.server.set_schedule(Schedule::random(*seed, 0.6, Fault::examples()));
                self.server.disconnect();
                self.do_all(meanwhile, *pause)?;
                self.server.set_schedule(Schedule::healthy());
                if matches!(heal, Heal::Forget) {
                    self.server.compact();
                }
                self.server.disconnect();
            }
            Action::Outage { pause, meanwhile } => {
                self.figures.faults += 1;
                self.server.stop();
                self.do_all(meanwhile, *pause)?;
                let _inside = self.topology.node().namespace().enter()?;
                self.server.resume()?;
            }
        }
        Ok(())
    }

    fn do_all(&mut self, actions: &[Action], pause: Duration) -> Result<()> {
        for action in actions {
            self.do_one(action)?;
        }
        sleep(pause);
        Ok(())
    }

    fn set_members(&mut self, service: usize, members: &[Member]) {
        self.members[service] = members.to_vec();
        self.write_slices(service);
    }

    fn recreate(&mut self, number: usize, slices: bool, pause: Duration) {
        let name = service_name(number);
        self.ledger.services[number].service.write(None);
        self.server.delete(Resource::Services, NAMESPACE, &name);
        if slices {
            for family in Family::BOTH {
                self.ledger.services[number].slices[family].write(None);
                self.server.delete(Resource::EndpointSlices, NAMESPACE, &slice_name(&name, family));
            }
        }
        sleep(pause);
        self.write_service(number);
        self.write_slices(number);
    }

    fn crowd(&self, first: u8, count: u8, present: bool) {
        for number in first..first.saturating_add(count) {
            let name = format!("crowd-{number}");
            if present {
                let ip = SERVICE_CIDR.host(100 + number);
                let crowd = service(&name).cluster_ip(ip.v4).cluster_ip(ip.v6).port(port(80).name("http"));
                self.server.apply(crowd);
                let host = self.host(usize::from(number) % (PODS + REMOTE_PODS));
                let pods = slice(&name, &format!("{name}-1")).port(port(TARGET_PORT).name("http"));
                self.server.apply(pods.endpoint(endpoint(host.ip().v4).on(node_of(host))));
            } else {
                self.server.delete(Resource::Services, NAMESPACE, &name);
                self.server.delete(Resource::EndpointSlices, NAMESPACE, &format!("{name}-1"));
            }
        }
    }

    /// Damages rules. Not in iptables mode, which detects it only at the next full sync.
    fn damage(&mut self, damage: Damage) -> Result<()> {
        if self.config.mode != "nftables" {
            return Ok(());
        }
        self.figures.damages += 1;
        self.ledger.damaged();
        damage::inflict(self.topology.node(), damage)
    }

    fn reload(&mut self, reload: Reload) -> Result<()> {
        self.figures.reloads += 1;
        match reload {
            Reload::MasqueradeAll(all) => self.config.masquerade_all = all,
            Reload::Verbosity(verbosity) => self.config.verbosity = verbosity,
            Reload::MinSyncPeriod(milliseconds) => self.config.min_sync_period = milliseconds,
            Reload::Mode { iptables } => {
                self.ledger.exchange();
                self.config.mode = if iptables { "iptables" } else { "nftables" };
                self.ledger.set_mode(self.config.mode);
            }
            Reload::Nonsense => {
                self.write_config("kind: KubeProxyConfiguration\nmode: [nonsense\n")?;
                sleep(Duration::from_millis(200));
            }
        }
        self.write_config(&self.config.text(&self.kubeconfig))
    }

    fn write_config(&self, text: &str) -> Result<()> {
        let new = self.folder.join("config.new");
        fs::write(&new, text).context("cannot write the configuration")?;
        fs::rename(&new, self.folder.join("config.yaml")).context("cannot put the configuration in place")
    }

    fn run(&mut self) -> Result<()> {
        self.ledger.exchange();
        let config = self.folder.join("config.yaml");
        let mut log: File =
            OpenOptions::new().create(true).append(true).open(self.folder.join("log")).context("no log")?;
        writeln!(log, "--- start {}", self.figures.starts)?;
        let command = self.topology.node().command(&self.binary.display().to_string());
        let process = command
            .args(["--config", &config.display().to_string(), "--hostname-override=node-a"])
            .args(&self.place)
            // A lock of its own: other tests must not wait for this one.
            .env("XTABLES_LOCKFILE", self.folder.join("xtables.lock"))
            .spawn_logging(log)?;
        self.process = Some(process);
        self.figures.starts += 1;
        Ok(())
    }

    fn alive(&mut self) -> Result<()> {
        if self.process.as_mut().is_some_and(|process| !process.is_running()) {
            bail!("the process ended by itself");
        }
        Ok(())
    }

    fn write_service(&mut self, number: usize) {
        let object = service_object(number, self.shapes[number]).build();
        self.ledger.services[number].service.write(Some(object.clone()));
        self.server.apply(Object::Service(Box::new(object)));
    }

    fn write_slices(&mut self, number: usize) {
        for family in Family::BOTH {
            let object = self.slice_object(number, family).build();
            self.ledger.services[number].slices[family].write(Some(object.clone()));
            self.server.apply(Object::Slice(object));
        }
    }

    fn slice_object(&self, number: usize, family: Family) -> SliceBuilder {
        let name = service_name(number);
        let built = slice(&name, &slice_name(&name, family))
            .family(family)
            .port(port(TARGET_PORT).name("http"))
            .port(port(TARGET_PORT).name("dns").udp());
        self.members[number].iter().fold(built, |built, member| {
            let host = self.host(member.host);
            let one = endpoint(host.ip().like(family.loopback())).on(node_of(host));
            built.endpoint(conditions(one, member.condition))
        })
    }

    fn host(&self, index: usize) -> &Host {
        if index < PODS { self.topology.pod(index) } else { self.topology.remote_pod(index - PODS) }
    }

    /// Waits until everything that was written is in the kernel.
    ///
    /// Services and slices come by watches of their own, each in the order of its writes, and each family has tables of its own. So the
    /// last write to each of them is a mark: a Service that gets another port, and its slices, which get another endpoint. Once the
    /// new endpoint answers at the new port in both families, everything before is there, too.
    fn confirm(&mut self) -> Result<()> {
        self.marks += 1;
        let number = 10_000 + self.marks % 40_000;
        let host = self.host(usize::from(self.marks) % (PODS + REMOTE_PODS));
        let (name, ips) = (host.name().to_owned(), SERVICE_CIDR.host(99));
        let marks = Family::BOTH.map(|family| {
            let slice = slice("mark", &slice_name("mark", family)).family(family);
            let member = endpoint(host.ip().like(family.loopback())).on(node_of(host));
            slice.port(port(TARGET_PORT).name("mark")).endpoint(member)
        });
        let mark = service("mark").cluster_ip(ips.v4).cluster_ip(ips.v6).port(port(number).name("mark"));
        self.server.apply(mark);
        self.server.load(marks);
        let written = Instant::now();
        let probe = self.topology.node().probe().timeout(Duration::from_millis(100));
        let what = format!("the kernel to have change {}", self.marks);
        let mut waiting = ips.both().to_vec();
        let process = &mut self.process;
        wait::until(TIMEOUT, &what, || {
            if process.as_mut().is_none_or(|process| !process.is_running()) {
                return Some(Err(anyhow!("the process ended by itself")));
            }
            let there = |ip: &std::net::IpAddr| {
                let outcome = probe.tcp((*ip, number).into());
                outcome.is_ok_and(|outcome| outcome.host() == Some(name.as_str()))
            };
            waiting.retain(|ip| !there(ip));
            waiting.is_empty().then_some(Ok(()))
        })??;
        self.ledger.confirm();
        self.figures.slowest_change = self.figures.slowest_change.max(written.elapsed());
        Ok(())
    }

    /// Waits until damaged rules are whole: everything that must answer does.
    fn await_repair(&mut self) -> Result<()> {
        if self.ledger.is_whole() {
            return Ok(());
        }
        for index in 0..self.ledger.targets.len() {
            if !self.ledger.is_due(&self.topology, index)? {
                continue;
            }
            let target = &self.ledger.targets[index];
            let host = self.topology.host(target.client).context("no such host")?;
            let probe = host.probe().timeout(Duration::from_millis(100));
            let what = format!("damaged rules to be repaired: {target:?}");
            wait::until(TIMEOUT, &what, || {
                probe.send(target.transport, target.address).ok()?.is_answered().then_some(())
            })?;
        }
        if let Some(traffic) = &self.traffic {
            traffic.renew();
        }
        let took = self.ledger.repaired().unwrap_or_default();
        self.figures.slowest_repair = self.figures.slowest_repair.max(took);
        Ok(())
    }
}

impl Configuration {
    fn text(&self, kubeconfig: &Path) -> String {
        let mode = self.mode;
        // Modes ipvs and userspace have the settings of iptables mode, and mode ebpf those of nftables mode.
        let section = if matches!(mode, "nftables" | "ebpf") { "nftables" } else { "iptables" };
        let period = match self.min_sync_period {
            0 => String::new(),
            milliseconds => format!(", minSyncPeriod: {milliseconds}ms"),
        };
        let [v4, v6] = CLUSTER_CIDR.both();
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
             clusterCIDR: {v4},{v6}\nnodePortAddresses: [primary]\n\
             clientConnection: {{kubeconfig: {}}}\nlogging: {{verbosity: {}}}\n\
             {section}: {{masqueradeAll: {}{period}}}\n",
            kubeconfig.display(),
            self.verbosity,
            self.masquerade_all
        )
    }
}

fn place_of_programs() -> Result<Vec<String>> {
    Ok(vec![
        format!("--ebpf-cgroup-root={}", bpf::cgroup()?.display()),
        format!("--ebpf-pin-directory={}", bpf::pin_directory("soak")?.display()),
    ])
}

/// Every kind of address, from everywhere, for each Service.
fn targets() -> Vec<Target> {
    let mut targets = Vec::new();
    for (service, number) in (0..SERVICES).zip(0u8..) {
        let (cluster, vip) = (SERVICE_CIDR.host(20 + number), VIPS.host(10 + number));
        let external = EXTERNAL_IPS.host(10 + number);
        let node_port = node_port(number, false);
        for (client, transport, address) in [
            ("pod-2", Transport::Tcp, (cluster.v4, 80).into()),
            ("node-a", Transport::Udp, (cluster.v4, 53).into()),
            ("outside", Transport::Tcp, (NODE.v4, node_port).into()),
            ("outside", Transport::Udp, (vip.v4, 53).into()),
            ("pod-3", Transport::Tcp, (cluster.v6, 80).into()),
            ("outside", Transport::Tcp, (external.v6, 80).into()),
        ] {
            targets.push(Target { service, client, transport, address });
        }
    }
    targets
}

fn service_object(number: usize, shape: Shape) -> ServiceBuilder {
    let index = u8::try_from(number).unwrap_or(0);
    let (cluster, vip) = (SERVICE_CIDR.host(20 + index), VIPS.host(10 + index));
    let external = EXTERNAL_IPS.host(10 + index);
    let mut built = service(&service_name(number))
        .of_type("LoadBalancer")
        .cluster_ip(cluster.v4)
        .cluster_ip(cluster.v6)
        .external_ip(external.v4)
        .external_ip(external.v6)
        .vip(vip.v4)
        .vip(vip.v6)
        .label("round", &shape.label.to_string())
        .port(port(80).name("http").node_port(node_port(index, false)))
        .port(port(53).name("dns").udp().node_port(node_port(index, true)));
    if shape.extra_port {
        let extra: PortBuilder = port(81).name("extra");
        built = built.port(extra);
    }
    if shape.affinity {
        built = built.affinity(600);
    }
    if shape.internal_local { built.internal_policy_local() } else { built }
}

fn conditions(endpoint: EndpointBuilder, condition: Condition) -> EndpointBuilder {
    match condition {
        Condition::Ready => endpoint.ready(true),
        Condition::NotReady => endpoint.ready(false).serving(false),
        Condition::Draining => endpoint.ready(false).serving(true).terminating(true),
    }
}

fn node_port(service: u8, udp: bool) -> u16 {
    30_080 + u16::from(service) + if udp { 100 } else { 0 }
}

fn node_of(host: &Host) -> &'static str {
    if host.name().starts_with("remote-") { "node-b" } else { "node-a" }
}

fn service_name(number: usize) -> String {
    format!("service-{number}")
}

fn slice_name(service: &str, family: Family) -> String {
    format!("{service}-{}", family.as_str().to_lowercase())
}

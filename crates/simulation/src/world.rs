//! Carries out a schedule: the API server, the source, the process and the kernel, one step at a time.

use std::time::Duration;

use portwarden::metrics::Metrics;
use portwarden_model::{
    Event, Family, Flow, GoneFrontend, Kind, NamespacedName, PoolKind, Protocol, Verdict,
};

use crate::api::{Api, service_name};
use crate::invariants::Lateness;
use crate::kernel::{SharedKernel, Time, TrackedFlow, Unnoticed};
use crate::process::{Configuration, Process, Surroundings};
use crate::schedule::{Edit, Step};

/// An engine that does more than this at one point in time does not come to rest.
const MOST_TURNS: u32 = 200;

/// Everything that a schedule acts on.
pub(crate) struct World {
    pub(crate) api: Api,
    pub(crate) kernel: SharedKernel,
    pub(crate) time: Time,
    pub(crate) configuration: Configuration,
    pub(crate) process: Option<Process>,
    pub(crate) lateness: Lateness,
    /// Whether the source follows changes.
    connected: bool,
    surroundings: Surroundings,
}

impl World {
    pub(crate) fn new(metrics: Metrics) -> Self {
        let (kernel, time) = (SharedKernel::default(), Time::new());
        let surroundings = Surroundings { kernel: kernel.clone(), time: time.clone(), metrics };
        let mut world = World {
            api: Api::default(),
            kernel,
            time,
            configuration: Configuration::default(),
            process: None,
            lateness: Lateness::default(),
            connected: true,
            surroundings,
        };
        world.api.put_node(0);
        world.start();
        world
    }

    /// Carries out one step, and lets the engine do what is due.
    pub(crate) fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::PutService { service, shape } => {
                let event = self.api.put_service(service, shape);
                self.send(vec![event]);
            }
            Step::DeleteService { service } => {
                let event = self.api.delete_service(service);
                self.send(event.into_iter().collect());
            }
            Step::PutSlice { slice, service, endpoints, state } => {
                let event = self.api.put_slice(slice, service, endpoints, state);
                self.send(vec![event]);
            }
            Step::DeleteSlice { slice } => {
                let event = self.api.delete_slice(slice);
                self.send(event.into_iter().collect());
            }
            Step::PutNode { shape } => {
                let event = self.api.put_node(shape);
                self.send(vec![event]);
            }
            Step::DeleteNode => {
                let event = self.api.delete_node();
                self.send(event.into_iter().collect());
            }
            Step::PutServiceCidr { shape } => {
                let event = self.api.put_service_cidr(shape);
                self.send(vec![event]);
            }
            Step::HostAddresses { shape } => {
                let event = self.api.set_host_addresses(shape);
                // The kernel reports them, not the API server.
                self.apply(vec![event]);
            }
            Step::Repeat => {
                let events = Kind::ALL.into_iter().flat_map(|kind| self.api.objects(kind)).collect();
                self.send(events);
            }
            Step::Disconnect => self.connected = false,
            Step::Connect { stop } => self.connect(stop)?,
            Step::Reconfigure { mode, families, masquerade_all } => {
                self.reconfigure(Configuration { mode, families, masquerade_all });
            }
            Step::Crash => self.crash(),
            Step::Start => self.start(),
            Step::SetWallClock { seconds } => self.time.jump(seconds),
            Step::Pass { millis } => return self.pass(Duration::from_millis(millis.into())),
            Step::Settle => return self.settle(),
            Step::Arm { .. }
            | Step::Refuse { .. }
            | Step::Accept { .. }
            | Step::Edit { .. }
            | Step::Client { .. }
            | Step::FailFlows { .. } => self.change_kernel(step),
        }
        self.pass(Duration::ZERO)
    }

    /// Lets time pass; the engine does what is due on the way.
    pub(crate) fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.time.now() + time;
        let (mut turns, mut last) = (0, self.time.now());
        loop {
            let deadline = self.turn()?;
            self.check()?;
            let now = self.time.now();
            (turns, last) = if now == last { (turns + 1, last) } else { (0, now) };
            if turns > MOST_TURNS {
                return Err("the engine does not come to rest".to_owned());
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                continue;
            }
            let left = end.saturating_duration_since(now);
            if left.is_zero() {
                return Ok(());
            }
            self.time.pass(deadline.map_or(left, |deadline| (deadline - now).min(left)));
        }
    }

    /// One round of the engine's loop. Returns when it wants to be called again.
    fn turn(&mut self) -> Result<Option<std::time::Instant>, String> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let now = self.time.now();
        process.heartbeat.wake(now);
        self.kernel.lock().busy_since = Some(now);
        process.engine.poll_dataplanes();
        let deadline = process.engine.turn().map_err(|error| format!("the engine ended: {error}"))?;
        process.heartbeat.sleep();
        let mut kernel = self.kernel.lock();
        kernel.busy_since = None;
        if std::mem::take(&mut kernel.killed) {
            drop(kernel);
            self.crash();
            self.start();
            return Ok(Some(self.time.now()));
        }
        Ok(deadline)
    }

    /// Sends events if the source has a connection.
    fn send(&mut self, events: Vec<Event>) {
        if self.connected {
            self.apply(events);
        }
    }

    fn apply(&mut self, events: Vec<Event>) {
        if let Some(process) = &mut self.process {
            if events.iter().any(|event| matches!(event, Event::NodeApplied(_))) {
                process.known_node = self.api.node().cloned();
            }
            process.engine.apply(events);
        }
    }

    /// The source lists everything anew.
    pub(crate) fn connect(&mut self, stop: bool) -> Result<(), String> {
        self.connected = true;
        for kind in Kind::ALL {
            let list = self.api.list(kind);
            if stop {
                // The connection breaks in the middle of a list; some time later the list starts again.
                self.apply(list[..list.len() / 2].to_vec());
                self.pass(Duration::from_millis(5))?;
            }
            self.kernel.lock().listed |= kind == Kind::EndpointSlice;
            self.apply(list);
        }
        Ok(())
    }

    fn reconfigure(&mut self, configuration: Configuration) {
        self.configuration = configuration;
        if let Some(process) = &mut self.process {
            process.reconfigure(configuration);
        }
        let now = self.time.now();
        let mut kernel = self.kernel.lock();
        kernel.disturb_all(now);
        // Flows of a family that is not served are not followed.
        kernel
            .flows
            .retain(|tracked| configuration.families().contains(&Family::of(tracked.flow.destination.ip())));
    }

    pub(crate) fn start(&mut self) {
        if self.process.is_some() {
            return;
        }
        let now = self.time.now();
        self.process = Some(Process::start(self.configuration, &self.surroundings));
        {
            let mut kernel = self.kernel.lock();
            kernel.listed = false;
            kernel.changing_mode = false;
            kernel.accepted_again.clear();
            kernel.disturb_all(now);
            let read = kernel.udp_frontends(self.configuration);
            for TrackedFlow { flow, known } in &mut kernel.flows {
                let (ip, port) = (flow.destination.ip(), flow.destination.port());
                let frontend = GoneFrontend { ip: Some(ip), port, protocol: Protocol::Udp };
                *known = read[Family::of(ip)].contains(&frontend);
            }
        }
        let addresses = self.api.host_addresses();
        self.apply(vec![addresses]);
        if self.connected {
            let connected = self.connect(false);
            debug_assert!(connected.is_ok(), "only broken lists take time");
        }
    }

    fn crash(&mut self) {
        self.process = None;
        self.lateness = Lateness::default();
    }

    fn change_kernel(&mut self, step: Step) {
        let now = self.time.now();
        let mut kernel = self.kernel.lock();
        let full_name = |service: u8| NamespacedName::new("demo", &service_name(service));
        match step {
            Step::Arm { layer, family, fault } => {
                kernel.faults.entry((layer, family)).or_default().push_back(fault);
            }
            Step::Refuse { service, family, late } => {
                kernel.refusing.insert((family, full_name(service)));
                if late {
                    kernel.refused_late.insert((family, full_name(service)));
                }
            }
            Step::Accept { announce } => {
                let refused = std::mem::take(&mut kernel.refusing);
                kernel.accepted_again.extend(refused);
                kernel.refused_late.clear();
                kernel.announce_accepted = announce;
                kernel.disturb_all(now);
            }
            // What another process writes elsewhere is not ours to remove.
            Step::Edit { layer, family, .. } if !self.configuration.places().contains(&(layer, family)) => {}
            Step::Edit { layer, family, edit, noticed } => {
                let spare = kernel.tables.values().flat_map(|table| table.services.values().cloned()).next();
                let table = kernel.table((layer, family));
                match (edit, spare) {
                    (Edit::Remove { service }, _) => drop(table.services.remove(&full_name(service))),
                    (Edit::Flush, _) => (table.node, table.services) = (None, Default::default()),
                    (Edit::Add { service }, Some(spare)) => {
                        table.services.insert(full_name(service), spare);
                    }
                    (Edit::Add { .. }, None) => {}
                }
                if noticed {
                    table.reported_edits += 1;
                } else {
                    table.unnoticed = Some(Unnoticed::Lost);
                }
                kernel.disturb((layer, family), now);
            }
            Step::FailFlows { after } => kernel.flow_faults.push_back(after),
            Step::Client { service, family, client } => {
                drop(kernel);
                self.send_datagram(&full_name(service), family, client);
            }
            _ => {}
        }
    }

    /// A client sends a datagram to the first frontend of a Service; the rules in force decide where it goes.
    fn send_datagram(&mut self, name: &NamespacedName, family: Family, client: u8) {
        if !self.configuration.families().contains(&family) {
            return;
        }
        let layer = self.configuration.mode.layers()[0];
        let mut kernel = self.kernel.lock();
        let Some(service) = kernel.table((layer, family)).services.get(name).cloned() else { return };
        let Some(port) = service.ports.iter().find(|port| port.protocol() == Protocol::Udp) else { return };
        let Some(frontend) = port.active_frontends().find(|frontend| frontend.ip.is_some()) else { return };
        let Some(ip) = frontend.ip else { return };
        let destination = std::net::SocketAddr::new(ip, frontend.port);
        let pool = match frontend.from_elsewhere {
            Verdict::Forward(PoolKind::Cluster) => &port.cluster,
            Verdict::Forward(PoolKind::Local) => &port.local,
            Verdict::Reject | Verdict::Drop => return,
        };
        let Some(backend) = pool.get(usize::from(client) % pool.len().max(1)) else { return };
        let source = match family {
            Family::V4 => [172, 16, 0, client].into(),
            Family::V6 => std::net::Ipv6Addr::new(0xfd, 0, 0, 0, 0, 0, 0, client.into()).into(),
        };
        let reply_source = backend.address();
        let flow = Flow { protocol: Protocol::Udp, source, destination, reply_source, answered: true };
        kernel.flows.push(TrackedFlow { flow, known: true });
    }
}

//! The eBPF dataplane of both families.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use portwarden_model::{
    Changes, Dataplane, Desired, Family, NamespacedName, NodePortAddresses, NodeView, Notification,
    PerFamily, ProxiedService, RefusedService, Report, SyncError,
};
use portwarden_netlink::route::{Route, RouteMonitor};
use tracing::{debug, warn};

use crate::adoption::Earlier;
use crate::cgroup::Cgroup;
use crate::cleanup::remove_other_maps;
use crate::counters::{ServiceCounters, processors};
use crate::error::Error;
use crate::features::Features;
use crate::links::{Links, create_directory};
use crate::maps::Maps;
use crate::namespaces::CookieReader;
use crate::object;
use crate::options::Options;
use crate::pins::MapPins;
use crate::pools::{Full, Pools};
use crate::service::{InstalledPort, Tables, wanted_by_port};
use crate::stale_sockets::StaleSockets;

/// How often links and pins are looked at: a few calls each time.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Points sockets of this node at endpoints. The nftables dataplane must serve the same state below it.
#[derive(Debug)]
pub struct Ebpf {
    options: Options,
    tables: Tables,
    links: Links,
    families: PerFamily<FamilyState>,
    addresses: Vec<IpAddr>,
    monitor: RouteMonitor,
    stale_sockets: StaleSockets,
    map_pins: MapPins,
    /// Whether sockets that are older than this process were taken over.
    has_taken_over: bool,
    /// When to look next whether everything is attached and pinned; `None` until it was.
    check_due: Option<Instant>,
}

/// What is in the maps for one family.
#[derive(Debug, Default)]
struct FamilyState {
    services: HashMap<NamespacedName, Installed>,
    node: Option<NodeView>,
    synced: bool,
}

#[derive(Debug)]
struct Installed {
    desired: Arc<ProxiedService>,
    ports: Vec<InstalledPort>,
}

impl Ebpf {
    /// Loads the programs and opens or creates the maps, in the network namespace of the calling thread. Nothing is attached until the first sync of each
    /// family. `counters` outlive the dataplane.
    pub fn new(options: Options, counters: ServiceCounters) -> Result<Self, Error> {
        // Checked now, so that a wrong setting ends the start and not a sync.
        let cgroup = Cgroup::open(options.cgroup.as_deref())?;
        create_pin_directories(&options)?;
        let cookies = CookieReader::new(&cgroup);
        let features = Features::probe(cookies.as_ref().ok());
        let processors = processors()?;
        let programs = object::load(&options, processors, features)?;
        let maps = Maps::open(&options, processors)?;
        for path in options.namespaces.iter().flatten() {
            let unknown = |error: &io::Error| Error::NamespaceCookie(io::Error::other(error.to_string()));
            let cookie = cookies.as_ref().map_err(unknown)?.of(path)?;
            let failed = |source| Error::Map { action: "write to", map: "namespaces", source };
            maps.namespaces.insert(&cookie.to_ne_bytes(), &[0; 4]).map_err(failed)?;
        }
        let mut pools = Pools::new(maps.pools);
        let earlier = Earlier::take_over(&maps.services, &mut pools);
        counters.start(maps.counters, earlier.counters());
        Ok(Ebpf {
            has_taken_over: false,
            tables: Tables {
                services: maps.services,
                affinities: maps.affinities,
                pools,
                counters,
                records: HashMap::new(),
                earlier,
                next_port: 0,
                left_with_sockets: Vec::new(),
            },
            links: Links::new(options.link_directory(), programs),
            families: PerFamily::from_fn(|_| FamilyState::default()),
            // Watched before they are read, so that no change is missed.
            monitor: RouteMonitor::open().map_err(Error::Addresses)?,
            addresses: node_addresses()?,
            stale_sockets: StaleSockets::new(maps.datagram_peers, options.namespaces.clone()),
            map_pins: MapPins::open(&options)?,
            check_due: None,
            options,
        })
    }

    /// Brings these Services of a family to what is wanted, those first that are gone: others may want their frontends.
    fn write(
        &mut self,
        family: Family,
        names: &[(NamespacedName, Option<Arc<ProxiedService>>)],
        now: Instant,
    ) -> Report {
        let mut report = Report::default();
        let (gone, present): (Vec<_>, Vec<_>) = names.iter().partition(|(_, service)| service.is_none());
        for (name, service) in gone.into_iter().chain(present) {
            match self.write_service(family, name, service.as_ref(), now) {
                Ok(written) => report.written += written,
                Err(full) => {
                    report.written += self.leave_to_nftables(family, name, now);
                    report.refused.push(RefusedService { service: name.clone(), reason: reason(full) });
                }
            }
        }
        self.stale_sockets.end(std::mem::take(&mut self.tables.left_with_sockets));
        report
    }

    fn write_service(
        &mut self,
        family: Family,
        name: &NamespacedName,
        service: Option<&Arc<ProxiedService>>,
        now: Instant,
    ) -> Result<usize, Full> {
        let state = &mut self.families[family];
        let mut written = 0;
        let mut before = state.services.remove(name).map(|installed| installed.ports).unwrap_or_default();
        let mut ports = Vec::new();
        let mut result = Ok(());
        if let (Some(service), Some(node)) = (service, &state.node) {
            for (port, wanted) in wanted_by_port(node, &self.addresses, &service.ports) {
                let known = before.iter().position(|installed| installed.name == port.name);
                let mut installed = match known {
                    Some(index) => before.swap_remove(index),
                    None => self.tables.new_port(family, &port.name, &wanted),
                };
                match self.tables.write_port(&mut installed, port, &wanted, now) {
                    Ok(count) => written += count,
                    Err(full) => result = Err(full),
                }
                ports.push(installed);
            }
        }
        for gone in before {
            written += self.tables.remove_port(gone, now);
        }
        if let Some(service) = service
            && !ports.is_empty()
        {
            state.services.insert(name.clone(), Installed { desired: Arc::clone(service), ports });
        }
        result.map(|()| written)
    }

    /// A Service that does not fit has no records at all: half of its frontends would be worse than none.
    fn leave_to_nftables(&mut self, family: Family, name: &NamespacedName, now: Instant) -> usize {
        let Some(installed) = self.families[family].services.remove(name) else { return 0 };
        installed.ports.into_iter().map(|port| self.tables.remove_port(port, now)).sum()
    }

    /// The Services to look at.
    fn names(
        &self,
        desired: &Desired,
        changes: &Changes,
    ) -> Vec<(NamespacedName, Option<Arc<ProxiedService>>)> {
        let with_state = |name: &NamespacedName| (name.clone(), desired.service(name).cloned());
        if !changes.full && !changes.node {
            return changes.services.iter().map(with_state).collect();
        }
        let known = self.families[desired.family].services.keys();
        let all: BTreeSet<&NamespacedName> = known.chain(desired.services().map(|(name, _)| name)).collect();
        all.into_iter().map(with_state).collect()
    }

    fn attach(&mut self, now: Instant) -> Result<usize, Error> {
        let cgroup = Cgroup::open(self.options.cgroup.as_deref())?;
        let changed = self.links.ensure(&cgroup)? + self.map_pins.ensure()?;
        remove_other_maps(&self.options);
        self.check_due = Some(now + CHECK_INTERVAL);
        Ok(changed)
    }

    /// Reports once what is no longer attached or pinned. A full sync repairs it.
    fn check(&mut self, now: Instant) -> Option<Notification> {
        self.check_due.filter(|due| *due <= now)?;
        let unpinned = || Some(format!("the pin {} is gone", self.map_pins.missing()?.display()));
        let Some(what) = self.links.damage().or_else(unpinned) else {
            self.check_due = Some(now + CHECK_INTERVAL);
            return None;
        };
        self.check_due = None;
        // The sync of any family repairs it.
        let family = *self.options.families.first()?;
        Some(Notification::Tampered { family, what })
    }

    /// Writes node ports for the addresses that the node has now.
    fn follow_addresses(&mut self, now: Instant) -> Result<(), Error> {
        let addresses = node_addresses()?;
        if addresses == self.addresses {
            return Ok(());
        }
        self.addresses = addresses;
        for family in Family::BOTH {
            let state = &self.families[family];
            if state.node.as_ref().is_none_or(|node| node.node_ports != NodePortAddresses::All) {
                continue;
            }
            let names: Vec<_> =
                state.services.iter().map(|(name, i)| (name.clone(), Some(Arc::clone(&i.desired)))).collect();
            self.write(family, &names, now);
        }
        Ok(())
    }
}

impl Dataplane for Ebpf {
    fn families(&self) -> &[Family] {
        &self.options.families
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        let family = desired.family;
        let first = !self.families[family].synced;
        self.families[family].node = Some(desired.node.clone());
        let names = self.names(desired, changes);
        if first {
            let frontends = desired.ports().map(|port| port.frontends.len()).sum::<usize>();
            self.tables.services.reserve(frontends * self.options.families.len());
        }
        let mut report = self.write(family, &names, now);
        report.full = changes.full;
        if changes.full || first {
            self.families[family].synced = true;
            let all = self.options.families.iter().all(|family| self.families[*family].synced);
            report.written += self.tables.remove_unclaimed((!all).then_some(family), now);
            report.written += self.tables.repair_records(family, now);
            match if all { self.attach(now) } else { Ok(0) } {
                Ok(attached) => report.written += attached,
                Err(error) => return Err(SyncError { report, ..SyncError::from(error) }),
            }
            if all && !std::mem::replace(&mut self.has_taken_over, true) {
                self.stale_sockets.take_over(&self.tables.pools);
            }
        }
        Ok(report)
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.monitor.as_fd()]
    }

    fn poll(&mut self, now: Instant) -> Vec<Notification> {
        if let Err(error) = self.monitor.read(|_| ()) {
            debug!(err = %error, "Cannot read notifications of addresses");
        }
        if let Err(error) = self.follow_addresses(now) {
            warn!(err = %error, "Cannot follow the addresses of the node; the next full sync does");
        }
        self.check(now).into_iter().collect()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.check_due
    }
}

fn reason(full: Full) -> String {
    let map = match full {
        Full::Frontends => "frontends",
        Full::Pools => "pools",
        Full::Slots => "slots",
        Full::Backends => "endpoints",
    };
    format!(
        "the eBPF maps have no room for its {map}, so nftables serves it; --ebpf-max-endpoints sets their size"
    )
}

/// The node's own addresses that sockets can name without a device.
fn node_addresses() -> Result<Vec<IpAddr>, Error> {
    let mut route = Route::open().map_err(Error::Addresses)?;
    let found = route.addresses(None).map_err(Error::Addresses)?;
    let named = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let mut all: Vec<IpAddr> = found.into_iter().map(|found| found.address).filter(named).collect();
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn create_pin_directories(options: &Options) -> Result<(), Error> {
    let path = &options.pin_directory;
    // The directory itself may be missing, but not the file system below it.
    let existing = path.ancestors().find(|ancestor| ancestor.exists());
    let kind = existing.and_then(|existing| statfs(existing).ok()).map(|found| found.filesystem_type());
    if kind != Some(BPF_FS_MAGIC) {
        return Err(Error::NotBpfFileSystem { path: path.clone() });
    }
    create_directory(&options.table_directory())?;
    create_directory(&options.socket_directory())
}

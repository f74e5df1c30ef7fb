//! The dataplane: what a sync does, and in which order.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use portwarden_model::{
    Changes, Count, Dataplane, Desired, Family, NamespacedName, Notification, PerFamily, RefusedService,
    Report, SyncError,
};
use portwarden_netlink::error::Answer;
use portwarden_netlink::ipset::{Entry, Operation, Sets};
use portwarden_netlink::route::RouteMonitor;
use portwarden_xtables::Programs;

use crate::addresses::{self, Noticed};
use crate::drain::Drains;
use crate::error::Error;
use crate::kernel::{Addresses, Kernel};
use crate::names::{DEVICE, SetId};
use crate::options::Options;
use crate::ownership::Ownership;
use crate::plan::{self, Surroundings};
use crate::static_rules::{Present, StaticRules};
use crate::virtual_servers::{Writer, installed};
use crate::wanted::Wanted;

/// Mode ipvs, for one or both families: they share the device and the connections to the kernel.
#[derive(Debug)]
pub struct Ipvs {
    options: Options,
    families: Vec<Family>,
    kernel: Kernel,
    monitor: RouteMonitor,
    /// The number of our device at the last look; 0 before the first sync.
    device: u32,
    states: PerFamily<Option<FamilyState>>,
}

#[derive(Debug)]
struct FamilyState {
    family: Family,
    /// The number of the device whose addresses we know; 0 if the kernel has to be read before the next write: before the first sync, and
    /// after an error.
    device: u32,
    wanted: Wanted,
    drains: Drains,
    rules: StaticRules,
    node_addresses: BTreeSet<IpAddr>,
}

impl Ipvs {
    /// Opens the connections to the kernel in the calling thread's network namespace. Changes nothing.
    pub fn new(families: &[Family], options: Options) -> Result<Self, Error> {
        let variant = options.variant;
        Ipvs::with_programs(families, options, |family| Programs::new(family, variant))
    }

    /// The same with iptables programs of the caller's choice.
    pub fn with_programs(
        families: &[Family],
        options: Options,
        programs: impl Fn(Family) -> Programs,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Kernel {
            action: "subscribing to changes of addresses",
            family: Family::V4,
            source,
        };
        let state = |family| {
            families.contains(&family).then(|| FamilyState {
                family,
                device: 0,
                wanted: Wanted::default(),
                drains: Drains::default(),
                rules: StaticRules::new(family, options.masquerade_mark, programs(family)),
                node_addresses: BTreeSet::new(),
            })
        };
        Ok(Ipvs {
            families: families.to_vec(),
            kernel: Kernel::open()?,
            monitor: RouteMonitor::open().map_err(failed)?,
            device: 0,
            states: PerFamily::from_fn(state),
            options,
        })
    }

    fn sync_family(
        &mut self,
        desired: &Desired,
        changes: &Changes,
        now: Instant,
        report: &mut Report,
    ) -> Result<(), Error> {
        let Some(state) = &mut self.states[desired.family] else { return Ok(()) };
        let full = changes.full || state.device == 0;
        if full {
            state.device = 0;
            self.device = self.kernel.ensure_device()?;
            let found = self.kernel.addresses(desired.family, self.device)?;
            state.node_addresses.clone_from(&found.node);
            // A virtual server that a Service wants is ours even if another program created it, so the plans come first.
            state.plan(desired, changes, true, &self.options);
            state.read_kernel(&mut self.kernel, found, &self.options)?;
            state.device = self.device;
            report.full = true;
        } else {
            state.plan(desired, changes, changes.node, &self.options);
        }
        let mut step = Step {
            state,
            kernel: &mut self.kernel,
            options: &self.options,
            device: self.device,
            now,
            report,
        };
        step.add_entries()?;
        // Rules come before virtual servers, so that no connection misses its masquerading. Where rules of iptables mode still work, virtual
        // servers come first: these rules rewrite packets before a virtual server sees them, and without them it must be there.
        let present = full.then(|| step.state.rules.read()).transpose()?;
        if present.as_ref().is_some_and(|present| step.state.rules.iptables_mode_is_in_force(present)) {
            step.write_servers()?;
            step.write_rules(desired, present)?;
        } else {
            step.write_rules(desired, present)?;
            step.write_servers()?;
        }
        step.delete_entries()
    }
}

impl Dataplane for Ipvs {
    fn families(&self) -> &[Family] {
        &self.families
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes, now: Instant) -> Result<Report, SyncError> {
        let mut report = Report::default();
        match self.sync_family(desired, changes, now, &mut report) {
            Ok(()) => Ok(report),
            Err(error) => {
                report.full = false;
                // A set or the device may be gone, which only a look at everything repairs.
                if let Some(state) = &mut self.states[desired.family] {
                    state.device = 0;
                }
                if matches!(error, Error::Rules { .. }) {
                    report.counts.push(Count::one("sync_proxy_rules_iptables_restore_failures_total"));
                }
                Err(SyncError { report, ..SyncError::from(error) })
            }
        }
    }

    fn watch_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.monitor.as_fd()]
    }

    fn next_deadline(&self) -> Option<Instant> {
        let limit = self.options.drain_limit;
        self.states.iter().filter_map(|(_, state)| state.as_ref()?.drains.next_deadline(limit)).min()
    }

    fn poll(&mut self, now: Instant) -> Vec<Notification> {
        let mut notifications = self.look_at_addresses();
        for family in self.families.clone() {
            let Some(state) = &mut self.states[family] else { continue };
            if !state.drains.is_due(now, self.options.drain_limit) {
                continue;
            }
            let mut report = Report::default();
            let mut step = Step {
                state,
                kernel: &mut self.kernel,
                options: &self.options,
                device: self.device,
                now,
                report: &mut report,
            };
            match step.writer().look_at_drains() {
                Ok(Some(count)) => {
                    notifications.push(Notification::Counts { family, counts: vec![count] });
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%family, error = %error, "Cannot look at the real servers that leave; trying again");
                }
            }
        }
        notifications
    }

    fn full_sync_interval(&self, _: &Desired) -> Option<Duration> {
        Some(self.options.sync_period)
    }
}

/// Changes of addresses by others.
impl Ipvs {
    fn look_at_addresses(&mut self) -> Vec<Notification> {
        let noticed = Noticed::read(&mut self.monitor, self.device);
        let mut notifications = Vec::new();
        // Where the next sync reads the kernel anyway there is nothing to compare with.
        let states = [&self.states.v4, &self.states.v6].into_iter().flatten();
        for state in states.filter(|state| state.device != 0) {
            // The sync of one family may have created it again.
            let what = if noticed.device_gone || state.device != self.device {
                Some(format!("the device {DEVICE} is gone"))
            } else if noticed.missed {
                match self.kernel.addresses(state.family, self.device) {
                    Ok(found) => state.compare(&found),
                    Err(_) => Some("notifications of addresses were lost".to_owned()),
                }
            } else {
                state.compare_noticed(&noticed)
            };
            if let Some(what) = what {
                notifications.push(Notification::Tampered { family: state.family, what });
            }
        }
        notifications
    }
}

impl FamilyState {
    /// What differs from the addresses that we know, if anything.
    fn compare(&self, found: &Addresses) -> Option<String> {
        if found.node != self.node_addresses {
            return Some("the node's addresses changed".to_owned());
        }
        let surplus = found.bound.iter().find(|ip| !self.wanted.addresses.is_installed(ip));
        if let Some(ip) = surplus {
            return Some(format!("{ip} was added to {DEVICE}"));
        }
        (found.bound.len() != self.wanted.addresses.count_installed())
            .then(|| format!("addresses were removed from {DEVICE}"))
    }

    fn compare_noticed(&self, noticed: &Noticed) -> Option<String> {
        let of_family = |ip: &IpAddr| Family::of(*ip) == self.family;
        for (ip, present) in noticed.on_device.iter().filter(|(ip, _)| of_family(ip)) {
            if *present != self.wanted.addresses.is_installed(ip) {
                let verb = if *present { "added to" } else { "removed from" };
                return Some(format!("{ip} was {verb} {DEVICE}"));
            }
        }
        for (ip, present) in noticed.elsewhere.iter().filter(|(ip, _)| of_family(ip)) {
            if *present != self.node_addresses.contains(ip) {
                let verb = if *present { "got" } else { "lost" };
                return Some(format!("the node {verb} the address {ip}"));
            }
        }
        None
    }

    /// Replaces what is known about the kernel by what is there.
    fn read_kernel(&mut self, kernel: &mut Kernel, found: Addresses, options: &Options) -> Result<(), Error> {
        let family = self.family;
        let entries = read_sets(&mut kernel.sets, family)?;
        let servers = kernel.ipvs.servers().map_err(|source| Error::Kernel {
            action: "listing virtual servers",
            family,
            source,
        })?;
        self.wanted.addresses.replace_installed(found.bound.iter().copied());
        self.wanted.entries.replace_installed(entries.iter().copied());
        let ownership = Ownership { bound: found.bound, entries, node: found.node };
        let mut gone: HashSet<_> = self.wanted.servers.installed().into_iter().collect();
        for server in servers.iter().filter(|server| Family::of(server.key.address.ip()) == family) {
            let key = server.key;
            if gone.remove(&key) || self.wanted.servers.get(&key).is_some() || ownership.owns(&key) {
                self.wanted.servers.acknowledge(key, Some(installed(server, &options.scheduler)));
            }
        }
        for key in gone {
            self.wanted.servers.acknowledge(key, None);
            self.drains.remove_server(key);
        }
        Ok(())
    }

    /// Brings the plans up to date: of all Services if `all` says so, else of those that changed.
    fn plan(&mut self, desired: &Desired, changes: &Changes, all: bool, options: &Options) {
        let around = Surroundings {
            node: &desired.node,
            node_addresses: &self.node_addresses,
            scheduler_flags: plan::scheduler_flags(&options.scheduler),
        };
        let plan = |name: &NamespacedName| desired.service(name).map(|service| plan::plan(service, around));
        if !all {
            for name in &changes.services {
                self.wanted.set(name, plan(name));
            }
            return;
        }
        let gone: Vec<NamespacedName> =
            self.wanted.services().filter(|name| desired.service(name).is_none()).cloned().collect();
        for name in desired.services().map(|(name, _)| name).chain(&gone) {
            self.wanted.set(name, plan(name));
        }
    }
}

/// The entries of all sets of a family. Creates sets that are missing.
fn read_sets(sets: &mut Sets, family: Family) -> Result<HashSet<(SetId, Entry)>, Error> {
    let failed = |source| Error::Kernel { action: "reading ipsets", family, source };
    let mut entries = HashSet::new();
    for set in SetId::ALL {
        let spec = set.spec(family);
        match sets.list(&spec).map_err(failed)? {
            Some(found) => entries.extend(found.into_iter().map(|entry| (set, entry))),
            None => sets.create(&spec).map_err(failed)?,
        }
    }
    Ok(entries)
}

/// One sync of one family.
struct Step<'a> {
    state: &'a mut FamilyState,
    kernel: &'a mut Kernel,
    options: &'a Options,
    device: u32,
    now: Instant,
    report: &'a mut Report,
}

impl Step<'_> {
    /// Entries come before rules, and both before the first virtual server: no connection misses its masquerading.
    fn add_entries(&mut self) -> Result<(), Error> {
        let missing = self.state.wanted.entries.missing();
        self.change_entries(Operation::Add, &missing)
    }

    fn delete_entries(&mut self) -> Result<(), Error> {
        let surplus = self.state.wanted.entries.surplus();
        self.change_entries(Operation::Delete, &surplus)
    }

    fn change_entries(&mut self, operation: Operation, keys: &[(SetId, Entry)]) -> Result<(), Error> {
        let family = self.state.family;
        for group in keys.chunk_by(|(first, _), (second, _)| first == second) {
            let Some((set, _)) = group.first() else { continue };
            let name = set.name(family);
            let entries: Vec<Entry> = group.iter().map(|(_, entry)| *entry).collect();
            let refused = self
                .kernel
                .sets
                .change(&name, operation, &entries)
                .map_err(|source| Error::Kernel { action: "changing ipsets", family, source })?;
            self.report.written += entries.len() - refused.len();
            let failed: HashSet<Entry> = refused.iter().map(|(entry, _)| *entry).collect();
            for entry in entries.iter().filter(|entry| !failed.contains(*entry)) {
                self.state.wanted.entries.acknowledge((*set, *entry), operation == Operation::Add);
            }
            if failed.is_empty() {
                continue;
            }
            let answers: HashMap<Entry, Answer> = refused.into_iter().collect();
            for (service, entry) in self.state.wanted.owners_of_entries(*set, &failed) {
                let Some(answer) = answers.get(&entry) else { continue };
                let reason = format!("the kernel refused the entry {entry} of the ipset {name}: {answer}");
                self.report.refused.push(RefusedService { service, reason });
            }
        }
        Ok(())
    }

    fn write_rules(&mut self, desired: &Desired, present: Option<Present>) -> Result<(), Error> {
        let input = self.state.wanted.rule_input(&desired.node.pod_traffic);
        self.report.written += self.state.rules.write(input, present)?;
        Ok(())
    }

    /// A virtual server is complete before its address leads to it, and its address is gone before its entries.
    fn write_servers(&mut self) -> Result<(), Error> {
        let family = self.state.family;
        let mut writer = self.writer();
        let result = writer.write();
        let (written, refused) = (writer.written, std::mem::take(&mut writer.refused));
        self.report.written += written;
        self.report.refused.extend(refused);
        result?;
        let addresses = &mut self.state.wanted.addresses;
        let (bound, refused) = addresses::bind(&mut self.kernel.route, self.device, family, addresses)?;
        self.report.written += bound;
        for (ip, answer) in refused {
            let reason = format!("the kernel refused the address {ip} on {DEVICE}: {answer}");
            let owners = self.state.wanted.owners_of_address(ip).into_iter();
            self.report
                .refused
                .extend(owners.map(|service| RefusedService { service, reason: reason.clone() }));
        }
        let mut writer = self.writer();
        let result = writer.delete();
        self.report.written += writer.written;
        result?;
        let addresses = &mut self.state.wanted.addresses;
        self.report.written += addresses::unbind(&mut self.kernel.route, self.device, family, addresses)?;
        Ok(())
    }

    fn writer(&mut self) -> Writer<'_> {
        Writer {
            family: self.state.family,
            options: self.options,
            ipvs: &mut self.kernel.ipvs,
            servers: &mut self.state.wanted.servers,
            drains: &mut self.state.drains,
            now: self.now,
            written: 0,
            refused: Vec::new(),
        }
    }
}

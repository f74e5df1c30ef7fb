//! The dataplane itself: decide between all and only what changed, commit, and keep what the kernel acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use portwarden_model::{
    Changes, Dataplane, Desired, Family, Isolated, NamespacedName, NodePortAddresses, NodeView,
    ProxiedService, Report, SyncError,
};
use portwarden_netlink::error::Rejected;
use portwarden_netlink::nftables::{Chain, Client, Image, Rule, Table, Transaction, Verdict};
use portwarden_netlink::{Errno, Error as NetlinkError};

use crate::chains::{self, Chains, StickyClass, draw_chain, redraw_chain};
use crate::error::Error;
use crate::installed::Installed;
use crate::kernel::{Found, Kernel, Watch, kernel_family, number_key};
use crate::plan::{ElementChanges, Plan};
use crate::probe::probe;
use crate::route::{Draw, class_bits};
use crate::sets::{SetId, Sets};

/// The table, shared with kube-proxy: whoever comes later takes it over in one transaction.
const TABLE: &str = "kube-proxy";
const TABLE_COMMENT: &str = "rules of Portwarden";

/// What only this mode has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The bit of the packet mark that asks for masquerading, 0 to 31.
    pub masquerade_bit: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options { masquerade_bit: 14 }
    }
}

/// The nftables dataplane of one family.
#[derive(Debug)]
pub struct Nftables {
    family: Family,
    mark: u32,
    kernel: Kernel,
    sets: Sets,
    installed: Installed,
    chains: Chains,
    node_addresses: BTreeSet<IpAddr>,
    /// Whether `installed`, `chains` and `node_addresses` are what the kernel has.
    in_step: bool,
}

/// Why an attempt to commit failed.
enum Failed {
    /// The kernel refused the transaction of this plan.
    Rejected(Box<Rejected>, Plan),
    /// A Service cannot be expressed.
    Refused(NamespacedName, String),
    /// Nothing was tried, or the outcome is unknown.
    Fatal(Error),
}

/// The Services of a sync: all, or those that changed, without those that the kernel refused.
type Wanted<'a> = BTreeMap<&'a NamespacedName, Option<&'a Arc<ProxiedService>>>;

impl Nftables {
    /// Connects to the kernel and tries out what it can do. Nothing is changed. The dataplanes of both families share a watch.
    pub fn new(family: Family, options: Options, watch: Watch) -> Result<Self, Error> {
        let open = |source| Error::Open { family, source };
        probe(&mut Client::open().map_err(open)?, family)?;
        let kernel = Kernel::open(family, TABLE, watch).map_err(open)?;
        let sets = Sets::new(kernel.table(), family);
        Ok(Nftables {
            family,
            mark: 1 << (options.masquerade_bit % 32),
            kernel,
            sets,
            installed: Installed::new(Default::default()),
            chains: Chains::default(),
            node_addresses: BTreeSet::new(),
            in_step: false,
        })
    }

    fn sync_all(&mut self, desired: &Desired) -> Result<Report, Error> {
        let mut wanted: Wanted<'_> =
            desired.services().map(|(name, service)| (name, Some(service))).collect();
        let mut isolated = Vec::new();
        loop {
            match self.write_all(&desired.node, &wanted) {
                Ok(written) => return Ok(Report { full: true, written, isolated, gauges: Vec::new() }),
                Err(failed) => match self.exclude(failed, &mut wanted, &mut isolated)? {
                    Excluded::Some => {}
                    // The kernel does not say whose fault it is: write the rules alone, then find out with ever smaller groups.
                    Excluded::None(source) if wanted.is_empty() => {
                        return Err(Error::Commit { family: self.family, source });
                    }
                    Excluded::None(_) => {
                        let names: Vec<_> = std::mem::take(&mut wanted).into_iter().collect();
                        let written =
                            self.write_all(&desired.node, &wanted).map_err(|failed| self.fatal(failed))?;
                        let written = written + self.write_groups(&names, &mut isolated)?;
                        return Ok(Report { full: true, written, isolated, gauges: Vec::new() });
                    }
                },
            }
        }
    }

    fn sync_changes(&mut self, desired: &Desired, changes: &Changes) -> Result<Report, Error> {
        let mut wanted: Wanted<'_> =
            changes.services.iter().map(|name| (name, desired.service(name))).collect();
        let mut isolated = Vec::new();
        loop {
            match self.write_changes(changes.node.then_some(&desired.node), &wanted) {
                Ok(written) => return Ok(Report { full: false, written, isolated, gauges: Vec::new() }),
                Err(Failed::Rejected(rejected, _)) if is_out_of_step(&rejected) => {
                    return self.sync_all(desired);
                }
                Err(failed) => match self.exclude(failed, &mut wanted, &mut isolated)? {
                    Excluded::Some => {}
                    Excluded::None(_) => return self.sync_all(desired),
                },
            }
        }
    }

    /// Takes the Services out that a failure is about.
    fn exclude<'a>(
        &self,
        failed: Failed,
        wanted: &mut Wanted<'a>,
        isolated: &mut Vec<Isolated>,
    ) -> Result<Excluded, Error> {
        let culprits: Vec<Isolated> = match failed {
            Failed::Fatal(error) => return Err(error),
            Failed::Refused(service, reason) => vec![Isolated { service, reason }],
            Failed::Rejected(rejected, plan) => {
                let found = rejected.failures.iter().filter_map(|failure| {
                    let service = plan.culprit(&failure.place)?.clone();
                    Some(Isolated { service, reason: failure.to_string() })
                });
                let found: Vec<Isolated> = found.collect();
                if found.is_empty() {
                    return Ok(Excluded::None(NetlinkError::Rejected(*rejected)));
                }
                found
            }
        };
        for culprit in culprits {
            if wanted.remove(&culprit.service).is_some() {
                isolated.push(culprit);
            }
        }
        Ok(Excluded::Some)
    }

    /// Writes Services in groups; a group that the kernel refuses is halved until the guilty ones are alone.
    fn write_groups(
        &mut self,
        names: &[(&NamespacedName, Option<&Arc<ProxiedService>>)],
        isolated: &mut Vec<Isolated>,
    ) -> Result<usize, Error> {
        let wanted: Wanted<'_> = names.iter().copied().collect();
        match self.write_changes(None, &wanted) {
            Ok(written) => Ok(written),
            Err(Failed::Fatal(error)) => Err(error),
            Err(failed) if names.len() <= 1 => {
                let reason = self.fatal(failed);
                let reason =
                    std::error::Error::source(&reason).map_or(reason.to_string(), ToString::to_string);
                isolated.extend(names.first().map(|(name, _)| Isolated { service: (*name).clone(), reason }));
                Ok(0)
            }
            Err(_) => {
                let (left, right) = names.split_at(names.len() / 2);
                Ok(self.write_groups(left, isolated)? + self.write_groups(right, isolated)?)
            }
        }
    }

    fn fatal(&self, failed: Failed) -> Error {
        match failed {
            Failed::Fatal(error) => error,
            Failed::Rejected(rejected, _) => {
                Error::Commit { family: self.family, source: NetlinkError::Rejected(*rejected) }
            }
            Failed::Refused(service, reason) => {
                // Only reached while looking for culprits one by one, where the reason is all that is used.
                let text = format!("{service}: {reason}");
                Error::Refused { family: self.family, text }
            }
        }
    }

    /// Replaces the whole table in one transaction. Session affinity survives if the table was of this layout.
    fn write_all(&mut self, node: &NodeView, wanted: &Wanted<'_>) -> Result<usize, Failed> {
        let read = |source| Failed::Fatal(Error::Read { family: self.family, source });
        let found = self.kernel.look(&self.sets).map_err(read)?;
        let mut fresh = if self.in_step || !matches!(found, Found::Ours { .. }) {
            self.installed.forget()
        } else {
            Installed::new(self.kernel.recover().map_err(read)?)
        };
        let mut plan = self.large_plan(wanted);
        let mut transaction = Transaction::new();
        plan_services(&mut fresh, wanted, &mut plan)?;
        let mut chains = Chains::render(self.family, node, self.mark, &fresh.sticky_classes());
        if plan.additions(SetId::Restricted) > 0 {
            chains.add_firewall();
        }
        let addresses = node_addresses(node);
        for ip in &addresses {
            plan.add(SetId::NodeAddresses, Image::new().address(*ip), Image::new());
        }
        let sets = self.sets.sized(|id| plan.additions(id));
        self.clear(&found, &chains, &mut transaction);
        self.write_static(&sets, &chains, &fresh, &mut transaction);
        plan.append_to(&mut transaction, &sets);
        let written = transaction.len() + plan.len();
        match self.kernel.commit(&transaction) {
            Ok(()) => {
                fresh.commit();
                (self.installed, self.chains, self.node_addresses) = (fresh, chains, addresses);
                self.sets = sets;
                self.in_step = true;
                Ok(written)
            }
            Err(error) => Err(self.failed(error, plan)),
        }
    }

    /// An empty plan with room for all endpoints, which are nearly all there is.
    fn large_plan(&self, wanted: &Wanted<'_>) -> Plan {
        let ports = wanted.values().flatten().flat_map(|service| service.ports.iter());
        let endpoints = ports.map(|port| port.cluster.len() + port.local.len()).sum();
        let payload = match self.family {
            Family::V4 => 16,
            Family::V6 => 28,
        };
        let mut plan = Plan::new();
        plan.reserve(SetId::Endpoints, endpoints, payload);
        plan
    }

    /// Writes the Services that changed and, if given, what follows from the node.
    fn write_changes(&mut self, node: Option<&NodeView>, wanted: &Wanted<'_>) -> Result<usize, Failed> {
        let mut plan = Plan::new();
        if let Err(failed) = plan_services(&mut self.installed, wanted, &mut plan) {
            self.installed.roll_back();
            return Err(failed);
        }
        let mut transaction = Transaction::new();
        let new_classes: Vec<(StickyClass, u8)> = self.installed.new_classes().collect();
        let firewall = self.chains.has_firewall() || plan.additions(SetId::Restricted) > 0;
        let mut chains = None;
        let mut addresses = None;
        if let Some(node) = node {
            chains = Some(Chains::render(self.family, node, self.mark, &self.installed.sticky_classes()));
            self.plan_addresses(&node_addresses(node), &mut plan);
            addresses = Some(node_addresses(node));
        } else if !new_classes.is_empty() || firewall != self.chains.has_firewall() {
            let mut rendered = self.chains.clone();
            rendered.add_sticky(self.family, new_classes.iter().map(|(class, _)| *class));
            chains = Some(rendered);
        }
        if firewall && let Some(chains) = &mut chains {
            chains.add_firewall();
        }
        if let Some(chains) = &chains {
            self.write_chain_changes(chains, &mut transaction);
        }
        for (class, number) in new_classes {
            plan.add_class(class_bits(number), &Verdict::Goto(class.chain().into()));
        }
        plan.append_to(&mut transaction, &self.sets);
        let written = transaction.len().saturating_sub(plan.operation_count()) + plan.len();
        if transaction.is_empty() {
            self.installed.commit();
            return Ok(0);
        }
        match self.kernel.commit(&transaction) {
            Ok(()) => {
                self.installed.commit();
                self.chains = chains.unwrap_or_else(|| std::mem::take(&mut self.chains));
                self.node_addresses = addresses.unwrap_or_else(|| std::mem::take(&mut self.node_addresses));
                Ok(written)
            }
            Err(error) => {
                self.installed.roll_back();
                Err(self.failed(error, plan))
            }
        }
    }

    fn failed(&mut self, error: NetlinkError, plan: Plan) -> Failed {
        match error {
            NetlinkError::Rejected(rejected) => Failed::Rejected(Box::new(rejected), plan),
            source => {
                // Whether the kernel took it is unknown: look again before the next write.
                self.in_step = false;
                Failed::Fatal(Error::Commit { family: self.family, source })
            }
        }
    }

    /// Removes what is there, except for the memory of clients.
    fn clear(&self, found: &Found, chains: &Chains, transaction: &mut Transaction) {
        let table = self.kernel.table();
        match found {
            Found::Nothing => {}
            Found::Other => transaction.ensure_absent(table),
            Found::Ours { sets, chains: old_chains } => {
                transaction.flush(Table::new(table));
                for set in sets.iter().filter(|set| set.name.as_ref() != SetId::Affinity.name()) {
                    transaction.delete(Arc::new(set.clone()));
                }
                for name in old_chains.iter().filter(|name| chains.rules(name).is_none()) {
                    transaction.delete(Chain::new(table, name.as_str()));
                }
            }
        }
    }

    /// The table, its sets, chains and rules. Rules come before elements: binding a rule to a full map would walk the map.
    fn write_static(
        &self,
        sets: &Sets,
        chains: &Chains,
        installed: &Installed,
        transaction: &mut Transaction,
    ) {
        let table = self.kernel.table();
        transaction.add(Table::new(table).comment(TABLE_COMMENT));
        for id in SetId::ALL {
            transaction.add(sets.get(id));
        }
        for (name, _) in chains.iter() {
            transaction.add(chains::define(table, name));
        }
        let mut fixed = Plan::new();
        for draw in Draw::all() {
            let bits = class_bits(draw.class());
            fixed.add_class(bits, &Verdict::Jump(draw_chain(draw.modulus()).into()));
            fixed.add_verdict(SetId::Redraws, number_key(bits), &Verdict::Goto(redraw_chain(draw).into()));
        }
        for (class, number) in installed.sticky_class_numbers() {
            fixed.add_class(class_bits(number), &Verdict::Goto(class.chain().into()));
        }
        for (name, rules) in chains.iter() {
            chains::to_rules(table, name, rules).for_each(|rule: Rule| transaction.add(rule));
        }
        fixed.append_to(transaction, sets);
    }

    fn write_chain_changes(&self, chains: &Chains, transaction: &mut Transaction) {
        let table = self.kernel.table();
        let changed: Vec<_> =
            chains.iter().filter(|(name, rules)| self.chains.rules(name) != Some(rules)).collect();
        for (name, _) in &changed {
            transaction.add(chains::define(table, name));
        }
        for (name, rules) in changed {
            if self.chains.rules(name).is_some() {
                transaction.flush(Chain::new(table, name.clone()));
            }
            chains::to_rules(table, name, rules).for_each(|rule: Rule| transaction.add(rule));
        }
    }

    fn plan_addresses(&self, wanted: &BTreeSet<IpAddr>, plan: &mut Plan) {
        for ip in self.node_addresses.difference(wanted) {
            plan.delete(SetId::NodeAddresses, Image::new().address(*ip));
        }
        for ip in wanted.difference(&self.node_addresses) {
            plan.add(SetId::NodeAddresses, Image::new().address(*ip), Image::new());
        }
    }
}

/// Whether a failure could be laid at some Service's door.
enum Excluded {
    Some,
    None(NetlinkError),
}

impl Dataplane for Nftables {
    fn mode(&self) -> &'static str {
        "nftables"
    }

    fn family(&self) -> Family {
        self.family
    }

    fn sync(&mut self, desired: &Desired, changes: &Changes) -> Result<Report, SyncError> {
        let report = if changes.full || !self.in_step {
            self.sync_all(desired)
        } else {
            self.sync_changes(desired, changes)
        };
        Ok(report?)
    }

    fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kernel.watch_fd())
    }

    fn tampering(&mut self) -> Option<String> {
        match self.kernel.tampering() {
            Ok(found) => found,
            Err(error) => Some(format!("notifications cannot be read: {error}")),
        }
    }
}

/// Removes the table of one family, whoever made it. Returns whether there was one.
pub fn cleanup(family: Family) -> Result<bool, Error> {
    let open = |source| Error::Open { family, source };
    let failed = |source| Error::Cleanup { family, source };
    let mut client = Client::open().map_err(open)?;
    let table = portwarden_netlink::nftables::TableId::new(kernel_family(family), TABLE);
    let tables = client.tables(Some(table.family)).map_err(failed)?;
    if !tables.iter().any(|listed| listed.object.id == table) {
        return Ok(false);
    }
    let mut transaction = Transaction::new();
    transaction.delete(Table::new(&table));
    match client.commit(&transaction) {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(true),
    }
}

fn plan_services(installed: &mut Installed, wanted: &Wanted<'_>, plan: &mut Plan) -> Result<(), Failed> {
    for (name, service) in wanted {
        installed
            .plan(name, *service, plan)
            .map_err(|refusal| Failed::Refused((*name).clone(), refusal.to_string()))?;
    }
    installed.plan_shared(plan);
    Ok(())
}

/// Addresses with node ports; loopback ones never, since a translated packet cannot leave from there.
fn node_addresses(node: &NodeView) -> BTreeSet<IpAddr> {
    match &node.node_ports {
        NodePortAddresses::All => BTreeSet::new(),
        NodePortAddresses::Only(ips) => ips.iter().copied().filter(|ip| !ip.is_loopback()).collect(),
    }
}

/// Whether writing everything anew helps: what we delete is not there, what we add is, or a set is full.
fn is_out_of_step(rejected: &Rejected) -> bool {
    let drift = |errno| matches!(errno, Errno::ENOENT | Errno::EEXIST | Errno::ENFILE);
    rejected.failures.iter().any(|failure| drift(failure.answer.errno))
}

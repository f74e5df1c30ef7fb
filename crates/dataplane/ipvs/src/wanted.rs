//! The plans of all Services added up, and beside each object what the kernel is known to have. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use portwarden_model::{Masquerade, NamespacedName, PodTraffic, Pool};
use portwarden_netlink::ipset::Entry;
use portwarden_netlink::ipvs::ServerKey;

use crate::names::SetId;
use crate::plan::{ServerSettings, ServicePlan};
use crate::rules::{RuleInput, SourceDrop};
use crate::slots::{self, Slots};

/// All objects of one family.
#[derive(Debug, Default)]
pub struct Wanted {
    plans: HashMap<NamespacedName, ServicePlan>,
    pub(crate) servers: Servers,
    pub(crate) entries: Slots<(SetId, Entry)>,
    pub(crate) addresses: Slots<IpAddr>,
    /// How many entries each set is to have.
    counts: BTreeMap<SetId, usize>,
    source_drops: BTreeMap<SourceDrop, u32>,
    cluster_ip_masquerade: Option<Masquerade>,
}

impl Wanted {
    /// Puts the plan of a Service in place of the last one. Returns whether anything differs.
    pub fn set(&mut self, name: &NamespacedName, plan: Option<ServicePlan>) -> bool {
        if self.plans.get(name) == plan.as_ref() {
            return false;
        }
        // The new plan comes first: what both have in common never counts as unwanted.
        if let Some(plan) = &plan {
            self.add(name, plan);
        }
        let old = match plan {
            Some(plan) => self.plans.insert(name.clone(), plan),
            None => self.plans.remove(name),
        };
        if let Some(old) = old {
            self.subtract(name, &old);
        }
        true
    }

    /// The Services that have a plan.
    pub fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.plans.keys()
    }

    /// Which Services want which of these entries of a set. One look at all plans, however many entries there are.
    pub(crate) fn owners_of_entries(
        &self,
        set: SetId,
        entries: &HashSet<Entry>,
    ) -> Vec<(NamespacedName, Entry)> {
        let mut owners = Vec::new();
        for (name, plan) in &self.plans {
            let of_addresses = plan.addresses.iter().map(|ip| (SetId::IpvsIps, Entry::Ip(*ip)));
            let wanted = plan.entries.iter().copied().chain(of_addresses);
            let found = wanted.filter(|(of, entry)| *of == set && entries.contains(entry));
            owners.extend(found.map(|(_, entry)| (name.clone(), entry)));
        }
        owners
    }

    /// The Services that want an address on our device.
    pub(crate) fn owners_of_address(&self, ip: IpAddr) -> Vec<NamespacedName> {
        let wants = |plan: &ServicePlan| plan.addresses.contains(&ip);
        self.plans.iter().filter(|(_, plan)| wants(plan)).map(|(name, _)| name.clone()).collect()
    }

    /// What the static rules depend on.
    pub fn rule_input(&self, pod_traffic: &PodTraffic) -> RuleInput {
        RuleInput {
            filled: self.counts.keys().copied().collect(),
            cluster_ip_masquerade: self.cluster_ip_masquerade.unwrap_or(Masquerade::Never),
            pod_traffic: pod_traffic.clone(),
            source_drops: self.source_drops.keys().copied().collect::<BTreeSet<_>>(),
        }
    }

    fn add(&mut self, name: &NamespacedName, plan: &ServicePlan) {
        for server in &*plan.servers {
            let claim = Claim {
                rank: Rank { node_port: server.node_port, owner: name.clone() },
                settings: server.settings,
                reals: server.reals.clone(),
            };
            self.servers.claim(server.key, claim);
        }
        for (set, entry) in &*plan.entries {
            self.want_entry(*set, *entry);
        }
        for ip in &*plan.addresses {
            if self.addresses.want(*ip) {
                self.want_entry(SetId::IpvsIps, Entry::Ip(*ip));
            }
        }
        for drop in &*plan.source_drops {
            *self.source_drops.entry(*drop).or_default() += 1;
        }
        self.cluster_ip_masquerade = plan.cluster_ip_masquerade.or(self.cluster_ip_masquerade);
    }

    fn subtract(&mut self, name: &NamespacedName, plan: &ServicePlan) {
        let kept = self.plans.get(name);
        let still_claimed: HashSet<(ServerKey, bool)> = kept
            .into_iter()
            .flat_map(|plan| plan.servers.iter())
            .map(|server| (server.key, server.node_port))
            .collect();
        for server in &*plan.servers {
            if !still_claimed.contains(&(server.key, server.node_port)) {
                self.servers.release(server.key, &Rank { node_port: server.node_port, owner: name.clone() });
            }
        }
        for (set, entry) in &*plan.entries {
            self.unwant_entry(*set, *entry);
        }
        for ip in &*plan.addresses {
            if self.addresses.unwant(*ip) {
                self.unwant_entry(SetId::IpvsIps, Entry::Ip(*ip));
            }
        }
        for drop in &*plan.source_drops {
            if let Some(count) = self.source_drops.get_mut(drop) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.source_drops.remove(drop);
                }
            }
        }
    }

    fn want_entry(&mut self, set: SetId, entry: Entry) {
        if self.entries.want((set, entry)) {
            *self.counts.entry(set).or_default() += 1;
        }
    }

    fn unwant_entry(&mut self, set: SetId, entry: Entry) {
        if self.entries.unwant((set, entry))
            && let Some(count) = self.counts.get_mut(&set)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&set);
            }
        }
    }
}

/// The virtual servers, with those that may differ in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    all: HashMap<ServerKey, Server>,
    dirty: HashSet<ServerKey>,
}

/// A virtual server.
#[derive(Debug, Default)]
pub(crate) struct Server {
    /// Those who want it, the winner first.
    claims: Vec<Claim>,
    pub(crate) installed: Option<Installed>,
}

/// What one Service wants of a virtual server.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    rank: Rank,
    pub(crate) settings: ServerSettings,
    pub(crate) reals: Pool,
}

/// Which of several Services gets an address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    node_port: bool,
    owner: NamespacedName,
}

/// What the kernel has.
#[derive(Debug, Clone)]
pub(crate) struct Installed {
    /// `None` if they differ from anything that we would write.
    pub(crate) settings: Option<ServerSettings>,
    /// The real servers that are not being drained; `None` if they have to be listed first.
    pub(crate) reals: Option<Pool>,
}

impl Claim {
    /// The Service.
    pub(crate) fn owner(&self) -> &NamespacedName {
        &self.rank.owner
    }
}

impl Server {
    /// What the kernel is to have.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claims.first()
    }

    fn is_settled(&self) -> bool {
        match (self.claim(), &self.installed) {
            (None, None) => true,
            (Some(claim), Some(installed)) => {
                installed.settings == Some(claim.settings)
                    && installed.reals.as_ref().is_some_and(|reals| reals == &claim.reals)
            }
            _ => false,
        }
    }
}

impl Servers {
    fn claim(&mut self, key: ServerKey, claim: Claim) {
        self.update(key, |server| {
            server.claims.retain(|present| present.rank != claim.rank);
            let position = server.claims.partition_point(|present| present.rank < claim.rank);
            // Nearly all have one claim; room for more would cost every Service some hundred bytes.
            server.claims.reserve_exact(1);
            server.claims.insert(position, claim);
        });
    }

    fn release(&mut self, key: ServerKey, rank: &Rank) {
        self.update(key, |server| server.claims.retain(|present| present.rank != *rank));
    }

    /// The kernel has this now.
    pub(crate) fn acknowledge(&mut self, key: ServerKey, installed: Option<Installed>) {
        self.update(key, |server| server.installed = installed);
    }

    pub(crate) fn get(&self, key: &ServerKey) -> Option<&Server> {
        self.all.get(key)
    }

    /// All that the kernel is known to have.
    pub(crate) fn installed(&self) -> Vec<ServerKey> {
        let installed = self.all.iter().filter(|(_, server)| server.installed.is_some());
        installed.map(|(key, _)| *key).collect()
    }

    /// Those that a Service wants and that may differ in the kernel. `default/kubernetes` comes first: without it little else on the node works.
    pub(crate) fn to_write(&self) -> Vec<ServerKey> {
        let rank = |key: &ServerKey| {
            let owner = self.all.get(key).and_then(Server::claim).map(|claim| claim.owner().as_str());
            (owner != Some("default/kubernetes"), *key)
        };
        let mut keys = self.dirty(true);
        keys.sort_by_cached_key(rank);
        keys
    }

    /// Those that the kernel has and that nothing wants.
    pub(crate) fn to_delete(&self) -> Vec<ServerKey> {
        self.dirty(false)
    }

    fn dirty(&self, claimed: bool) -> Vec<ServerKey> {
        let is_claimed =
            |key: &&ServerKey| self.all.get(*key).is_some_and(|server| server.claim().is_some()) == claimed;
        let mut keys: Vec<ServerKey> = self.dirty.iter().filter(is_claimed).copied().collect();
        keys.sort_unstable();
        keys
    }

    fn update(&mut self, key: ServerKey, change: impl FnOnce(&mut Server)) {
        let server = self.all.entry(key).or_default();
        change(server);
        if !server.is_settled() {
            self.dirty.insert(key);
            return;
        }
        self.dirty.remove(&key);
        if server.claims.is_empty() {
            self.all.remove(&key);
        }
        slots::release_if_empty(&mut self.dirty);
    }
}

#[cfg(test)]
mod tests;

//! Conflicts: which frontend gets an address and port that several have.
//!
//! With kube-proxy the winner is random. Here it depends only on the objects: cluster addresses before external addresses before
//! load-balancer addresses before node ports, then the Service whose name sorts first.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use crate::desired::{Admission, Exposure, ProxiedService};
use crate::name::{NamespacedName, Protocol};

/// What can be claimed: an address (none for node ports), a port and a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrontendKey {
    pub(crate) ip: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
}

/// The smallest claimant wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    exposure: Exposure,
    service: NamespacedName,
}

/// The claims of all frontends of one family.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    owners: HashMap<FrontendKey, Claimant>,
    /// The other claimants of contested addresses.
    losers: HashMap<FrontendKey, BTreeSet<Claimant>>,
}

impl Claims {
    /// Replaces a Service's claims. Returns the other Services that won or lost an address.
    pub(crate) fn update(
        &mut self,
        name: &NamespacedName,
        old: Option<&ProxiedService>,
        new: Option<&ProxiedService>,
    ) -> BTreeSet<NamespacedName> {
        let mut affected = BTreeSet::new();
        let (old, new) = (claims(old), claims(new));
        for (key, exposure) in old.iter().filter(|claim| new.binary_search(claim).is_err()) {
            self.release(*key, &Claimant { exposure: *exposure, service: name.clone() }, &mut affected);
        }
        for (key, exposure) in new.iter().filter(|claim| old.binary_search(claim).is_err()) {
            self.claim(*key, Claimant { exposure: *exposure, service: name.clone() }, &mut affected);
        }
        affected.remove(name);
        affected
    }

    /// Sets the admission of every frontend: active if it owns its address, shadowed otherwise.
    pub(crate) fn mark(&self, name: &NamespacedName, service: &mut ProxiedService) {
        let mut taken: HashSet<FrontendKey> = HashSet::new();
        for port in &mut service.ports {
            let protocol = port.name.protocol;
            for frontend in port.frontends.iter_mut().filter(|frontend| frontend.is_allowed()) {
                let key = FrontendKey { ip: frontend.ip, port: frontend.port, protocol };
                let owned = self
                    .owners
                    .get(&key)
                    .is_some_and(|o| o.exposure == frontend.exposure && o.service == *name);
                // Of several equal frontends in one Service the first one wins.
                frontend.admission =
                    if owned && taken.insert(key) { Admission::Active } else { Admission::Shadowed };
            }
        }
    }

    /// The Service whose frontend has this address and port.
    pub(crate) fn owner(&self, key: &FrontendKey) -> Option<&NamespacedName> {
        self.owners.get(key).map(|owner| &owner.service)
    }

    /// Whether any frontend has this address and port.
    pub(crate) fn is_claimed(&self, key: &FrontendKey) -> bool {
        self.owners.contains_key(key)
    }

    fn claim(&mut self, key: FrontendKey, claimant: Claimant, affected: &mut BTreeSet<NamespacedName>) {
        let Some(owner) = self.owners.get_mut(&key) else {
            self.owners.insert(key, claimant);
            return;
        };
        let loser = if claimant < *owner {
            affected.insert(owner.service.clone());
            std::mem::replace(owner, claimant)
        } else {
            claimant
        };
        self.losers.entry(key).or_default().insert(loser);
    }

    fn release(&mut self, key: FrontendKey, claimant: &Claimant, affected: &mut BTreeSet<NamespacedName>) {
        let losers = self.losers.get_mut(&key);
        if self.owners.get(&key) != Some(claimant) {
            if let Some(losers) = losers {
                losers.remove(claimant);
                if losers.is_empty() {
                    self.losers.remove(&key);
                }
            }
            return;
        }
        match losers.and_then(BTreeSet::pop_first) {
            Some(heir) => {
                affected.insert(heir.service.clone());
                self.owners.insert(key, heir);
                if self.losers.get(&key).is_some_and(BTreeSet::is_empty) {
                    self.losers.remove(&key);
                }
            }
            None => {
                self.owners.remove(&key);
            }
        }
    }
}

/// A Service's claims, each once, in order.
fn claims(service: Option<&ProxiedService>) -> Vec<(FrontendKey, Exposure)> {
    let ports = service.into_iter().flat_map(|service| service.ports.iter());
    let mut claims: Vec<(FrontendKey, Exposure)> = ports
        .flat_map(|port| {
            let protocol = port.name.protocol;
            let allowed = port.frontends.iter().filter(|frontend| frontend.is_allowed());
            allowed.map(move |f| (FrontendKey { ip: f.ip, port: f.port, protocol }, f.exposure))
        })
        .collect();
    claims.sort_unstable();
    claims.dedup();
    claims
}

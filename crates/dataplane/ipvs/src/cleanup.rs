//! Removes what this mode, or kube-proxy's, left behind.

use std::collections::HashSet;

use ipnet::IpNet;
use portwarden_model::Family;
use portwarden_netlink::ipset::{Entry, Sets};
use portwarden_netlink::ipvs::{Change, Ipvs, RealServer, ServerKey};
use portwarden_netlink::route::Route;
use portwarden_xtables::{Programs, RestoreError, SavedTable, Section, Table, Transaction};

use crate::drain::is_idle;
use crate::error::Error;
use crate::kernel::counts_as_node_address;
use crate::names::{DEVICE, SetId};
use crate::ownership::Ownership;
use crate::rules::{
    FORWARD, IPVS_FILTER, IPVS_OUT_FILTER, JUMPS, LOAD_BALANCER, MARK_MASQ, NODE_PORT, POSTROUTING,
    PROXY_FIREWALL, SERVICES, SOURCE_RANGES,
};

/// All chains; a chain comes before those that it leads to.
pub const CHAINS: [(Table, &str); 11] = [
    (Table::Nat, SERVICES),
    (Table::Nat, POSTROUTING),
    (Table::Nat, NODE_PORT),
    (Table::Nat, LOAD_BALANCER),
    (Table::Nat, MARK_MASQ),
    (Table::Filter, FORWARD),
    (Table::Filter, NODE_PORT),
    (Table::Filter, PROXY_FIREWALL),
    (Table::Filter, SOURCE_RANGES),
    (Table::Filter, IPVS_FILTER),
    (Table::Filter, IPVS_OUT_FILTER),
];

/// Chains that iptables mode has as well, with jumps of its own.
const SHARED: [&str; 5] = [SERVICES, POSTROUTING, MARK_MASQ, FORWARD, PROXY_FIREWALL];

/// Removes the jumps that only ipvs mode has. Comes before the chains of iptables mode are removed: some of these lead there.
pub fn remove_jumps(programs: &Programs, family: Family) -> Result<(), Error> {
    let failed = |source| Error::Rules { family, source };
    for jump in JUMPS.iter().filter(|jump| is_only_ours(jump.table, jump.to, jump.comment)) {
        programs.delete_rule(jump.table, jump.from, &jump.arguments()).map_err(failed)?;
    }
    Ok(())
}

fn is_only_ours(table: Table, chain: &str, comment: &str) -> bool {
    // iptables mode jumps to the firewall chain in other words.
    !SHARED.contains(&chain) || (table == Table::Filter && comment == "kube-proxy firewall rules")
}

/// Whether there is a chain that only ipvs mode has.
pub fn has_chains(programs: &Programs, family: Family) -> Result<bool, Error> {
    for table in [Table::Nat, Table::Filter] {
        let saved = programs.save(table, |_| false).map_err(|source| Error::Rules { family, source })?;
        if CHAINS.iter().any(|(of, chain)| *of == table && !SHARED.contains(chain) && saved.has_chain(chain))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Empties the chains that only ipvs mode has, so that none of them leads to a chain of iptables mode any more.
pub fn empty_chains(programs: &Programs, family: Family) -> Result<(), Error> {
    change_chains(programs, family, |section, chain| section.make_chain(chain))
}

/// Removes the chains that only ipvs mode has. Comes after those of iptables mode are removed: some of them lead here.
pub fn remove_chains(programs: &Programs, family: Family) -> Result<(), Error> {
    change_chains(programs, family, |section, chain| section.delete_chain(chain))
}

fn change_chains(programs: &Programs, family: Family, change: fn(&mut Section, &str)) -> Result<(), Error> {
    let failed = |source| Error::Rules { family, source };
    for table in [Table::Nat, Table::Filter] {
        let saved: SavedTable = programs.save(table, |_| false).map_err(failed)?;
        let ours = CHAINS.iter().filter(|(of, chain)| *of == table && !SHARED.contains(chain));
        for (_, chain) in ours.filter(|(_, chain)| saved.has_chain(chain)) {
            let mut transaction = Transaction::new();
            change(transaction.section(table), chain);
            match programs.restore(&transaction) {
                Ok(()) => {}
                Err(RestoreError::Other(source)) => return Err(failed(source)),
                Err(RestoreError::Lines(lines)) => return Err(failed(programs.rejection(&lines))),
            }
        }
    }
    Ok(())
}

/// Whether a set has one of our names, in either family.
fn is_our_set(name: &str) -> bool {
    Family::BOTH.iter().any(|family| SetId::ALL.iter().any(|set| set.name(*family) == name))
}

/// Removes the sets of both families. Comes last: rules that refer to them are gone, and virtual servers, which they identify.
pub fn remove_sets() -> Result<(), Vec<portwarden_netlink::Error>> {
    let mut sets = Sets::open().map_err(|error| vec![error])?;
    let names = sets.names().map_err(|error| vec![error])?;
    let ours: Vec<String> = names.into_iter().filter(|name| is_our_set(name)).collect();
    tracing::debug!(found = ours.len(), "Looked for ipsets of ipvs mode");
    let failures: Vec<_> = ours.iter().filter_map(|name| sets.destroy(name).err()).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// Our virtual servers, of both families, that are to go. They are identified once, by the device and the sets that are there at first.
#[derive(Debug)]
pub struct Leftovers {
    ownership: Ownership,
    excluded: Vec<IpNet>,
}

impl Leftovers {
    /// Looks for the device of ipvs mode; `None` if this mode has not been in use. Virtual servers in `excluded` ranges stay.
    pub fn find(excluded: &[IpNet]) -> Result<Option<Self>, portwarden_netlink::Error> {
        let mut route = Route::open()?;
        let device = route.link(DEVICE)?;
        tracing::debug!(found = device.is_some(), "Looked for {DEVICE}");
        let Some(device) = device else { return Ok(None) };
        let ownership = read_ownership(&mut route, device.index)?;
        Ok(Some(Leftovers { ownership, excluded: excluded.to_vec() }))
    }

    /// Removes the virtual servers at once, with their connections.
    pub fn remove_servers(&self) -> Result<(), Vec<portwarden_netlink::Error>> {
        let Some(mut ipvs) = Ipvs::open().map_err(|error| vec![error])? else { return Ok(()) };
        let keys = self.servers(&mut ipvs).map_err(|error| vec![error])?;
        let failures: Vec<_> = keys.iter().filter_map(|key| ipvs.delete(key).err()).collect();
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// Removes the virtual servers that have no TCP connections, and lets no new connections to the others. Returns how many are left: call it
    /// again later.
    pub fn drain_servers(&self) -> Result<usize, portwarden_netlink::Error> {
        let Some(mut ipvs) = Ipvs::open()? else { return Ok(0) };
        let mut left = 0;
        for key in self.servers(&mut ipvs)? {
            let reals = ipvs.real_servers(&key)?;
            if key.protocol != TCP || reals.iter().all(is_idle) {
                ipvs.delete(&key)?;
                continue;
            }
            left += 1;
            let new_connections = reals.iter().filter(|real| real.weight > 0);
            let stop: Vec<Change> = new_connections
                .map(|real| Change::EditReal(key, RealServer { weight: 0, ..*real }))
                .collect();
            // One that went meanwhile needs no weight.
            ipvs.apply(&stop)?;
        }
        Ok(left)
    }

    /// Removes the device with all its addresses. Comes after the virtual servers, which it identifies.
    pub fn remove_device(&self) -> Result<(), portwarden_netlink::Error> {
        Route::open()?.delete_link(DEVICE).map(drop)
    }

    fn servers(&self, ipvs: &mut Ipvs) -> Result<Vec<ServerKey>, portwarden_netlink::Error> {
        let keys = ipvs.servers()?.into_iter().map(|server| server.key).collect();
        let (removing, staying) = split(keys, &self.ownership, &self.excluded);
        tracing::debug!(
            removing = removing.len(),
            staying = staying.len(),
            "Looked for virtual servers of ipvs mode"
        );
        Ok(removing)
    }
}

/// The number of TCP; only its connections are waited for.
const TCP: u16 = 6;

/// Which virtual servers go, and which stay.
fn split(
    keys: Vec<ServerKey>,
    ownership: &Ownership,
    excluded: &[IpNet],
) -> (Vec<ServerKey>, Vec<ServerKey>) {
    keys.into_iter()
        .partition(|key| ownership.owns(key) && !excluded.iter().any(|net| net.contains(&key.address.ip())))
}

/// What identifies our virtual servers, of both families.
pub(crate) fn read_ownership(route: &mut Route, device: u32) -> Result<Ownership, portwarden_netlink::Error> {
    let mut ownership = Ownership::default();
    for found in route.addresses(None)? {
        if found.index == device {
            ownership.bound.insert(found.address);
        } else if counts_as_node_address(found.address) {
            ownership.node.insert(found.address);
        }
    }
    let mut sets = Sets::open()?;
    for family in Family::BOTH {
        for set in SetId::ALL {
            let found: HashSet<(SetId, Entry)> =
                sets.list(&set.spec(family))?.into_iter().flatten().map(|entry| (set, entry)).collect();
            ownership.entries.extend(found);
        }
    }
    Ok(ownership)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_identified_by_their_whole_names() {
        for name in [
            "KUBE-CLUSTER-IP",
            "KUBE-6-LOOP-BACK",
            "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
        ] {
            assert!(is_our_set(name), "{name}");
        }
        for name in ["KUBE-SOMETHING", "KUBE-CLUSTER-IP-2", "cluster-ip", "KUBE-6-LOAD-BALANCER-SOURCE-CIDR"]
        {
            assert!(!is_our_set(name), "{name}");
        }
    }

    #[test]
    fn excluded_ranges_and_servers_of_other_programs_stay() {
        let key = |text: &str| ServerKey { address: text.parse().expect("an address"), protocol: 6 };
        let all = ["10.96.0.10:80", "[fd00::1]:80", "172.16.0.1:443", "10.96.0.11:80"].map(key);
        let bound = ["10.96.0.10", "fd00::1", "172.16.0.1"].map(|ip| ip.parse().expect("an address"));
        let ownership = Ownership { bound: bound.into(), ..Ownership::default() };
        let excluded = ["172.16.0.0/12", "fd00::/8"].map(|net| net.parse().expect("a range"));
        assert_eq!(split(all.to_vec(), &ownership, &excluded), (all[..1].to_vec(), all[1..].to_vec()));
        assert_eq!(split(all.to_vec(), &ownership, &[]), (all[..3].to_vec(), all[3..].to_vec()));
    }

    #[test]
    fn jumps_of_iptables_mode_stay() {
        let only_ours: Vec<_> =
            JUMPS.iter().filter(|jump| is_only_ours(jump.table, jump.to, jump.comment)).collect();
        assert_eq!(only_ours.len(), 5);
        assert!(only_ours.iter().all(|jump| jump.table == Table::Filter));
    }
}

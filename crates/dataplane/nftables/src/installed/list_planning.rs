//! Plans the endpoint lists of a service port: one for each pool that it needs.

use portwarden_model::{PoolKind, ProxiedPort};

use super::Installed;
use crate::affinity_entries::AffinityEntries;
use crate::endpoint_list::EndpointList;
use crate::error::Refusal;
use crate::plan::Plan;
use crate::port_elements;
use crate::port_lists::{PortLists, needs_list};
use crate::route::{LISTS, ListId, STICKY_PORTS};

impl Installed {
    /// Brings the lists of a port to what `port` needs.
    pub(super) fn plan_lists(
        &mut self,
        old: &PortLists,
        port: &ProxiedPort,
        plan: &mut Plan,
    ) -> Result<PortLists, Refusal> {
        let sticky = port.affinity.is_some();
        let none = PortLists::default();
        let usable = if old.is_sticky() == sticky { old } else { &none };
        let state = if sticky {
            self.plan_sticky_lists(usable, port, plan)?
        } else {
            PortLists {
                cluster: self.plan_list(usable, port, PoolKind::Cluster, plan)?,
                local: self.plan_list(usable, port, PoolKind::Local, plan)?.map(Box::new),
            }
        };
        if !std::ptr::eq(usable, old) {
            self.remove_lists(old, plan);
        }
        Ok(state)
    }

    fn plan_list(
        &mut self,
        old: &PortLists,
        port: &ProxiedPort,
        kind: PoolKind,
        plan: &mut Plan,
    ) -> Result<Option<EndpointList>, Refusal> {
        match (old.get(kind), needs_list(port, kind)) {
            (None, false) => Ok(None),
            (Some(list), true) => Ok(Some(list.update(port.pool(kind), None, plan))),
            (Some(list), false) => {
                list.remove(plan);
                self.pending.released.push(list.id);
                Ok(None)
            }
            (None, true) => {
                let list = EndpointList::in_order(self.take(false)?, port.pool(kind), None);
                list.write(plan);
                Ok(Some(list))
            }
        }
    }

    /// The lists of a sticky port are siblings. A list that was needed once stays as long as the port, since clients that use the other
    /// list now may have their entry in it.
    fn plan_sticky_lists(
        &mut self,
        old: &PortLists,
        port: &ProxiedPort,
        plan: &mut Plan,
    ) -> Result<PortLists, Refusal> {
        let recovered = if old.is_sticky() { PortLists::default() } else { self.recover(port) };
        let known = |kind| old.get(kind).or(recovered.get(kind)).map(|state| state.id);
        let needed = |kind| known(kind).is_some() || needs_list(port, kind);
        if !needed(PoolKind::Cluster) && !needed(PoolKind::Local) {
            return Ok(PortLists::default());
        }
        let cluster = match (known(PoolKind::Cluster), known(PoolKind::Local)) {
            (Some(cluster), _) => cluster,
            (None, Some(local)) => local.sibling(),
            (None, None) => self.take(true)?,
        };
        let entries =
            AffinityEntries::assign(old.iter().chain(recovered.iter()), [&port.cluster, &port.local]);
        let mut plan_list = |kind, list| {
            needed(kind).then(|| match old.get(kind) {
                Some(old) => old.update(port.pool(kind), Some(&entries), plan),
                None => {
                    let state = EndpointList::in_order(list, port.pool(kind), Some(&entries));
                    state.write(plan);
                    state
                }
            })
        };
        Ok(PortLists {
            cluster: plan_list(PoolKind::Cluster, cluster),
            local: plan_list(PoolKind::Local, cluster.sibling()).map(Box::new),
        })
    }

    /// The lists that an earlier process left of a sticky port.
    fn recover(&mut self, port: &ProxiedPort) -> PortLists {
        let mut take = |kind| self.recovered.remove(port_elements::name_key(port, kind).as_bytes());
        let (cluster, mut local) = (take(PoolKind::Cluster), take(PoolKind::Local));
        if let (Some(cluster), Some(other)) = (&cluster, &local)
            && cluster.id.sibling() != other.id
        {
            // Earlier versions gave the lists of a port unrelated numbers. The list with more clients stays.
            self.pending.released.push(other.id);
            local = None;
        }
        PortLists { cluster, local: local.map(Box::new) }
    }

    /// Deletes the lists of a port.
    pub(super) fn remove_lists(&mut self, state: &PortLists, plan: &mut Plan) {
        state.iter().for_each(|list| list.remove(plan));
        // Siblings share a number.
        let numbers = if state.is_sticky() { 1 } else { 2 };
        self.pending.released.extend(state.iter().map(|list| list.id).take(numbers));
    }

    fn take(&mut self, sticky: bool) -> Result<ListId, Refusal> {
        let list = if sticky {
            self.sticky_numbers.take().map(ListId::sticky).ok_or(Refusal::StickyPorts { limit: STICKY_PORTS })
        } else {
            self.numbers.take().map(ListId::ordinary).ok_or(Refusal::Lists { limit: LISTS })
        }?;
        self.pending.taken.push(list);
        Ok(list)
    }

    pub(super) fn release(&mut self, list: ListId) {
        if list.is_sticky() {
            self.sticky_numbers.release(list.number());
        } else {
            self.numbers.release(list.number());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use portwarden_model::{
        Admission, Backend, Exposure, Frontend, Masquerade, Name, NamespacedName, Pool, PortName, Protocol,
        TrafficPolicy, Verdict,
    };

    use super::*;

    fn backend(number: u8) -> Backend {
        Backend::new(([10, 0, 0, number], 80).into(), false)
    }

    fn pool(numbers: &[u8]) -> Pool {
        Pool::new(&numbers.iter().copied().map(backend).collect::<Vec<_>>())
    }

    /// A sticky port whose frontends lead to these endpoints; an empty pool has no frontend.
    fn port(cluster: &[u8], local: &[u8]) -> ProxiedPort {
        let frontend = |kind, endpoints: &[u8]| {
            (!endpoints.is_empty()).then_some(Frontend {
                exposure: Exposure::ClusterIp,
                ip: Some([10, 96, 0, 1].into()),
                port: 80,
                from_node: Verdict::Forward(kind),
                from_elsewhere: Verdict::Forward(kind),
                masquerade: Masquerade::Never,
                policy: TrafficPolicy::Cluster,
                admission: Admission::Active,
            })
        };
        let frontends = [frontend(PoolKind::Cluster, cluster), frontend(PoolKind::Local, local)];
        ProxiedPort {
            name: PortName {
                service: NamespacedName::new("demo", "web"),
                port: Name::from("http"),
                protocol: Protocol::Tcp,
            },
            frontends: frontends.into_iter().flatten().collect(),
            cluster: pool(cluster),
            local: pool(local),
            endpoints: Pool::default(),
            affinity: std::num::NonZeroU32::new(600),
            source_ranges: None,
            has_endpoints: true,
            no_local_internal: false,
            no_local_external: false,
        }
    }

    fn entries(list: Option<&EndpointList>) -> HashMap<std::net::SocketAddr, u16> {
        list.into_iter().flat_map(EndpointList::entries).collect()
    }

    #[test]
    fn a_list_that_was_needed_once_stays_for_its_clients() {
        let mut installed = Installed::new(HashMap::new());
        let mut plan = Plan::new();
        let cluster = installed.plan_lists(&PortLists::default(), &port(&[1, 2, 3], &[]), &mut plan).unwrap();
        assert!(!cluster.is_linked() && cluster.local.is_none());
        let local = installed.plan_lists(&cluster, &port(&[], &[2, 3, 4]), &mut plan).unwrap();
        assert!(local.is_linked());
        let (first, second) = (local.get(PoolKind::Cluster).unwrap(), local.get(PoolKind::Local).unwrap());
        assert_eq!((first.id.sibling(), first.pool.len()), (second.id, 0));
        let (before, after) = (entries(cluster.get(PoolKind::Cluster)), entries(Some(second)));
        for shared in [2, 3].map(|number| backend(number).address()) {
            assert_eq!(before[&shared], after[&shared]);
        }
        assert!(!before.values().any(|entry| *entry == after[&backend(4).address()]));
        installed.remove_lists(&local, &mut plan);
        assert_eq!(installed.pending.released, [first.id], "siblings share a number");
    }

    #[test]
    fn siblings_of_an_earlier_process_are_recovered() {
        let port = port(&[1, 2], &[2]);
        let list = ListId::sticky(7);
        let found = HashMap::from([
            (
                key(&port, PoolKind::Cluster),
                EndpointList::recovered(list, vec![(5, backend(1)), (9, backend(2))]),
            ),
            (key(&port, PoolKind::Local), EndpointList::recovered(list.sibling(), vec![(9, backend(2))])),
        ]);
        let mut installed = Installed::new(found);
        let state = installed.plan_lists(&PortLists::default(), &port, &mut Plan::new()).unwrap();
        assert_eq!(state.get(PoolKind::Cluster).unwrap().id, list);
        assert_eq!(entries(state.get(PoolKind::Cluster))[&backend(1).address()], 5);
        assert_eq!(entries(state.get(PoolKind::Local))[&backend(2).address()], 9);
        assert_eq!(installed.take(true).unwrap(), ListId::sticky(8), "a number in use is not assigned again");
    }

    /// Earlier versions gave both lists numbers of their own, and their endpoints different entries.
    #[test]
    fn of_two_unrelated_lists_the_one_of_all_endpoints_stays() {
        let port = port(&[1, 2], &[2]);
        let found = HashMap::from([
            (
                key(&port, PoolKind::Cluster),
                EndpointList::recovered(ListId::sticky(3), vec![(5, backend(1)), (9, backend(2))]),
            ),
            (key(&port, PoolKind::Local), EndpointList::recovered(ListId::sticky(4), vec![(1, backend(2))])),
        ]);
        let mut installed = Installed::new(found);
        let state = installed.plan_lists(&PortLists::default(), &port, &mut Plan::new()).unwrap();
        assert_eq!(state.get(PoolKind::Cluster).unwrap().id, ListId::sticky(3));
        assert_eq!(state.get(PoolKind::Local).unwrap().id, ListId::sticky(3).sibling());
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            assert_eq!(entries(state.get(kind))[&backend(2).address()], 9);
        }
        assert_eq!(installed.pending.released, [ListId::sticky(4)]);
    }

    fn key(port: &ProxiedPort, kind: PoolKind) -> Vec<u8> {
        port_elements::name_key(port, kind).as_bytes().to_vec()
    }
}

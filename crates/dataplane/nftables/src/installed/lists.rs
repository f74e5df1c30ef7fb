//! Which lists a service port has: one for each pool that it needs.

use portwarden_model::{PoolKind, ProxiedPort};

use super::Installed;
use crate::entries::Entries;
use crate::error::Refusal;
use crate::lists::ListState;
use crate::plan::Plan;
use crate::ports::{self, PortState};
use crate::route::{LISTS, List, STICKY_PORTS};

impl Installed {
    /// Plans the way of a port's lists to what is wanted.
    pub(super) fn plan_lists(
        &mut self,
        old: &PortState,
        port: &ProxiedPort,
        plan: &mut Plan,
    ) -> Result<PortState, Refusal> {
        let sticky = port.affinity.is_some();
        let none = PortState::default();
        let usable = if old.is_sticky() == sticky { old } else { &none };
        let state = if sticky {
            self.plan_sticky_lists(usable, port, plan)?
        } else {
            PortState {
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
        old: &PortState,
        port: &ProxiedPort,
        kind: PoolKind,
        plan: &mut Plan,
    ) -> Result<Option<ListState>, Refusal> {
        match (old.list(kind), ports::needs_list(port, kind)) {
            (None, false) => Ok(None),
            (Some(list), true) => Ok(Some(list.update(port.pool(kind), None, plan))),
            (Some(list), false) => {
                list.remove(plan);
                self.pending.released.push(list.list);
                Ok(None)
            }
            (None, true) => {
                let list = ListState::in_order(self.take(false)?, port.pool(kind), None);
                list.write(plan);
                Ok(Some(list))
            }
        }
    }

    /// The lists of a sticky port are siblings. One that has been needed stays as long as the port, since clients may be remembered in it
    /// that come by the other one now.
    fn plan_sticky_lists(
        &mut self,
        old: &PortState,
        port: &ProxiedPort,
        plan: &mut Plan,
    ) -> Result<PortState, Refusal> {
        let recovered = if old.is_sticky() { PortState::default() } else { self.recover(port) };
        let known = |kind| old.list(kind).or(recovered.list(kind)).map(|state| state.list);
        let needed = |kind| known(kind).is_some() || ports::needs_list(port, kind);
        if !needed(PoolKind::Cluster) && !needed(PoolKind::Local) {
            return Ok(PortState::default());
        }
        let cluster = match (known(PoolKind::Cluster), known(PoolKind::Local)) {
            (Some(cluster), _) => cluster,
            (None, Some(local)) => local.sibling(),
            (None, None) => self.take(true)?,
        };
        let entries = Entries::assign(old.lists().chain(recovered.lists()), [&port.cluster, &port.local]);
        let mut plan_list = |kind, list| {
            needed(kind).then(|| match old.list(kind) {
                Some(old) => old.update(port.pool(kind), Some(&entries), plan),
                None => {
                    let state = ListState::in_order(list, port.pool(kind), Some(&entries));
                    state.write(plan);
                    state
                }
            })
        };
        Ok(PortState {
            cluster: plan_list(PoolKind::Cluster, cluster),
            local: plan_list(PoolKind::Local, cluster.sibling()).map(Box::new),
        })
    }

    /// The lists that an earlier process left of a sticky port.
    fn recover(&mut self, port: &ProxiedPort) -> PortState {
        let mut take = |kind| self.recovered.remove(ports::name_key(port, kind).as_bytes());
        let (cluster, mut local) = (take(PoolKind::Cluster), take(PoolKind::Local));
        if let (Some(cluster), Some(other)) = (&cluster, &local)
            && cluster.list.sibling() != other.list
        {
            // Lists of a port were not always siblings. The larger memory of clients goes on.
            self.pending.released.push(other.list);
            local = None;
        }
        PortState { cluster, local: local.map(Box::new) }
    }

    /// Plans the end of a port's lists.
    pub(super) fn remove_lists(&mut self, state: &PortState, plan: &mut Plan) {
        state.lists().for_each(|list| list.remove(plan));
        // Siblings share a number.
        let numbers = if state.is_sticky() { 1 } else { 2 };
        self.pending.released.extend(state.lists().map(|list| list.list).take(numbers));
    }

    fn take(&mut self, sticky: bool) -> Result<List, Refusal> {
        let list = if sticky {
            self.sticky_numbers.take().map(List::sticky).ok_or(Refusal::StickyPorts { limit: STICKY_PORTS })
        } else {
            self.numbers.take().map(List::ordinary).ok_or(Refusal::Lists { limit: LISTS })
        }?;
        self.pending.taken.push(list);
        Ok(list)
    }

    /// Gives the number of a list back.
    pub(super) fn release(&mut self, list: List) {
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

    /// A sticky port whose addresses lead to these endpoints; none leads to an empty pool.
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

    fn entries(list: Option<&ListState>) -> HashMap<std::net::SocketAddr, u16> {
        list.into_iter().flat_map(ListState::entries).collect()
    }

    #[test]
    fn a_list_that_was_needed_stays_for_the_sake_of_its_clients() {
        let mut installed = Installed::new(HashMap::new());
        let mut plan = Plan::new();
        let cluster = installed.plan_lists(&PortState::default(), &port(&[1, 2, 3], &[]), &mut plan).unwrap();
        assert!(!cluster.is_linked() && cluster.local.is_none());
        let local = installed.plan_lists(&cluster, &port(&[], &[2, 3, 4]), &mut plan).unwrap();
        assert!(local.is_linked());
        let (first, second) = (local.list(PoolKind::Cluster).unwrap(), local.list(PoolKind::Local).unwrap());
        assert_eq!((first.list.sibling(), first.pool.len()), (second.list, 0));
        let (before, after) = (entries(cluster.list(PoolKind::Cluster)), entries(Some(second)));
        for shared in [2, 3].map(|number| backend(number).address()) {
            assert_eq!(before[&shared], after[&shared]);
        }
        assert!(!before.values().any(|entry| *entry == after[&backend(4).address()]));
        installed.remove_lists(&local, &mut plan);
        assert_eq!(installed.pending.released, [first.list], "siblings share a number");
    }

    #[test]
    fn siblings_of_an_earlier_process_are_found_again() {
        let port = port(&[1, 2], &[2]);
        let list = List::sticky(7);
        let found = HashMap::from([
            (
                key(&port, PoolKind::Cluster),
                ListState::recovered(list, vec![(5, backend(1)), (9, backend(2))]),
            ),
            (key(&port, PoolKind::Local), ListState::recovered(list.sibling(), vec![(9, backend(2))])),
        ]);
        let mut installed = Installed::new(found);
        let state = installed.plan_lists(&PortState::default(), &port, &mut Plan::new()).unwrap();
        assert_eq!(state.list(PoolKind::Cluster).unwrap().list, list);
        assert_eq!(entries(state.list(PoolKind::Cluster))[&backend(1).address()], 5);
        assert_eq!(entries(state.list(PoolKind::Local))[&backend(2).address()], 9);
        assert_eq!(installed.take(true).unwrap(), List::sticky(8), "numbers in use are not given out");
    }

    /// Earlier versions gave both lists numbers of their own, and their endpoints different entries.
    #[test]
    fn of_lists_that_are_no_siblings_that_of_all_endpoints_goes_on() {
        let port = port(&[1, 2], &[2]);
        let found = HashMap::from([
            (
                key(&port, PoolKind::Cluster),
                ListState::recovered(List::sticky(3), vec![(5, backend(1)), (9, backend(2))]),
            ),
            (key(&port, PoolKind::Local), ListState::recovered(List::sticky(4), vec![(1, backend(2))])),
        ]);
        let mut installed = Installed::new(found);
        let state = installed.plan_lists(&PortState::default(), &port, &mut Plan::new()).unwrap();
        assert_eq!(state.list(PoolKind::Cluster).unwrap().list, List::sticky(3));
        assert_eq!(state.list(PoolKind::Local).unwrap().list, List::sticky(3).sibling());
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            assert_eq!(entries(state.list(kind))[&backend(2).address()], 9);
        }
        assert_eq!(installed.pending.released, [List::sticky(4)]);
    }

    fn key(port: &ProxiedPort, kind: PoolKind) -> Vec<u8> {
        ports::name_key(port, kind).as_bytes().to_vec()
    }
}

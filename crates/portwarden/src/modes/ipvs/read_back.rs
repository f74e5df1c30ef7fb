//! What the kernel's virtual servers do with connections to a frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use portwarden_ipvs::{FoundServer, find_servers};
use portwarden_model::{Family, FrontendKey, ObservedFrontend, Protocol, Treatment};

use crate::modes::ReadBack;

/// The virtual servers of one family, as they were when they were read. A node port has one on each address of the node.
pub(super) struct VirtualServers {
    servers: BTreeMap<FrontendKey, Vec<FoundServer>>,
}

impl VirtualServers {
    /// Reads all of them.
    pub(super) fn read(family: Family) -> anyhow::Result<Self> {
        Ok(VirtualServers::group(find_servers(family)?))
    }

    fn group(found: Vec<FoundServer>) -> Self {
        let mut servers: BTreeMap<FrontendKey, Vec<FoundServer>> = BTreeMap::new();
        for server in found {
            let has_number = |one: &Protocol| u16::from(one.number()) == server.key.protocol;
            let Some(protocol) = Protocol::ALL.into_iter().find(has_number) else { continue };
            let address = server.key.address;
            let ip = (!server.node_port).then_some(address.ip());
            let key = FrontendKey { ip, port: address.port(), protocol };
            servers.entry(key).or_default().push(server);
        }
        VirtualServers { servers }
    }

    fn of(&self, key: &FrontendKey) -> &[FoundServer] {
        self.servers.get(key).map(Vec::as_slice).unwrap_or_default()
    }
}

impl ReadBack for VirtualServers {
    fn frontend(&mut self, key: &FrontendKey) -> anyhow::Result<ObservedFrontend> {
        Ok(observe(key, self.of(key)))
    }

    /// The virtual servers of a node port are compared one by one: together they would hide what one of them lacks.
    fn compare(
        &mut self,
        key: &FrontendKey,
        desired: &ObservedFrontend,
    ) -> anyhow::Result<(ObservedFrontend, Vec<String>)> {
        let servers = self.of(key);
        let all = observe(key, servers);
        let mut differences = Vec::new();
        for server in servers {
            let found = observe(key, std::slice::from_ref(server)).differences(desired);
            let with_address =
                |text| if servers.len() > 1 { format!("{}: {text}", server.key) } else { text };
            differences.extend(found.into_iter().map(with_address));
        }
        if servers.is_empty() {
            differences = all.differences(desired);
        }
        Ok((all, differences))
    }

    fn frontends(&mut self) -> anyhow::Result<BTreeSet<FrontendKey>> {
        Ok(self.servers.keys().copied().collect())
    }
}

/// What several virtual servers do. A real server of weight 0 gets no new connection; without any, IPVS refuses connections.
fn observe(key: &FrontendKey, servers: &[FoundServer]) -> ObservedFrontend {
    let mut observed = ObservedFrontend::not_served();
    if servers.is_empty() {
        observed.evidence.push(format!("there is no virtual server for {key}"));
        return observed;
    }
    let mut endpoints: BTreeSet<SocketAddr> = BTreeSet::new();
    for server in servers {
        observed.evidence.push(format!("virtual server {}", server.key));
        for real in &server.reals {
            observed.evidence.push(format!("real server {} with weight {}", real.address, real.weight));
            endpoints.extend((real.weight > 0).then_some(real.address));
        }
    }
    let treatment = if endpoints.is_empty() { Treatment::Rejected } else { Treatment::Forwarded(endpoints) };
    ObservedFrontend { from_node: treatment.clone(), from_elsewhere: treatment, ..observed }
}

/// What this mode makes of a frontend. A virtual server has one list of real servers for all clients, and cannot drop: with policy Local and
/// endpoints only elsewhere, those are used.
pub(super) fn adapt(desired: ObservedFrontend, cluster: &BTreeSet<SocketAddr>) -> ObservedFrontend {
    let treatment = match desired.from_elsewhere {
        Treatment::Dropped | Treatment::Rejected if !cluster.is_empty() => {
            Treatment::Forwarded(cluster.clone())
        }
        Treatment::Dropped => Treatment::Rejected,
        other => other,
    };
    ObservedFrontend { from_node: treatment.clone(), from_elsewhere: treatment, ..desired }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::ipvs::{RealServer, ServerKey};

    fn server(address: &str, node_port: bool, reals: &[(&str, u32)]) -> FoundServer {
        let real = |(address, weight): &(&str, u32)| {
            RealServer::masqueraded(address.parse().expect("an address"), *weight)
        };
        FoundServer {
            key: ServerKey { address: address.parse().expect("an address"), protocol: 6 },
            node_port,
            reals: reals.iter().map(real).collect(),
        }
    }

    fn forwarded(endpoints: &[&str]) -> Treatment {
        Treatment::Forwarded(endpoints.iter().map(|one| one.parse().expect("an endpoint")).collect())
    }

    fn for_all(treatment: Treatment) -> ObservedFrontend {
        ObservedFrontend {
            from_node: treatment.clone(),
            from_elsewhere: treatment,
            ..ObservedFrontend::not_served()
        }
    }

    #[test]
    fn each_virtual_server_of_a_node_port_is_compared() {
        let mut servers = VirtualServers::group(vec![
            server("192.168.0.2:30080", true, &[("10.0.0.1:80", 1), ("10.0.0.2:80", 1), ("10.0.0.3:80", 0)]),
            server("192.168.0.3:30080", true, &[("10.0.0.1:80", 1)]),
            // A Service address with the same port is none of its business.
            server("10.96.0.1:30080", false, &[("10.0.0.9:80", 1)]),
        ]);
        let key = FrontendKey { ip: None, port: 30_080, protocol: Protocol::Tcp };
        let desired = for_all(forwarded(&["10.0.0.1:80", "10.0.0.2:80"]));
        let (seen, differences) = servers.compare(&key, &desired).expect("read already");
        assert_eq!(seen.from_node, desired.from_node);
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].contains("192.168.0.3:30080"), "{differences:?}");
        assert!(differences[0].ends_with("connections do not reach 10.0.0.2:80"), "{differences:?}");
        assert_eq!(servers.frontends().expect("read already").len(), 2);
        let absent = FrontendKey { port: 80, ..key };
        let (_, differences) = servers.compare(&absent, &desired).expect("read already");
        assert!(differences[0].starts_with("connections are not served"), "{differences:?}");
    }

    #[test]
    fn a_virtual_server_cannot_drop_or_tell_clients_apart() {
        let (near, both) = (&["10.0.0.1:80"][..], &["10.0.0.1:80", "10.0.0.2:80"][..]);
        let Treatment::Forwarded(cluster) = forwarded(both) else { panic!("forwarded") };
        let local = ObservedFrontend { from_node: forwarded(both), ..for_all(forwarded(near)) };
        assert_eq!(adapt(local, &cluster), for_all(forwarded(near)));
        let dropped = ObservedFrontend { from_node: forwarded(both), ..for_all(Treatment::Dropped) };
        assert_eq!(adapt(dropped, &cluster), for_all(forwarded(both)));
        let none = BTreeSet::new();
        assert_eq!(adapt(for_all(Treatment::Dropped), &none), for_all(Treatment::Rejected));
        assert_eq!(adapt(for_all(Treatment::NotServed), &cluster), for_all(Treatment::NotServed));
    }
}

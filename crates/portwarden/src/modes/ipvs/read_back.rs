//! What the kernel's virtual servers do with connections to a frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use portwarden_model::{Family, FrontendKey, ObservedFrontend, Protocol, Treatment};
use portwarden_netlink::ipvs::{Ipvs, RealServer};

use crate::modes::ReadBack;

/// The virtual servers of one family, as they were when they were read.
pub(super) struct VirtualServers {
    servers: BTreeMap<FrontendKey, Vec<RealServer>>,
}

impl VirtualServers {
    /// Without the module there are none. Asking by netlink would load it.
    pub(super) fn read(family: Family) -> anyhow::Result<Self> {
        let mut servers = BTreeMap::new();
        if super::has_virtual_servers(Path::new("/proc"))
            && let Some(mut kernel) = Ipvs::open()?
        {
            for server in kernel.servers()? {
                let protocol =
                    Protocol::ALL.into_iter().find(|one| u16::from(one.number()) == server.key.protocol);
                let address = server.key.address;
                if let Some(protocol) = protocol.filter(|_| Family::of(address.ip()) == family) {
                    let key = FrontendKey { ip: Some(address.ip()), port: address.port(), protocol };
                    servers.insert(key, kernel.real_servers(&server.key)?);
                }
            }
        }
        Ok(VirtualServers { servers })
    }

    /// Virtual servers of a frontend: a node port has one on each address of the node.
    fn of<'a>(
        &'a self,
        key: &'a FrontendKey,
    ) -> impl Iterator<Item = (&'a FrontendKey, &'a Vec<RealServer>)> {
        self.servers.iter().filter(move |(one, _)| {
            one.port == key.port && one.protocol == key.protocol && (key.ip.is_none() || one.ip == key.ip)
        })
    }
}

impl ReadBack for VirtualServers {
    /// A server of weight 0 gets no new connection. Without endpoints, rules refuse connections, which are not read here.
    fn frontend(&mut self, key: &FrontendKey) -> anyhow::Result<ObservedFrontend> {
        let mut observed = ObservedFrontend::not_served();
        let mut endpoints: BTreeSet<SocketAddr> = BTreeSet::new();
        for (server, real) in self.of(key) {
            observed.evidence.push(format!("virtual server {server}"));
            for one in real {
                observed.evidence.push(format!("real server {} with weight {}", one.address, one.weight));
                endpoints.extend((one.weight > 0).then_some(one.address));
            }
        }
        if !endpoints.is_empty() {
            observed.from_node = Treatment::Forwarded(endpoints.clone());
            observed.from_elsewhere = Treatment::Forwarded(endpoints);
        } else if !observed.evidence.is_empty() {
            observed.from_node = Treatment::Rejected;
            observed.from_elsewhere = Treatment::Rejected;
        } else {
            observed.evidence.push(format!("there is no virtual server {key}"));
        }
        Ok(observed)
    }

    fn frontends(&mut self) -> anyhow::Result<BTreeSet<FrontendKey>> {
        let is_unspecified = |ip: Option<IpAddr>| ip.is_some_and(|ip| ip.is_unspecified());
        Ok(self.servers.keys().filter(|key| !is_unspecified(key.ip)).copied().collect())
    }
}

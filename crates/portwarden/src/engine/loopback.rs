//! The TCP node ports that should answer on loopback addresses, as the kernel has their Services.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use portwarden_model::{
    Changes, Desired, Exposure, LoopbackNodePorts, NamespacedName, Pool, PortName, Protocol, ProxiedPort,
    ProxiedService, Verdict,
};

/// Those of one family.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopbackPorts {
    /// Whether there are to be any, should Services have node ports.
    pub served: bool,
    services: BTreeMap<NamespacedName, Vec<LoopbackPort>>,
}

/// One node port.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopbackPort {
    /// Whose it is.
    pub name: PortName,
    /// Its number.
    pub port: u16,
    /// Where connections go; never empty. Those on this node only, if the Service's external policy is Local.
    pub endpoints: Pool,
    /// Seconds that clients stay with their endpoint.
    pub affinity: Option<NonZeroU32>,
}

impl LoopbackPorts {
    /// These, of one Service.
    #[cfg(test)]
    pub(crate) fn of(ports: Vec<LoopbackPort>) -> Self {
        LoopbackPorts { served: true, services: [(NamespacedName::new("demo", "web"), ports)].into() }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &LoopbackPort> {
        self.services.values().flatten()
    }

    /// Takes over what a sync brought to the kernel. Returns whether anything differs.
    pub(super) fn update(&mut self, desired: &Desired, changes: &Changes) -> bool {
        let served = desired.node.loopback_node_ports == LoopbackNodePorts::Named;
        if !served {
            return self.clear();
        }
        if changes.full || !self.served {
            let services = desired.services().map(|(name, service)| (name.clone(), ports(service)));
            let services = services.filter(|(_, ports)| !ports.is_empty()).collect();
            let fresh = LoopbackPorts { served, services };
            let modified = *self != fresh;
            *self = fresh;
            return modified;
        }
        let mut modified = false;
        for name in &changes.services {
            let wanted =
                desired.service(name).map(|service| ports(service)).filter(|ports| !ports.is_empty());
            modified |= self.services.get(name) != wanted.as_ref();
            match wanted {
                Some(wanted) => self.services.insert(name.clone(), wanted),
                None => self.services.remove(name),
            };
        }
        modified
    }

    /// Forgets all. Returns whether there was anything.
    pub(super) fn clear(&mut self) -> bool {
        std::mem::take(self) != LoopbackPorts::default()
    }
}

fn ports(service: &ProxiedService) -> Vec<LoopbackPort> {
    service.ports.iter().filter(|port| port.protocol() == Protocol::Tcp).filter_map(node_port).collect()
}

fn node_port(port: &ProxiedPort) -> Option<LoopbackPort> {
    let frontend = port.frontends.iter().find(|f| f.exposure == Exposure::NodePort && f.is_active())?;
    // The way from elsewhere: traffic that starts here would know no policy Local.
    let Verdict::Forward(pool) = frontend.from_elsewhere else { return None };
    Some(LoopbackPort {
        name: port.name.clone(),
        port: frontend.port,
        endpoints: port.pool(pool).clone(),
        affinity: port.affinity,
    })
}

//! The endpoint lists of one service port.

use portwarden_model::{Frontend, PoolKind, ProxiedPort, Verdict};

use crate::endpoint_list::EndpointList;
use crate::service_addresses::is_split;

/// The lists of a service port: all endpoints, and those of this node. A list that no frontend needs does not exist.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PortLists {
    pub(crate) cluster: Option<EndpointList>,
    /// Boxed, since few ports have one.
    pub(crate) local: Option<Box<EndpointList>>,
}

impl PortLists {
    pub(crate) fn get(&self, kind: PoolKind) -> Option<&EndpointList> {
        match kind {
            PoolKind::Cluster => self.cluster.as_ref(),
            PoolKind::Local => self.local.as_deref(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &EndpointList> {
        self.cluster.iter().chain(self.local.as_deref())
    }

    /// Whether the lists have session affinity.
    pub(crate) fn is_sticky(&self) -> bool {
        self.iter().any(|list| list.id.is_sticky())
    }

    /// Whether a client may have its entry in the other list than the one it uses.
    pub(crate) fn is_linked(&self) -> bool {
        self.is_sticky() && self.cluster.is_some() && self.local.is_some()
    }
}

/// Whether a port needs a list. Policy Local needs the list of local endpoints even while it is empty: its key leads traffic that starts
/// on this node to all endpoints.
pub(crate) fn needs_list(port: &ProxiedPort, kind: PoolKind) -> bool {
    let forwards = |frontend: &Frontend| {
        frontend.from_elsewhere == Verdict::Forward(kind) || frontend.from_node == Verdict::Forward(kind)
    };
    let by_key = |frontend: &Frontend| kind == PoolKind::Local && is_split(frontend);
    port.active_frontends().any(|frontend| forwards(frontend) || by_key(frontend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{Family, NamespacedName};
    use portwarden_testkit::build::{ServiceBuilder, port};

    /// Whether the lists of all endpoints and of local endpoints are needed.
    fn needed(service: ServiceBuilder, endpoints: &[u8]) -> (bool, bool) {
        let mut objects = samples::endpoints("web", endpoints);
        objects.push(service.port(port(80)).into());
        let cluster = samples::cluster(samples::settings(), objects);
        let desired = cluster.desired(Family::V4);
        let port = &desired.service(&NamespacedName::new("demo", "web")).unwrap().ports[0];
        (needs_list(port, PoolKind::Cluster), needs_list(port, PoolKind::Local))
    }

    #[test]
    fn lists_follow_from_policies_and_endpoints() {
        let web = || samples::dual_stack("web", 1);
        assert_eq!(needed(web(), &[]), (false, false));
        assert_eq!(needed(web(), &[10]), (true, false));
        assert_eq!(needed(web().internal_policy_local(), &[1]), (false, true));
        assert_eq!(needed(web().internal_policy_local(), &[10]), (false, false));
        let external_local = || web().external_ip("203.0.113.1").external_policy_local();
        assert_eq!(needed(external_local(), &[1, 10]), (true, true));
        assert_eq!(needed(external_local(), &[10]), (true, true), "for traffic that starts on this node");
        assert_eq!(needed(external_local(), &[]), (false, false));
    }
}

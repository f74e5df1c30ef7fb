//! Node ports that equal a port of Portwarden's own servers. They are not served: the rules would capture health checks and metrics
//! requests to the node.

use crate::name::Protocol;
use crate::object::Service;
use crate::problem::{Problem, Problems};
use crate::settings::Settings;

/// Whether a node port collides with one of our servers, which all use TCP.
pub(crate) fn is_reserved(settings: &Settings, protocol: Protocol, node_port: u16) -> bool {
    protocol == Protocol::Tcp && settings.reserved_ports.contains(&node_port)
}

/// One problem for each node port of a Service that is reserved.
pub(crate) fn problems(settings: &Settings, service: &Service) -> Vec<Problem> {
    let mut problems = Problems::of("Service", &service.name);
    for (index, port) in service.ports.iter().enumerate() {
        if let Some(number) =
            port.node_port.filter(|number| is_reserved(settings, port.protocol, number.get()))
        {
            let text = format!("{number} is a port of Portwarden's own servers; the node port is not served");
            problems.add(format!("spec.ports[{index}].nodePort"), text);
        }
    }
    problems.into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::desired::{Admission, Exposure};
    use crate::ip::Family;
    use crate::manifest;
    use crate::sample::{ToEvent, cluster_with, service, service_port, settings, slice, web};

    fn reserving(ports: &[u16]) -> Settings {
        Settings { reserved_ports: ports.to_vec(), ..settings() }
    }

    /// `demo/web` with this node port for TCP and UDP.
    fn with_node_port(number: i32) -> manifest::Service {
        service(|service| {
            let port = |protocol: &str| manifest::ServicePort {
                node_port: number,
                ..service_port(&protocol.to_lowercase(), protocol, 80)
            };
            service.spec.ports = ["TCP", "UDP"].map(port).to_vec();
            service.spec.r#type = "NodePort".to_owned();
        })
    }

    /// Whether traffic is led to the cluster address and to the node port, for TCP and UDP.
    fn active(cluster: &Cluster) -> Vec<(Exposure, bool)> {
        let ports = web(cluster, Family::V4).ports.iter();
        ports.flat_map(|port| port.frontends.iter()).map(|f| (f.exposure, f.is_active())).collect()
    }

    #[test]
    fn a_node_port_of_our_own_servers_is_not_served_and_the_rest_of_the_service_is() {
        let cluster = cluster_with(
            reserving(&[10249, 10256]),
            &[&with_node_port(10256), &slice("web-1", "A R", |_| {})],
        );
        use Exposure::{ClusterIp, NodePort};
        assert_eq!(
            active(&cluster),
            [(ClusterIp, true), (NodePort, false), (ClusterIp, true), (NodePort, true)]
        );
        let tcp = &web(&cluster, Family::V4).ports[0];
        assert_eq!(tcp.frontends[1].admission, Admission::NotAllowed);
    }

    #[test]
    fn the_problem_is_reported_once_and_again_for_another_port() {
        let mut cluster = cluster_with(reserving(&[10249, 10256]), &[&with_node_port(10256)]);
        let texts = |cluster: &mut Cluster| -> Vec<String> {
            cluster.take_problems().iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            texts(&mut cluster),
            [
                "Service demo/web: spec.ports[0].nodePort: 10256 is a port of Portwarden's own servers; the node port is not served"
            ]
        );
        cluster.apply(with_node_port(10256).event());
        assert!(texts(&mut cluster).is_empty());
        cluster.apply(with_node_port(30080).event());
        assert!(texts(&mut cluster).is_empty());
        cluster.apply(with_node_port(10249).event());
        assert_eq!(texts(&mut cluster).len(), 1);
    }

    #[test]
    fn other_settings_are_checked_against_known_services() {
        let mut cluster = cluster_with(settings(), &[&with_node_port(10256)]);
        assert!(cluster.take_problems().is_empty());
        cluster.set_settings(reserving(&[10256]));
        assert_eq!(cluster.take_problems().len(), 1);
        cluster.resolve();
        assert!(!active(&cluster)[1].1);
        cluster.set_settings(reserving(&[10257]));
        assert!(cluster.take_problems().is_empty());
        cluster.resolve();
        assert!(active(&cluster)[1].1);
    }
}

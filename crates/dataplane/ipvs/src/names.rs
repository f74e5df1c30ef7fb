//! The names of the device and the sets, which are kube-proxy's.

use portwarden_model::Family;
use portwarden_netlink::IpFamily;
use portwarden_netlink::ipset::{SetSpec, SetType};

/// The device that bears the addresses of all Services.
pub const DEVICE: &str = "kube-ipvs0";

/// The longest name of a set that the kernel takes; kube-proxy cuts off the rest.
const LONGEST_NAME: usize = 31;

/// The sets of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "named as the sets are")]
pub enum SetId {
    LoopBack,
    ClusterIp,
    ExternalIp,
    ExternalIpLocal,
    LoadBalancer,
    LoadBalancerFw,
    LoadBalancerLocal,
    LoadBalancerSourceIp,
    LoadBalancerSourceCidr,
    NodePortTcp,
    NodePortLocalTcp,
    NodePortUdp,
    NodePortLocalUdp,
    NodePortSctp,
    NodePortLocalSctp,
    HealthCheckNodePort,
    IpvsIps,
}

impl SetId {
    /// All of them.
    pub const ALL: [SetId; 17] = [
        SetId::LoopBack,
        SetId::ClusterIp,
        SetId::ExternalIp,
        SetId::ExternalIpLocal,
        SetId::LoadBalancer,
        SetId::LoadBalancerFw,
        SetId::LoadBalancerLocal,
        SetId::LoadBalancerSourceIp,
        SetId::LoadBalancerSourceCidr,
        SetId::NodePortTcp,
        SetId::NodePortLocalTcp,
        SetId::NodePortUdp,
        SetId::NodePortLocalUdp,
        SetId::NodePortSctp,
        SetId::NodePortLocalSctp,
        SetId::HealthCheckNodePort,
        SetId::IpvsIps,
    ];

    /// The name of the set in a family.
    pub fn name(self, family: Family) -> String {
        let prefix = match family {
            Family::V4 => "KUBE-",
            Family::V6 => "KUBE-6-",
        };
        let mut name = format!("{prefix}{}", self.stem());
        name.truncate(LONGEST_NAME);
        name
    }

    /// The text of rules that look into the set.
    pub fn comment(self) -> &'static str {
        match self {
            SetId::LoopBack => "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
            SetId::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            SetId::ExternalIp => "Kubernetes service external ip + port for masquerade and filter purpose",
            SetId::ExternalIpLocal => {
                "Kubernetes service external ip + port with externalTrafficPolicy=local"
            }
            SetId::LoadBalancer => "Kubernetes service lb portal",
            SetId::LoadBalancerFw => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            SetId::LoadBalancerLocal => {
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
            }
            SetId::LoadBalancerSourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            SetId::LoadBalancerSourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            SetId::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
            SetId::NodePortLocalTcp => "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
            SetId::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
            SetId::NodePortLocalUdp => "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
            SetId::NodePortSctp => {
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
            }
            SetId::NodePortLocalSctp => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
            }
            SetId::HealthCheckNodePort => "Kubernetes health check node port",
            SetId::IpvsIps => "Addresses on the ipvs interface",
        }
    }

    /// What the kernel needs to know to create the set.
    pub(crate) fn spec(self, family: Family) -> SetSpec {
        let ip_family = match family {
            Family::V4 => IpFamily::Ipv4,
            Family::V6 => IpFamily::Ipv6,
        };
        SetSpec::new(self.name(family), self.kind(), ip_family)
    }

    fn stem(self) -> &'static str {
        match self {
            SetId::LoopBack => "LOOP-BACK",
            SetId::ClusterIp => "CLUSTER-IP",
            SetId::ExternalIp => "EXTERNAL-IP",
            SetId::ExternalIpLocal => "EXTERNAL-IP-LOCAL",
            SetId::LoadBalancer => "LOAD-BALANCER",
            SetId::LoadBalancerFw => "LOAD-BALANCER-FW",
            SetId::LoadBalancerLocal => "LOAD-BALANCER-LOCAL",
            SetId::LoadBalancerSourceIp => "LOAD-BALANCER-SOURCE-IP",
            SetId::LoadBalancerSourceCidr => "LOAD-BALANCER-SOURCE-CIDR",
            SetId::NodePortTcp => "NODE-PORT-TCP",
            SetId::NodePortLocalTcp => "NODE-PORT-LOCAL-TCP",
            SetId::NodePortUdp => "NODE-PORT-UDP",
            SetId::NodePortLocalUdp => "NODE-PORT-LOCAL-UDP",
            SetId::NodePortSctp => "NODE-PORT-SCTP-HASH",
            SetId::NodePortLocalSctp => "NODE-PORT-LOCAL-SCTP-HASH",
            SetId::HealthCheckNodePort => "HEALTH-CHECK-NODE-PORT",
            SetId::IpvsIps => "IPVS-IPS",
        }
    }

    fn kind(self) -> SetType {
        match self {
            SetId::LoopBack | SetId::LoadBalancerSourceIp => SetType::HashIpPortIp,
            SetId::LoadBalancerSourceCidr => SetType::HashIpPortNet,
            SetId::NodePortTcp
            | SetId::NodePortLocalTcp
            | SetId::NodePortUdp
            | SetId::NodePortLocalUdp
            | SetId::HealthCheckNodePort => SetType::BitmapPort,
            SetId::IpvsIps => SetType::HashIp,
            SetId::ClusterIp
            | SetId::ExternalIp
            | SetId::ExternalIpLocal
            | SetId::LoadBalancer
            | SetId::LoadBalancerFw
            | SetId::LoadBalancerLocal
            | SetId::NodePortSctp
            | SetId::NodePortLocalSctp => SetType::HashIpPort,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_to_what_the_kernel_takes() {
        let names: Vec<_> =
            SetId::ALL.iter().flat_map(|set| Family::BOTH.map(|family| set.name(family))).collect();
        assert!(names.iter().all(|name| name.len() <= LONGEST_NAME), "{names:?}");
        assert_eq!(SetId::ClusterIp.name(Family::V4), "KUBE-CLUSTER-IP");
        assert_eq!(SetId::LoadBalancerSourceCidr.name(Family::V4), "KUBE-LOAD-BALANCER-SOURCE-CIDR");
        assert_eq!(SetId::LoadBalancerSourceCidr.name(Family::V6), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        assert_eq!(SetId::NodePortLocalSctp.name(Family::V6), "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS");
    }
}

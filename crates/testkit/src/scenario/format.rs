//! What can be written in a scenario. Unknown keys are errors; every error has its line.

mod objects;
mod steps;
mod text;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Result, anyhow, bail};
use portwarden_model::Family;
use serde::Deserialize;
use serde_saphyr::Spanned;

pub use objects::{
    EndpointContent, EndpointFields, IngressContent, NodeContent, Objects, Policy, PortContent, ProtocolName,
    ServiceContent, ServiceType, SliceContent,
};
pub use steps::{
    Clients, Connect, Deletion, Exchange, Failure, Forget, HealthCheckContent, LoadCheck, LoadStart, Probe,
    Step,
};
pub use text::{Names, Range, Sender, SourceContent, Target};

/// A whole file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Content {
    /// What the scenario shows.
    pub description: String,
    /// Dataplanes that cannot do this, and why.
    #[serde(default)]
    pub except: BTreeMap<String, String>,
    /// The only dataplanes that do this, and why.
    #[serde(default)]
    pub only: BTreeMap<String, String>,
    /// In which families it is played; both by default.
    #[serde(default = "both")]
    pub families: Vec<FamilyName>,
    /// Who takes part.
    #[serde(default)]
    pub topology: TopologyContent,
    /// What the operator set.
    #[serde(default)]
    pub settings: SettingsContent,
    /// What is there at the start.
    #[serde(default)]
    pub objects: Objects,
    /// What happens.
    pub steps: Vec<Spanned<Step>>,
}

impl Content {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Content> {
        let content: Content = serde_saphyr::from_str(text).map_err(|error| {
            anyhow!("{}", error.render_with_formatter(&serde_saphyr::UserMessageFormatter))
        })?;
        if content.steps.is_empty() {
            bail!("line 1: a scenario without steps shows nothing");
        }
        Ok(content)
    }

    /// Whether a Service that is there at the start speaks SCTP.
    pub fn uses_sctp(&self) -> bool {
        let ports = self.objects.services.values().flat_map(|service| &service.ports);
        ports.into_iter().any(|port| port.protocol == ProtocolName::SCTP)
    }
}

/// An IP family as Kubernetes writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum FamilyName {
    /// IPv4.
    IPv4,
    /// IPv6.
    IPv6,
}

impl From<FamilyName> for Family {
    fn from(name: FamilyName) -> Family {
        match name {
            FamilyName::IPv4 => Family::V4,
            FamilyName::IPv6 => Family::V6,
        }
    }
}

fn both() -> Vec<FamilyName> {
    vec![FamilyName::IPv4, FamilyName::IPv6]
}

/// Who takes part, besides `node-a`, `node-b` and `outside`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TopologyContent {
    /// How many pods run on `node-a`: `pod-0`, ...
    pub pods: u8,
    /// How many pods run on `node-b`: `remote-pod-0`, ...
    pub remote_pods: u8,
    /// Whether the pods of `node-a` are on the bridge `cni0` instead of devices of their own.
    pub bridge: bool,
    /// More addresses of `node-a`, such as load-balancer addresses that it bears itself.
    pub node_addresses: Vec<Ipv4Addr>,
}

impl Default for TopologyContent {
    fn default() -> Self {
        TopologyContent { pods: 3, remote_pods: 2, bridge: false, node_addresses: Vec::new() }
    }
}

/// What the operator set.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SettingsContent {
    /// How pod traffic is identified.
    pub detect_local_mode: Option<DetectLocalMode>,
    /// The pod ranges for `ClusterCIDR`.
    #[serde(rename = "clusterCIDRs")]
    pub cluster_cidrs: Option<Vec<Range>>,
    /// The bridge for `BridgeInterface`.
    pub bridge_interface: Option<String>,
    /// The prefix for `InterfaceNamePrefix`.
    pub interface_name_prefix: Option<String>,
    /// Masquerade all traffic to cluster addresses.
    #[serde(rename = "masqueradeAll")]
    pub masquerade_all: bool,
    /// Where node ports answer: ranges, `primary`, `localhost`, `all`.
    pub node_port_addresses: Option<Vec<String>>,
    /// Whether node ports answer on loopback, in modes that can.
    pub localhost_node_ports: Option<bool>,
    /// Whether `spec.externalIPs` count.
    #[serde(rename = "allowServiceExternalIPs")]
    pub allow_service_external_ips: Option<bool>,
    /// Ports of Portwarden's own servers.
    #[serde(default)]
    pub reserved_ports: Vec<u16>,
}

/// How pod traffic is identified, as in kube-proxy's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum DetectLocalMode {
    /// By source range of all pods.
    ClusterCIDR,
    /// By source range of the Node's pods.
    NodeCIDR,
    /// By arrival on a bridge.
    BridgeInterface,
    /// By the start of the name of the device of arrival.
    InterfaceNamePrefix,
    /// Not at all.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let text = text.trim_start_matches('\n');
        format!("{:#}", Content::parse(text).expect_err("it is wrong"))
    }

    fn with_step(step: &str) -> String {
        format!("description: A test.\nobjects: {{}}\nsteps:\n  - {step}\n")
    }

    #[test]
    fn unknown_keys_are_named_with_their_line() {
        let cases = [
            ("description: A test.\nobjetcs: {}\nsteps: [restart: {}]", "objetcs", 2),
            (&with_step("probe: { from: pod-0, to: 10.96.0.10:80, answerdBy: pod-1 }"), "answerdBy", 4),
            (&with_step("prob: {}"), "prob", 4),
            (
                "description: A test.\nobjects:\n  services:\n    web: { clusterip: 10.96.0.10 }\nsteps: [restart: {}]",
                "clusterip",
                4,
            ),
            (
                "description: A test.\nobjects:\n  slices:\n    web:\n      service: web\n      ports: []\n      endpoints:\n        - pod-0\n        - { hots: pod-1 }\nsteps: [restart: {}]",
                "hots",
                9,
            ),
        ];
        for (text, key, line) in cases {
            let error = error(text);
            assert!(
                error.contains(&format!("`{key}`")) && error.contains(&format!("line {line} ")),
                "{error}"
            );
        }
    }

    #[test]
    fn bad_values_are_quoted_with_their_line() {
        for (step, quoted) in [
            ("probe: { from: pod-0, to: 10.96.0.10, expect: refused }", "\"10.96.0.10\""),
            ("probe: { from: pod-0, to: quic 10.96.0.10:80, expect: refused }", "\"quic\""),
            ("probe: { from: outside somewhere, to: 10.96.0.10:80, expect: refused }", "\"somewhere\""),
            ("probe: { from: pod-0, to: 10.96.0.10:80, answeredBy: pod-1, source: nobody }", "\"nobody\""),
            ("apply: { serviceCIDRs: { more: [10.96.0.0] } }", "\"10.96.0.0\""),
        ] {
            let error = error(&with_step(step));
            assert!(error.contains(quoted) && error.contains("line 4 "), "{error}");
        }
    }

    #[test]
    fn a_scenario_without_steps_is_refused() {
        assert!(error("description: A test.\nsteps: []").contains("without steps"));
    }

    #[test]
    fn senders_targets_and_sources_are_read() {
        let Step::Probe(probe) = &Content::parse(&with_step(
            "probe: { from: outside 203.0.113.11, to: udp 10.96.0.10:53, answeredBy: [pod-0, pod-1], source: node }",
        ))
        .expect("it is right")
        .steps[0]
            .value
        else {
            panic!("not a probe")
        };
        assert_eq!(
            (probe.from.host.as_str(), probe.from.ip),
            ("outside", Some("203.0.113.11".parse().unwrap()))
        );
        assert_eq!(probe.to.to_string(), "Udp 10.96.0.10:53");
        assert_eq!(probe.answered_by.0, ["pod-0", "pod-1"]);
        assert_eq!(probe.source, Some(SourceContent::Node));
    }
}

//! What was given on the command line, every flag optional.

use std::collections::BTreeMap;

use super::version::VersionRequest;
use super::{Program, all};
use crate::config::document::VModule;
use crate::config::duration::GoDuration;
use crate::config::quantity::Quantity;

/// The flags that were given. A field that is `None` was not; defaults are not applied here.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "each field is the flag of that name, explained in the table")]
pub struct Flags {
    pub bind_address: Option<String>,
    pub bind_address_hard_fail: Option<bool>,
    pub cleanup: Option<bool>,
    pub cluster_cidr: Option<String>,
    pub config: Option<String>,
    pub config_sync_period: Option<GoDuration>,
    pub conntrack_max_per_core: Option<i32>,
    pub conntrack_min: Option<i32>,
    pub conntrack_tcp_be_liberal: Option<bool>,
    pub conntrack_tcp_timeout_close_wait: Option<GoDuration>,
    pub conntrack_tcp_timeout_established: Option<GoDuration>,
    pub conntrack_udp_timeout: Option<GoDuration>,
    pub conntrack_udp_timeout_stream: Option<GoDuration>,
    pub detect_local_mode: Option<String>,
    pub feature_gates: Option<BTreeMap<String, bool>>,
    pub healthz_bind_address: Option<String>,
    pub healthz_port: Option<i32>,
    pub help: Option<bool>,
    pub hostname_override: Option<String>,
    pub init_only: Option<bool>,
    pub iptables_localhost_nodeports: Option<bool>,
    pub iptables_masquerade_bit: Option<i32>,
    pub iptables_min_sync_period: Option<GoDuration>,
    pub iptables_sync_period: Option<GoDuration>,
    pub ipvs_exclude_cidrs: Option<Vec<String>>,
    pub ipvs_min_sync_period: Option<GoDuration>,
    pub ipvs_scheduler: Option<String>,
    pub ipvs_strict_arp: Option<bool>,
    pub ipvs_sync_period: Option<GoDuration>,
    pub ipvs_tcp_timeout: Option<GoDuration>,
    pub ipvs_tcpfin_timeout: Option<GoDuration>,
    pub ipvs_udp_timeout: Option<GoDuration>,
    pub kube_api_burst: Option<i32>,
    pub kube_api_content_type: Option<String>,
    pub kube_api_qps: Option<f32>,
    pub kubeconfig: Option<String>,
    pub log_flush_frequency: Option<GoDuration>,
    pub log_json_info_buffer_size: Option<Quantity>,
    pub log_json_split_stream: Option<bool>,
    pub log_text_info_buffer_size: Option<Quantity>,
    pub log_text_split_stream: Option<bool>,
    pub logging_format: Option<String>,
    pub masquerade_all: Option<bool>,
    pub master: Option<String>,
    pub metrics_bind_address: Option<String>,
    pub metrics_port: Option<i32>,
    pub nodeport_addresses: Option<Vec<String>>,
    pub oom_score_adj: Option<i32>,
    pub pod_bridge_interface: Option<String>,
    pub pod_interface_name_prefix: Option<String>,
    pub profiling: Option<bool>,
    pub proxy_mode: Option<String>,
    pub show_hidden_metrics_for_version: Option<String>,
    pub v: Option<u32>,
    pub version: Option<VersionRequest>,
    pub vmodule: Option<Vec<VModule>>,
    pub write_config_to: Option<String>,
    /// Our own: read objects from this file or folder instead of an API server.
    pub manifests: Option<String>,
    /// Our own: end the process if a kernel setting cannot be written.
    pub sysctl_hard_fail: Option<bool>,
}

/// What the program was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write the effective configuration to this path and end.
    WriteConfig(String),
    /// Remove every rule of every mode and end.
    Cleanup,
    /// Prepare the node and end.
    InitOnly,
    /// Run.
    Run,
}

impl Flags {
    /// The one thing to do: writing the configuration wins over cleaning up, which wins over preparing only.
    pub fn action(&self) -> Action {
        match (&self.write_config_to, self.cleanup, self.init_only) {
            (Some(path), ..) if !path.is_empty() => Action::WriteConfig(path.clone()),
            (_, Some(true), _) => Action::Cleanup,
            (_, _, Some(true)) => Action::InitOnly,
            _ => Action::Run,
        }
    }

    /// The path of the configuration file, if one was named.
    pub fn config_file(&self) -> Option<&str> {
        self.config.as_deref().filter(|path| !path.is_empty())
    }

    /// Every flag with its value in order of name, as `/flagz` and the log at start show them.
    pub fn listing(&self, program: Program) -> Vec<(&'static str, String)> {
        let mut flags = self.clone();
        let mut listing: Vec<_> = all(program)
            .map(|flag| (flag.name, flag.slot.show(&mut flags).unwrap_or_else(|| flag.default.to_owned())))
            .collect();
        listing.sort_unstable_by_key(|(name, _)| *name);
        listing
    }

    /// The names of flags that were given although a configuration file makes them void.
    pub fn void_because_of_file(&self, program: Program) -> Vec<&'static str> {
        let mut flags = self.clone();
        all(program)
            .filter(|flag| !flag.beside_file && flag.slot.show(&mut flags).is_some())
            .map(|flag| flag.name)
            .collect()
    }
}

//! The sections of a configuration, in the order in which kube-proxy reports problems.

use portwarden_model::{DetectLocal, Name};

use super::fields::{
    address, cidr_pair, cidrs, interface, node_port_addresses, not_negative, positive, socket_address, within,
};
use crate::config::document::{self, Document};
use crate::config::effective::{self, Effective};
use crate::config::gates::{Feature, FeatureGates};
use crate::config::problems::{ProblemKind, Problems};
use crate::config::typed::{
    ApiClient, Config, Conntrack, ExcludedRanges, Ipvs, LogFormat, Logging, Masquerade, Pacing, RateLimit,
    Servers, Source,
};
use crate::flags::{Flags, REFERENCE_MINOR};
use crate::modes::{Mode, Section};

/// The whole; problems are noted, not returned.
pub(super) fn config(
    effective: Effective,
    flags: &Flags,
    gates: FeatureGates,
    problems: &mut Problems,
) -> Config {
    let Effective { document, defaulted } = effective;
    let logging = logging(problems, &document.logging, &gates);
    let masquerade = masquerade(problems, &document);
    let ipvs =
        (effective::mode(&document).entry().periods == Section::Ipvs).then(|| ipvs(problems, &document.ipvs));
    let ipvs_excluded = excluded_ranges(document.ipvs.exclude_cidrs.as_deref().unwrap_or_default());
    let conntrack = conntrack(problems, &document.conntrack);
    let oom_score_adj =
        within(problems, "KubeProxyLinuxConfiguration.OOMScoreAdj", document.oom_score_adj, -1000..=1000);
    let mode = mode(problems, text(&document.mode), &gates);
    let client = client(problems, &document.client_connection, flags);
    let config_sync_period =
        positive(problems, "ConfigSyncPeriod", document.config_sync_period, "must be greater than 0");
    let pacing = pacing(problems, &document);
    let bind_address = address(problems, "BindAddress", text(&document.bind_address));
    let servers = servers(problems, &document);
    let node_port_addresses = node_port_addresses(
        problems,
        "NodePortAddresses",
        document.node_port_addresses.as_deref().unwrap_or_default(),
    );
    hidden_metrics(problems, text(&document.show_hidden_metrics_for_version));
    let (detect_local, cluster_cidrs) = detect_local(problems, &document);
    let hostname_override = hostname(problems, text(&document.hostname_override));
    let manifests = flags.manifests.clone().filter(|path| !path.is_empty());
    Config {
        mode,
        pacing,
        masquerade,
        localhost_node_ports: document.iptables.localhost_node_ports.unwrap_or(true),
        ipvs,
        ipvs_excluded,
        detect_local,
        cluster_cidrs,
        node_port_addresses,
        bind_address: (!bind_address.is_unspecified()).then_some(bind_address),
        hostname_override,
        source: manifests.map_or(Source::Api(client), Source::Manifests),
        config_sync_period,
        servers,
        logging,
        conntrack,
        sysctl_hard_fail: flags.sysctl_hard_fail.unwrap_or(false),
        oom_score_adj,
        gates,
        defaulted,
        document,
    }
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

fn logging(problems: &mut Problems, logging: &document::Logging, gates: &FeatureGates) -> Logging {
    let flush_frequency = logging.flush_frequency.map(|flush| flush.duration);
    let flush_frequency =
        positive(problems, "logging.flushFrequency", flush_frequency, "must be greater than zero");
    let format = log_format(problems, text(&logging.format), gates);
    let verbosity = log_level(problems, "logging.verbosity", logging.verbosity.unwrap_or(0));
    if !logging.vmodule.is_empty() && text(&logging.format) != "text" {
        let message = "only supported for the text log format";
        problems.field("logging.vmodule", ProblemKind::Forbidden, String::new(), message);
    }
    for (index, item) in logging.vmodule.iter().enumerate() {
        let path = format!("logging.vmodule[{index}]");
        if item.file_pattern.is_empty() {
            problems.field(&path, ProblemKind::Required, String::new(), "the file pattern must not be empty");
        }
        if item.file_pattern.contains(['=', ',']) {
            let message = "the file pattern must not contain an equals sign or a comma";
            problems.invalid_text(&path, &item.file_pattern, message);
        }
        log_level(problems, &path, item.verbosity);
    }
    let (text_split, text_buffer) = routing(problems, "logging.options.text", &logging.options.text, gates);
    let (json_split, json_buffer) = routing(problems, "logging.options.json", &logging.options.json, gates);
    let (split_stream, info_buffer_size) = match format {
        LogFormat::Text => (text_split, text_buffer),
        LogFormat::Json => (json_split, json_buffer),
    };
    Logging {
        format,
        verbosity,
        vmodule: logging.vmodule.clone(),
        flush_frequency,
        split_stream,
        info_buffer_size,
    }
}

fn log_format(problems: &mut Problems, format: &str, gates: &FeatureGates) -> LogFormat {
    match format {
        "text" => LogFormat::Text,
        "json" => {
            if !gates.enabled(Feature::LoggingBetaOptions) {
                let message = "log format json is disabled, see feature gate LoggingBetaOptions";
                problems.field("logging.format", ProblemKind::Forbidden, String::new(), message);
            }
            LogFormat::Json
        }
        other => {
            problems.invalid_text(
                "logging.format",
                other,
                "unsupported log format (text and json are known)",
            );
            LogFormat::Text
        }
    }
}

fn log_level(problems: &mut Problems, path: &str, level: u32) -> u32 {
    const HIGHEST: u32 = i32::MAX.unsigned_abs();
    if level > HIGHEST {
        problems.invalid(path, level, format!("must be less than or equal to {HIGHEST}"));
    }
    level
}

fn routing(
    problems: &mut Problems,
    path: &str,
    routing: &document::OutputRouting,
    gates: &FeatureGates,
) -> (bool, usize) {
    let split_stream = routing.split_stream.unwrap_or(false);
    let size = routing.info_buffer_size.map_or(0, |size| size.value());
    for (name, used) in [("splitStream", split_stream), ("infoBufferSize", size != 0)] {
        if used && !gates.enabled(Feature::LoggingAlphaOptions) {
            let message = "feature gate LoggingAlphaOptions is disabled";
            problems.field(&format!("{path}.{name}"), ProblemKind::Forbidden, String::new(), message);
        }
    }
    (split_stream, usize::try_from(size).unwrap_or(0))
}

fn masquerade(problems: &mut Problems, document: &Document) -> Masquerade {
    let (iptables, nftables) = (&document.iptables, &document.nftables);
    let bit =
        within(problems, "KubeProxyIPTablesConfiguration.MasqueradeBit", iptables.masquerade_bit, 0..=31);
    if effective::mode(document).entry().masquerade != Section::Nftables {
        return Masquerade { all: iptables.masquerade_all.unwrap_or(false), bit };
    }
    let bit =
        within(problems, "KubeProxyNFTablesConfiguration.MasqueradeBit", nftables.masquerade_bit, 0..=31);
    Masquerade { all: nftables.masquerade_all.unwrap_or(false), bit }
}

fn ipvs(problems: &mut Problems, ipvs: &document::Ipvs) -> Ipvs {
    let tcp_timeout = not_negative(problems, "KubeProxyIPVSConfiguration.TCPTimeout", ipvs.tcp_timeout);
    let tcp_fin_timeout =
        not_negative(problems, "KubeProxyIPVSConfiguration.TCPFinTimeout", ipvs.tcp_fin_timeout);
    let udp_timeout = not_negative(problems, "KubeProxyIPVSConfiguration.UDPTimeout", ipvs.udp_timeout);
    let exclude_cidrs = ipvs.exclude_cidrs.as_deref().unwrap_or_default();
    let exclude_cidrs = cidrs(problems, "KubeProxyIPVSConfiguration.ExcludeCidrs", exclude_cidrs);
    let scheduler = match text(&ipvs.scheduler) {
        "" => "rr".to_owned(),
        scheduler => scheduler.to_owned(),
    };
    let strict_arp = ipvs.strict_arp.unwrap_or(false);
    Ipvs { scheduler, exclude_cidrs, strict_arp, tcp_timeout, tcp_fin_timeout, udp_timeout }
}

fn excluded_ranges(texts: &[String]) -> ExcludedRanges {
    let mut ranges = ExcludedRanges::default();
    for text in texts {
        match portwarden_model::parse_cidr(text) {
            Some(cidr) => ranges.cidrs.push(cidr),
            None => ranges.invalid.push(text.clone()),
        }
    }
    ranges
}

fn conntrack(problems: &mut Problems, conntrack: &document::Conntrack) -> Conntrack {
    let path = |name: &str| format!("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.{name}");
    Conntrack {
        max_per_core: within(problems, &path("MaxPerCore"), conntrack.max_per_core, 0..=i32::MAX),
        min: within(problems, &path("Min"), conntrack.min, 0..=i32::MAX),
        tcp_established_timeout: not_negative(
            problems,
            &path("TCPEstablishedTimeout"),
            conntrack.tcp_established_timeout,
        ),
        tcp_close_wait_timeout: not_negative(
            problems,
            &path("TCPCloseWaitTimeout"),
            conntrack.tcp_close_wait_timeout,
        ),
        tcp_be_liberal: conntrack.tcp_be_liberal.unwrap_or(false),
        udp_timeout: not_negative(problems, &path("UDPTimeout"), conntrack.udp_timeout),
        udp_stream_timeout: not_negative(problems, &path("UDPStreamTimeout"), conntrack.udp_stream_timeout),
    }
}

fn mode(problems: &mut Problems, name: &str, gates: &FeatureGates) -> Mode {
    let allowed = |mode: &Mode| mode.entry().gate.is_none_or(|gate| gates.enabled(gate));
    Mode::from_name(name).filter(allowed).unwrap_or_else(|| {
        let known: Vec<&str> = Mode::ALL
            .into_iter()
            .filter(|mode| mode.entry().known_to_kube_proxy && allowed(mode))
            .map(Mode::as_str)
            .collect();
        let message = format!("must be {} or blank (blank means {})", known.join(", "), Mode::DEFAULT);
        problems.invalid_text("Mode.ProxyMode", name, message);
        Mode::DEFAULT
    })
}

fn client(problems: &mut Problems, client: &document::ClientConnection, flags: &Flags) -> ApiClient {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let content_type = text(&client.content_type).to_owned();
    let accept = match text(&client.accept_content_types) {
        "" => format!("{content_type}, */*"),
        accept => accept.to_owned(),
    };
    ApiClient {
        kubeconfig: given(text(&client.kubeconfig)),
        master: given(text(&flags.master)),
        content_type,
        accept,
        limit: rate_limit(problems, client.qps.unwrap_or(0.0), client.burst),
    }
}

/// A negative rate means no limit, zero (which only a flag can give) the usual one.
fn rate_limit(problems: &mut Problems, qps: f32, burst: Option<i32>) -> Option<RateLimit> {
    let size: u32 = within(problems, "ClientConnection.Burst", burst, 0..=i32::MAX);
    if !qps.is_finite() {
        problems.invalid("ClientConnection.QPS", qps, "must be a finite number");
    }
    let qps = if qps == 0.0 { 5.0 } else { qps };
    if qps > 0.0 && burst == Some(0) {
        problems.invalid("ClientConnection.Burst", 0, "must be greater than 0 while ClientConnection.QPS is");
    }
    (qps > 0.0).then_some(RateLimit { qps, burst: size })
}

fn pacing(problems: &mut Problems, document: &Document) -> Pacing {
    let (sync_period, min_sync_period) = match effective::mode(document).entry().periods {
        Section::Ipvs => (document.ipvs.sync_period, document.ipvs.min_sync_period),
        Section::Nftables => (document.nftables.sync_period, document.nftables.min_sync_period),
        Section::Iptables => (document.iptables.sync_period, document.iptables.min_sync_period),
    };
    let pacing = Pacing {
        sync_period: positive(problems, "SyncPeriod", sync_period, "must be greater than 0"),
        min_sync_period: not_negative(problems, "MinSyncPeriod", min_sync_period),
    };
    if min_sync_period > sync_period {
        let message = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
        problems.invalid_text("SyncPeriod", &min_sync_period.unwrap_or_default().to_string(), message);
    }
    pacing
}

fn servers(problems: &mut Problems, document: &Document) -> Servers {
    let healthz = text(&document.healthz_bind_address);
    let healthz = (!healthz.is_empty()).then(|| socket_address(problems, "HealthzBindAddress", healthz));
    Servers {
        healthz,
        metrics: socket_address(problems, "MetricsBindAddress", text(&document.metrics_bind_address)),
        hard_fail: document.bind_address_hard_fail.unwrap_or(false),
        profiling: document.enable_profiling.unwrap_or(false),
        hidden_metrics: !text(&document.show_hidden_metrics_for_version).is_empty(),
    }
}

fn hidden_metrics(problems: &mut Problems, version: &str) {
    let previous = format!("1.{}", REFERENCE_MINOR - 1);
    if !version.is_empty() && version != previous {
        let message = format!("only the previous minor version, {previous}, is allowed");
        problems.invalid_text("ShowHiddenMetricsForVersion", version, message);
    }
}

fn detect_local(problems: &mut Problems, document: &Document) -> (DetectLocal, Vec<ipnet::IpNet>) {
    let cidrs: Vec<String> =
        document.cluster_cidr.iter().flat_map(|text| text.split(',')).map(str::to_owned).collect();
    let names = &document.detect_local;
    // Ranges that no one uses need not be right.
    let unused = || {
        cidrs
            .iter()
            .map(|text| portwarden_model::parse_cidr(text))
            .collect::<Option<Vec<_>>>()
            .unwrap_or_default()
    };
    match text(&document.detect_local_mode) {
        "ClusterCIDR" => {
            let nets = cidr_pair(problems, "DetectLocalConfiguration.ClusterCIDRs", &cidrs);
            (DetectLocal::ClusterCidr(nets.clone()), nets)
        }
        "NodeCIDR" => (DetectLocal::NodeCidr, unused()),
        "BridgeInterface" => {
            let name =
                interface(problems, "DetectLocalConfiguration.InterfaceName", text(&names.bridge_interface));
            (DetectLocal::BridgeInterface(Name::from(name.as_str())), unused())
        }
        "InterfaceNamePrefix" => {
            let path = "DetectLocalConfiguration.InterfacePrefix";
            let prefix = interface(problems, path, text(&names.interface_name_prefix));
            (DetectLocal::InterfaceNamePrefix(Name::from(prefix.as_str())), unused())
        }
        other => {
            let known = "supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"";
            problems.field("DetectLocalMode", ProblemKind::Unsupported, format!("{other:?}"), known);
            (DetectLocal::Off, unused())
        }
    }
}

fn hostname(problems: &mut Problems, name: &str) -> Option<String> {
    let trimmed = name.trim();
    if trimmed.is_empty() && !name.is_empty() {
        problems.invalid_text("HostnameOverride", name, "must not be blank");
    }
    (!trimmed.is_empty()).then(|| trimmed.to_lowercase())
}

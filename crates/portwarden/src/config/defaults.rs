//! Fills in what was not written.

use std::net::IpAddr;

use portwarden_model::parse_ip;

use super::document::{
    ClientConnection, Conntrack, DetectLocal, Document, FlushFrequency, Iptables, Ipvs, Logging,
    LoggingOptions, Nftables, OutputRouting, Winkernel,
};
use super::duration::GoDuration;
use super::host_port;
use super::quantity::Quantity;

pub(super) const HEALTHZ_PORT: i32 = 10256;
pub(super) const METRICS_PORT: i32 = 10249;
pub(super) const SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);
pub(super) const MIN_SYNC_PERIOD: GoDuration = GoDuration::from_secs(1);
const MASQUERADE_BIT: i32 = 14;
const HOUR: u32 = 60 * 60;

/// The document with every field set.
///
/// For most numbers and durations a written zero is the same as nothing written, because kube-proxy cannot tell them apart;
/// where it can, zero is kept.
pub(super) fn filled(written: &Document) -> Document {
    let bind_address = text_or(&written.bind_address, "0.0.0.0");
    let ipv4 = matches!(parse_ip(&bind_address), Some(IpAddr::V4(_)));
    let (healthz, metrics) = if ipv4 { ("0.0.0.0", "127.0.0.1") } else { ("::", "::1") };
    Document {
        feature_gates: Some(written.feature_gates.clone().unwrap_or_default()),
        client_connection: client_connection(&written.client_connection),
        logging: logging(&written.logging),
        hostname_override: text(&written.hostname_override),
        bind_address: Some(bind_address),
        healthz_bind_address: Some(host_port::with_port(
            &text_or(&written.healthz_bind_address, healthz),
            HEALTHZ_PORT,
        )),
        metrics_bind_address: Some(host_port::with_port(
            &text_or(&written.metrics_bind_address, metrics),
            METRICS_PORT,
        )),
        bind_address_hard_fail: switch(written.bind_address_hard_fail),
        enable_profiling: switch(written.enable_profiling),
        show_hidden_metrics_for_version: text(&written.show_hidden_metrics_for_version),
        mode: text(&written.mode),
        iptables: iptables(&written.iptables),
        ipvs: ipvs(&written.ipvs),
        nftables: nftables(&written.nftables),
        winkernel: winkernel(&written.winkernel),
        detect_local_mode: text(&written.detect_local_mode),
        detect_local: DetectLocal {
            bridge_interface: text(&written.detect_local.bridge_interface),
            interface_name_prefix: text(&written.detect_local.interface_name_prefix),
        },
        // The one text whose emptiness matters: a flag can give an empty range, a file cannot.
        cluster_cidr: written.cluster_cidr.clone().filter(|text| !text.is_empty()),
        node_port_addresses: written.node_port_addresses.clone(),
        oom_score_adj: Some(written.oom_score_adj.unwrap_or(-999)),
        conntrack: conntrack(&written.conntrack),
        config_sync_period: nonzero_or(written.config_sync_period, GoDuration::from_secs(15 * 60)),
        port_range: Some(String::new()),
        windows_run_as_service: switch(written.windows_run_as_service),
    }
}

fn client_connection(written: &ClientConnection) -> ClientConnection {
    ClientConnection {
        kubeconfig: text(&written.kubeconfig),
        accept_content_types: text(&written.accept_content_types),
        content_type: Some(text_or(&written.content_type, "application/vnd.kubernetes.protobuf")),
        qps: Some(written.qps.filter(|qps| *qps != 0.0).unwrap_or(5.0)),
        burst: Some(written.burst.filter(|burst| *burst != 0).unwrap_or(10)),
    }
}

fn logging(written: &Logging) -> Logging {
    let five_seconds = FlushFrequency { duration: GoDuration::from_secs(5), as_number: false };
    let flush_frequency = written.flush_frequency.filter(|flush| flush.duration != GoDuration::ZERO);
    let routing = |written: &OutputRouting| OutputRouting {
        split_stream: switch(written.split_stream),
        info_buffer_size: Some(written.info_buffer_size.unwrap_or(Quantity::ZERO)),
    };
    Logging {
        format: Some(text_or(&written.format, "text")),
        flush_frequency: Some(flush_frequency.unwrap_or(five_seconds)),
        verbosity: Some(written.verbosity.unwrap_or(0)),
        vmodule: written.vmodule.clone(),
        options: LoggingOptions {
            text: routing(&written.options.text),
            json: routing(&written.options.json),
        },
    }
}

fn iptables(written: &Iptables) -> Iptables {
    Iptables {
        masquerade_bit: Some(written.masquerade_bit.unwrap_or(MASQUERADE_BIT)),
        masquerade_all: switch(written.masquerade_all),
        localhost_node_ports: Some(written.localhost_node_ports.unwrap_or(true)),
        sync_period: nonzero_or(written.sync_period, SYNC_PERIOD),
        min_sync_period: nonzero_or(written.min_sync_period, MIN_SYNC_PERIOD),
    }
}

fn ipvs(written: &Ipvs) -> Ipvs {
    Ipvs {
        sync_period: nonzero_or(written.sync_period, SYNC_PERIOD),
        min_sync_period: duration(written.min_sync_period),
        scheduler: text(&written.scheduler),
        exclude_cidrs: written.exclude_cidrs.clone(),
        strict_arp: switch(written.strict_arp),
        tcp_timeout: duration(written.tcp_timeout),
        tcp_fin_timeout: duration(written.tcp_fin_timeout),
        udp_timeout: duration(written.udp_timeout),
    }
}

fn nftables(written: &Nftables) -> Nftables {
    Nftables {
        masquerade_bit: Some(written.masquerade_bit.unwrap_or(MASQUERADE_BIT)),
        masquerade_all: switch(written.masquerade_all),
        sync_period: nonzero_or(written.sync_period, SYNC_PERIOD),
        min_sync_period: nonzero_or(written.min_sync_period, MIN_SYNC_PERIOD),
    }
}

fn winkernel(written: &Winkernel) -> Winkernel {
    Winkernel {
        network_name: text(&written.network_name),
        source_vip: text(&written.source_vip),
        enable_dsr: switch(written.enable_dsr),
        root_hns_endpoint_name: text(&written.root_hns_endpoint_name),
        forward_health_check_vip: switch(written.forward_health_check_vip),
    }
}

fn conntrack(written: &Conntrack) -> Conntrack {
    Conntrack {
        max_per_core: Some(written.max_per_core.unwrap_or(32 * 1024)),
        min: Some(written.min.unwrap_or(128 * 1024)),
        tcp_established_timeout: Some(
            written.tcp_established_timeout.unwrap_or(GoDuration::from_secs(24 * HOUR)),
        ),
        tcp_close_wait_timeout: Some(written.tcp_close_wait_timeout.unwrap_or(GoDuration::from_secs(HOUR))),
        tcp_be_liberal: switch(written.tcp_be_liberal),
        udp_timeout: duration(written.udp_timeout),
        udp_stream_timeout: duration(written.udp_stream_timeout),
    }
}

fn text(written: &Option<String>) -> Option<String> {
    Some(written.clone().unwrap_or_default())
}

fn text_or(written: &Option<String>, default: &str) -> String {
    written.as_deref().filter(|text| !text.is_empty()).unwrap_or(default).to_owned()
}

fn switch(written: Option<bool>) -> Option<bool> {
    Some(written.unwrap_or(false))
}

fn duration(written: Option<GoDuration>) -> Option<GoDuration> {
    Some(written.unwrap_or(GoDuration::ZERO))
}

fn nonzero_or(written: Option<GoDuration>, default: GoDuration) -> Option<GoDuration> {
    Some(written.filter(|duration| *duration != GoDuration::ZERO).unwrap_or(default))
}

//! Which source wins: file or flags, what counts beside a file, and what the platform adds.

use super::defaults::{HEALTHZ_PORT, METRICS_PORT, MIN_SYNC_PERIOD, SYNC_PERIOD, filled};
use super::document::{Document, Logging, VModule};
use super::duration::GoDuration;
use super::host_port;
use super::problems::Problems;
use super::typed::Defaulted;
use crate::flags::{Action, Flags};
use crate::modes::{Mode, Section};

/// A configuration with nothing left out, not yet checked.
pub(super) struct Effective {
    pub(super) document: Document,
    pub(super) defaulted: Defaulted,
}

/// A file replaces every flag but a few; without one, flags lie on top of the defaults.
pub(super) fn effective(flags: &Flags, file: Option<&Document>, problems: &mut Problems) -> Effective {
    let (mut document, min_sync_period) = match file {
        Some(written) => (filled(written), written_min_sync_period(written)),
        None => from_flags(flags),
    };
    logging_flags(flags, &mut document.logging);
    hostname_flag(flags, &mut document, problems);
    let defaulted = Defaulted { mode: is_empty(&document.mode), min_sync_period: min_sync_period.is_none() };
    platform_defaults(&mut document);
    only_in_effect(&mut document);
    Effective { document, defaulted }
}

/// The shortest time between two writes that a file asks for; zero is no wish.
fn written_min_sync_period(written: &Document) -> Option<GoDuration> {
    let period = match mode(written).entry().periods {
        Section::Ipvs => written.ipvs.min_sync_period,
        Section::Nftables => written.nftables.min_sync_period,
        Section::Iptables => written.iptables.min_sync_period,
    };
    period.filter(|period| *period != GoDuration::ZERO)
}

fn from_flags(flags: &Flags) -> (Document, Option<GoDuration>) {
    let mut document = filled(&Document::default());
    over(&mut document.feature_gates, &flags.feature_gates);
    let client = &mut document.client_connection;
    over(&mut client.kubeconfig, &flags.kubeconfig);
    over(&mut client.content_type, &flags.kube_api_content_type);
    over(&mut client.qps, &flags.kube_api_qps);
    over(&mut client.burst, &flags.kube_api_burst);
    over(&mut document.bind_address, &flags.bind_address);
    over(&mut document.bind_address_hard_fail, &flags.bind_address_hard_fail);
    over(&mut document.enable_profiling, &flags.profiling);
    over(&mut document.show_hidden_metrics_for_version, &flags.show_hidden_metrics_for_version);
    over(&mut document.mode, &flags.proxy_mode);
    over(&mut document.detect_local_mode, &flags.detect_local_mode);
    over(&mut document.detect_local.bridge_interface, &flags.pod_bridge_interface);
    over(&mut document.detect_local.interface_name_prefix, &flags.pod_interface_name_prefix);
    over(&mut document.cluster_cidr, &flags.cluster_cidr);
    over(&mut document.node_port_addresses, &flags.nodeport_addresses);
    over(&mut document.oom_score_adj, &flags.oom_score_adj);
    over(&mut document.config_sync_period, &flags.config_sync_period);
    server_flags(flags, &mut document);
    conntrack_flags(flags, &mut document);
    let min_sync_period = mode_flags(flags, &mut document);
    (document, min_sync_period)
}

/// The old port flags: zero turns a server off, another value is the port of an address that has none.
fn server_flags(flags: &Flags, document: &mut Document) {
    over(&mut document.healthz_bind_address, &flags.healthz_bind_address);
    over(&mut document.metrics_bind_address, &flags.metrics_bind_address);
    let writing = matches!(flags.action(), Action::WriteConfig(_));
    for (address, port, default) in [
        (&mut document.healthz_bind_address, flags.healthz_port, HEALTHZ_PORT),
        (&mut document.metrics_bind_address, flags.metrics_port, METRICS_PORT),
    ] {
        let port = port.filter(|_| !writing).unwrap_or(default);
        let text = address.take().unwrap_or_default();
        *address = Some(if port == 0 { String::new() } else { host_port::with_port(&text, port) });
    }
}

fn conntrack_flags(flags: &Flags, document: &mut Document) {
    let conntrack = &mut document.conntrack;
    over(&mut conntrack.max_per_core, &flags.conntrack_max_per_core);
    over(&mut conntrack.min, &flags.conntrack_min);
    over(&mut conntrack.tcp_established_timeout, &flags.conntrack_tcp_timeout_established);
    over(&mut conntrack.tcp_close_wait_timeout, &flags.conntrack_tcp_timeout_close_wait);
    over(&mut conntrack.tcp_be_liberal, &flags.conntrack_tcp_be_liberal);
    over(&mut conntrack.udp_timeout, &flags.conntrack_udp_timeout);
    over(&mut conntrack.udp_stream_timeout, &flags.conntrack_udp_timeout_stream);
}

/// The flags of iptables give the periods of every mode but ipvs; `--masquerade-all` is one flag for all modes.
fn mode_flags(flags: &Flags, document: &mut Document) -> Option<GoDuration> {
    let mode = mode(document);
    over(&mut document.iptables.masquerade_bit, &flags.iptables_masquerade_bit);
    over(&mut document.iptables.localhost_node_ports, &flags.iptables_localhost_nodeports);
    let ipvs = &mut document.ipvs;
    over(&mut ipvs.scheduler, &flags.ipvs_scheduler);
    over(&mut ipvs.exclude_cidrs, &flags.ipvs_exclude_cidrs);
    over(&mut ipvs.strict_arp, &flags.ipvs_strict_arp);
    over(&mut ipvs.tcp_timeout, &flags.ipvs_tcp_timeout);
    over(&mut ipvs.tcp_fin_timeout, &flags.ipvs_tcpfin_timeout);
    over(&mut ipvs.udp_timeout, &flags.ipvs_udp_timeout);
    let entry = mode.entry();
    let (sync_period, min_sync_period) = match entry.periods {
        Section::Ipvs => (flags.ipvs_sync_period, flags.ipvs_min_sync_period),
        Section::Iptables | Section::Nftables => (flags.iptables_sync_period, flags.iptables_min_sync_period),
    };
    let periods =
        [Some(sync_period.unwrap_or(SYNC_PERIOD)), Some(min_sync_period.unwrap_or(MIN_SYNC_PERIOD))];
    match entry.periods {
        Section::Ipvs => [ipvs.sync_period, ipvs.min_sync_period] = periods,
        Section::Nftables => [document.nftables.sync_period, document.nftables.min_sync_period] = periods,
        Section::Iptables => [document.iptables.sync_period, document.iptables.min_sync_period] = periods,
    }
    match entry.masquerade {
        Section::Nftables => over(&mut document.nftables.masquerade_all, &flags.masquerade_all),
        Section::Iptables | Section::Ipvs => {
            over(&mut document.iptables.masquerade_all, &flags.masquerade_all);
        }
    }
    min_sync_period
}

/// Logging flags count beside a file as well; patterns are put before the file's.
fn logging_flags(flags: &Flags, logging: &mut Logging) {
    over(&mut logging.format, &flags.logging_format);
    over(&mut logging.verbosity, &flags.v);
    if let (Some(flush), Some(given)) = (&mut logging.flush_frequency, flags.log_flush_frequency) {
        flush.duration = given;
    }
    let mut vmodule: Vec<VModule> = flags.vmodule.clone().unwrap_or_default();
    vmodule.append(&mut logging.vmodule);
    logging.vmodule = vmodule;
    let options = &mut logging.options;
    over(&mut options.text.split_stream, &flags.log_text_split_stream);
    over(&mut options.text.info_buffer_size, &flags.log_text_info_buffer_size);
    over(&mut options.json.split_stream, &flags.log_json_split_stream);
    over(&mut options.json.info_buffer_size, &flags.log_json_info_buffer_size);
}

fn hostname_flag(flags: &Flags, document: &mut Document, problems: &mut Problems) {
    let Some(given) = flags.hostname_override.as_deref().filter(|given| !given.is_empty()) else { return };
    match given.trim() {
        "" => problems.complete("empty hostname-override is invalid".to_owned()),
        name => document.hostname_override = Some(name.to_lowercase()),
    }
}

fn platform_defaults(document: &mut Document) {
    if is_empty(&document.mode) {
        document.mode = Some(Mode::DEFAULT.as_str().to_owned());
    }
    let addresses = mode(document).entry().node_port_addresses;
    if !addresses.is_empty() && document.node_port_addresses.as_ref().is_none_or(Vec::is_empty) {
        document.node_port_addresses = Some(addresses.iter().map(|&address| address.to_owned()).collect());
    }
    if is_empty(&document.detect_local_mode) {
        document.detect_local_mode = Some("ClusterCIDR".to_owned());
    }
}

/// Periods and masquerading of modes that are not in effect are shown as zero.
fn only_in_effect(document: &mut Document) {
    let entry = mode(document).entry();
    let zero = Some(GoDuration::ZERO);
    if entry.periods != Section::Iptables {
        (document.iptables.sync_period, document.iptables.min_sync_period) = (zero, zero);
    }
    if entry.periods != Section::Ipvs {
        (document.ipvs.sync_period, document.ipvs.min_sync_period) = (zero, zero);
    }
    if entry.periods != Section::Nftables {
        (document.nftables.sync_period, document.nftables.min_sync_period) = (zero, zero);
    }
    if entry.masquerade == Section::Nftables {
        document.iptables.masquerade_all = Some(false);
    } else {
        document.nftables.masquerade_all = Some(false);
    }
}

/// The mode that a document names; an unknown one is reported elsewhere.
pub(super) fn mode(document: &Document) -> Mode {
    document.mode.as_deref().and_then(Mode::from_name).unwrap_or(Mode::DEFAULT)
}

fn over<T: Clone>(field: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        field.clone_from(flag);
    }
}

fn is_empty(text: &Option<String>) -> bool {
    text.as_ref().is_none_or(String::is_empty)
}

#[cfg(test)]
mod tests;

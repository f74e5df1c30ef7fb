//! Names, types, labels and buckets are kube-proxy's: dashboards and alerts are built on them.
//!
//! `fixtures/metrics-nftables.txt` is what kube-proxy v1.37.0-rc.1 answered in nftables mode.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use portwarden::metrics::{BuildInfo, Metrics, PacketCounter};
use portwarden::modes::Mode;
use portwarden_model::{Count, Family, Gauge, Timestamp, Totals};
use serde_json::Value;

/// Metrics of kube-proxy that Portwarden does not have, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("rest_client_exec_plugin_", "the client library does not report calls of credential plugins"),
    (
        "rest_client_transport_cert_rotation_",
        "a connection with new certificates takes the place of the old one",
    ),
    ("go_", "there is no Go runtime"),
];

/// What a family of metrics looks like, values aside.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shape {
    kind: String,
    labels: BTreeSet<String>,
    /// As text: Prometheus compares them so.
    buckets: BTreeSet<String>,
}

fn shapes(text: &str) -> BTreeMap<String, Shape> {
    let mut shapes: BTreeMap<String, Shape> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with("# HELP")) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            shapes.entry(name.to_owned()).or_default().kind = kind.to_owned();
            continue;
        }
        let (name, labels) = match line.split_once('{') {
            Some((name, rest)) => (name, rest.rsplit_once('}').expect("closed").0),
            None => (line.split(' ').next().expect("a name"), ""),
        };
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
            name.strip_suffix(end)
                .filter(|base| shapes.get(*base).is_some_and(|shape| shape.kind == "histogram"))
        });
        let shape = shapes.get_mut(base.unwrap_or(name)).unwrap_or_else(|| panic!("{name} has a type"));
        for pair in labels.split("\",").filter(|pair| !pair.is_empty()) {
            let (label, value) = pair.split_once("=\"").expect("a label");
            if label == "le" {
                shape.buckets.insert(value.trim_end_matches('"').to_owned());
            } else {
                shape.labels.insert(label.to_owned());
            }
        }
    }
    shapes
}

/// Metrics after everything happened once.
fn used() -> Metrics {
    let build = BuildInfo { git_version: "v1.37.0".to_owned(), git_commit: String::new() };
    let metrics = Metrics::new(&build).expect("the metrics fit together");
    let (now, took) = (Timestamp::from_nanos(2_000_000_000), Duration::from_millis(3));
    metrics.feature_gates([("AllAlpha", "ALPHA", false)].into_iter()).expect("fits too");
    for family in Family::BOTH {
        metrics.sync.queued(family, now);
        metrics.sync.attempted(family, true, took);
        metrics.sync.attempted(family, false, took);
        metrics.sync.succeeded(family, now, Totals::default(), &[Timestamp::from_nanos(1_000_000_000)]);
        metrics.flows.cleaned(family, 1, took);
        for mode in [Mode::Nftables, Mode::Iptables] {
            let counters = mode.words().counters;
            metrics.mode.announce(counters);
            for (metric, _) in counters.iter().filter(|(metric, _)| !metric.contains("cleanup")) {
                metrics.mode.count(family, &[Count::one(metric)]);
            }
        }
    }
    metrics.health.healthz.with_label_values(&["200"]).inc();
    metrics.health.livez.with_label_values(&["503"]).inc();
    metrics.rest_client.answered("200", "GET", "10.0.0.1:6443");
    metrics.rest_client.took("GET", "10.0.0.1:6443", took);
    metrics.rest_client.waited("GET", "10.0.0.1:6443", took);
    metrics.rest_client.sent("GET", "10.0.0.1:6443", 0);
    metrics.rest_client.received("POST", "10.0.0.1:6443", 100);
    metrics.rest_client.connected();
    let own = &metrics.own;
    for family in ["IPv4", "IPv6"] {
        own.tampering.with_label_values(&[family]).inc();
        own.refused_services.with_label_values(&[family]).set(1.0);
        own.flow_failures.with_label_values(&[family]).inc();
        own.written.with_label_values(&[family]).inc();
    }
    own.reloads.with_label_values(&["applied"]).inc();
    own.source_failing.with_label_values(&["services"]).set(1.0);
    own.refused_connections.with_label_values(&["health"]).inc();
    metrics
}

#[test]
fn every_metric_of_kube_proxy_is_there_in_the_same_shape() {
    let reference = shapes(include_str!("fixtures/metrics-nftables.txt"));
    let ours = shapes(&used().text());
    let is_left_out = |name: &str| LEFT_OUT.iter().any(|(prefix, _)| name.starts_with(prefix));
    let mut compared = 0;
    for (name, mut wanted) in reference.into_iter().filter(|(name, _)| !is_left_out(name)) {
        let found = ours.get(&name).unwrap_or_else(|| panic!("{name} is missing"));
        if name == "kubernetes_feature_enabled" {
            // The recording has no series of it.
            wanted.labels = ["name", "stage"].map(str::to_owned).into();
        }
        assert_eq!(found, &wanted, "{name}");
        compared += 1;
    }
    assert!(compared > 20, "only {compared} families compared");
    for (prefix, _) in LEFT_OUT {
        assert!(!ours.keys().any(|name| name.starts_with(prefix)), "{prefix} is there after all");
    }
}

/// What the recording did not show, from the table of metrics in the specification.
#[test]
fn metrics_that_need_an_occasion_have_the_right_shape() {
    let metrics = used();
    let gauge = |metric, table: &str| Gauge { metric, labels: vec![("table", table.to_owned())], value: 7 };
    let gauges =
        [gauge("sync_proxy_rules_iptables_total", "nat"), gauge("sync_proxy_rules_iptables_last", "filter")];
    metrics.mode.show(Family::V4, &gauges);
    let ours = shapes(&metrics.text());
    let doubling: BTreeSet<String> = [
        "0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "0.256", "0.512", "1.024",
        "2.048", "4.096", "8.192", "16.384", "+Inf",
    ]
    .map(str::to_owned)
    .into();
    let programming: BTreeSet<String> = ["0.25".to_owned(), "0.5".to_owned(), "+Inf".to_owned()]
        .into_iter()
        .chain((1..60).map(|n| n.to_string()))
        .chain((60..120).step_by(5).map(|n| n.to_string()))
        .chain((120..=300).step_by(30).map(|n| n.to_string()))
        .collect();
    for (name, kind, labels, buckets) in [
        ("network_programming_duration_seconds", "histogram", &["ip_family"][..], programming),
        ("conntrack_reconciler_sync_duration_seconds", "histogram", &["ip_family"], doubling),
        ("conntrack_reconciler_deleted_entries_total", "counter", &["ip_family"], BTreeSet::new()),
        ("proxy_healthz_total", "counter", &["code"], BTreeSet::new()),
        ("proxy_livez_total", "counter", &["code"], BTreeSet::new()),
        ("sync_proxy_rules_nftables_sync_failures_total", "counter", &["ip_family"], BTreeSet::new()),
        ("sync_proxy_rules_iptables_restore_failures_total", "counter", &["ip_family"], BTreeSet::new()),
        (
            "sync_proxy_rules_iptables_partial_restore_failures_total",
            "counter",
            &["ip_family"],
            BTreeSet::new(),
        ),
        ("sync_proxy_rules_iptables_total", "gauge", &["table", "ip_family"], BTreeSet::new()),
        ("sync_proxy_rules_iptables_last", "gauge", &["table", "ip_family"], BTreeSet::new()),
    ] {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let wanted = Shape { kind: kind.to_owned(), labels, buckets };
        assert_eq!(ours.get(&format!("kubeproxy_{name}")), Some(&wanted), "{name}");
    }
}

/// The kernel keeps these; a kernel that does not leaves them out.
#[test]
fn packets_that_the_kernel_counts_are_shown_where_it_does() {
    let names = portwarden_iptables::PACKET_COUNTERS.map(|counter| counter.metric);
    assert_eq!(
        names,
        [
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"
        ]
    );
    let metrics = used();
    let counter = |name, value: Option<u64>| PacketCounter {
        name,
        help: "for this test",
        read: Box::new(move || value),
    };
    metrics.mode.show_packets(vec![counter(names[0], Some(7)), counter(names[1], None)]);
    let text = metrics.text();
    let wanted = format!("# HELP {0} [ALPHA] for this test\n# TYPE {0} counter\n{0} 7\n", names[0]);
    assert!(text.contains(&wanted) && !text.contains(names[1]), "{text}");
}

#[test]
fn our_own_metrics_carry_our_name() {
    let reference = shapes(include_str!("fixtures/metrics-nftables.txt"));
    for name in shapes(&used().text()).into_keys() {
        let known = ["kubeproxy_", "kubernetes_", "process_", "rest_client_", "portwarden_"];
        assert!(known.iter().any(|prefix| name.starts_with(prefix)), "{name}");
        assert!(
            name.starts_with("portwarden_")
                || name.starts_with("kubeproxy_")
                || reference.contains_key(&name),
            "{name}"
        );
    }
}

/// A file of the chart.
fn chart_file(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/portwarden/files").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails unless the program has every metric of a query, with the labels that the query selects and groups by.
fn check_query(ours: &BTreeMap<String, Shape>, query: &str) {
    let is_word = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    let words: Vec<&str> = query.split(|sign| !is_word(sign)).collect();
    let known = ["kubeproxy_", "portwarden_", "process_", "rest_client_"];
    let metrics: Vec<&str> =
        words.into_iter().filter(|word| known.iter().any(|prefix| word.starts_with(prefix))).collect();
    assert!(!metrics.is_empty() || query.contains("up{"), "no metric of ours in {query}");
    // In `{label=...}` and `by (label, ...)`.
    let mut labels: BTreeSet<&str> = BTreeSet::new();
    for part in query.split('{').skip(1) {
        let inside = part.split('}').next().unwrap_or_default();
        labels.extend(inside.split(',').filter_map(|pair| pair.split(['=', '!']).next()).map(str::trim));
    }
    for part in query.split("by (").skip(1) {
        labels.extend(part.split(')').next().unwrap_or_default().split(',').map(str::trim));
    }
    // Prometheus itself adds these.
    for added in ["job", "instance"] {
        labels.remove(added);
    }
    for metric in metrics {
        let shape = ["", "_bucket", "_count", "_sum"].iter().find_map(|end| {
            let shape = ours.get(metric.strip_suffix(end)?)?;
            (end.is_empty() || shape.kind == "histogram").then_some(shape)
        });
        let shape = shape.unwrap_or_else(|| panic!("{metric} does not exist: {query}"));
        for label in &labels {
            let exists = shape.labels.contains(*label) || *label == "le" && shape.kind == "histogram";
            assert!(exists, "{metric} has no label {label}: {query}");
        }
    }
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_exist() {
    let ours = shapes(&used().text());
    let dashboard = chart_file("dashboard.json");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut queries: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("a query")).collect();
    assert!(queries.len() > 20, "only {} queries on the dashboard", queries.len());
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let query = variable["query"]["query"].as_str().expect("a query");
        let metric = query.strip_prefix("label_values(").and_then(|rest| rest.split(['{', ',']).next());
        assert!(ours.contains_key(metric.expect("a metric")), "{query}");
    }
    let alerts = chart_file("alerts.yaml");
    let rules = alerts["groups"][0]["rules"].as_array().expect("rules");
    queries.extend(rules.iter().map(|rule| rule["expr"].as_str().expect("a query")));
    for query in queries {
        check_query(&ours, query);
    }
}

/// The links of the alerts lead somewhere.
#[test]
fn every_alert_has_a_section_on_its_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let alerts = chart_file("alerts.yaml");
    for rule in alerts["groups"][0]["rules"].as_array().expect("rules") {
        let name = rule["alert"].as_str().expect("a name");
        let link = rule["annotations"]["runbook_url"].as_str().expect("a link");
        assert!(link.ends_with(&format!("#{}", name.to_lowercase())), "{link}");
        assert!(page.lines().any(|line| line.trim_start_matches('#').trim() == name), "no section {name}");
    }
}

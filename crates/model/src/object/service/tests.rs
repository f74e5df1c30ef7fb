//! What of a Service is proxied, and how its fields are read.

use super::*;
use crate::sample::{dual_stack, service, service_port, strings};

fn parsed(from: &manifest::Service) -> Option<Service> {
    Service::from_manifest(from, &mut Interner::default()).0
}

fn problems(from: &manifest::Service) -> Vec<String> {
    let (_, problems) = Service::from_manifest(from, &mut Interner::default());
    problems.iter().map(ToString::to_string).collect()
}

/// What one family makes of a Service, in a line: only what differs from a bare cluster address.
fn describe(service: Option<&Service>, family: Family) -> String {
    let Some((service, ip)) = service.and_then(|s| Some((s, s.cluster_ips[family]?))) else {
        return "nothing".to_owned();
    };
    let mut text = ip.to_string();
    let mut add = |what: &str, values: Vec<String>| {
        if !values.is_empty() {
            text += &format!(" {what} {}", values.join(","));
        }
    };
    add("node-port", service.ports.iter().filter_map(|p| p.node_port).map(|p| p.to_string()).collect());
    add("external", service.external_ips(family).map(|ip| ip.to_string()).collect());
    add("balancer", service.load_balancer_ips(family).map(|ip| ip.to_string()).collect());
    add("from", service.source_ranges(family).iter().map(ToString::to_string).collect());
    add("internal", service.internal_policy_local.then(|| "local".to_owned()).into_iter().collect());
    add("external-policy", service.external_policy_local.then(|| "local".to_owned()).into_iter().collect());
    add("health", service.health_check_node_port.iter().map(ToString::to_string).collect());
    add("affinity", service.affinity.iter().map(ToString::to_string).collect());
    text
}

type Edit = fn(&mut manifest::Service);

struct Row {
    row: u32,
    input: Edit,
    v4: &'static str,
    v6: &'static str,
}

fn check(rows: &[Row]) {
    for Row { row, input, v4, v6 } in rows {
        let parsed = parsed(&service(input));
        assert_eq!(describe(parsed.as_ref(), Family::V4), *v4, "row {row}, IPv4");
        assert_eq!(describe(parsed.as_ref(), Family::V6), *v6, "row {row}, IPv6");
    }
}

fn ingress(ip: &str, mode: Option<&str>) -> manifest::LoadBalancerIngress {
    manifest::LoadBalancerIngress { ip: ip.to_owned(), ip_mode: mode.map(str::to_owned) }
}

fn local_external_policy(service: &mut manifest::Service, kind: &str) {
    service.spec.r#type = kind.to_owned();
    service.spec.external_traffic_policy = "Local".to_owned();
}

#[test]
fn cases_which_services_are_proxied_and_where() {
    check(&[
        Row { row: 1, input: |s| s.spec.cluster_ip = "None".into(), v4: "nothing", v6: "nothing" },
        Row { row: 2, input: |s| s.spec.r#type = "ExternalName".into(), v4: "nothing", v6: "nothing" },
        Row { row: 3, input: |s| s.spec.cluster_ip = "fd00::1".into(), v4: "nothing", v6: "fd00::1" },
        Row {
            row: 4,
            input: |s| {
                s.spec.ip_families = strings(&["IPv6", "IPv4"]);
                s.spec.cluster_ips = strings(&["fd00::1"]);
            },
            v4: "nothing",
            v6: "fd00::1",
        },
        Row {
            row: 5,
            input: |s| {
                s.spec.ip_families = strings(&["IPv6", "IPv4"]);
                s.spec.cluster_ips = strings(&["fd00::1", "10.0.0.10"]);
            },
            v4: "10.0.0.10",
            v6: "fd00::1",
        },
        Row {
            row: 6,
            input: |s| s.spec.ports[0].node_port = 4321,
            v4: "10.96.0.10 node-port 4321",
            v6: "nothing",
        },
    ]);
}

/// A cluster address refuses all ports that no Service has: with 127.0.0.1 that would be the node's own servers.
#[test]
fn special_addresses_are_no_cluster_addresses() {
    for ip in ["127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "::1", "ff02::1"] {
        let mut one = service(|_| {});
        one.spec.cluster_ip = ip.to_owned();
        assert!(parsed(&one).is_none(), "{ip}");
        assert!(problems(&one)[0].contains("spec.clusterIP: "), "{ip}: {:?}", problems(&one));
        let mut listed = service(|_| {});
        listed.spec.ip_families = strings(&["IPv4", "IPv6"]);
        listed.spec.cluster_ips = strings(if ip.contains(':') { &["10.0.0.10"] } else { &[] });
        listed.spec.cluster_ips.push(ip.to_owned());
        assert!(parsed(&listed).is_none_or(|service| service.cluster_ips.v6.is_none()), "{ip}");
        assert!(
            problems(&listed)[0].contains("cannot be the address of a Service"),
            "{:?}",
            problems(&listed)
        );
    }
}

#[test]
fn cases_external_addresses_and_source_ranges() {
    check(&[
        Row {
            row: 7,
            input: |s| {
                s.spec.external_ips = strings(&[
                    "",
                    " ",
                    "1.2.3.4",
                    "1.2.3.4",
                    "fd00::1",
                    " 1.1.1.1",
                    "::ffff:5.6.7.8",
                    "01.02.03.04",
                    "foo",
                ]);
            },
            v4: "10.96.0.10 external 1.2.3.4,1.2.3.4,5.6.7.8,1.2.3.4",
            v6: "nothing",
        },
        Row {
            row: 8,
            // A host name is not even read; an entry that has only one comes with an empty address.
            input: |s| {
                s.status.load_balancer.ingress = vec![
                    ingress("1.2.3.4", None),
                    ingress("1.2.3.5", Some("Proxy")),
                    ingress("1.2.3.6", Some("VIP")),
                    ingress("", None),
                    ingress("fd00::1", None),
                    ingress("bad", None),
                    ingress("1.2.3.7", Some("Other")),
                    ingress("1.2.3.8", None),
                ];
            },
            v4: "10.96.0.10 balancer 1.2.3.4,1.2.3.6,1.2.3.8",
            v6: "nothing",
        },
        Row {
            row: 9,
            input: |s| {
                s.spec.load_balancer_source_ranges =
                    strings(&[" 10.1.2.3/8 ", "", "bad", "fd00::/8", "10.0.0.0", "001.002.003.000/024"]);
            },
            v4: "10.96.0.10 from 10.0.0.0/8,1.2.3.0/24",
            v6: "nothing",
        },
        Row {
            row: 10,
            input: |s| s.spec.load_balancer_source_ranges = strings(&["10.0.0.0/8", "1.2.3.4/0"]),
            v4: "10.96.0.10",
            v6: "nothing",
        },
    ]);
}

#[test]
fn cases_source_ranges_of_two_families() {
    let both = |ranges: &[&str]| {
        let parsed = parsed(&dual_stack(|s| s.spec.load_balancer_source_ranges = strings(ranges)));
        Family::BOTH.map(|family| describe(parsed.as_ref(), family))
    };
    assert_eq!(both(&["10.0.0.0/8", "::/0"]), ["10.96.0.10 from 10.0.0.0/8", "fd00:96::10"], "row 11");
    assert_eq!(both(&["fd00::/8"]), ["10.96.0.10", "fd00:96::10 from fd00::/8"], "row 12");
    assert_eq!(both(&["bad"]), ["10.96.0.10", "fd00:96::10"], "row 12");
}

#[test]
fn cases_external_policy_and_health_check_port() {
    check(&[
        Row {
            row: 13,
            input: |s| {
                local_external_policy(s, "ClusterIP");
                s.spec.ports[0].node_port = 30000;
            },
            v4: "10.96.0.10 node-port 30000",
            v6: "nothing",
        },
        Row {
            row: 14,
            input: |s| {
                local_external_policy(s, "ClusterIP");
                s.spec.external_ips = strings(&["fd00::1"]);
                s.spec.health_check_node_port = 5;
            },
            v4: "10.96.0.10 external-policy local",
            v6: "nothing",
        },
        Row {
            row: 15,
            input: |s| {
                local_external_policy(s, "NodePort");
                s.spec.health_check_node_port = 5;
            },
            v4: "10.96.0.10 external-policy local",
            v6: "nothing",
        },
        Row {
            row: 16,
            input: |s| {
                local_external_policy(s, "LoadBalancer");
                s.spec.health_check_node_port = 5;
            },
            v4: "10.96.0.10 external-policy local health 5",
            v6: "nothing",
        },
        Row {
            row: 17,
            input: |s| {
                s.spec.cluster_ip = "172.30.0.041".into();
                s.spec.load_balancer_source_ranges = strings(&["203.0.113.000/025"]);
                s.status.load_balancer.ingress = vec![ingress("203.0.113.001", None)];
            },
            v4: "172.30.0.41 balancer 203.0.113.1 from 203.0.113.0/25",
            v6: "nothing",
        },
    ]);
}

#[test]
fn only_the_singular_cluster_ip_says_headless() {
    let headless = service(|s| {
        s.spec.cluster_ip = String::new();
        s.spec.cluster_ips = strings(&["10.0.0.1"]);
        s.spec.ip_families = strings(&["IPv4"]);
    });
    assert_eq!(parsed(&headless), None);
}

/// The label's value does not matter.
#[test]
fn a_service_of_another_proxy_is_not_ours() {
    for value in ["", "other"] {
        let labelled = service(|s| {
            s.metadata.labels.insert(LABEL_PROXY_NAME.to_owned(), value.to_owned());
        });
        assert_eq!(parsed(&labelled), None, "{value:?}");
        assert!(problems(&labelled).is_empty(), "it is not wrong, only not ours");
    }
}

#[test]
fn the_last_of_two_ports_with_one_name_and_protocol_counts() {
    let twice = service(|s| {
        s.spec.ports = vec![
            service_port("dns", "UDP", 53),
            service_port("dns", "TCP", 53),
            service_port("dns", "UDP", 5353),
        ];
    });
    let parsed = parsed(&twice).expect("proxied");
    let ports: Vec<_> = parsed.ports.iter().map(|p| (p.protocol, p.port)).collect();
    assert_eq!(ports, [(Protocol::Udp, 5353), (Protocol::Tcp, 53)]);
}

#[test]
fn affinity_has_a_timeout_even_when_the_service_gives_none() {
    let affinity = |kind: &str, seconds: Option<i32>| {
        let sticky = service(|s| {
            s.spec.session_affinity = kind.to_owned();
            s.spec.session_affinity_config = Some(manifest::SessionAffinityConfig {
                client_ip: Some(manifest::ClientIpConfig { timeout_seconds: seconds }),
            });
        });
        parsed(&sticky).and_then(|s| s.affinity).map(NonZeroU32::get)
    };
    assert_eq!(affinity("ClientIP", Some(90)), Some(90));
    assert_eq!(affinity("ClientIP", None), Some(10_800));
    assert_eq!(affinity("ClientIP", Some(0)), Some(10_800));
    assert_eq!(affinity("ClientIP", Some(-1)), Some(10_800));
    assert_eq!(affinity("None", Some(90)), None);
    assert_eq!(affinity("Other", Some(90)), None);
}

#[test]
fn the_internal_policy_is_local_only_when_spelled_so() {
    for (text, local) in
        [(None, false), (Some("Cluster"), false), (Some("Local"), true), (Some("local"), false)]
    {
        let with = service(|s| s.spec.internal_traffic_policy = text.map(str::to_owned));
        assert_eq!(parsed(&with).expect("proxied").internal_policy_local, local, "{text:?}");
    }
}

/// Bad input is named with its field and left out; the rest of the Service works.
#[test]
fn what_cannot_be_used_is_reported_and_left_out() {
    let cases: [(Edit, &str); 10] = [
        (|s| s.spec.cluster_ip = "bad".into(), "spec.clusterIP: "),
        (
            |s| {
                s.spec.ip_families = strings(&["IPv4"]);
                s.spec.cluster_ips = strings(&["fd00::1"]);
            },
            "spec.clusterIPs[0]: ",
        ),
        (|s| s.spec.ports[0].protocol = "ICMP".into(), "spec.ports[0].protocol: "),
        (|s| s.spec.ports[0].port = 0, "spec.ports[0].port: "),
        (|s| s.spec.ports[0].port = 65_536, "spec.ports[0].port: "),
        (|s| s.spec.ports[0].node_port = -1, "spec.ports[0].nodePort: "),
        (|s| s.spec.external_ips = strings(&["1.2.3.4", " 1.1.1.1"]), "spec.externalIPs[1]: "),
        (
            |s| s.spec.load_balancer_source_ranges = strings(&["10.0.0.0"]),
            "spec.loadBalancerSourceRanges[0]: ",
        ),
        (|s| local_external_policy(s, "LoadBalancer"), "spec.healthCheckNodePort: "),
        (|s| s.spec.r#type = "Other".into(), "spec.type: "),
    ];
    for (input, field) in cases {
        let found = problems(&service(input));
        let expected = format!("Service demo/web: {field}");
        assert!(matches!(&found[..], [only] if only.starts_with(&expected)), "{expected}...: {found:?}");
    }
}

#[test]
fn a_service_without_name_is_left_out() {
    let nameless = service(|s| s.metadata.name.clear());
    assert_eq!(parsed(&nameless), None);
    assert_eq!(problems(&nameless), ["Service demo/: metadata.name: missing; Service left out"]);
}

/// Blank entries come from templates; they deserve no report.
#[test]
fn blank_entries_are_ignored_in_silence() {
    let blank = service(|s| {
        s.spec.external_ips = strings(&["", " "]);
        s.spec.load_balancer_source_ranges = strings(&["", " "]);
        s.status.load_balancer.ingress = vec![ingress("bad", None), ingress("", None)];
    });
    assert_eq!(problems(&blank), [""; 0]);
}

#[test]
fn easy_to_miss_01_node_ports_and_ingress_count_whatever_the_type() {
    check(&[Row {
        row: 1,
        input: |s| {
            s.spec.r#type = "ClusterIP".into();
            s.spec.ports[0].node_port = 30080;
            s.status.load_balancer.ingress = vec![ingress("203.0.113.9", None)];
        },
        v4: "10.96.0.10 node-port 30080 balancer 203.0.113.9",
        v6: "nothing",
    }]);
}

#[test]
fn easy_to_miss_02_unusable_source_ranges_leave_the_address_open() {
    for ranges in [&["bad"][..], &["fd00::/8"], &["10.0.0.0/8", "0.0.0.0/0"], &["10.0.0.0"]] {
        let with = service(|s| s.spec.load_balancer_source_ranges = strings(ranges));
        assert!(parsed(&with).expect("proxied").source_ranges(Family::V4).is_empty(), "{ranges:?}");
    }
}

#[test]
fn easy_to_miss_11_annotations_and_labels_of_a_service_change_nothing() {
    let plain = service(|_| {});
    let edited = service(|s| {
        s.metadata.annotations.insert("note".to_owned(), "edited".to_owned());
        s.metadata.labels.insert("team".to_owned(), "blue".to_owned());
        s.metadata.resource_version = "7".to_owned();
    });
    assert_eq!(parsed(&plain), parsed(&edited));
}

#[test]
fn easy_to_miss_33_addresses_are_normalised_before_they_become_keys() {
    let written = |ip: &str, external: &str| {
        parsed(&service(|s| {
            s.spec.cluster_ip = ip.to_owned();
            s.spec.external_ips = strings(&[external]);
        }))
    };
    assert_eq!(written("010.096.000.010", "::ffff:1.2.3.4"), written("10.96.0.10", "1.2.3.4"));
}

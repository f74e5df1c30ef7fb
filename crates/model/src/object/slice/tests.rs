//! Which slices count, and what is read of their ports and endpoints.

use super::*;
use crate::sample::{endpoints, slice, slice_port, strings};

type Edit<T> = fn(&mut T);

fn parsed(from: &manifest::EndpointSlice) -> Option<EndpointSlice> {
    EndpointSlice::from_manifest(from, &mut Interner::default()).0
}

fn problems(from: &manifest::EndpointSlice) -> Vec<String> {
    let (_, problems) = EndpointSlice::from_manifest(from, &mut Interner::default());
    problems.iter().map(ToString::to_string).collect()
}

fn conditions(given: Option<manifest::EndpointConditions>) -> Conditions {
    let one = slice("web-1", "A R", |s| s.endpoints[0].conditions = given);
    parsed(&one).expect("used").endpoints().next().expect("one endpoint").conditions
}

#[test]
fn a_slice_counts_if_it_is_of_an_ip_family_and_names_its_service() {
    assert!(parsed(&slice("web-1", "A R", |_| {})).is_some());
    let refused: [(Edit<manifest::EndpointSlice>, &str); 6] = [
        (|s| s.address_type = "FQDN".into(), "addressType: "),
        (|s| s.address_type = String::new(), "addressType: "),
        (|s| s.metadata.labels.clear(), "metadata.labels[kubernetes.io/service-name]: "),
        (
            |s| {
                s.metadata.labels.insert(LABEL_SERVICE_NAME.into(), String::new());
            },
            "metadata.labels[kubernetes.io/service-name]: ",
        ),
        (|s| s.metadata.name.clear(), "metadata: "),
        (|s| s.metadata.namespace.clear(), "metadata: "),
    ];
    for (change, field) in refused {
        let bad = slice("web-1", "A R", change);
        assert_eq!(parsed(&bad), None, "{field}");
        assert!(problems(&bad).iter().any(|p| p.contains(field)), "{field}: {:?}", problems(&bad));
    }
}

/// The headless label takes a slice out of sight, whatever its value.
#[test]
fn slices_of_headless_services_are_not_ours() {
    let headless = slice("web-1", "A R", |s| {
        s.metadata.labels.insert(LABEL_HEADLESS.to_owned(), String::new());
    });
    assert_eq!(parsed(&headless), None);
    assert!(problems(&headless).is_empty());
}

/// Row by row.
#[test]
fn ports_need_a_name_and_a_number() {
    let port = |change: fn(&mut manifest::EndpointPort)| {
        let one = slice("web-1", "A R", |s| change(&mut s.ports[0]));
        let parsed = parsed(&one).expect("used");
        (parsed.ports.first().map(|p| (p.name.to_string(), p.protocol, p.port.get())), problems(&one))
    };
    let kept = |name: &str, protocol| (Some((name.to_owned(), protocol, 8080)), vec![]);
    assert_eq!(port(|p| p.name = Some(String::new())), kept("", Protocol::Tcp));
    assert_eq!(port(|p| p.protocol = None), kept("http", Protocol::Tcp), "the API's default");
    assert_eq!(port(|p| p.protocol = Some("SCTP".into())), kept("http", Protocol::Sctp));
    let refused: [(Edit<manifest::EndpointPort>, &str); 6] = [
        (|p| p.name = None, "ports[0].name: "),
        (|p| p.port = None, "ports[0].port: "),
        (|p| p.port = Some(0), "ports[0].port: "),
        (|p| p.port = Some(-80), "ports[0].port: "),
        (|p| p.port = Some(65_536), "ports[0].port: "),
        (|p| p.protocol = Some("tcp".into()), "ports[0].protocol: "),
    ];
    for (change, field) in refused {
        let (kept, problems) = port(change);
        assert_eq!(kept, None, "{field}");
        assert!(matches!(&problems[..], [only] if only.contains(field)), "{field}: {problems:?}");
    }
}

/// Row by row.
#[test]
fn endpoints_are_read_as_given() {
    let given = slice("web-1", "A R L z:ab n:1, B N", |_| {});
    let parsed = parsed(&given).expect("used");
    let all: Vec<_> = parsed.endpoints().collect();
    assert_eq!(parsed.len(), 2);
    assert_eq!(all[0].ip, IpAddr::from([10, 1, 0, 1]));
    assert_eq!(all[0].node.map(Name::as_str), Some("here"));
    let hints = &parsed.hints()[all[0].hints.expect("it has hints")];
    let names = |names: &[Name]| names.iter().map(Name::to_string).collect::<Vec<_>>();
    assert_eq!((names(&hints.zones), names(&hints.nodes)), (strings(&["a", "b"]), strings(&["1"])));
    assert_eq!(all[1].hints, None);
    assert_eq!(all[1].conditions, Conditions { ready: false, serving: false, terminating: false });
}

#[test]
fn absent_conditions_mean_ready_serving_and_staying() {
    let healthy = Conditions { ready: true, serving: true, terminating: false };
    assert_eq!(conditions(None), healthy);
    assert_eq!(conditions(Some(manifest::EndpointConditions::default())), healthy);
}

/// `publishNotReadyAddresses` shows as ready and terminating at once.
#[test]
fn conditions_are_not_derived_from_each_other() {
    let given =
        manifest::EndpointConditions { ready: Some(true), serving: Some(false), terminating: Some(true) };
    assert_eq!(conditions(Some(given)), Conditions { ready: true, serving: false, terminating: true });
}

#[test]
fn endpoints_without_a_usable_address_are_reported_and_left_out() {
    let bad = slice("web-1", "A R, B R, C R, D R, E R", |s| {
        s.endpoints[1].addresses.clear();
        s.endpoints[2].addresses = strings(&["pod.example"]);
        s.endpoints[3].addresses = strings(&["fd00::1"]);
    });
    let ips: Vec<String> = parsed(&bad).expect("used").endpoints().map(|e| e.ip.to_string()).collect();
    assert_eq!(ips, ["10.1.0.1", "10.1.0.5"]);
    let fields: Vec<String> =
        problems(&bad).iter().filter_map(|p| p.split(": ").nth(1).map(str::to_owned)).collect();
    assert_eq!(fields, ["endpoints[1].addresses", "endpoints[2].addresses[0]", "endpoints[3].addresses[0]"]);
}

#[test]
fn a_bad_trigger_time_is_reported_and_ignored() {
    let at = |text: &str| {
        slice("web-1", "A R", |s| {
            s.metadata.annotations.insert(ANNOTATION_TRIGGER_TIME.to_owned(), text.to_owned());
        })
    };
    assert_eq!(parsed(&at("yesterday")).expect("used").trigger_time, None);
    assert_eq!(problems(&at("yesterday")).len(), 1);
    let time = parsed(&at("2026-01-02T03:04:05.6Z")).expect("used").trigger_time;
    assert_eq!(time.map(|time| time.to_string()).as_deref(), Some("2026-01-02T03:04:05.6Z"));
    assert!(problems(&at("2026-01-02T03:04:05.6Z")).is_empty());
}

#[test]
fn hints_are_kept_once_however_many_endpoints_share_them() {
    let many = slice("web-1", "", |s| {
        s.endpoints = (0..200).flat_map(|_| endpoints("A R L z:a n:1", "here", Family::V4)).collect();
    });
    let parsed = parsed(&many).expect("used");
    assert_eq!((parsed.len(), parsed.hints.len()), (200, 1));
    assert!(parsed.endpoints().all(|endpoint| endpoint.hints == Some(0)));
}

#[test]
fn easy_to_miss_03_absent_serving_means_true_even_when_not_ready() {
    let given = manifest::EndpointConditions { ready: Some(false), serving: None, terminating: Some(true) };
    assert_eq!(conditions(Some(given)), Conditions { ready: false, serving: true, terminating: true });
}

#[test]
fn easy_to_miss_05_only_the_first_address_counts() {
    let two = slice("web-1", "A R", |s| s.endpoints[0].addresses.push("10.9.9.9".to_owned()));
    let ips: Vec<_> = parsed(&two).expect("used").endpoints().map(|e| e.ip.to_string()).collect();
    assert_eq!(ips, ["10.1.0.1"]);
}

/// Unlike in kube-proxy, a write that changes no field we read causes no sync and no pass over conntrack.
#[test]
fn easy_to_miss_11_only_what_is_read_makes_two_slices_differ() {
    let plain = slice("web-1", "A R", |_| {});
    let edited = slice("web-1", "A R", |s| {
        s.metadata.resource_version = "8".to_owned();
        s.metadata.labels.insert("endpointslice.kubernetes.io/managed-by".to_owned(), "me".to_owned());
    });
    assert_eq!(parsed(&plain), parsed(&edited));
    let other_port = slice("web-1", "A R", |s| s.ports[0] = slice_port("http", "TCP", 8081));
    assert_ne!(parsed(&plain), parsed(&other_port));
}

#[test]
fn easy_to_miss_33_endpoint_addresses_are_normalised() {
    let padded = slice("web-1", "A R", |s| s.endpoints[0].addresses = strings(&["010.001.000.001"]));
    assert_eq!(parsed(&padded), parsed(&slice("web-1", "A R", |_| {})));
}

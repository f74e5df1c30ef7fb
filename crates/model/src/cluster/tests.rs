//! What each event changes, and what a resolve reports.

use super::*;
use crate::manifest::{self, ANNOTATION_TRIGGER_TIME, LABEL_PROXY_NAME, LABEL_SERVICE_NAME};
use crate::sample::{
    ToEvent, cluster, cluster_with, demo, dual_stack, endpoints, letters, node, node_in_zone, service,
    service_cidr, service_port, settings, slice, slice_port, strings, web_port,
};

fn pool(cluster: &Cluster) -> String {
    letters(&web_port(cluster, Family::V4).cluster)
}

/// The Services that differ in IPv4, after these events.
fn changed(cluster: &mut Cluster, events: &[Event]) -> Vec<String> {
    for event in events {
        cluster.apply(event.clone());
    }
    cluster.resolve().v4.services.iter().map(ToString::to_string).collect()
}

fn at(name: &str, codes: &str, time: &str) -> Event {
    let timed = slice(name, codes, |s| {
        s.metadata.annotations.insert(ANNOTATION_TRIGGER_TIME.to_owned(), time.to_owned());
    });
    timed.event()
}

fn udp_web() -> (manifest::Service, manifest::EndpointSlice) {
    let service = service(|s| s.spec.ports = vec![service_port("http", "UDP", 80)]);
    (service, slice("web-1", "A R", |s| s.ports = vec![slice_port("http", "UDP", 8080)]))
}

#[test]
fn services_and_slices_may_come_in_any_order() {
    let mut cluster = cluster(&[&slice("web-1", "A R", |_| {})]);
    assert_eq!(cluster.desired(Family::V4).services().len(), 0);
    assert_eq!(changed(&mut cluster, &[service(|_| {}).event()]), ["demo/web"]);
    assert_eq!(pool(&cluster), "A");
    changed(&mut cluster, &[Event::ServiceDeleted(demo("web"))]);
    assert_eq!(cluster.desired(Family::V4).services().len(), 0);
    changed(&mut cluster, &[service(|_| {}).event()]);
    assert_eq!(pool(&cluster), "A", "the slice was kept for it");
}

/// Removal of one slice only, and of unknown ones.
#[test]
fn a_deleted_slice_takes_only_its_own_endpoints() {
    let mut cluster =
        cluster(&[&service(|_| {}), &slice("web-1", "A R", |_| {}), &slice("web-2", "B R", |_| {})]);
    assert_eq!(pool(&cluster), "A B");
    assert!(!cluster.apply(Event::SliceDeleted(demo("unknown"))));
    assert!(cluster.apply(Event::SliceDeleted(demo("web-1"))));
    assert_eq!(changed(&mut cluster, &[]), ["demo/web"]);
    assert_eq!(pool(&cluster), "B");
    changed(&mut cluster, &[Event::SliceDeleted(demo("web-2"))]);
    assert_eq!(pool(&cluster), "-");
}

/// An endpoint that moves is never missing in between.
#[test]
fn an_endpoint_can_move_between_slices_without_a_gap() {
    let mut cluster =
        cluster(&[&service(|_| {}), &slice("web-1", "A R, B R", |_| {}), &slice("web-2", "", |_| {})]);
    changed(&mut cluster, &[slice("web-2", "A R", |_| {}).event()]);
    assert_eq!(pool(&cluster), "A B");
    changed(&mut cluster, &[slice("web-1", "B R", |_| {}).event()]);
    assert_eq!(pool(&cluster), "A B");
}

/// Nothing, no ports and one port are three different things.
#[test]
fn a_service_without_ports_is_proxied_all_the_same() {
    let mut cluster = cluster(&[]);
    assert_eq!(changed(&mut cluster, &[service(|s| s.spec.ports.clear()).event()]), ["demo/web"]);
    assert!(cluster.desired(Family::V4).service(&demo("web")).is_some_and(|s| s.ports.is_empty()));
}

/// A change that is taken back before the sync is not reported; kube-proxy reports the Service with equal content.
#[test]
fn cases_of_one_sync() {
    let base = || cluster(&[&service(|_| {}), &slice("web-1", "A R", |_| {})]);
    let extra = || slice("web-2", "B R", |_| {}).event();
    let gone = || Event::SliceDeleted(demo("web-2"));
    assert_eq!(changed(&mut base(), &[extra(), gone()]), [""; 0], "row 1: slice add, slice delete");

    let (udp, udp_slice) = udp_web();
    let (_, mut rewritten) = udp_web();
    rewritten.metadata.resource_version = "9".to_owned();
    let mut cluster = cluster(&[&udp, &udp_slice]);
    assert!(!cluster.apply(rewritten.event()), "row 2: a write that changes nothing we read");
    assert!(cluster.resolve().v4.is_empty(), "row 2");

    let same = slice("web-1", "A R", |_| {}).event();
    assert!(!base().apply(same.clone()), "row 3: identical slice again");

    let other = slice("web-1", "C R", |_| {}).event();
    assert_eq!(changed(&mut base(), &[other, same]), [""; 0], "row 4: changed and reverted");

    let mut empty = udp_slice;
    empty.metadata.name = "web-2".to_owned();
    empty.endpoints.clear();
    cluster.apply(empty.event());
    assert!(!cluster.resolve().v4.udp, "row 5: a UDP slice without endpoints");

    let annotated = service(|s| {
        s.metadata.annotations.insert("a".to_owned(), "b".to_owned());
    });
    assert_eq!(changed(&mut base(), &[annotated.event()]), [""; 0], "row 6: annotation only");

    let moved = service(|s| s.spec.ports[0].port = 81);
    assert_eq!(changed(&mut base(), &[moved.event(), service(|_| {}).event()]), [""; 0], "row 7: reverted");

    let mut cluster = base();
    let renamed = slice("web-1", "A R", |s| s.ports[0] = slice_port("web", "TCP", 8080));
    let service =
        service(|s| s.spec.ports = vec![service_port("http", "TCP", 80), service_port("web", "TCP", 81)]);
    changed(&mut cluster, &[service.event(), renamed.event()]);
    let ports = &cluster.desired(Family::V4).service(&demo("web")).expect("proxied").ports;
    let pools: Vec<_> = ports.iter().map(|port| letters(&port.cluster)).collect();
    assert_eq!(pools, ["-", "A"], "row 8: port renamed in slice");
}

#[test]
fn cases_of_trigger_times() {
    let (start, t0, t1, t2) =
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z");
    let times = |events: &[Event]| {
        let started = Timestamp::parse(start).expect("a time");
        let mut cluster = Cluster::new(Settings { started, ..settings() });
        for event in events {
            cluster.apply(event.clone());
        }
        let times: Vec<String> = cluster.resolve().v4.trigger_times.iter().map(ToString::to_string).collect();
        assert!(cluster.resolve().v4.trigger_times.is_empty(), "they are reported once");
        times
    };
    let delete = || Event::SliceDeleted(demo("web-1"));
    assert_eq!(times(&[at("web-1", "A R", t0), at("web-1", "B R", t1)]), [t0, t1], "row 9");
    assert_eq!(times(&[at("web-1", "A R", t1), delete(), at("web-1", "A R", t2)]), [t2], "row 10");
    assert_eq!(times(&[at("web-1", "A R", t1), delete()]), [""; 0], "row 11");
    assert_eq!(times(&[at("web-1", "A R", start)]), [""; 0], "row 12: not later than the start");
    assert_eq!(times(&[slice("web-1", "A R", |_| {}).event()]), [""; 0], "row 12: no annotation");
    assert_eq!(times(&[at("web-1", "A R", t1), at("web-1", "A R", t1)]), [t1], "an equal slice adds nothing");
    let other_slice = [at("web-1", "A R", t0), at("web-2", "B R", t1), delete()];
    assert_eq!(times(&other_slice), [""; 0], "a removal discards those of the Service's other slices too");
    let of_other_service = |time: &str| {
        let label = ("kubernetes.io/service-name".to_owned(), "other".to_owned());
        slice("other-1", "B R", |s| {
            s.metadata.labels.extend([label]);
            s.metadata.annotations.insert(ANNOTATION_TRIGGER_TIME.to_owned(), time.to_owned());
        })
        .event()
    };
    let mut of_two = times(&[at("web-1", "A R", t0), of_other_service(t1)]);
    of_two.sort();
    assert_eq!(of_two, [t0, t1], "of two Services, in any order");
    let removed = [at("web-1", "A R", t0), of_other_service(t1), delete()];
    assert_eq!(times(&removed), [t1], "a removal discards only those of its own Service");
    assert_eq!(times(&[delete()]), [""; 0], "a removal of what never was");
    assert_eq!(times(&[delete(), at("web-1", "A R", t2)]), [t2], "and what comes after it counts");
}

/// Its endpoints are kept for the Service, which may come later; until then there is nothing to write.
#[test]
fn a_slice_of_a_service_that_does_not_exist_changes_nothing() {
    let mut cluster = cluster(&[&service(|_| {})]);
    let stray = |codes: &str| {
        let label = ("kubernetes.io/service-name".to_owned(), "missing".to_owned());
        slice("missing-1", codes, |s| s.metadata.labels.extend([label])).event()
    };
    let before = cluster.desired(Family::V4).clone();
    for event in [stray("A R"), stray("A R, B R"), Event::SliceDeleted(demo("missing-1"))] {
        cluster.apply(event);
        let changes = cluster.resolve().v4;
        assert!(changes.gone.is_empty() && !changes.node, "{changes:?}");
        assert_eq!(*cluster.desired(Family::V4), before);
    }
}

#[test]
fn trigger_times_belong_to_the_family_of_their_slice() {
    let v6 = slice("web-6", "", |s| {
        s.address_type = "IPv6".to_owned();
        s.endpoints = endpoints("A R", "here", Family::V6);
        s.metadata.annotations.insert(ANNOTATION_TRIGGER_TIME.to_owned(), "2026-01-01T00:00:01Z".to_owned());
    });
    let mut cluster = cluster(&[]);
    cluster.apply(v6.event());
    let changes = cluster.resolve();
    assert_eq!((changes.v4.trigger_times.len(), changes.v6.trigger_times.len()), (0, 1));
}

/// Only the family whose slice changed has anything to do.
#[test]
fn a_slice_touches_only_its_family_and_service() {
    let other = service(|s| {
        s.metadata.name = "other".to_owned();
        s.spec.cluster_ip = "10.96.0.11".to_owned();
    });
    let mut cluster = cluster(&[&dual_stack(|_| {}), &other]);
    cluster.apply(slice("web-1", "A R", |_| {}).event());
    assert_eq!((cluster.pending(Family::V4), cluster.pending(Family::V6)), (1, 0));
    let changes = cluster.resolve();
    assert_eq!(changes.v4.services, [demo("web")].into());
    assert!(changes.v6.is_empty());
    assert_eq!((cluster.pending(Family::V4), cluster.pending(Family::V6)), (0, 0));
}

#[test]
fn nothing_may_be_written_before_both_lists_are_in() {
    let mut cluster = Cluster::new(settings());
    for (kind, synced) in
        [(Kind::Node, false), (Kind::Service, false), (Kind::ServiceCidr, false), (Kind::EndpointSlice, true)]
    {
        cluster.apply(Event::ListStarted(kind));
        assert!(!cluster.is_listed(kind));
        cluster.apply(Event::ListDone(kind));
        assert!(cluster.is_listed(kind));
        assert_eq!(cluster.is_synced(), synced, "{kind:?}");
    }
}

/// A new list removes exactly the objects that it does not contain, and only once it is complete.
#[test]
fn a_new_list_replaces_the_old_one_without_a_gap() {
    let mut cluster = cluster(&[
        &service(|_| {}),
        &slice("web-1", "A R", |_| {}),
        &slice("web-2", "B R", |_| {}),
        &node(|_| {}),
        &service_cidr("old", &["10.96.0.0/16"]),
    ]);
    for kind in Kind::ALL {
        cluster.apply(Event::ListStarted(kind));
    }
    cluster.apply(service(|_| {}).event());
    cluster.apply(slice("web-2", "B R", |_| {}).event());
    cluster.apply(service_cidr("new", &["10.97.0.0/16"]).event());
    assert!(cluster.resolve().v4.services.is_empty(), "what is missing so far may still come");
    assert_eq!(pool(&cluster), "A B");
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    let changes = cluster.resolve().v4;
    assert_eq!(pool(&cluster), "B");
    assert!(changes.node && changes.services == [demo("web")].into());
    assert!(cluster.is_node_deleted() && !cluster.is_node_eligible(), "a deleted Node keeps its address");
    let cidrs: Vec<_> =
        cluster.desired(Family::V4).node.service_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.97.0.0/16"]);
}

/// An interrupted list removes nothing; the next complete one does.
#[test]
fn an_interrupted_list_removes_nothing() {
    let other = service(|s| s.metadata.name = "other".to_owned());
    let mut cluster = cluster(&[&service(|_| {}), &other]);
    cluster.apply(Event::ListStarted(Kind::Service));
    cluster.apply(service(|_| {}).event());
    cluster.apply(Event::ListStarted(Kind::Service));
    assert!(cluster.resolve().v4.is_empty());
    cluster.apply(other.event());
    cluster.apply(Event::ListDone(Kind::Service));
    cluster.resolve();
    let names: Vec<_> = cluster.service_names().map(ToString::to_string).collect();
    assert_eq!(names, ["demo/other"], "what only the broken list brought is gone");
}

#[test]
fn a_listed_service_that_is_no_longer_ours_goes() {
    let mut cluster = cluster(&[&service(|_| {})]);
    cluster.apply(Event::ListStarted(Kind::Service));
    cluster.apply(service(|s| s.spec.cluster_ip = "None".to_owned()).event());
    cluster.apply(Event::ListDone(Kind::Service));
    assert_eq!(cluster.resolve().v4.services, [demo("web")].into());
    assert_eq!(cluster.desired(Family::V4).services().len(), 0);
}

#[test]
fn service_ranges_take_effect_at_once() {
    let mut cluster = cluster(&[&service_cidr("kubernetes", &["10.96.0.0/16"])]);
    assert!(cluster.apply(service_cidr("more", &["10.97.0.0/16"]).event()));
    let changes = cluster.resolve();
    assert!(changes.v4.node && !changes.v6.node);
    assert!(cluster.apply(Event::ServiceCidrDeleted("kubernetes".into())));
    cluster.resolve();
    assert_eq!(cluster.desired(Family::V4).node.service_cidrs.len(), 1);
    assert!(!cluster.apply(Event::ServiceCidrDeleted("kubernetes".into())));
}

#[test]
fn a_view_that_changes_and_goes_back_is_no_change() {
    let mut cluster = cluster(&[&service(|_| {}), &slice("web-1", "A R", |_| {}), &node(|_| {})]);
    cluster.apply(node(|n| n.status.addresses.clear()).event());
    cluster.apply(node(|_| {}).event());
    assert_eq!(cluster.resolve(), PerFamily::default());
}

/// The desired state never combines a new node view with Services of the old one.
#[test]
fn the_desired_state_moves_as_a_whole() {
    let limited = service(|s| {
        s.spec.load_balancer_source_ranges = strings(&["192.0.2.1/32"]);
        s.status.load_balancer.ingress =
            vec![manifest::LoadBalancerIngress { ip: "203.0.113.1".to_owned(), ip_mode: None }];
    });
    let mut cluster = cluster(&[&limited]);
    let before = cluster.desired(Family::V4).clone();
    cluster.apply(node(|_| {}).event());
    assert_eq!(*cluster.desired(Family::V4), before);
    let changes = cluster.resolve().v4;
    assert!(
        changes.node && changes.services.contains(&demo("web")),
        "the node's address is in its range now"
    );
}

#[test]
fn other_nodes_are_none_of_our_business() {
    let mut cluster = cluster(&[&node(|_| {})]);
    assert!(!cluster.apply(node(|n| n.metadata.name = "other".to_owned()).event()));
    assert!(!cluster.apply(Event::NodeDeleted("other".into())));
    assert!(cluster.is_node_eligible());
    assert!(cluster.apply(Event::NodeDeleted("here".into())));
    assert!(!cluster.is_node_eligible(), "an unknown node is not eligible");
}

#[test]
fn host_addresses_decide_where_node_ports_answer() {
    let settings = Settings {
        node_port_addresses: vec![crate::NodePortRange::Cidr("192.0.2.0/24".parse().expect("a CIDR"))],
        ..settings()
    };
    let mut cluster = cluster_with(settings, &[]);
    let ip = IpAddr::from([192, 0, 2, 7]);
    assert!(cluster.apply(Event::HostAddresses([ip].into())));
    assert!(!cluster.apply(Event::HostAddresses([ip].into())));
    assert!(cluster.resolve().v4.node);
    assert!(cluster.desired(Family::V4).node.node_ports.contains(ip));
    assert_eq!(cluster.host_addresses(), [ip]);
}

#[test]
fn other_settings_work_everything_out_anew() {
    let mut cluster = cluster(&[&service(|_| {}), &slice("web-1", "A R", |_| {}), &node(|_| {})]);
    let masquerade_all = Settings { masquerade_all: true, ..settings() };
    cluster.set_settings(masquerade_all.clone());
    let changes = cluster.resolve().v4;
    assert!(changes.services.contains(&demo("web")));
    cluster.set_settings(masquerade_all);
    assert!(cluster.resolve().v4.is_empty());
    cluster.set_settings(Settings::new("renamed"));
    assert_eq!(cluster.node(), None, "what was known is another Node's");
}

/// The label makes the Service leave; the source sees a delete.
#[test]
fn easy_to_miss_09_slices_of_excluded_services_are_kept() {
    let mut cluster = cluster(&[&service(|_| {}), &slice("web-1", "A R", |_| {})]);
    let excluded = service(|s| {
        s.metadata.labels.insert(LABEL_PROXY_NAME.to_owned(), "other".to_owned());
    });
    changed(&mut cluster, &[excluded.event(), slice("web-1", "B R", |_| {}).event()]);
    assert_eq!(cluster.desired(Family::V4).services().len(), 0);
    changed(&mut cluster, &[service(|_| {}).event()]);
    assert_eq!(pool(&cluster), "B");
}

/// kube-proxy keeps the endpoints of the old Service for ever; here they move.
#[test]
fn easy_to_miss_08_a_slice_whose_service_changes_leaves_nothing_behind() {
    let other = service(|s| {
        s.metadata.name = "other".to_owned();
        s.spec.cluster_ip = "10.96.0.11".to_owned();
    });
    let mut cluster = cluster(&[&service(|_| {}), &other, &slice("web-1", "A R", |_| {})]);
    let moved = slice("web-1", "A R", |s| {
        s.metadata.labels.insert(LABEL_SERVICE_NAME.to_owned(), "other".to_owned());
    });
    assert_eq!(changed(&mut cluster, &[moved.event()]), ["demo/other", "demo/web"]);
    assert_eq!(pool(&cluster), "-");
    let unlabelled = slice("web-1", "A R", |s| s.metadata.labels.clear());
    assert_eq!(changed(&mut cluster, &[unlabelled.event()]), ["demo/other"], "no label any more: it is gone");
    assert_eq!(changed(&mut cluster, &[Event::SliceDeleted(demo("web-1"))]), [""; 0]);
}

/// Re-created with the other address type between two lists.
#[test]
fn a_slice_can_change_its_family() {
    let mut cluster = cluster(&[&dual_stack(|_| {}), &slice("web-1", "A R", |_| {})]);
    let v6 = slice("web-1", "", |s| {
        s.address_type = "IPv6".to_owned();
        s.endpoints = endpoints("B R", "here", Family::V6);
    });
    cluster.apply(v6.event());
    let changes = cluster.resolve();
    assert!(changes.v4.services.contains(&demo("web")) && changes.v6.services.contains(&demo("web")));
    assert_eq!(pool(&cluster), "-");
    assert_eq!(letters(&web_port(&cluster, Family::V6).cluster), "B");
}

/// Unlike kube-proxy's tracker, `apply` returns whether this very event changed anything.
#[test]
fn easy_to_miss_10_a_repeated_service_is_no_change_even_while_others_wait() {
    let mut cluster = cluster(&[&service(|_| {})]);
    assert!(cluster.apply(slice("web-1", "A R", |_| {}).event()));
    assert_eq!(cluster.pending(Family::V4), 1);
    assert!(!cluster.apply(service(|_| {}).event()));
}

#[test]
fn easy_to_miss_12_what_comes_and_goes_between_syncs_cancels_out() {
    let mut cluster = cluster(&[]);
    let gone = Event::ServiceDeleted(demo("web"));
    assert_eq!(changed(&mut cluster, &[service(|_| {}).event(), gone]), [""; 0]);
    let slices = [slice("web-1", "A R", |_| {}).event(), Event::SliceDeleted(demo("web-1"))];
    assert_eq!(changed(&mut cluster, &slices), [""; 0], "kube-proxy would report the Service");
}

/// A failed sync is repeated with the old changes and the new ones.
#[test]
fn easy_to_miss_22_a_failed_sync_loses_nothing() {
    let (udp, udp_slice) = udp_web();
    let mut cluster = cluster(&[&udp, &udp_slice]);
    cluster.apply(at("web-2", "B R", "2026-01-01T00:00:01Z"));
    cluster.apply(Event::SliceDeleted(demo("web-1")));
    let mut changes = cluster.resolve().v4;
    cluster.apply(Event::ServiceDeleted(demo("web")));
    cluster.apply(node_in_zone("a").event());
    changes.merge(cluster.resolve().v4);
    assert!(changes.udp && changes.node && changes.services.contains(&demo("web")));
    assert_eq!(changes.gone.len(), 1);
    assert!(!changes.is_empty() && !changes.full);
    changes.merge(Changes::everything());
    assert!(changes.full && changes.gone.len() == 1);
}

#[test]
fn the_totals_follow_every_change() {
    let mut cluster = cluster(&[&service(|_| {}), &slice("web-1", "A R, B R", |_| {})]);
    assert_eq!(cluster.desired(Family::V4).totals().endpoints, 2);
    changed(&mut cluster, &[slice("web-1", "A R", |_| {}).event()]);
    assert_eq!(cluster.desired(Family::V4).totals().endpoints, 1);
    changed(&mut cluster, &[Event::ServiceDeleted(demo("web"))]);
    assert_eq!(cluster.desired(Family::V4).totals(), crate::Totals::default());
}

/// Without the address, node ports restricted to it would answer on every address of the host.
#[test]
fn a_deleted_node_is_retained_but_not_eligible() {
    let mut cluster = cluster(&[&node(|_| {})]);
    let name = cluster.settings().node_name.clone();
    let ip = cluster.desired(Family::V4).node.ip;
    assert!(cluster.is_node_eligible() && !cluster.is_node_deleted());
    assert!(cluster.apply(Event::NodeDeleted(name.clone())));
    assert!(!cluster.is_node_eligible() && cluster.is_node_deleted());
    assert!(!cluster.resolve().v4.node);
    assert_eq!(cluster.desired(Family::V4).node.ip, ip);
    assert!(!cluster.apply(Event::NodeDeleted(name)), "once is enough");
    let again = crate::object::Node::from_manifest(&{
        let mut node = manifest::Node::default();
        node.metadata.name = cluster.settings().node_name.to_string();
        node
    });
    assert!(cluster.apply(Event::NodeApplied(again.0)));
    assert!(cluster.is_node_eligible() && !cluster.is_node_deleted());
}

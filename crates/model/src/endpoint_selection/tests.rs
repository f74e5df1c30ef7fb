//! Which endpoints a port uses, seen through the whole cluster.

use crate::cluster::Cluster;
use crate::explain::PortExplanation;
use crate::ip::Family;
use crate::manifest;
use crate::sample::{
    HERE, ToEvent, cluster, cluster_with, demo, endpoints, letters, letters_of, node_in_zone, service, slice,
    web_port,
};
use crate::settings::Settings;

/// Services: internal and external policy (C or L), x with a node port. Nodes: zone and name, `-` for no zone.
/// Endpoints as in [`endpoints`]. Then cluster, local, all, and whether there is any.
const CASES: &str = "
     1 | CC  | - 1 |                                                  | -     | -   | -     | no
     2 | CC  | - 1 | A N                                              | -     | -   | -     | no
     3 | CC  | - 1 | A N, B R                                         | B     | -   | B     | yes
     4 | CC  | - 1 | A S, B S L                                       | -     | -   | -     | no
     5 | CC  | - 1 | A ST L, B ST                                     | A B   | -   | A B   | yes
     6 | CC  | - 1 | A ST L, B T                                      | A     | -   | A     | yes
     7 | CC  | - 1 | A R, B ST L                                      | A     | -   | A     | yes
     8 | CC  | - 1 | A RT, B R                                        | A B   | -   | A B   | yes
     9 | CL  | - 1 | A R, B R L                                       | A B   | -   | A B   | yes
    10 | LC  | - 1 | A R, B R                                         | -     | -   | -     | yes
    11 | LC  | - 1 | A R L, B R                                       | -     | A   | A     | yes
    12 | LC  | - 1 | A ST L, B R                                      | -     | A   | A     | yes
    13 | LC  | - 1 | A S L, B R                                       | -     | -   | -     | yes
    14 | LC  | - 1 | A T L, B T                                       | -     | -   | -     | no
    15 | LC  | - 1 | A ST, B T L                                      | -     | -   | -     | yes
    16 | LCx | - 1 | A R L, B R                                       | A B   | A   | A B   | yes
    17 | LCx | - 1 | A R, B R                                         | A B   | -   | A B   | yes
    18 | CLx | - 1 | A R L, B R                                       | A B   | A   | A B   | yes
    19 | CLx | - 1 | A R, B R                                         | A B   | -   | A B   | yes
    20 | CLx | - 1 | A R, B N L, C ST L, D ST                         | A     | C   | A C   | yes
    21 | CLx | - 1 | A ST L, B ST                                     | A B   | A   | A B   | yes
    22 | CLx | - 1 | A ST, B T L                                      | A     | -   | A     | yes
    23 | CLx | - 1 | A T L, B T                                       | -     | -   | -     | no
    24 | LLx | - 1 | A R L, B R                                       | A B   | A   | A B   | yes
    25 | LLx | - 1 | A R, B R                                         | A B   | -   | A B   | yes
    26 | LLx | - 1 | A ST, B ST                                       | A B   | -   | A B   | yes
    27 | LLx | - 1 | A ST L, B R                                      | B     | A   | A B   | yes
    28 | CC  | a 1 | A R z:a, B R z:b, C R z:c, D R z:a               | A D   | -   | A D   | yes
    29 | CC  | - 1 | A R z:a, B R z:b                                 | A B   | -   | A B   | yes
    30 | CC  | a 1 | A R z:a, B R z:b, C R                            | A B C | -   | A B C | yes
    31 | CC  | a 1 | A R z:a, B R z:b, C N                            | A     | -   | A     | yes
    32 | CC  | a 1 | A N z:a, B R z:b, C R z:c                        | B C   | -   | B C   | yes
    33 | CC  | c 1 | A R z:abc, B R z:bc, C R z:bd, D R z:c           | A B D | -   | A B D | yes
    34 | CC  | a 1 | A ST z:a, B ST z:b                               | A B   | -   | A B   | yes
    35 | CC  | a 1 | A ST z:a, B R z:b                                | B     | -   | B     | yes
    36 | CC  | a 1 | A R z:a n:1, B R z:b n:2, C R z:a n:3            | A     | -   | A     | yes
    37 | CC  | a 9 | A R z:a n:1, B R z:b n:2, C R z:a n:3            | A C   | -   | A C   | yes
    38 | CC  | a 1 | A R z:a n:1, B R z:a, C R z:b n:3                | A B   | -   | A B   | yes
    39 | CC  | a 1 | A R n:1, B R n:2                                 | A     | -   | A     | yes
    40 | CC  | a 1 | A R z:a n:1, B R, C R z:c n:3                    | A B C | -   | A B C | yes
    41 | CC  | - 1 | A R z:a n:1, B R z:b n:2                         | A     | -   | A     | yes
    42 | CC  | a 9 | A R z:b n:1, B R z:c n:2                         | A B   | -   | A B   | yes
    43 | CLx | a 1 | A R L z:a, B R L z:b, C R z:a, D R z:b           | A C   | A B | A B C | yes
    44 | LCx | a 1 | A R L z:a, B R L z:b, C R z:c, D R z:a           | A D   | A B | A B D | yes
    45 | LC  | a 1 | A R L z:b, B R z:a                               | -     | A   | A     | yes
    46 | CLx | a 1 | A R z:a, B ST L z:b, C R z:b                     | A     | B   | A B   | yes
    47 | CLx | a 1 | A R L z:b, B R z:b                               | A B   | A   | A B   | yes
    48 | LC  | - 1 |                                                  | -     | -   | -     | no
    49 | LC  | - 1 | A R L, B R L                                     | -     | A B | A B   | yes
    50 | LC  | - 1 | A N L, B R                                       | -     | -   | -     | yes
    51 | LC  | - 1 | A N L, B R L                                     | -     | B   | B     | yes
    52 | CLx | - 1 | A N L, B R                                       | B     | -   | B     | yes
    53 | CLx | - 1 |                                                  | -     | -   | -     | no
    54 | LLx | - 1 | A R L, B R L                                     | A B   | A B | A B   | yes
";

#[test]
fn cases() {
    let mut rows = 0;
    for line in CASES.lines().filter(|line| !line.trim().is_empty()) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [row, service, node, endpoints, pools @ ..] = &columns[..] else { panic!("bad row: {line}") };
        rows += 1;
        assert_eq!(*row, rows.to_string(), "rows are numbered without gaps");
        let cluster = the_case(service, node, endpoints);
        let port = web_port(&cluster, Family::V4);
        let all = letters_of(port.reachable().iter().map(|backend| backend.ip));
        let any = if port.has_endpoints { "yes" } else { "no" };
        let found = [letters(&port.cluster), letters(&port.local), all, any.to_owned()];
        assert_eq!(found, pools, "row {row}: {service}, node {node}, {endpoints}");
    }
    assert_eq!(rows, 54);
}

/// The same rows: what an explanation says is used is what the pools hold.
#[test]
fn explanations_agree_with_the_pools() {
    for line in CASES.lines().filter(|line| !line.trim().is_empty()) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let cluster = the_case(columns[1], columns[2], columns[3]);
        let port = web_port(&cluster, Family::V4);
        let explanation = cluster.explain(&demo("web"), Family::V4).expect("proxied");
        let [explained] = &explanation.ports[..] else {
            panic!("one port, one explanation: {explanation:?}")
        };
        assert_eq!(used(explained, |e| e.cluster), letters(&port.cluster), "row {}", columns[0]);
        assert_eq!(used(explained, |e| e.local), letters(&port.local), "row {}", columns[0]);
        let frontends: Vec<_> = explained.frontends.iter().map(|f| &f.frontend).collect();
        assert_eq!(frontends, port.frontends.iter().collect::<Vec<_>>(), "row {}", columns[0]);
    }
}

fn used(port: &PortExplanation, reason: fn(&crate::EndpointExplanation) -> Option<crate::Reason>) -> String {
    let used = port.endpoints.iter().filter(|e| reason(e).is_some_and(crate::Reason::used));
    letters_of(used.map(|endpoint| endpoint.address.ip()))
}

fn the_case(policies: &str, node: &str, codes: &str) -> Cluster {
    let (zone, name) = node.split_once(' ').expect("zone and name");
    let policy = |letter: char| if letter == 'L' { "Local" } else { "Cluster" };
    let mut letters = policies.chars();
    let (internal, external) = (letters.next().expect("internal"), letters.next().expect("external"));
    let service = service(|s| {
        s.spec.r#type = "NodePort".to_owned();
        s.spec.internal_traffic_policy = Some(policy(internal).to_owned());
        s.spec.external_traffic_policy = policy(external).to_owned();
        s.spec.ports[0].node_port = if policies.ends_with('x') { 30080 } else { 0 };
    });
    let slice = slice("web-1", "", |s| s.endpoints = endpoints(codes, name, Family::V4));
    let mut node = node_in_zone(zone);
    node.metadata.name = name.to_owned();
    if zone == "-" {
        node.metadata.labels.clear();
    }
    cluster_with(Settings::new(name), &[&service, &slice, &node])
}

/// Both pools of the first port of `demo/web`.
fn pools(cluster: &Cluster) -> (String, String) {
    let port = web_port(cluster, Family::V4);
    (letters(&port.cluster), letters(&port.local))
}

fn plain(codes: &str) -> (String, String) {
    pools(&cluster(&[&service(|_| {}), &slice("web-1", codes, |_| {}), &node_in_zone("a")]))
}

fn with_policy(service: &mut manifest::Service, internal: &str, external: &str) {
    service.spec.r#type = "NodePort".to_owned();
    service.spec.ports[0].node_port = 30080;
    service.spec.internal_traffic_policy = Some(internal.to_owned());
    service.spec.external_traffic_policy = external.to_owned();
}

/// An empty label matches no hint, not even an empty one.
#[test]
fn an_empty_zone_never_matches() {
    let hinted = slice("web-1", "A R z:a, B R z:b", |s| {
        s.endpoints[0].hints.as_mut().expect("hinted").for_zones[0].name = String::new();
    });
    let cluster = cluster(&[&service(|_| {}), &hinted, &node_in_zone("")]);
    assert_eq!(letters(&web_port(&cluster, Family::V4).cluster), "A B");
}

/// A node without name has no local endpoints, even if an endpoint's node is empty too.
#[test]
fn without_a_node_name_nothing_is_local() {
    let odd = slice("web-1", "A R", |s| s.endpoints[0].node_name = Some(String::new()));
    let cluster = cluster_with(Settings::new(""), &[&service(|s| with_policy(s, "Local", "Local")), &odd]);
    assert_eq!(pools(&cluster), ("A".to_owned(), "-".to_owned()));
}

#[test]
fn node_names_are_compared_exactly() {
    let shouting = slice("web-1", "A R", |s| s.endpoints[0].node_name = Some(HERE.to_uppercase()));
    let cluster = cluster(&[&service(|s| with_policy(s, "Local", "Local")), &shouting]);
    assert_eq!(pools(&cluster).1, "-");
}

#[test]
fn easy_to_miss_03_not_ready_with_absent_serving_and_terminating_is_a_fallback() {
    let given = slice("web-1", "A N", |s| {
        s.endpoints[0].conditions =
            Some(manifest::EndpointConditions { ready: Some(false), serving: None, terminating: Some(true) });
    });
    assert_eq!(pools(&cluster(&[&service(|_| {}), &given])).0, "A");
}

#[test]
fn easy_to_miss_04_serving_alone_gets_no_traffic() {
    assert_eq!(plain("A S, B N").0, "-");
    assert_eq!(plain("A S, B R").0, "B");
}

#[test]
fn easy_to_miss_13_only_hints_of_ready_endpoints_decide() {
    assert_eq!(plain("A R z:a, B R z:b, C N").0, "A", "an unready endpoint without hint does not matter");
    assert_eq!(plain("A R z:a, B R z:b, C R").0, "A B C", "a ready one does");
    assert_eq!(plain("A N z:a, B R z:b").0, "B", "an unready endpoint hinted for us does not either");
}

#[test]
fn easy_to_miss_14_node_hints_win_and_fall_through_to_zones() {
    let on = |zone: &str, codes: &str| {
        let hinted = slice("web-1", codes, |s| {
            // Hints name nodes by letter; ours is `h`.
            for hint in s.endpoints.iter_mut().filter_map(|e| e.hints.as_mut()) {
                for node in hint.for_nodes.iter_mut().filter(|node| node.name == "h") {
                    node.name = HERE.to_owned();
                }
            }
        });
        let node = node_in_zone(zone);
        pools(&cluster(&[&service(|_| {}), &hinted, &node])).0
    };
    assert_eq!(on("a", "A R z:b n:h, B R z:a n:x"), "A", "the node hint wins over the zone");
    assert_eq!(on("", "A R z:b n:h, B R z:a n:x"), "A", "without a zone");
    assert_eq!(on("a", "A R z:b n:y, B R z:a n:x"), "B", "no hint names us: the zone decides");
}

#[test]
fn easy_to_miss_15_hints_filter_neither_local_nor_fallback() {
    let local = slice("web-1", "A R L z:b, B R z:a", |_| {});
    let policy = service(|s| with_policy(s, "Cluster", "Local"));
    let found = pools(&cluster(&[&policy, &local, &node_in_zone("a")]));
    assert_eq!(found, ("B".to_owned(), "A".to_owned()));
    assert_eq!(plain("A ST z:a, B ST z:b").0, "A B");
}

#[test]
fn easy_to_miss_16_local_policies_still_see_the_whole_cluster() {
    let external = service(|s| with_policy(s, "Cluster", "Local"));
    let found = pools(&cluster(&[&external, &slice("web-1", "A R L, B R", |_| {})]));
    assert_eq!(found, ("A B".to_owned(), "A".to_owned()), "node-originated traffic needs the cluster pool");
    let internal = service(|s| s.spec.internal_traffic_policy = Some("Local".to_owned()));
    let cluster = cluster(&[&internal, &slice("web-1", "A R", |_| {})]);
    assert_eq!(pools(&cluster), ("-".to_owned(), "-".to_owned()));
    assert!(web_port(&cluster, Family::V4).has_endpoints, "drop, not reject");
}

/// Hints in slices suffice; `spec.trafficDistribution` of the Service is not read.
#[test]
fn a_changed_zone_of_the_node_changes_the_selection() {
    let mut cluster =
        cluster(&[&service(|_| {}), &slice("web-1", "A R z:a, B R z:b", |_| {}), &node_in_zone("a")]);
    assert_eq!(pools(&cluster).0, "A");
    cluster.apply(node_in_zone("b").event());
    let changes = cluster.resolve();
    assert_eq!(pools(&cluster).0, "B");
    assert!(changes.v4.services.contains(&demo("web")));
}

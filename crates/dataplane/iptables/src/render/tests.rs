//! Every template once, against the text that kube-proxy writes.

use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU32};

use portwarden_model::{
    Admission, Backend, Exposure, Family, Frontend, HealthCheck, Masquerade, Name, NamespacedName,
    NodePortAddresses, Pool, PoolKind, PortName, Protocol, ProxiedPort, ProxiedService, SourceRanges,
    TrafficPolicy, Verdict,
};

use super::*;

const CLUSTER: Verdict = Verdict::Forward(PoolKind::Cluster);
const LOCAL: Verdict = Verdict::Forward(PoolKind::Local);

fn context() -> Context {
    Context {
        family: Family::V4,
        pods: Some("-s 10.244.0.0/16".to_owned()),
        count_loopback: true,
        large: false,
    }
}

fn backend(address: &str, local: bool) -> Backend {
    let address: std::net::SocketAddr = address.parse().unwrap();
    Backend::new(address, local)
}

fn pool(addresses: &[&str]) -> Pool {
    Pool::new(&addresses.iter().map(|address| backend(address, false)).collect::<Vec<_>>())
}

fn frontend(
    exposure: Exposure,
    ip: Option<&str>,
    port: u16,
    verdict: Verdict,
    masquerade: Masquerade,
) -> Frontend {
    let ip = ip.map(|ip| ip.parse::<IpAddr>().unwrap());
    let policy =
        if masquerade == Masquerade::FromHost { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let admission = Admission::Active;
    Frontend {
        exposure,
        ip,
        port,
        from_node: CLUSTER,
        from_elsewhere: verdict,
        policy,
        masquerade,
        admission,
    }
}

fn cluster_ip(verdict: Verdict) -> Frontend {
    frontend(Exposure::ClusterIp, Some("10.96.0.11"), 80, verdict, Masquerade::NotFromPods)
}

/// `demo/web:http`, whose hash is XRY76EGRC3BSCIIJ.
fn web(frontends: Vec<Frontend>) -> ProxiedPort {
    let service = NamespacedName::new("demo", "web");
    ProxiedPort {
        name: PortName { service, port: Name::from("http"), protocol: Protocol::Tcp },
        frontends: frontends.into(),
        cluster: pool(&["10.244.0.11:8080", "10.244.1.11:8080"]),
        local: Pool::default(),
        endpoints: Pool::default(),
        affinity: None,
        source_ranges: None,
        has_endpoints: true,
        no_local_internal: false,
        no_local_external: false,
    }
}

fn service(port: ProxiedPort) -> ProxiedService {
    ProxiedService { ports: Box::new([port]), health_check: None }
}

fn without_endpoints(frontends: Vec<Frontend>) -> ProxiedPort {
    ProxiedPort { cluster: Pool::default(), has_endpoints: false, ..web(frontends) }
}

fn shared(service: &ProxiedService, context: &Context, chain: SharedChain) -> String {
    SharedLines::render(service, context).in_chain(chain).to_owned()
}

/// The rules of the one chain whose name starts like this.
fn own(service: &ProxiedService, context: &Context, prefix: &str) -> String {
    let own = OwnChains::render(service, context);
    let mut found: Vec<_> = own.iter().filter(|(chain, _)| chain.to_string().starts_with(prefix)).collect();
    assert!(found.len() <= 1, "several chains {prefix}: {found:?}");
    found.pop().map(|(_, rules)| rules.to_owned()).unwrap_or_default()
}

fn chain_names(service: &ProxiedService) -> Vec<String> {
    OwnChains::render(service, &context()).iter().map(|(chain, _)| chain.to_string()).collect()
}

#[test]
fn a_cluster_address_leads_to_the_pool_of_its_policy() {
    let cluster = service(web(vec![cluster_ip(CLUSTER)]));
    assert_eq!(
        shared(&cluster, &context(), SharedChain::NatServices),
        "-A KUBE-SERVICES -m comment --comment \"demo/web:http cluster IP\" -m tcp -p tcp -d 10.96.0.11 --dport 80 \
         -j KUBE-SVC-XRY76EGRC3BSCIIJ\n"
    );
    assert_eq!(shared(&cluster, &context(), SharedChain::FilterServices), "");
    let local = service(ProxiedPort { local: pool(&["10.244.0.11:8080"]), ..web(vec![cluster_ip(LOCAL)]) });
    assert!(shared(&local, &context(), SharedChain::NatServices).ends_with("-j KUBE-SVL-XRY76EGRC3BSCIIJ\n"));
}

#[test]
fn a_cluster_address_without_endpoints_is_refused_in_the_filter_table() {
    for (verdict, why, target) in
        [(Verdict::Reject, "has no endpoints", "REJECT"), (Verdict::Drop, "has no local endpoints", "DROP")]
    {
        let refused = service(without_endpoints(vec![cluster_ip(verdict)]));
        assert_eq!(
            shared(&refused, &context(), SharedChain::FilterServices),
            format!(
                "-A KUBE-SERVICES -m comment --comment \"demo/web:http {why}\" -m tcp -p tcp -d 10.96.0.11 \
                 --dport 80 -j {target}\n"
            )
        );
        assert_eq!(shared(&refused, &context(), SharedChain::NatServices), "");
    }
}

#[test]
fn external_addresses_lead_to_the_external_chain() {
    let port = web(vec![
        cluster_ip(CLUSTER),
        frontend(Exposure::ExternalIp, Some("192.0.2.16"), 80, CLUSTER, Masquerade::Always),
        frontend(Exposure::LoadBalancerIp, Some("198.51.100.13"), 80, CLUSTER, Masquerade::Always),
    ]);
    let lines = shared(&service(port), &context(), SharedChain::NatServices);
    let lines: Vec<_> = lines.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "-A KUBE-SERVICES -m comment --comment \"demo/web:http external IP\" -m tcp -p tcp -d 192.0.2.16 --dport 80 -j KUBE-EXT-XRY76EGRC3BSCIIJ",
            "-A KUBE-SERVICES -m comment --comment \"demo/web:http loadbalancer IP\" -m tcp -p tcp -d 198.51.100.13 --dport 80 -j KUBE-EXT-XRY76EGRC3BSCIIJ",
        ]
    );
}

/// As in kube-proxy with the feature gate AllowServiceExternalIPs off.
#[test]
fn easy_to_miss_20_forbidden_external_addresses_leave_a_chain_to_which_nothing_leads() {
    let external = frontend(Exposure::ExternalIp, Some("192.0.2.16"), 80, CLUSTER, Masquerade::Always);
    let allowed = service(web(vec![cluster_ip(CLUSTER), external.clone()]));
    let not_allowed = Frontend { admission: Admission::NotAllowed, ..external };
    let forbidden = service(web(vec![cluster_ip(CLUSTER), not_allowed.clone()]));
    let chain = own(&forbidden, &context(), "KUBE-EXT-");
    assert_eq!(chain.lines().count(), 2);
    assert_eq!(chain, own(&allowed, &context(), "KUBE-EXT-"));
    for chain in SharedChain::ALL {
        assert!(!shared(&forbidden, &context(), chain).contains("KUBE-EXT-"), "{chain:?}");
    }
    let unserved = service(without_endpoints(vec![not_allowed]));
    assert_eq!(own(&unserved, &context(), "KUBE-EXT-"), "");
}

#[test]
fn without_local_endpoints_external_traffic_passes_the_external_chain_and_is_dropped_after() {
    let port = web(vec![
        cluster_ip(CLUSTER),
        frontend(Exposure::ExternalIp, Some("192.0.2.16"), 80, Verdict::Drop, Masquerade::FromHost),
        frontend(Exposure::LoadBalancerIp, Some("198.51.100.13"), 80, Verdict::Drop, Masquerade::FromHost),
        frontend(Exposure::NodePort, None, 30080, Verdict::Drop, Masquerade::FromHost),
    ]);
    let service = service(port);
    assert_eq!(
        shared(&service, &context(), SharedChain::FilterExternalServices),
        "\
-A KUBE-EXTERNAL-SERVICES -m comment --comment \"demo/web:http has no local endpoints\" -m tcp -p tcp -d 192.0.2.16 --dport 80 -j DROP
-A KUBE-EXTERNAL-SERVICES -m comment --comment \"demo/web:http has no local endpoints\" -m tcp -p tcp -d 198.51.100.13 --dport 80 -j DROP
-A KUBE-EXTERNAL-SERVICES -m comment --comment \"demo/web:http has no local endpoints\" -m addrtype --dst-type LOCAL -m tcp -p tcp --dport 30080 -j DROP
"
    );
    assert_eq!(shared(&service, &context(), SharedChain::NatServices).lines().count(), 3);
    assert_eq!(
        own(&service, &context(), "KUBE-EXT-"),
        "\
-A KUBE-EXT-XRY76EGRC3BSCIIJ -m comment --comment \"pod traffic for demo/web:http external destinations\" -s 10.244.0.0/16 -j KUBE-SVC-XRY76EGRC3BSCIIJ
-A KUBE-EXT-XRY76EGRC3BSCIIJ -m comment --comment \"masquerade LOCAL traffic for demo/web:http external destinations\" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-EXT-XRY76EGRC3BSCIIJ -m comment --comment \"route LOCAL traffic for demo/web:http external destinations\" -m addrtype --src-type LOCAL -j KUBE-SVC-XRY76EGRC3BSCIIJ
"
    );
}

#[test]
fn with_policy_local_the_external_chain_ends_at_the_local_pool() {
    let node_port = frontend(Exposure::NodePort, None, 30080, LOCAL, Masquerade::FromHost);
    let port =
        ProxiedPort { local: pool(&["10.244.0.11:8080"]), ..web(vec![cluster_ip(CLUSTER), node_port]) };
    let rules = own(&service(port.clone()), &context(), "KUBE-EXT-");
    assert!(rules.ends_with("\n-A KUBE-EXT-XRY76EGRC3BSCIIJ -j KUBE-SVL-XRY76EGRC3BSCIIJ\n"), "{rules}");
    assert_eq!(rules.lines().count(), 4);
    let unknown = Context { pods: None, ..context() };
    assert_eq!(own(&service(port), &unknown, "KUBE-EXT-").lines().count(), 3);
}

#[test]
fn with_policy_cluster_external_traffic_is_masqueraded() {
    let node_port = frontend(Exposure::NodePort, None, 30080, CLUSTER, Masquerade::Always);
    assert_eq!(
        own(&service(web(vec![cluster_ip(CLUSTER), node_port])), &context(), "KUBE-EXT-"),
        "\
-A KUBE-EXT-XRY76EGRC3BSCIIJ -m comment --comment \"masquerade traffic for demo/web:http external destinations\" -j KUBE-MARK-MASQ
-A KUBE-EXT-XRY76EGRC3BSCIIJ -j KUBE-SVC-XRY76EGRC3BSCIIJ
"
    );
}

#[test]
fn node_ports_are_counted_on_loopback_where_that_is_possible() {
    let node_port = frontend(Exposure::NodePort, None, 30080, CLUSTER, Masquerade::Always);
    let service = service(web(vec![cluster_ip(CLUSTER), node_port]));
    let plain = "-A KUBE-NODEPORTS -m comment --comment demo/web:http -m tcp -p tcp --dport 30080 -j KUBE-EXT-XRY76EGRC3BSCIIJ\n";
    let counted = "-A KUBE-NODEPORTS -m comment --comment demo/web:http -m tcp -p tcp -d 127.0.0.0/8 --dport 30080 \
                   -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-XRY76EGRC3BSCIIJ\n";
    assert_eq!(shared(&service, &context(), SharedChain::NatNodePorts), format!("{counted}{plain}"));
    let uncounted = Context { count_loopback: false, ..context() };
    assert_eq!(shared(&service, &uncounted, SharedChain::NatNodePorts), plain);
}

#[test]
fn nothing_but_refusals_is_left_of_a_port_without_endpoints() {
    let refused = |exposure, ip, port| frontend(exposure, ip, port, Verdict::Reject, Masquerade::Always);
    let port = ProxiedPort {
        source_ranges: Some(ranges(true)),
        ..without_endpoints(vec![
            cluster_ip(Verdict::Reject),
            refused(Exposure::LoadBalancerIp, Some("198.51.100.13"), 80),
            refused(Exposure::NodePort, None, 30080),
        ])
    };
    let service = service(port);
    assert_eq!(chain_names(&service), [] as [&str; 0]);
    for empty in [SharedChain::NatServices, SharedChain::NatNodePorts, SharedChain::FilterProxyFirewall] {
        assert_eq!(shared(&service, &context(), empty), "");
    }
    assert_eq!(shared(&service, &context(), SharedChain::FilterExternalServices).lines().count(), 2);
}

fn ranges(frontends_too: bool) -> Box<SourceRanges> {
    let ranges = ["203.0.113.0/24", "192.168.0.0/24"].map(|range| range.parse().unwrap());
    Box::new(SourceRanges { ranges: Box::new(ranges), frontends_too })
}

#[test]
fn source_ranges_guard_load_balancer_addresses_only() {
    let port = ProxiedPort {
        source_ranges: Some(ranges(true)),
        ..web(vec![
            cluster_ip(CLUSTER),
            frontend(Exposure::ExternalIp, Some("192.0.2.16"), 80, CLUSTER, Masquerade::Always),
            frontend(Exposure::LoadBalancerIp, Some("198.51.100.13"), 80, CLUSTER, Masquerade::Always),
        ])
    };
    let service = service(port);
    let lines = shared(&service, &context(), SharedChain::NatServices);
    let targets: Vec<_> = lines.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(
        targets,
        ["KUBE-SVC-XRY76EGRC3BSCIIJ", "KUBE-EXT-XRY76EGRC3BSCIIJ", "KUBE-FW-XRY76EGRC3BSCIIJ"]
    );
    assert_eq!(
        own(&service, &context(), "KUBE-FW-"),
        "\
-A KUBE-FW-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http loadbalancer IP\" -s 203.0.113.0/24 -j KUBE-EXT-XRY76EGRC3BSCIIJ
-A KUBE-FW-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http loadbalancer IP\" -s 192.168.0.0/24 -j KUBE-EXT-XRY76EGRC3BSCIIJ
-A KUBE-FW-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http loadbalancer IP\" -s 198.51.100.13 -j KUBE-EXT-XRY76EGRC3BSCIIJ
-A KUBE-FW-XRY76EGRC3BSCIIJ -m comment --comment \"other traffic to demo/web:http will be dropped by KUBE-PROXY-FIREWALL\"
"
    );
    assert_eq!(
        shared(&service, &context(), SharedChain::FilterProxyFirewall),
        "-A KUBE-PROXY-FIREWALL -m comment --comment \"demo/web:http traffic not accepted by KUBE-FW-XRY76EGRC3BSCIIJ\" \
         -m tcp -p tcp -d 198.51.100.13 --dport 80 -j DROP\n"
    );
}

#[test]
fn health_checks_are_accepted_for_every_port() {
    let mut ports = [web(vec![cluster_ip(CLUSTER)]), web(vec![cluster_ip(Verdict::Reject)])];
    ports[1].name.port = Name::from("metrics");
    let check = HealthCheck { port: NonZeroU16::new(31443).unwrap(), local_endpoints: 0 };
    let service = ProxiedService { ports: Box::new(ports), health_check: Some(check) };
    assert_eq!(
        shared(&service, &context(), SharedChain::FilterNodePorts),
        "\
-A KUBE-NODEPORTS -m comment --comment \"demo/web:http health check node port\" -m tcp -p tcp --dport 31443 -j ACCEPT
-A KUBE-NODEPORTS -m comment --comment \"demo/web:metrics health check node port\" -m tcp -p tcp --dport 31443 -j ACCEPT
"
    );
}

#[test]
fn endpoints_are_chosen_with_rising_probability() {
    let port = ProxiedPort {
        cluster: pool(&["10.244.0.11:8080", "10.244.1.11:8080", "10.244.1.9:8080"]),
        ..web(vec![cluster_ip(CLUSTER)])
    };
    let rules = own(&service(port), &context(), "KUBE-SVC-");
    assert_eq!(
        rules,
        "\
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http cluster IP\" -m tcp -p tcp -d 10.96.0.11 --dport 80 ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.0.11:8080\" -m statistic --mode random --probability 0.3333333333 -j KUBE-SEP-QRUEL26JRDPVFLID
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.1.11:8080\" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-4R67FX26EEAQJQLI
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.1.9:8080\" -j KUBE-SEP-6DCN6FJGTNSR32SA
"
    );
}

#[test]
fn the_masquerade_rule_of_the_cluster_address_follows_its_policy() {
    let masquerade = |masquerade, context: &Context, verdict, prefix| {
        let frontend = Frontend { masquerade, ..cluster_ip(verdict) };
        let port = ProxiedPort { local: pool(&["10.244.0.11:8080"]), ..web(vec![frontend]) };
        let rules = own(&service(port), context, prefix);
        rules.lines().find(|rule| rule.ends_with("KUBE-MARK-MASQ")).map(str::to_owned)
    };
    let pods = masquerade(Masquerade::NotFromPods, &context(), CLUSTER, "KUBE-SVC-").unwrap();
    assert!(pods.contains("--dport 80 ! -s 10.244.0.0/16 -j"), "{pods}");
    let all = masquerade(Masquerade::Always, &context(), CLUSTER, "KUBE-SVC-").unwrap();
    assert!(all.contains("--dport 80 -j"), "{all}");
    assert_eq!(masquerade(Masquerade::Never, &context(), CLUSTER, "KUBE-SVC-"), None);
    // It moves with internal traffic to the local pool, and the other chain has none.
    assert!(masquerade(Masquerade::NotFromPods, &context(), LOCAL, "KUBE-SVL-").is_some());
    assert_eq!(masquerade(Masquerade::NotFromPods, &context(), LOCAL, "KUBE-SVC-"), None);
    let interface = Context { pods: Some("-i veth+".to_owned()), ..context() };
    let veth = masquerade(Masquerade::NotFromPods, &interface, CLUSTER, "KUBE-SVC-").unwrap();
    assert!(veth.contains("--dport 80 ! -i veth+ -j"), "{veth}");
}

#[test]
fn affinity_is_checked_before_and_renewed_at_the_endpoint() {
    let port = ProxiedPort { affinity: NonZeroU32::new(10800), ..web(vec![cluster_ip(CLUSTER)]) };
    let service = service(port);
    let rules = own(&service, &Context { pods: None, ..context() }, "KUBE-SVC-");
    assert_eq!(
        rules,
        "\
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.0.11:8080\" -m recent --name KUBE-SEP-QRUEL26JRDPVFLID --rcheck --seconds 10800 --reap -j KUBE-SEP-QRUEL26JRDPVFLID
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.1.11:8080\" -m recent --name KUBE-SEP-4R67FX26EEAQJQLI --rcheck --seconds 10800 --reap -j KUBE-SEP-4R67FX26EEAQJQLI
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.0.11:8080\" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-QRUEL26JRDPVFLID
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http -> 10.244.1.11:8080\" -j KUBE-SEP-4R67FX26EEAQJQLI
"
    );
    assert_eq!(
        own(&service, &context(), "KUBE-SEP-QRUEL26JRDPVFLID"),
        "\
-A KUBE-SEP-QRUEL26JRDPVFLID -m comment --comment demo/web:http -s 10.244.0.11 -j KUBE-MARK-MASQ
-A KUBE-SEP-QRUEL26JRDPVFLID -m comment --comment demo/web:http -m recent --name KUBE-SEP-QRUEL26JRDPVFLID --set -m tcp -p tcp -j DNAT --to-destination 10.244.0.11:8080
"
    );
}

#[test]
fn large_clusters_leave_out_the_comments_of_endpoint_rules_only() {
    let node_port = frontend(Exposure::NodePort, None, 30080, CLUSTER, Masquerade::Always);
    let service = service(web(vec![cluster_ip(CLUSTER), node_port]));
    let large = Context { large: true, ..context() };
    assert_eq!(
        own(&service, &large, "KUBE-SVC-"),
        "\
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http cluster IP\" -m tcp -p tcp -d 10.96.0.11 --dport 80 ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-QRUEL26JRDPVFLID
-A KUBE-SVC-XRY76EGRC3BSCIIJ -j KUBE-SEP-4R67FX26EEAQJQLI
"
    );
    assert_eq!(
        own(&service, &large, "KUBE-SEP-QRUEL26JRDPVFLID"),
        "\
-A KUBE-SEP-QRUEL26JRDPVFLID -s 10.244.0.11 -j KUBE-MARK-MASQ
-A KUBE-SEP-QRUEL26JRDPVFLID -m tcp -p tcp -j DNAT --to-destination 10.244.0.11:8080
"
    );
    assert_eq!(SharedLines::render(&service, &large), SharedLines::render(&service, &context()));
    assert_eq!(own(&service, &large, "KUBE-EXT-"), own(&service, &context(), "KUBE-EXT-"));
}

#[test]
fn chains_come_in_order_and_endpoints_of_both_pools_once() {
    let port = ProxiedPort {
        cluster: pool(&["10.244.0.11:8080"]),
        local: pool(&["10.244.0.11:8080", "10.244.1.11:8080"]),
        source_ranges: Some(ranges(false)),
        ..web(vec![
            cluster_ip(CLUSTER),
            frontend(Exposure::LoadBalancerIp, Some("198.51.100.13"), 80, LOCAL, Masquerade::FromHost),
        ])
    };
    assert_eq!(
        chain_names(&service(port)),
        [
            "KUBE-EXT-XRY76EGRC3BSCIIJ",
            "KUBE-FW-XRY76EGRC3BSCIIJ",
            "KUBE-SVC-XRY76EGRC3BSCIIJ",
            "KUBE-SVL-XRY76EGRC3BSCIIJ",
            "KUBE-SEP-QRUEL26JRDPVFLID",
            "KUBE-SEP-4R67FX26EEAQJQLI",
        ]
    );
}

#[test]
fn ipv6_endpoints_stand_in_brackets() {
    let mut port = ProxiedPort { cluster: pool(&["[fd00:10:244::24]:8080"]), ..web(vec![]) };
    port.name.service = NamespacedName::new("demo", "six");
    let six = Context { family: Family::V6, pods: None, count_loopback: false, large: false };
    assert_eq!(
        own(&service(port), &six, "KUBE-SEP-"),
        "\
-A KUBE-SEP-UZAQBLS5OCRWV5E7 -m comment --comment demo/six:http -s fd00:10:244::24 -j KUBE-MARK-MASQ
-A KUBE-SEP-UZAQBLS5OCRWV5E7 -m comment --comment demo/six:http -m tcp -p tcp -j DNAT --to-destination [fd00:10:244::24]:8080
"
    );
}

fn fixed(
    family: Family,
    invalid: InvalidPackets,
    loopback: bool,
    node_ports: &NodePortAddresses,
) -> FixedRules {
    FixedRules::render(family, Mark(1 << 14), invalid, loopback, node_ports)
}

fn fixed_chain(rules: &FixedRules, name: &str) -> Option<String> {
    rules.chains().find(|(_, chain, _)| *chain == name).map(|(_, _, rules)| rules.to_owned())
}

#[test]
fn fixed_chains_are_as_the_references() {
    let rules = fixed(Family::V4, InvalidPackets::DropAndCount, true, &NodePortAddresses::All);
    assert_eq!(
        fixed_chain(&rules, "KUBE-FORWARD").unwrap(),
        "\
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x00004000/0x00004000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
"
    );
    assert_eq!(
        fixed_chain(&rules, "KUBE-POSTROUTING").unwrap(),
        "\
-A KUBE-POSTROUTING -m mark ! --mark 0x00004000/0x00004000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x00004000
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
"
    );
    assert_eq!(
        fixed_chain(&rules, "KUBE-MARK-MASQ").unwrap(),
        "-A KUBE-MARK-MASQ -j MARK --or-mark 0x00004000\n"
    );
    assert_eq!(
        fixed_chain(&rules, "KUBE-FIREWALL").unwrap(),
        "-A KUBE-FIREWALL -m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 \
         -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n"
    );
}

#[test]
fn invalid_packets_are_dropped_unless_conntrack_is_liberal() {
    let first = |invalid| {
        let rules = fixed(Family::V4, invalid, true, &NodePortAddresses::All);
        fixed_chain(&rules, "KUBE-FORWARD").unwrap().lines().next().unwrap().to_owned()
    };
    assert_eq!(first(InvalidPackets::Drop), "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP");
    assert!(first(InvalidPackets::Pass).contains("kubernetes forwarding rules"));
}

#[test]
fn the_firewall_chain_is_only_written_for_ipv4_with_loopback_node_ports() {
    let has = |family, loopback| {
        let rules = fixed(family, InvalidPackets::Drop, loopback, &NodePortAddresses::All);
        fixed_chain(&rules, "KUBE-FIREWALL").is_some()
    };
    assert!(has(Family::V4, true));
    assert!(!has(Family::V4, false));
    assert!(!has(Family::V6, false));
}

#[test]
fn the_way_to_node_ports_leaves_out_loopback_where_it_cannot_work() {
    let to = |family, loopback, addresses: &NodePortAddresses| {
        let rules = fixed(family, InvalidPackets::Drop, loopback, addresses);
        let last =
            rules.to_node_ports().lines().map(|line| line.split_once("chain\" ").unwrap().1.to_owned());
        last.collect::<Vec<_>>()
    };
    let all = NodePortAddresses::All;
    assert_eq!(to(Family::V4, true, &all), ["-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"]);
    assert_eq!(
        to(Family::V4, false, &all),
        ["-m addrtype --dst-type LOCAL ! -d 127.0.0.0/8 -j KUBE-NODEPORTS"]
    );
    assert_eq!(to(Family::V6, false, &all), ["-m addrtype --dst-type LOCAL ! -d ::1/128 -j KUBE-NODEPORTS"]);
    let some = |ips: &[&str]| NodePortAddresses::Only(ips.iter().map(|ip| ip.parse().unwrap()).collect());
    let v4 = some(&["127.0.0.1", "192.168.0.2"]);
    assert_eq!(
        to(Family::V4, true, &v4),
        ["-d 127.0.0.1 -j KUBE-NODEPORTS", "-d 192.168.0.2 -j KUBE-NODEPORTS"]
    );
    assert_eq!(to(Family::V4, false, &v4), ["-d 192.168.0.2 -j KUBE-NODEPORTS"]);
    assert_eq!(to(Family::V6, false, &some(&["::1", "fd00::2"])), ["-d fd00::2 -j KUBE-NODEPORTS"]);
}

#[test]
fn names_that_would_break_out_of_a_rule_are_recognised() {
    let name = |service: &str, port: &str| PortName {
        service: NamespacedName::new("demo", service),
        port: Name::from(port),
        protocol: Protocol::Tcp,
    };
    assert!(is_safe_name(&name("web.v1_x-2", "http-alt")));
    for (service, port) in [("we\"b", ""), ("we b", ""), ("web\n-F", ""), ("web", "h\"ttp"), ("wéb", "")] {
        assert!(!is_safe_name(&name(service, port)), "{service:?} {port:?}");
    }
}

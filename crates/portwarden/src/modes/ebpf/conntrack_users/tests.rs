use super::*;
use portwarden_testkit::Namespace;

/// Runs `work` in a network namespace of its own, after these commands of a shell.
fn with_rules(commands: &str, work: impl FnOnce()) {
    let namespace = Namespace::new("conntrack-users").unwrap();
    namespace.command("sh").args(["-ec", commands]).run().unwrap();
    let _inside = namespace.enter().unwrap();
    work();
}

fn found() -> Vec<String> {
    find().unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn rules_that_forwarded_packets_pass_are_found_in_both_families_and_implementations() {
    let rules = "
        nft 'table inet plugin {
            chain forward { type filter hook forward priority 0; ct state established accept; jump pods; }
            chain pods { ct mark 7 drop; }
            chain by-map { ct status snat accept; }
            chain input { type filter hook input priority 0; policy drop; ct state established accept; jump host; }
            chain host { ct state invalid drop; }
            chain postrouting { type nat hook postrouting priority 100; ip saddr 10.0.0.0/8 masquerade; }
            chain prerouting { type nat hook prerouting priority -100; tcp dport 80 redirect to :8080; }
        }'
        iptables-nft -t nat -N CNI-HOSTPORT-DNAT
        iptables-nft -t nat -A PREROUTING -j CNI-HOSTPORT-DNAT
        iptables-nft -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 90 -j DNAT --to-destination 10.0.0.1:90
        ip6tables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP
        iptables-legacy -A FORWARD -m state --state ESTABLISHED -j ACCEPT
        iptables-legacy -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT";
    with_rules(rules, || {
        let found = found();
        let expected = [
            "table inet plugin, chain by-map (ct status)",
            "table inet plugin, chain forward (ct state)",
            "table inet plugin, chain pods (ct mark)",
            "table inet plugin, chain prerouting (redirect)",
            "table ip nat, chain CNI-HOSTPORT-DNAT (-j DNAT)",
            "table ip6 filter, chain FORWARD (-m conntrack)",
            "table filter of iptables-legacy for IPv4, chain FORWARD (-m state)",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for expected in expected {
            // The nft variant writes some extensions as expressions of its own, depending on its version.
            let place = expected.split(" (").next().unwrap();
            assert!(found.iter().any(|found| found.starts_with(place)), "{expected} is not in {found:#?}");
        }
        let error = format!("{:#}", check(false).unwrap_err());
        assert!(error.contains("table inet plugin, chain forward (ct state)"), "{error}");
        assert!(error.contains("--ebpf-notrack=force"), "{error}");
        check(true).unwrap();
    });
}

#[test]
fn rules_of_kube_proxy_and_those_without_connection_tracking_do_not_count() {
    let rules = "
        nft 'table ip kube-proxy { chain filter-forward { type filter hook forward priority 0; ct state new accept; }; }'
        nft 'table ip plugin { chain forward { type filter hook forward priority 0; ip saddr 10.0.0.1 drop; }; }'
        for iptables in iptables-nft iptables-legacy; do
            $iptables -N KUBE-FORWARD
            $iptables -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
            $iptables -A FORWARD -m conntrack --ctstate NEW -j KUBE-FORWARD
            $iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE
        done";
    with_rules(rules, || {
        assert_eq!(found(), [""; 0]);
        check(false).unwrap();
    });
}

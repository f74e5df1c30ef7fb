//! Every flag of kube-proxy, in both spellings and all forms.

use super::*;

/// Name, default, a value to give, how that value is then shown.
const KUBE_PROXY: &[(&str, &str, &str, &str)] = &[
    ("bind-address", "0.0.0.0", "010.000.000.001", "010.000.000.001"),
    ("bind-address-hard-fail", "false", "true", "true"),
    ("cleanup", "false", "T", "true"),
    ("cluster-cidr", "", "10.0.0.0/8,fd00::/8", "10.0.0.0/8,fd00::/8"),
    ("config", "", "/etc/config", "/etc/config"),
    ("config-sync-period", "15m0s", "90s", "1m30s"),
    ("conntrack-max-per-core", "32768", "0", "0"),
    ("conntrack-min", "131072", "0x10", "16"),
    ("conntrack-tcp-be-liberal", "false", "1", "true"),
    ("conntrack-tcp-timeout-close-wait", "1h0m0s", "60m", "1h0m0s"),
    ("conntrack-tcp-timeout-established", "24h0m0s", "0", "0s"),
    ("conntrack-udp-timeout", "0s", "300ms", "300ms"),
    ("conntrack-udp-timeout-stream", "0s", "-5s", "-5s"),
    ("detect-local-mode", "", "Anything", "Anything"),
    ("feature-gates", "", "B=true, A = false ,,", "A=false,B=true"),
    ("healthz-bind-address", "0.0.0.0:10256", "[::1]:0", "[::1]:0"),
    ("healthz-port", "10256", "0", "0"),
    ("help", "false", "false", "false"),
    ("hostname-override", "", "  Node ", "  Node "),
    ("init-only", "false", "true", "true"),
    ("iptables-localhost-nodeports", "true", "false", "false"),
    ("iptables-masquerade-bit", "14", "-1", "-1"),
    ("iptables-min-sync-period", "1s", "0", "0s"),
    ("iptables-sync-period", "30s", "1h2m", "1h2m0s"),
    ("ipvs-exclude-cidrs", "[]", "10.0.0.0/8,\"a,b\"", "[10.0.0.0/8,\"a,b\"]"),
    ("ipvs-min-sync-period", "1s", "2s", "2s"),
    ("ipvs-scheduler", "", "lc", "lc"),
    ("ipvs-strict-arp", "false", "true", "true"),
    ("ipvs-sync-period", "30s", "5s", "5s"),
    ("ipvs-tcp-timeout", "0s", "1s", "1s"),
    ("ipvs-tcpfin-timeout", "0s", "1s", "1s"),
    ("ipvs-udp-timeout", "0s", "1s", "1s"),
    ("kube-api-burst", "10", "20", "20"),
    ("kube-api-content-type", "application/vnd.kubernetes.protobuf", "application/json", "application/json"),
    ("kube-api-qps", "5", "-0.5", "-0.5"),
    ("kubeconfig", "", "/k", "/k"),
    ("log-flush-frequency", "5s", "10s", "10s"),
    ("log-json-info-buffer-size", "0", "64Ki", "64Ki"),
    ("log-json-split-stream", "false", "true", "true"),
    ("log-text-info-buffer-size", "0", "1000", "1k"),
    ("log-text-split-stream", "false", "true", "true"),
    ("logging-format", "text", "json", "json"),
    ("masquerade-all", "false", "true", "true"),
    ("master", "", "https://1.2.3.4", "https://1.2.3.4"),
    ("metrics-bind-address", "127.0.0.1:10249", "1.2.3.4", "1.2.3.4"),
    ("metrics-port", "10249", "1", "1"),
    ("nodeport-addresses", "[]", "primary,10.0.0.0/8", "[primary,10.0.0.0/8]"),
    ("oom-score-adj", "-999", "1000", "1000"),
    ("pod-bridge-interface", "", "br0", "br0"),
    ("pod-interface-name-prefix", "", "veth", "veth"),
    ("profiling", "false", "true", "true"),
    ("proxy-mode", "", "nftables", "nftables"),
    ("show-hidden-metrics-for-version", "", "1.36", "1.36"),
    ("v", "0", "4", "4"),
    ("version", "false", "v1.37.0-x", "v1.37.0-x"),
    ("vmodule", "", "a*=2,b=0,", "a*=2,b=0"),
    ("write-config-to", "", "/w", "/w"),
];

/// Ours, of the same form.
const OWN: &[(&str, &str, &str, &str)] = &[
    ("ebpf-cgroup-root", "", "/c", "/c"),
    ("ebpf-max-endpoints", "262144", "1000", "1000"),
    ("ebpf-notrack", "disabled", "force", "force"),
    ("ebpf-pin-directory", "/sys/fs/bpf/portwarden", "/p", "/p"),
    ("manifests", "", "/m", "/m"),
    ("page-bind-address", "127.0.0.1:10266", "1.2.3.4", "1.2.3.4"),
    ("proxy-port-range", "", "1-2", "1-2"),
    ("remove-startup-taint", "", "a/b=:NoSchedule", "a/b=:NoSchedule"),
    ("ipvs-drain-limit", "0s", "5m", "5m0s"),
    ("sysctl-hard-fail", "false", "true", "true"),
    ("udp-timeout", "250ms", "1s", "1s"),
    ("userspace-drain-timeout", "30s", "1s", "1s"),
];

fn run(program: Program, arguments: &[&str]) -> Flags {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    match parse(program, &arguments) {
        Ok(Parsed { invocation: Invocation::Run(flags), .. }) => *flags,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn find(program: Program, name: &str) -> &'static Row {
    program.flags().find(|(_, row)| row.flag == name).unwrap().1
}

fn shown(flags: &Flags, name: &str) -> String {
    let listing = flags.listing(Program::Portwarden);
    listing
        .into_iter()
        .find(|(listed, _)| *listed == name)
        .unwrap_or_else(|| panic!("{name} is not listed"))
        .1
}

#[test]
fn the_names_and_defaults_are_those_of_kube_proxy() {
    let listed = Flags::default().listing(Program::KubeProxy);
    let expected: Vec<_> =
        KUBE_PROXY.iter().map(|(name, default, ..)| (*name, (*default).to_owned())).collect();
    assert_eq!(listed, expected);
    assert_eq!(Program::Portwarden.flags().count(), KUBE_PROXY.len() + OWN.len());
}

#[test]
fn both_spellings_and_both_forms_of_every_flag_give_the_same() {
    for (name, _, value, show) in KUBE_PROXY.iter().chain(OWN) {
        let program =
            if OWN.iter().any(|own| own.0 == *name) { Program::Portwarden } else { Program::KubeProxy };
        let dashes = run(program, &[&format!("--{name}={value}")]);
        assert_eq!(shown(&dashes, name), *show, "--{name}={value}");
        let underscored = name.replace('-', "_");
        assert_eq!(run(program, &[&format!("--{underscored}={value}")]), dashes, "--{underscored}={value}");
        if find(program, name).kind.alone().is_none() {
            assert_eq!(run(program, &[&format!("--{name}"), value]), dashes, "--{name} {value}");
            assert_eq!(
                run(program, &[&format!("--{underscored}"), value]),
                dashes,
                "--{underscored} {value}"
            );
        } else if !matches!(*name, "help" | "version") {
            let alone = run(program, &[&format!("--{underscored}")]);
            assert_eq!(shown(&alone, name), "true", "--{underscored}");
        }
    }
}

#[test]
fn our_own_flags_are_unknown_to_kube_proxy() {
    for (name, ..) in OWN {
        let error = parse(Program::KubeProxy, &[format!("--{name}=x")]).unwrap_err();
        assert!(error.to_string().starts_with(&format!("unknown flag: --{name}")), "{error}");
    }
}

#[test]
fn the_same_flags_count_beside_a_file_as_in_kube_proxy() {
    let kept: Vec<_> = KUBE_PROXY
        .iter()
        .map(|row| row.0)
        .filter(|name| find(Program::KubeProxy, name).beside_file)
        .collect();
    assert_eq!(
        kept,
        [
            "cleanup",
            "config",
            "help",
            "hostname-override",
            "init-only",
            "log-flush-frequency",
            "log-json-info-buffer-size",
            "log-json-split-stream",
            "log-text-info-buffer-size",
            "log-text-split-stream",
            "logging-format",
            "master",
            "v",
            "version",
            "vmodule",
            "write-config-to",
        ]
    );
}

#[test]
fn every_help_text_is_a_sentence() {
    for (_, row) in Program::Portwarden.flags() {
        let first = row.help.chars().next().unwrap();
        assert!(first.is_uppercase() && row.help.ends_with('.'), "--{}: {}", row.flag, row.help);
    }
}

#[test]
fn every_flag_is_documented() {
    let page = include_str!("../../../../docs/configuration.md");
    for (_, row) in Program::Portwarden.flags().filter(|(_, row)| row.flag != "help") {
        assert!(
            page.contains(&format!("`--{}`", row.flag)),
            "--{} is not in docs/configuration.md",
            row.flag
        );
    }
}

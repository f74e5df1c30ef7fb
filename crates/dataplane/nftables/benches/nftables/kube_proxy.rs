//! The baseline: the same services in kube-proxy's layout, a chain with an anonymous map for each, through the `nft` program.

use std::fmt::Write;
use std::ops::Range;

use anyhow::Result;
use portwarden_model::Family;
use portwarden_testkit::Namespace;
use portwarden_testkit::topology::addresses::{CLUSTER_CIDR, NODE, SERVICE_CIDR};

use crate::measure::{self, Spent};
use crate::workload::{ENDPOINT_PORT, SERVICE_PORT, Workload, name};

/// A table in kube-proxy's layout.
#[derive(Debug)]
pub(crate) struct KubeProxy {
    namespace: Namespace,
    workload: Workload,
}

/// What loading it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) spent: Spent,
    /// Memory of the kernel, in bytes.
    pub(crate) kernel: usize,
}

impl KubeProxy {
    pub(crate) fn new(namespace: &Namespace, workload: &Workload) -> Self {
        KubeProxy { namespace: namespace.clone(), workload: workload.clone() }
    }

    /// Everything, in transactions of at most this many services.
    pub(crate) fn load(&self, services_at_once: usize) -> Result<Load> {
        let firsts = (0..self.workload.shape.services).step_by(services_at_once);
        let mut texts: Vec<String> = firsts.map(|first| self.services(first, services_at_once)).collect();
        if let Some(first) = texts.first_mut() {
            first.insert_str(0, &self.fixed());
        }
        let before = measure::stable_kernel_memory()?;
        let (spent, ()) = measure::spend_children(|| texts.into_iter().try_for_each(|text| self.run(text)))?;
        Ok(Load { spent, kernel: measure::kernel_memory()?.saturating_sub(before) })
    }

    /// Other endpoints for some services, in one transaction: three commands for each, as kube-proxy does it.
    pub(crate) fn change(&self, services: Range<usize>, endpoints: &Range<usize>) -> Result<Spent> {
        let mut text = String::new();
        services.for_each(|number| self.service_chain(number, endpoints.clone(), &mut text));
        Ok(measure::spend_children(|| self.run(text))?.0)
    }

    fn run(&self, text: String) -> Result<()> {
        self.namespace.command("nft").args(["-f", "-"]).input(text).run().map(drop)
    }

    fn services(&self, first: usize, count: usize) -> String {
        let mut text = String::new();
        for number in first..first.saturating_add(count).min(self.workload.shape.services) {
            let (table, ip) = (self.table(), self.workload.address(number));
            self.service_chain(number, 0..self.workload.shape.endpoints, &mut text);
            line(&mut text, format_args!("add element {table} cluster-ips {{ {ip} }}"));
            line(
                &mut text,
                format_args!(
                    "add element {table} service-ips {{ {ip} . tcp . {SERVICE_PORT} : goto {} }}",
                    chain(number)
                ),
            );
        }
        text
    }

    fn service_chain(&self, number: usize, endpoints: Range<usize>, text: &mut String) {
        let (table, chain) = (self.table(), chain(number));
        let count = endpoints.len();
        let map: Vec<String> = endpoints
            .enumerate()
            .map(|(slot, index)| {
                format!("{slot} : {} . {ENDPOINT_PORT}", self.workload.endpoint(number, index))
            })
            .collect();
        let (ip, map) = (self.ip(), map.join(" , "));
        line(text, format_args!("add chain {table} {chain}"));
        line(text, format_args!("flush chain {table} {chain}"));
        line(
            text,
            format_args!(
                "add rule {table} {chain} meta l4proto tcp dnat {ip} addr . port to numgen random mod {count} map {{ {map} }}"
            ),
        );
    }

    /// What does not depend on services.
    fn fixed(&self) -> String {
        let (table, ip) = (self.table(), self.ip());
        let (address, node, pods, cidr) = match self.workload.family {
            Family::V4 => {
                ("ipv4_addr", NODE.v4.to_string(), CLUSTER_CIDR.v4.to_string(), SERVICE_CIDR.v4.to_string())
            }
            Family::V6 => {
                ("ipv6_addr", NODE.v6.to_string(), CLUSTER_CIDR.v6.to_string(), SERVICE_CIDR.v6.to_string())
            }
        };
        let frontend = format!("{ip} daddr . meta l4proto . th dport");
        let mut text = format!("add table {table} {{ comment \"rules for kube-proxy\" ; }}\n");
        for (chain, kind, hook, priority) in BASE_CHAINS {
            line(
                &mut text,
                format_args!("add chain {table} {chain} {{ type {kind} hook {hook} priority {priority} ; }}"),
            );
        }
        for chain in CHAINS {
            line(&mut text, format_args!("add chain {table} {chain}"));
        }
        for (set, key) in [
            ("cluster-ips", address.to_owned()),
            ("nodeport-ips", address.to_owned()),
            ("hairpin-connections", format!("{address} . {address} . inet_proto . inet_service")),
        ] {
            line(&mut text, format_args!("add set {table} {set} {{ type {key} ; }}"));
        }
        let full_key = format!("{address} . inet_proto . inet_service");
        for (map, key) in [
            ("no-endpoint-services", full_key.as_str()),
            ("no-endpoint-nodeports", "inet_proto . inet_service"),
            ("firewall-ips", &full_key),
            ("service-ips", &full_key),
            ("service-nodeports", "inet_proto . inet_service"),
        ] {
            line(&mut text, format_args!("add map {table} {map} {{ type {key} : verdict ; }}"));
        }
        line(&mut text, format_args!("add element {table} nodeport-ips {{ {node} }}"));
        let mut rule =
            |chain: &str, rule: &str| line(&mut text, format_args!("add rule {table} {chain} {rule}"));
        for (chain, target) in JUMPS {
            rule(chain, &format!("ct state new jump {target}"));
        }
        rule("nat-prerouting", "jump services");
        rule("nat-output", "jump services");
        rule("nat-postrouting", "jump masquerading");
        let node_port = format!("{ip} daddr @nodeport-ips meta l4proto . th dport");
        rule("nodeport-endpoints-check", &format!("{node_port} vmap @no-endpoint-nodeports"));
        rule("service-endpoints-check", &format!("{frontend} vmap @no-endpoint-services"));
        rule("firewall-check", &format!("{frontend} vmap @firewall-ips"));
        rule(
            "services",
            &format!("{ip} daddr @cluster-ips {ip} saddr != {pods} meta mark set mark or 0x4000"),
        );
        rule("services", &format!("{frontend} vmap @service-ips"));
        rule("services", &format!("{node_port} vmap @service-nodeports"));
        rule("masquerading", "mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random");
        let itself = format!("ct status dnat {ip} saddr . {frontend} @hairpin-connections");
        rule("masquerading", &format!("{itself} masquerade fully-random"));
        rule("cluster-ips-check", &format!("{ip} daddr @cluster-ips reject"));
        rule("cluster-ips-check", &format!("{ip} daddr {{ {cidr} }} drop"));
        rule("reject-chain", "reject");
        for pod in &self.workload.pods {
            let itself = format!("{pod} . {pod} . tcp . {ENDPOINT_PORT}");
            line(&mut text, format_args!("add element {table} hairpin-connections {{ {itself} }}"));
        }
        text
    }

    fn table(&self) -> String {
        format!("{} kube-proxy", self.ip())
    }

    fn ip(&self) -> &'static str {
        match self.workload.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }
}

const BASE_CHAINS: [(&str, &str, &str, i32); 8] = [
    ("filter-prerouting-pre-dnat", "filter", "prerouting", -110),
    ("filter-output-pre-dnat", "filter", "output", -110),
    ("filter-input", "filter", "input", 0),
    ("filter-forward", "filter", "forward", 0),
    ("filter-output", "filter", "output", 0),
    ("nat-prerouting", "nat", "prerouting", -100),
    ("nat-output", "nat", "output", -100),
    ("nat-postrouting", "nat", "postrouting", 100),
];

const CHAINS: [&str; 7] = [
    "nodeport-endpoints-check",
    "service-endpoints-check",
    "firewall-check",
    "services",
    "masquerading",
    "cluster-ips-check",
    "reject-chain",
];

const JUMPS: [(&str, &str); 8] = [
    ("filter-prerouting-pre-dnat", "firewall-check"),
    ("filter-output-pre-dnat", "firewall-check"),
    ("filter-input", "nodeport-endpoints-check"),
    ("filter-input", "service-endpoints-check"),
    ("filter-forward", "service-endpoints-check"),
    ("filter-forward", "cluster-ips-check"),
    ("filter-output", "service-endpoints-check"),
    ("filter-output", "cluster-ips-check"),
];

/// A service's chain. The eight characters stand for kube-proxy's hash: only the length matters here.
fn chain(number: usize) -> String {
    format!("service-{number:08}-demo/{}/tcp/http", name(number))
}

fn line(text: &mut String, command: std::fmt::Arguments<'_>) {
    writeln!(text, "{command}").expect("a string takes any text");
}

//! The rendered ruleset as text: everything for the defaults of each family, and for each option what it changes.
//!
//! After an intended change run the tests with `INSTA_UPDATE=always` and review the difference.

use std::collections::{BTreeMap, BTreeSet};

use portwarden_model::{Desired, DetectLocal, Family, Name, NodePortRange, Settings};
use portwarden_netlink::nftables::{Object, TableId, Transaction};

use crate::chains::{self, Chains, RuleContext};
use crate::dataplane::TABLE;
use crate::installed::Installed;
use crate::kernel::kernel_family;
use crate::plan::Plan;
use crate::samples::{self, cluster, every_kind};
use crate::sets::{SetId, Sets};
use crate::source_ranges;

/// What a sync of an empty kernel would write.
struct Rendered {
    chains: BTreeMap<String, String>,
    elements: Vec<(String, BTreeSet<String>)>,
}

struct Options {
    settings: Settings,
    masquerade_bit: u8,
    loopback_node_ports: bool,
    untracked_pods: bool,
}

impl Options {
    fn new(settings: Settings) -> Self {
        Options { settings, masquerade_bit: 14, loopback_node_ports: false, untracked_pods: false }
    }
}

fn render(family: Family, options: &Options) -> Rendered {
    let cluster = cluster(options.settings.clone(), every_kind());
    let desired = cluster.desired(family);
    let table = table(family);
    let (mut installed, mut plan) = (Installed::new(Default::default()), Plan::new());
    plan_all(desired, &mut installed, &mut plan);
    let context = RuleContext {
        family,
        node: &desired.node,
        mark: 1 << options.masquerade_bit,
        loopback_node_ports: options.loopback_node_ports,
        untracked_pods: options.untracked_pods,
    };
    let mut chains = Chains::render(&context, &installed.sticky_classes());
    source_ranges::add_hooks(&mut chains);
    let mut transaction = Transaction::new();
    plan.append_to(&mut transaction, &Sets::new(&table, family));
    Rendered { chains: chain_texts(&table, &chains), elements: element_texts(&transaction) }
}

fn plan_all(desired: &Desired, installed: &mut Installed, plan: &mut Plan) {
    let services: BTreeMap<_, _> = desired.services().collect();
    for (name, service) in services {
        installed.plan(name, Some(service), plan).expect("every Service fits");
    }
    installed.plan_shared(plan);
}

fn table(family: Family) -> TableId {
    TableId::new(kernel_family(family), TABLE)
}

/// Each chain with its rules. A rule that stands several times in a row is written once.
fn chain_texts(table: &TableId, chains: &Chains) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for (name, rules) in chains.iter() {
        let mut definition = Transaction::new();
        definition.add(chains::define(table, name));
        let definition = definition.to_string();
        let mut text = definition.trim_start_matches("add ").trim_end().to_owned();
        let rules: Vec<String> = chains::to_rules(table, name, rules).map(|rule| rule.to_string()).collect();
        for run in rules.chunk_by(|a, b| a == b) {
            let times = if run.len() > 1 { format!("  # {} times", run.len()) } else { String::new() };
            text.push_str(&format!("\n    {}{times}", run[0]));
        }
        texts.insert(name.to_string(), text);
    }
    texts
}

/// The elements of each set, sorted.
fn element_texts(transaction: &Transaction) -> Vec<(String, BTreeSet<String>)> {
    let of_set = |object: &Object| match object {
        Object::Elements { set, elements } => {
            Some((set.name.to_string(), elements.iter().map(|element| element.text(set)).collect()))
        }
        _ => None,
    };
    transaction.operations().iter().filter_map(|operation| of_set(&operation.object)).collect()
}

fn joined_elements(elements: &[(String, BTreeSet<String>)]) -> String {
    let mut lines = Vec::new();
    for (set, elements) in elements.iter().filter(|(_, elements)| !elements.is_empty()) {
        lines.push(set.clone());
        lines.extend(elements.iter().map(|element| format!("    {element}")));
    }
    lines.join("\n")
}

fn set_text(family: Family) -> String {
    let table = table(family);
    let sets = Sets::new(&table, family);
    let mut transaction = Transaction::new();
    SetId::ALL.into_iter().for_each(|id| transaction.add(sets.get(id)));
    transaction.to_string()
}

fn joined(chains: &BTreeMap<String, String>) -> String {
    chains.values().cloned().collect::<Vec<_>>().join("\n")
}

/// The chains and elements that an option adds or changes, and the names of chains that it removes.
fn difference(family: Family, options: &Options) -> String {
    let base = render(family, &Options::new(samples::settings()));
    let mut with = render(family, options);
    let removed = base.chains.keys().filter(|name| !with.chains.contains_key(*name));
    let removed: String = removed.map(|name| format!("no chain {name}\n")).collect();
    with.chains.retain(|name, text| base.chains.get(name) != Some(text));
    let known: BTreeSet<(&String, &String)> =
        base.elements.iter().flat_map(|(set, elements)| elements.iter().map(move |one| (set, one))).collect();
    for (set, elements) in &mut with.elements {
        elements.retain(|element| !known.contains(&(&*set, element)));
    }
    format!("{removed}{}\n\n{}", joined(&with.chains), joined_elements(&with.elements))
}

/// Snapshots of the text for each family, as `NAME-IPv4` and `NAME-IPv6`.
fn for_each_family(name: &str, text: impl Fn(Family) -> String) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for family in Family::BOTH {
            insta::assert_snapshot!(format!("{name}-{}", family.as_str()), text(family));
        }
    });
}

#[test]
fn chains_with_default_options() {
    for_each_family("chains", |family| joined(&render(family, &Options::new(samples::settings())).chains));
}

#[test]
fn set_definitions() {
    for_each_family("sets", set_text);
}

#[test]
fn elements_of_every_kind_of_service() {
    let options = Options::new(samples::settings());
    for_each_family("elements", |family| joined_elements(&render(family, &options).elements));
}

#[test]
fn masquerade_all() {
    let options = Options::new(Settings { masquerade_all: true, ..samples::settings() });
    for_each_family("masquerade-all", |family| difference(family, &options));
}

#[test]
fn another_masquerade_bit() {
    let options = Options { masquerade_bit: 5, ..Options::new(samples::settings()) };
    for_each_family("masquerade-bit-5", |family| difference(family, &options));
}

#[test]
fn ways_to_identify_pod_traffic() {
    for (name, detect_local) in [
        ("bridge", DetectLocal::BridgeInterface(Name::from("cni0"))),
        ("interface-prefix", DetectLocal::InterfaceNamePrefix(Name::from("veth"))),
        ("off", DetectLocal::Off),
    ] {
        let options = Options::new(Settings { detect_local, ..samples::settings() });
        for_each_family(&format!("detect-local-{name}"), |family| difference(family, &options));
    }
}

#[test]
fn pods_that_are_not_tracked() {
    let pod_ranges = ["10.244.0.0/16", "fd00:10:244::/56"].map(|net| net.parse().unwrap()).into();
    let settings = Settings { pod_ranges, ..samples::settings() };
    let options = Options { untracked_pods: true, ..Options::new(settings) };
    for_each_family("untracked-pods", |family| difference(family, &options));
}

#[test]
fn node_ports_on_some_addresses() {
    let options = Options::new(samples::node_ports_on(&[NodePortRange::Primary]));
    for_each_family("node-ports-on-primary", |family| difference(family, &options));
}

#[test]
fn node_ports_on_loopback_addresses() {
    let loopback = |settings| Options { loopback_node_ports: true, ..Options::new(settings) };
    let everywhere = loopback(samples::settings());
    for_each_family("loopback-included", |family| difference(family, &everywhere));
    let named = loopback(samples::node_ports_on(&[NodePortRange::All, NodePortRange::Localhost]));
    for_each_family("loopback-named", |family| difference(family, &named));
}

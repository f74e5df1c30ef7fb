//! Probes the kernel for the features that the rules need, without changing anything.
//!
//! The kernel commits a transaction whole or not at all. Each feature is tried in a transaction that ends with an impossible operation:
//! if that is the only one the kernel refuses, it has the feature.

use portwarden_model::Family;
use portwarden_netlink::Error as NetlinkError;
use portwarden_netlink::error::Rejected;
use portwarden_netlink::nftables::{
    Chain, ChainKind, Client, DataType, Expr, Hook, Rule, Set, SetFlags, Table, TableId, Transaction,
};

use crate::error::Error;
use crate::expressions::{
    ExpressionBuilder, draw, from_this_host, in_set, load_priority, map, mark_is_set, masquerade,
    new_connection, protocol_is, reset, rule, set_priority, update,
};
use crate::kernel::kernel_family;
use crate::sets::{SetId, Sets};

/// A table that is never committed.
const TABLE: &str = "portwarden-probe";

/// Tries all features at once, since a rollback costs the kernel some time; one by one only to name the missing one.
pub(crate) fn probe(client: &mut Client, family: Family) -> Result<(), Error> {
    let features = features(family);
    let all = transaction(&features, family);
    if matches!(client.commit(&all), Err(NetlinkError::Rejected(rejected)) if only_the_last(&rejected, &all))
    {
        return Ok(());
    }
    for feature in features {
        let transaction = transaction(std::slice::from_ref(&feature), family);
        match client.commit(&transaction) {
            Err(NetlinkError::Rejected(rejected)) if only_the_last(&rejected, &transaction) => {}
            Ok(()) => {}
            Err(source) => {
                return Err(Error::Unsupported {
                    family,
                    feature: feature.name,
                    needs: feature.needs,
                    source,
                });
            }
        }
    }
    Ok(())
}

/// Whether the kernel refused nothing but the impossible operation at the end.
fn only_the_last(rejected: &Rejected, transaction: &Transaction) -> bool {
    rejected.failures.iter().all(|failure| failure.part.operation() == Some(transaction.len() - 1))
}

struct Feature {
    name: &'static str,
    needs: &'static str,
    rule: Vec<Expr>,
    /// The hook in which the rules need it.
    hook: (ChainKind, Hook),
    set: Option<Set>,
}

/// Sets, chains and rules of these features, then the impossible operation.
fn transaction(features: &[Feature], family: Family) -> Transaction {
    let table = table(family);
    let mut transaction = Transaction::new();
    transaction.add(Table::new(&table));
    let sets = Sets::new(&table, family);
    for id in
        SetId::ALL.into_iter().filter(|id| features.iter().any(|feature| uses(&feature.rule, id.name())))
    {
        transaction.add(sets.get(id));
    }
    for set in features.iter().filter_map(|feature| feature.set.as_ref()) {
        transaction.add(std::sync::Arc::new(set.clone()));
    }
    for (index, feature) in features.iter().enumerate() {
        let (kind, hook) = &feature.hook;
        let chain = format!("probe-{index}");
        transaction.add(Chain::base(&table, chain.as_str(), kind.clone(), *hook, 0));
        transaction.add(Rule::new(&table, chain.as_str(), feature.rule.clone()));
    }
    transaction.delete(Chain::new(&table, "no-such-chain"));
    transaction
}

fn uses(rule: &[Expr], name: &str) -> bool {
    rule.iter().any(|expression| match expression {
        Expr::Lookup { set, .. } | Expr::Dynset { set, .. } => set.as_ref() == name,
        _ => false,
    })
}

fn table(family: Family) -> TableId {
    TableId::new(kernel_family(family), TABLE)
}

fn features(family: Family) -> Vec<Feature> {
    let build = ExpressionBuilder::new(family);
    let table = table(family);
    let feature = |name, needs, kind: ChainKind, hook, rule| Feature {
        name,
        needs,
        rule,
        hook: (kind, hook),
        set: None,
    };
    let filter = |name, needs, rule| feature(name, needs, ChainKind::Filter, Hook::Forward, rule);
    let nat = |name, needs, hook, rule| feature(name, needs, ChainKind::Nat, hook, rule);
    let value = build.client_value();
    let minute = std::time::Duration::from_secs(60);
    vec![
        filter("matching packet marks", "CONFIG_NF_TABLES", mark_is_set(1)),
        filter("connection tracking (`ct state`)", "CONFIG_NFT_CT and CONFIG_NF_CONNTRACK", new_connection()),
        filter(
            "sets of addresses and ports",
            "Linux 5.6 or newer",
            rule![build.frontend(), in_set(SetId::Restricted.name())],
        ),
        Feature {
            set: Some(
                Set::new(&table, "ranges", vec![DataType::Protocol, DataType::Service])
                    .flags(SetFlags::INTERVAL),
            ),
            ..filter("sets with ranges in concatenated keys", "Linux 5.6 or newer", protocol_is(6))
        },
        filter("`reject`", "CONFIG_NFT_REJECT", vec![build.reject()]),
        filter("`reject with tcp reset`", "CONFIG_NFT_REJECT", rule![protocol_is(6), reset()]),
        nat(
            "address types (`fib saddr type`)",
            "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6",
            Hook::Prerouting,
            from_this_host(),
        ),
        nat("random numbers (`numgen`)", "CONFIG_NFT_NUMGEN", Hook::Prerouting, vec![draw(2, 0)]),
        nat(
            "translation to an address and port from a map",
            "CONFIG_NFT_NAT and Linux 5.6 or newer",
            Hook::Prerouting,
            vec![load_priority(0), draw(2, 1), map(SetId::Endpoints.name()), build.translate()],
        ),
        nat(
            "translation of the node's own packets",
            "CONFIG_NFT_NAT and Linux 5.6 or newer",
            Hook::Output,
            vec![load_priority(0), draw(2, 1), map(SetId::Endpoints.name()), build.translate()],
        ),
        nat(
            "remembering clients (`update` of a map)",
            "CONFIG_NF_TABLES and Linux 5.6 or newer",
            Hook::Prerouting,
            rule![
                build.client_key(None),
                load_priority(value),
                update(SetId::Affinity.name(), value, minute),
                load_priority(0),
                set_priority()
            ],
        ),
        nat("`masquerade`", "CONFIG_NFT_MASQ", Hook::Postrouting, vec![masquerade()]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::error::{Answer, FailedPart, Failure};
    use portwarden_netlink::{Errno, nftables::Verb};

    /// If the last operation could succeed, the probe would leave a table behind.
    #[test]
    fn every_transaction_ends_with_the_deletion_of_a_chain_that_does_not_exist() {
        for family in Family::BOTH {
            for feature in features(family) {
                let transaction = transaction(std::slice::from_ref(&feature), family);
                let last = transaction.operations().last().unwrap();
                assert_eq!(last.verb, Verb::Delete, "{}", feature.name);
                assert!(last.to_string().ends_with("no-such-chain"), "{last}");
            }
        }
    }

    /// A rule can only refer to sets that the same transaction defines.
    #[test]
    fn the_sets_of_a_feature_are_part_of_its_transaction() {
        for family in Family::BOTH {
            for feature in features(family) {
                let text = transaction(std::slice::from_ref(&feature), family).to_string();
                for set in SetId::ALL.into_iter().filter(|set| uses(&feature.rule, set.name())) {
                    let defined =
                        |kind| text.contains(&format!("add {kind} {} {}", table(family), set.name()));
                    assert!(defined("set") || defined("map"), "{}: {}", feature.name, set.name());
                }
            }
        }
    }

    #[test]
    fn a_refused_rule_is_a_missing_feature() {
        let transaction = transaction(&features(Family::V4), Family::V4);
        let failure = |index| {
            let answer =
                Answer { errno: Errno::ENOENT, code: Errno::ENOENT as i32, text: None, offset: None };
            Failure {
                part: FailedPart::Operation { index, element: None, description: String::new() },
                answer,
            }
        };
        let last = transaction.len() - 1;
        assert!(only_the_last(&Rejected { failures: vec![failure(last)] }, &transaction));
        assert!(!only_the_last(&Rejected { failures: vec![failure(3), failure(last)] }, &transaction));
    }
}

//! What a transaction would change in tables that other programs, such as kube-proxy, may have written. Pure.

use std::collections::BTreeMap;

use portwarden_model::Family;
use portwarden_xtables::{PrintedForm, SavedTable, Section, Table, Transaction};

use crate::draft::SavedTables;

/// Rules in the form that `iptables-save` prints, each after the name of its table.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleDifference {
    /// Rules, and chains without rules, that the tables lack.
    pub added: Vec<String>,
    /// Rules and chains that would be removed.
    pub removed: Vec<String>,
    /// Chains whose rules are all there, in another order: kube-proxy writes the rules of Services in no particular one.
    pub reordered: Vec<String>,
}

impl RuleDifference {
    pub(crate) fn new(transaction: &Transaction, saved: &SavedTables, family: Family) -> Self {
        let nothing = SavedTable::default();
        let mut difference = RuleDifference::default();
        for (table, section) in [(Table::Filter, &transaction.filter), (Table::Nat, &transaction.nat)] {
            let saved = saved.table(table).unwrap_or(&nothing);
            difference.compare(table, section, saved, family);
        }
        difference
    }

    fn compare(&mut self, table: Table, section: &Section, saved: &SavedTable, family: Family) {
        let mut forms = PrintedForm::new(family);
        for index in 0..section.chains() {
            let name = section.chain_name(index);
            // How often each rule is wanted more than it is there.
            let mut surplus: BTreeMap<String, i32> = BTreeMap::new();
            for rule in section.chain_rules(index).lines() {
                *surplus.entry(forms.printed(rule).to_owned()).or_default() += 1;
            }
            for rule in saved.rules(name).lines() {
                *surplus.entry(rule.to_owned()).or_default() -= 1;
            }
            if !saved.has_chain(name) {
                self.added.push(format!("{table} :{name}"));
            } else if surplus.values().all(|count| *count == 0) {
                self.reordered.push(format!("{table} {name}"));
            }
            for (rule, count) in surplus {
                let lines = if count > 0 { &mut self.added } else { &mut self.removed };
                lines.extend((0..count.abs()).map(|_| format!("{table} {rule}")));
            }
        }
        for name in section.deletes() {
            self.removed.push(format!("{table} :{name}"));
            self.removed.extend(saved.rules(name).lines().map(|rule| format!("{table} {rule}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_compared_one_by_one_and_order_is_told_apart() {
        let saved = SavedTables {
            filter: None,
            nat: Some(SavedTable::parse(
                "*nat\n:A - [0:0]\n:B - [0:0]\n:OLD - [0:0]\n-A A -s 10.0.0.2/32 -j B\n-A A -s 10.0.0.1/32 -j B\n-A B -j RETURN\n\
                 -A OLD -j A\nCOMMIT\n",
            )),
        };
        let mut transaction = Transaction::new();
        let nat = transaction.section(Table::Nat);
        nat.make_chain("A");
        nat.push_rules("-A A -s 10.0.0.1 -j B\n-A A -s 10.0.0.2 -j B\n", None);
        nat.make_chain("B");
        nat.push_rules("-A B -j RETURN\n-A B -j RETURN\n-A B -j NEW\n", None);
        nat.make_chain("NEW");
        nat.delete_chain("OLD");
        let found = RuleDifference::new(&transaction, &saved, Family::V4);
        assert_eq!(found.reordered, ["nat A"]);
        assert_eq!(found.added, ["nat -A B -j NEW", "nat -A B -j RETURN", "nat :NEW"]);
        assert_eq!(found.removed, ["nat :OLD", "nat -A OLD -j A"]);
    }
}

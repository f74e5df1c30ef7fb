//! Removes all rules of this mode, ours and kube-proxy's alike: they have the same names.

use portwarden_model::Family;
use portwarden_xtables::{Culprit, Error, Programs, RestoreError, Table, Transaction, Variant};

use crate::error::CleanupError;
use crate::jumps::{JUMPS, Jump};
use crate::names::{
    CANARY, EXTERNAL_SERVICES, FORWARD, MARK_MASQ, NODE_PORTS, POSTROUTING, PROXY_FIREWALL, SERVICES,
    is_service_chain,
};

/// Our chains in the nat table, besides those of Services.
const NAT_CHAINS: [&str; 5] = [SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ, CANARY];
/// Our chains in the filter table. KUBE-FIREWALL is not among them: the kubelet needs it.
const FILTER_CHAINS: [&str; 6] = [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL, CANARY];

/// Removes the rules of one family. Goes on after an error, and returns all of them.
///
/// The chain KUBE-FIREWALL with the jumps to it, nfacct objects and kernel settings stay: others may use them by now.
pub fn cleanup(family: Family, variant: Variant) -> Result<(), CleanupError> {
    cleanup_with(&Programs::new(family, variant))
}

/// The same with programs of the caller's choice.
pub fn cleanup_with(programs: &Programs) -> Result<(), CleanupError> {
    cleanup_beside(programs, |_, _, _| false, |_, _| false)
}

/// The same beside another mode that has chains of the same names. Its jumps (table, built-in chain, arguments) and chains (table, name) stay.
pub fn cleanup_beside(
    programs: &Programs,
    keeps_jump: impl Fn(Table, &str, &[&str]) -> bool,
    keeps_chain: impl Fn(Table, &str) -> bool,
) -> Result<(), CleanupError> {
    if let Err(error) = programs.check() {
        // No program or no table: there cannot be rules.
        return if means_unused(&error) { Ok(()) } else { Err(CleanupError(vec![error])) };
    }
    let mut errors = Vec::new();
    let leaves = |jump: &&Jump| !jump.is_shared() && !keeps_jump(jump.table, jump.from, &jump.arguments());
    for jump in JUMPS.iter().filter(leaves) {
        errors.extend(programs.delete_rule(jump.table, jump.from, &jump.arguments()).err());
    }
    let in_nat =
        |name: &str| (NAT_CHAINS.contains(&name) || is_service_chain(name)) && !keeps_chain(Table::Nat, name);
    delete_chains(programs, Table::Nat, in_nat, &mut errors);
    let in_filter = |name: &str| FILTER_CHAINS.contains(&name) && !keeps_chain(Table::Filter, name);
    delete_chains(programs, Table::Filter, in_filter, &mut errors);
    if let Err(error) = programs.delete_chain(Table::Mangle, CANARY) {
        tracing::debug!(%error, "no canary chain to remove");
    }
    if errors.is_empty() { Ok(()) } else { Err(CleanupError(errors)) }
}

/// Removes chains in one step. One that something else uses is emptied and stays.
fn delete_chains(programs: &Programs, table: Table, is_ours: impl Fn(&str) -> bool, errors: &mut Vec<Error>) {
    let saved = match programs.save(table, |_| false) {
        Ok(saved) => saved,
        Err(error) => return errors.push(error),
    };
    let mut chains: Vec<&str> = saved.chains().filter(|name| is_ours(name)).collect();
    chains.sort_unstable();
    let mut transaction = Transaction::new();
    chains.iter().for_each(|chain| transaction.section(table).delete_chain(chain));
    while !transaction.is_empty() {
        let lines = match programs.restore(&transaction) {
            Ok(()) => return,
            Err(RestoreError::Other(error)) => return errors.push(error),
            Err(RestoreError::Lines(lines)) => lines,
        };
        errors.push(programs.rejection(&lines));
        let mut progress = false;
        for line in lines {
            if let Culprit::Deletion(chain) = line.culprit {
                transaction.section(table).keep_chain(&chain);
                progress = true;
            }
        }
        if !progress {
            return;
        }
    }
}

fn means_unused(error: &Error) -> bool {
    match error {
        Error::Start { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        Error::Failed { message, .. } => {
            message.contains("Table does not exist") || message.contains("do you need to insmod")
        }
        _ => false,
    }
}

//! Checks of where objects come from, and of the running process.

use portwarden_model::Family;

use super::super::client::{Client, Reply};
use super::{Finding, Node};
use crate::config::Source;
use crate::explain::{self, Gathered};
use crate::flags;
use crate::introspection::api::Status;

pub(super) fn source(node: &Node) -> Vec<Finding> {
    let from = match &node.config.source {
        Source::Manifests(path) => format!("the manifests in {path}"),
        Source::Api(_) => "the API server".to_owned(),
    };
    let gathered = match explain::gather_with_failures(&node.config, flags::reported_version(None)) {
        Ok(gathered) => gathered,
        Err(error) => {
            return vec![Finding::failure(
                format!("objects cannot be read from {from}: {error:#}"),
                "give --kubeconfig, --manifests, or the --config of the proxy; check the address, the credentials and the network policy of the node",
            )];
        }
    };
    let Gathered { cluster, failures, problems } = gathered;
    let mut found: Vec<Finding> = failures
        .iter()
        .map(|(part, reason)| {
            Finding::failure(
                format!("{part} cannot be followed: {reason}"),
                "for \"forbidden\", apply deploy/rbac.yaml or bind the ClusterRole system:node-proxier; otherwise check the way to the API server",
            )
        })
        .collect();
    found.extend(
        problems.iter().take(10).map(|problem| {
            Finding::warning(problem.clone(), "correct the object; the rest of it is in force")
        }),
    );
    if failures.is_empty() {
        let count = |family| cluster.desired(family).services().len();
        let text =
            format!("{from}: {} Services with IPv4 and {} with IPv6", count(Family::V4), count(Family::V6));
        found.push(Finding::ok(text));
        let name = &cluster.settings().node_name;
        if cluster.node().is_none() && matches!(node.config.source, Source::Api(_)) {
            found.push(Finding::failure(
                format!("there is no Node {name}"),
                "set --hostname-override to the name of this Node (`kubectl get nodes`), and check that the kubelet runs",
            ));
        }
    }
    found
}

pub(super) fn running_process(node: &Node) -> Vec<Finding> {
    let Ok(client) = Client::connect(&node.config) else {
        return vec![Finding::ok("no Portwarden runs on this node, or it listens elsewhere")];
    };
    vec![match client.get::<Status>("/api/status") {
        Ok(Reply::Answer(status)) if status.verdict.healthy => Finding::ok(format!(
            "Portwarden {} runs in mode {} and is healthy",
            status.portwarden, status.mode
        )),
        Ok(Reply::Answer(status)) => Finding::failure(
            format!("the running process is not healthy: {}", status.verdict.reasons.join("; ")),
            "`portwarden status` shows more, and its log says what to do",
        ),
        Ok(Reply::Refused(error)) => Finding::warning(
            format!("{} answers: {}", client.address(), error.error),
            "see the log of that process",
        ),
        Err(error) => Finding::warning(format!("{error:#}"), "see the log of the process that listens there"),
    }]
}

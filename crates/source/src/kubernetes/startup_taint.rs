//! Removes a taint that keeps pods from this Node until its Services work.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use super::backoff::{Backoff, random};
use super::client::{Call, Client};
use super::error::RequestError;

/// The largest Node that is read.
const MAX_NODE: usize = 4 << 20;
/// The longest time between two attempts.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Removes every taint with this key from the Node. Retries until it succeeds or there is no such taint.
pub async fn remove_startup_taint(client: Client, node: String, key: String) {
    let mut backoff = Backoff::default();
    loop {
        match attempt(&client, &node, &key).await {
            Ok(true) => {
                info!(
                    node,
                    taint = key,
                    "All Services are in force; removed the startup taint from the Node"
                );
                return;
            }
            Ok(false) => {
                info!(node, taint = key, "The Node does not have the startup taint");
                return;
            }
            Err(error) => {
                warn!(
                    node, taint = key, err = %error,
                    "Cannot remove the startup taint; pods stay away from this Node. It needs the verbs get and patch on nodes"
                );
                let delay = backoff.delay(Instant::now(), random(), MAX_DELAY);
                tokio::time::sleep(delay.max(error.retry_after().unwrap_or_default())).await;
            }
        }
    }
}

/// Whether a taint was removed. A Node that changes in between is a conflict, which is retried.
async fn attempt(client: &Client, node: &str, key: &str) -> Result<bool, RequestError> {
    let path = format!("/api/v1/nodes/{node}");
    let call = Call { accept: Some("application/json"), ..Call::get(&path) };
    let Some(patch) = patch(&read(client, call).await?, key) else { return Ok(false) };
    let call = Call {
        method: Method::PATCH,
        content_type: Some("application/merge-patch+json"),
        body: Bytes::from(patch.to_string()),
        ..Call::get(&path)
    };
    client.send(call).await?;
    Ok(true)
}

async fn read(client: &Client, call: Call<'_>) -> Result<Value, RequestError> {
    let answer = client.send(call).await?;
    let body = Limited::new(answer.into_body(), MAX_NODE).collect().await;
    let body = body.map_err(|error| RequestError::Broken(error.to_string()))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| RequestError::Broken(error.to_string()))
}

/// A merge patch without the taint, for exactly this version of the Node; `None` if it has no such taint. The other taints are repeated as they
/// are: the API replaces the list as a whole.
fn patch(node: &Value, key: &str) -> Option<Value> {
    let taints = node["spec"]["taints"].as_array()?;
    let others: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != key).collect();
    (others.len() < taints.len()).then(|| {
        json!({
            "metadata": { "resourceVersion": node["metadata"]["resourceVersion"] },
            "spec": { "taints": others },
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_taints_stay_as_they_are() {
        let other = json!({"key": "gpu", "value": "yes", "effect": "NoSchedule", "timeAdded": "2026-11-17T00:00:00Z"});
        let node = json!({
            "metadata": {"resourceVersion": "7"},
            "spec": {"taints": [
                {"key": "not-ready", "effect": "NoSchedule"},
                other,
                {"key": "not-ready", "effect": "NoExecute"},
            ]},
        });
        let wanted = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": [other]}});
        assert_eq!(patch(&node, "not-ready"), Some(wanted));
        assert_eq!(patch(&node, "absent"), None);
        assert_eq!(patch(&json!({"spec": {}}), "not-ready"), None);
    }
}

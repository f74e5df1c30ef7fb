//! Credentials from a plugin: the `exec` section of a kubeconfig user.
//!
//! `kube` runs the plugin when the HTTP client is built (`connect.rs`) and again when the credentials expire. A 401 makes
//! [`Client`](crate::kubernetes::Client) build a new HTTP client, and so run the plugin again.

use kube::config::{Cluster, ExecConfig, KubeconfigError};

/// Passes the cluster on to a plugin that asks for it with `provideClusterInfo`.
pub(super) fn add_cluster(exec: &mut ExecConfig, cluster: &Cluster) -> Result<(), KubeconfigError> {
    if exec.provide_cluster_info {
        exec.cluster = Some(cluster.try_into()?);
    }
    Ok(())
}

/// Names the plugin in log messages.
pub(super) fn describe(exec: &ExecConfig) -> String {
    format!("credentials from the plugin {:?}", exec.command.as_deref().unwrap_or_default())
}

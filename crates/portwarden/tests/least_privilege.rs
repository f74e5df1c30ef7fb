//! The containers of `deploy/`, each with exactly the privileges that the manifests state, serve traffic.

mod support;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use support::container::{Image, merge};
use support::deployment::{Deployment, NET_ADMIN, NET_RAW, config_file};

/// One document of `deploy/kustomize`.
fn manifest(file: &str) -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kustomize").join(file);
    Ok(serde_saphyr::from_str(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)?)
}

/// The DaemonSet's pod, with a patch on top.
fn pod(patch: Option<&str>) -> Result<Value> {
    let mut set = manifest("base/daemonset.yaml")?;
    if let Some(file) = patch {
        merge(&mut set, &manifest(file)?)?;
    }
    Ok(set["spec"]["template"]["spec"].clone())
}

/// The pod with this program, as the image's build installs it.
fn deploy(pod: &Value, mode: &str) -> Result<Deployment> {
    let config = config_file(&manifest("base/configmap.yaml")?)?;
    let config = config.replace("mode: nftables", &format!("mode: {mode}"));
    Deployment::new(pod, &config, |rig| Image::new(&rig.path(""), mode != "nftables", &rig.path("account")))
}

/// Starts the pod in a mode, changes an endpoint, and stops it.
fn serves_with(mode: &str, patch: Option<&str>, user: &str, capabilities: u64) -> Result<()> {
    let mut deployment = deploy(&pod(patch)?, mode)?;
    deployment.start()?;
    deployment.check_privileges(user, capabilities)?;
    deployment.check_traffic()
}

#[test]
fn nftables_mode_serves_as_another_user_than_root_with_one_capability() -> Result<()> {
    serves_with("nftables", None, "65534", NET_ADMIN)
}

#[test]
fn iptables_mode_serves_with_two_capabilities() -> Result<()> {
    serves_with("iptables", Some("iptables/daemonset-patch.yaml"), "0", NET_ADMIN | NET_RAW)
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn ipvs_mode_serves_with_two_capabilities() -> Result<()> {
    serves_with("ipvs", Some("iptables/daemonset-patch.yaml"), "0", NET_ADMIN | NET_RAW)
}

#[test]
fn a_missing_capability_is_named() -> Result<()> {
    let mut pod = pod(None)?;
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = Value::Array(Vec::new());
    let deployment = deploy(&pod, "nftables")?;
    let error = deployment.main.command(&deployment.rig).run().err().context("it cannot run")?;
    let text = format!("{error:#}");
    ensure!(text.contains("CAP_NET_ADMIN") && text.contains("command failed"), "{text}");
    Ok(())
}

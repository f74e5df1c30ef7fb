//! The manifests under `deploy/` fit the program.

mod support;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use portwarden_testkit::apiserver::{ApiServer, Rights, Seen};
use portwarden_testkit::build::{endpoint, node, port, service, slice};
use portwarden_testkit::topology::addresses::NODE;
use serde_json::Value;
use support::{Rig, cluster_cidr};

const WEB: &str = "10.96.0.10";

/// One document of a manifest.
fn manifest(file: &str, kind: &str) -> Result<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    for document in text.split("\n---\n") {
        let document: Value = serde_saphyr::from_str(document)?;
        if document["kind"] == kind {
            return Ok(document);
        }
    }
    anyhow::bail!("no {kind} in {file}")
}

/// The API group, resource and verb of a request.
fn asked(seen: &Seen) -> Result<(String, String, &'static str)> {
    let mut parts = seen.path.trim_matches('/').split('/');
    let group = match parts.next() {
        Some("api") => "",
        _ => parts.next().context("a group")?,
    };
    parts.next().context("a version")?;
    let parts: Vec<&str> = parts.collect();
    let (resource, named) = match parts.as_slice() {
        ["namespaces", _, resource, rest @ ..] | [resource, rest @ ..] => (*resource, !rest.is_empty()),
        [] => anyhow::bail!("{} names no resource", seen.path),
    };
    let verb = match (seen.method.as_str(), seen.watch, named) {
        ("GET", true, _) => "watch",
        ("GET", false, false) => "list",
        ("GET", false, true) => "get",
        ("POST", ..) => "create",
        ("PATCH", ..) => "patch",
        ("PUT", ..) => "update",
        (other, ..) => anyhow::bail!("{other} {}", seen.path),
    };
    Ok((group.to_owned(), resource.to_owned(), verb))
}

fn grants(rules: &[Value], group: &str, resource: &str, verb: &str) -> bool {
    let has = |rule: &Value, field: &str, wanted: &str| {
        rule[field].as_array().is_some_and(|all| all.iter().any(|one| one == wanted))
    };
    rules.iter().any(|rule| {
        has(rule, "apiGroups", group) && has(rule, "resources", resource) && has(rule, "verbs", verb)
    })
}

#[test]
fn the_role_grants_what_the_program_asks_for() -> Result<()> {
    let role = manifest("rbac.yaml", "ClusterRole")?;
    let rules = role["rules"].as_array().context("rules")?;
    let mut rig = Rig::new()?;
    let pod = rig.topology.pod(0);
    pod.serve(Transport::Tcp, 8080)?;
    let server = {
        let _entered = rig.node().namespace().enter()?;
        ApiServer::builder().tls().user("proxier", "system:kube-proxy", Rights::NodeProxier).start()?
    };
    server.apply(node("node-a").ip(NODE.v4).ip(NODE.v6));
    server.apply(service("web").cluster_ip(WEB).port(port(80).name("p")));
    server
        .apply(slice("web", "web-1").port(port(8080).name("p")).endpoint(endpoint(pod.ip().v4).on("node-a")));
    let kubeconfig = server.kubeconfig_as(&rig.path(""), "kubeconfig", "token: proxier")?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let cidr = format!("--cluster-cidr={}", cluster_cidr());
    rig.start_following(&[&kubeconfig, "--proxy-mode=nftables", &cidr])?;
    rig.wait_for_service(format!("{WEB}:80").parse()?)?;
    rig.wait_until("the Event of the start", || Ok(!server.events().is_empty()))?;
    let requests = server.requests();
    for seen in &requests {
        let (group, resource, verb) = asked(seen)?;
        ensure!(grants(rules, &group, &resource, verb), "{verb} {resource} of {group:?} is not granted");
    }
    let resources = ["services", "nodes", "endpointslices", "servicecidrs", "events"];
    for resource in resources {
        ensure!(requests.iter().any(|seen| seen.path.contains(resource)), "{resource} was not asked for");
    }
    Ok(())
}

#[test]
fn the_configuration_is_taken_as_it_is() -> Result<()> {
    let map = manifest("configmap.yaml", "ConfigMap")?;
    let text = map["data"]["config.conf"].as_str().context("a file")?;
    let mut rig = Rig::new()?;
    rig.write("config.conf", text)?;
    let (config, written) = (rig.path("config.conf"), rig.path("written"));
    let (config, write) =
        (format!("--config={}", config.display()), format!("--write-config-to={}", written.display()));
    rig.start_following(&[&config, &write])?;
    rig.wait_for_log("\"Wrote configuration\"")?;
    ensure!(!rig.log().contains("lenient"), "{}", rig.log());
    ensure!(std::fs::read_to_string(written)?.contains("mode: nftables"));
    Ok(())
}

#[test]
fn the_daemon_set_probes_what_the_configuration_opens() -> Result<()> {
    let set = manifest("daemonset.yaml", "DaemonSet")?;
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    ensure!(pod["serviceAccountName"] == manifest("rbac.yaml", "ServiceAccount")?["metadata"]["name"]);
    ensure!(
        pod["volumes"][0]["configMap"]["name"]
            == manifest("configmap.yaml", "ConfigMap")?["metadata"]["name"]
    );
    let probe = &container["livenessProbe"]["httpGet"];
    ensure!(probe["path"] == "/livez" && probe["port"] == support::HEALTH, "{probe}");
    let folder = container["volumeMounts"][0]["mountPath"].as_str().context("a folder")?;
    ensure!(container["args"][0] == format!("--config={folder}/config.conf"));
    Ok(())
}

//! What helm and kustomize make of `deploy/`. Both programs come from `scripts/deploy-tools`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A folder or file of this repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// All objects of the chart with these settings.
pub(crate) fn chart(settings: &[&str]) -> Result<Vec<Value>> {
    let mut arguments = vec!["template", "portwarden", "--namespace", "kube-system"];
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    let chart = repository("deploy/helm/portwarden");
    let chart = chart.to_string_lossy();
    arguments.push(&chart);
    documents(&tool("helm", &arguments)?)
}

/// All objects of an overlay in `deploy/kustomize`.
pub(crate) fn overlay(name: &str) -> Result<Vec<Value>> {
    let folder = repository("deploy/kustomize").join(name);
    documents(&tool("kustomize", &["build", &folder.to_string_lossy()])?)
}

/// The first object of a kind.
pub(crate) fn find<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"))
}

/// The pod of the DaemonSet.
pub(crate) fn pod(objects: &[Value]) -> Result<Value> {
    Ok(find(objects, "DaemonSet")?["spec"]["template"]["spec"].clone())
}

/// Runs one of the programs; fails with its messages.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> Result<String> {
    let program = repository("target/tools/bin").join(name);
    ensure!(program.exists(), "{name} is missing; run scripts/deploy-tools");
    let output = Command::new(program).args(arguments).output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} {}: {messages}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = text.split("\n---\n").map(|document| Ok(serde_saphyr::from_str::<Value>(document)?));
    let documents = documents.collect::<Result<Vec<Value>>>()?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

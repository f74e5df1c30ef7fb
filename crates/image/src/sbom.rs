//! The bill of materials of an image, in CycloneDX's JSON form: every crate in the program with version, checksum and licence, and every
//! Debian package that files were copied from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::contents::Contents;

/// The list for an image with these contents.
pub(crate) fn list(contents: &Contents, tag: &str) -> Result<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let metadata: Value = serde_json::from_str(&output(
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["metadata", "--locked", "--format-version=1", "--features=portwarden/profiling"])
            .arg(format!("--filter-platform={}", host()?))
            .current_dir(&root),
    )?)?;
    let checksums = checksums(&fs::read_to_string(root.join("Cargo.lock"))?);
    let crates = Crates::new(&metadata)?;
    let program = crates.identify("portwarden")?;
    let used = crates.reachable(program);
    let mut components = vec![standard_library()?];
    let mut dependencies = Vec::new();
    for id in &used {
        let package = crates.packages[id];
        if *id != program {
            components.push(component(package, &checksums));
        }
        let needs: Vec<String> = crates.needs(id).iter().map(|id| reference(crates.packages[id])).collect();
        dependencies.push(json!({ "ref": reference(package), "dependsOn": needs }));
    }
    components.extend(debian_packages(&contents.from_packages)?);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "container",
            "name": "portwarden",
            "version": tag,
            "bom-ref": reference(crates.packages[&program]),
            "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
        } },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// What `cargo metadata` says.
struct Crates<'a> {
    packages: BTreeMap<&'a str, &'a Value>,
    nodes: BTreeMap<&'a str, &'a Value>,
}

impl<'a> Crates<'a> {
    fn new(metadata: &'a Value) -> Result<Crates<'a>> {
        let by_id = |list: &'a Value| -> Result<BTreeMap<&'a str, &'a Value>> {
            let list = list.as_array().context("cargo metadata lists packages")?;
            list.iter().map(|item| Ok((item["id"].as_str().context("a package has an id")?, item))).collect()
        };
        Ok(Crates { packages: by_id(&metadata["packages"])?, nodes: by_id(&metadata["resolve"]["nodes"])? })
    }

    fn identify(&self, name: &str) -> Result<&'a str> {
        let found = self.packages.iter().find(|(_, package)| package["name"] == name);
        Ok(found.with_context(|| format!("no package {name}"))?.0)
    }

    /// What a crate is built with, apart from tests and build scripts.
    fn needs(&self, id: &str) -> BTreeSet<&'a str> {
        let links = self.nodes.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        let normal = links.filter(|link| {
            let kinds = link["dep_kinds"].as_array().into_iter().flatten();
            kinds.into_iter().any(|kind| kind["kind"].is_null())
        });
        normal.filter_map(|link| link["pkg"].as_str()).collect()
    }

    fn reachable(&self, from: &'a str) -> BTreeSet<&'a str> {
        let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(id) = open.pop() {
            open.extend(self.needs(id).into_iter().filter(|id| seen.insert(id)));
        }
        seen
    }
}

/// A crate's package URL, which is also how the list refers to it.
fn reference(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let (name, version) = (text("name"), text("version"));
    let mut component = json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": reference(package),
        "bom-ref": reference(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // Older crates separate alternatives by a slash.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(checksum) = checksums.get(&(name, version)) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// The checksums in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |field: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(" = \""));
            line.map(|text| text.trim_end_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (value("name"), value("version"), value("checksum"))
        {
            found.insert((name, version), checksum);
        }
    }
    found
}

/// Rust's standard library, which is part of every program.
fn standard_library() -> Result<Value> {
    let version = output(Command::new("rustc").arg("--version"))?;
    let version = version.split_whitespace().nth(1).context("a version")?.to_owned();
    Ok(json!({
        "type": "library",
        "name": "rust-std",
        "version": version,
        "bom-ref": "rust-std",
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    }))
}

/// The packages that these files belong to, and the C library that is linked into the program.
fn debian_packages(files: &BTreeSet<PathBuf>) -> Result<Vec<Value>> {
    let mut names = BTreeSet::from(["libc6-dev".to_owned()]);
    for file in files {
        // Generated by the package's own script at its installation.
        if file.ends_with("ca-certificates.crt") {
            names.insert("ca-certificates".to_owned());
            continue;
        }
        names.insert(owner(file)?);
    }
    let format = "${source:Package} ${Version} ${Architecture}";
    names
        .iter()
        .map(|name| {
            let text = output(Command::new("dpkg-query").args(["--show", "--showformat", format, name]))?;
            let words: Vec<&str> = text.split_whitespace().collect();
            ensure!(words.len() == 3, "dpkg-query says {text:?} about {name}");
            let short = name.split(':').next().unwrap_or(name);
            let url = format!("pkg:deb/debian/{short}@{}?arch={}", words[1], words[2]);
            Ok(json!({ "type": "library", "name": short, "version": words[1], "purl": url, "bom-ref": url }))
        })
        .collect()
}

/// The package that installed a file. Packages may name it by the link /lib or by /usr/lib.
fn owner(file: &Path) -> Result<String> {
    let text = file.to_string_lossy();
    let names = [text.as_ref(), text.strip_prefix("/usr").unwrap_or(&text)];
    for name in names {
        if let Ok(found) = output(Command::new("dpkg-query").arg("--search").arg(name)) {
            let package = found.split(": ").next().context("a package")?;
            return Ok(package.to_owned());
        }
    }
    anyhow::bail!(
        "no Debian package has {text}; use files from packages, so that the bill of materials is complete"
    )
}

fn host() -> Result<String> {
    let text = output(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names its host")?.to_owned())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"c0ffee\"\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let found = checksums(lock);
        assert_eq!(found.len(), 1);
        assert_eq!(found[&("a".to_owned(), "1.0.0".to_owned())], "c0ffee");
    }
}

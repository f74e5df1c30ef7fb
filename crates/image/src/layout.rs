//! The image as an archive of the OCI image layout, which container engines and registries' tools read.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Result, bail};
use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::contents::Contents;
use crate::tar::{self, Body, Entry};

/// The name in front of the tag for tools that load an archive under the name it states.
const NAME: &str = "portwarden";

/// The archive, with one image of this tag in it.
pub(crate) fn archive(contents: &Contents, tag: &str, time: u64) -> Result<Vec<u8>> {
    let mut blobs = Blobs::default();
    let (mut layers, mut layer_digests) = (Vec::new(), Vec::new());
    for entries in &contents.layers {
        let layer = tar::archive(entries, time)?;
        layer_digests.push(digest(&layer));
        layers.push(blobs.add("application/vnd.oci.image.layer.v1.tar+gzip", compress(&layer)?));
    }
    let configuration = json!({
        "architecture": architecture()?,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/local/bin/kube-proxy"],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": {
                "org.opencontainers.image.title": NAME,
                "org.opencontainers.image.version": tag,
                "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
                "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
            },
        },
        "rootfs": { "type": "layers", "diff_ids": layer_digests },
    });
    let configuration = blobs.add_json("application/vnd.oci.image.config.v1+json", &configuration)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": configuration,
        "layers": layers,
    });
    let mut manifest = blobs.add_json("application/vnd.oci.image.manifest.v1+json", &manifest)?;
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": tag,
        "io.containerd.image.name": format!("docker.io/library/{NAME}:{tag}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    // What `docker load` reads in versions that do not know the layout yet.
    let paths: Vec<String> = layers.iter().map(blob_path).collect();
    let for_docker = json!([{ "Config": blob_path(&configuration), "RepoTags": [format!("{NAME}:{tag}")], "Layers": paths }]);
    blobs.finish(&index, &for_docker, time)
}

/// Everything that is stored under its digest.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Stores it and returns the descriptor that refers to it.
    fn add(&mut self, media_type: &str, data: Vec<u8>) -> Value {
        let (digest, size) = (digest(&data), data.len());
        self.0.insert(digest.clone(), data);
        json!({ "mediaType": media_type, "digest": digest, "size": size })
    }

    fn add_json(&mut self, media_type: &str, value: &Value) -> Result<Value> {
        Ok(self.add(media_type, serde_json::to_vec(value)?))
    }

    fn finish(self, index: &Value, for_docker: &Value, time: u64) -> Result<Vec<u8>> {
        let folder = |path: &str| Entry { path: path.to_owned(), body: Body::Folder };
        let file = |path: String, data| Entry {
            path,
            body: Body::File { data, executable: false, capability: None },
        };
        let mut entries = vec![
            file("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            file("index.json".to_owned(), serde_json::to_vec(index)?),
            file("manifest.json".to_owned(), serde_json::to_vec(for_docker)?),
            folder("blobs"),
            folder("blobs/sha256"),
        ];
        for (digest, data) in self.0 {
            entries.push(file(format!("blobs/{}", digest.replace(':', "/")), data));
        }
        tar::archive(&entries, time)
    }
}

fn blob_path(descriptor: &Value) -> String {
    format!("blobs/{}", descriptor["digest"].as_str().unwrap_or_default().replace(':', "/"))
}

fn digest(data: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(data)))
}

/// Without a time or a name of a file in its header.
fn compress(data: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    writer.write_all(data)?;
    Ok(writer.finish()?)
}

/// This machine's architecture by the name that images use.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no name for the architecture {other} in images"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_contents_make_the_same_archive() {
        let contents = || Contents {
            layers: vec![vec![Entry {
                path: "program".to_owned(),
                body: Body::File { data: vec![7; 100_000], executable: true, capability: Some(vec![0; 20]) },
            }]],
            from_packages: BTreeSet::new(),
        };
        let first = archive(&contents(), "1", 5).expect("an archive");
        assert_eq!(first, archive(&contents(), "1", 5).expect("an archive"));
        assert_ne!(first, archive(&contents(), "2", 5).expect("an archive"));
    }
}

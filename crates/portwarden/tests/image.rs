//! The container images: what is in them, and that they serve traffic within the limits of the chart and the overlays, and in the place of kube-proxy.
//!
//! `scripts/image --debug` packs them first; `make test` does that.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use portwarden_testkit::bpf;
use serde_json::{Value, json};
use support::Rig;
use support::container::Image;
use support::deployment::{BPF, Deployment, NET_ADMIN, NET_RAW, PERFMON, config_file};
use support::rendered::{chart, find, overlay, pod, repository};

const API: &str = "apiServer.host=192.0.2.1";
const CIDR: &str = "clusterCIDR=10.244.0.0/16";

#[derive(Clone, Copy)]
enum Variant {
    Nftables,
    Iptables,
}

impl Variant {
    fn tag(self) -> &'static str {
        match self {
            Variant::Nftables => env!("CARGO_PKG_VERSION"),
            Variant::Iptables => concat!(env!("CARGO_PKG_VERSION"), "-iptables"),
        }
    }

    fn file(self, end: &str) -> Result<PathBuf> {
        let file = repository("target/image/debug").join(format!("portwarden-{}.{end}", self.tag()));
        ensure!(file.exists(), "{} is missing; run scripts/image --debug", file.display());
        Ok(file)
    }

    fn unpack(self, rig: &Rig) -> Result<Image> {
        Image::unpack(&self.file("tar")?, self.tag(), &rig.path(""), &rig.path("account"))
    }
}

/// Every file in a folder, by its path in it.
fn files(root: &Path, folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            files(root, &path, found)?;
        } else {
            found.push(path.strip_prefix(root)?.display().to_string());
        }
    }
    found.sort();
    Ok(())
}

#[test]
fn the_image_has_the_program_and_certificates_and_nothing_else() -> Result<()> {
    let rig = Rig::new()?;
    let image = Variant::Nftables.unpack(&rig)?;
    let mut found = Vec::new();
    files(&image.root(), &image.root(), &mut found)?;
    let wanted =
        ["etc/ssl/certs/ca-certificates.crt", "usr/local/bin/kube-proxy", "usr/local/bin/portwarden"];
    ensure!(found == wanted, "{found:?}");
    Ok(())
}

/// Under the name of every crate there is its version and licence; of every package of Debian, its version.
#[test]
fn everything_in_the_image_is_listed() -> Result<()> {
    let list: Value = serde_json::from_str(&fs::read_to_string(Variant::Iptables.file("cdx.json")?)?)?;
    ensure!(list["bomFormat"] == "CycloneDX", "{}", list["bomFormat"]);
    let parts = list["components"].as_array().context("components")?;
    let versions = |name: &str| parts.iter().filter(|part| part["name"] == name).count();
    for name in ["tokio", "rustls", "kube-client", "portwarden-model", "rust-std", "iptables", "libc6"] {
        ensure!(versions(name) > 0, "{name} is not listed");
    }
    for name in ["portwarden-testkit", "proptest", "portwarden-image"] {
        ensure!(versions(name) == 0, "{name} is only used by tests and tools");
    }
    for part in parts {
        ensure!(part["version"].as_str().is_some_and(|version| !version.is_empty()), "{part}");
        let foreign = part["purl"]
            .as_str()
            .is_some_and(|url| url.starts_with("pkg:cargo/") && !url.starts_with("pkg:cargo/portwarden"));
        if foreign {
            ensure!(part["licenses"].is_array() && part["hashes"].is_array(), "{part}");
        }
    }
    Ok(())
}

#[test]
fn the_chart_in_nftables_mode_serves_traffic() -> Result<()> {
    let objects = chart(&[API, CIDR])?;
    let config = config_file(find(&objects, "ConfigMap")?)?;
    let mut deployment = Deployment::new(&pod(&objects)?, &config, |rig| Variant::Nftables.unpack(rig))?;
    deployment.start()?;
    deployment.check_privileges("65534", NET_ADMIN)?;
    deployment.check_traffic()
}

#[test]
fn the_chart_in_userspace_mode_serves_traffic() -> Result<()> {
    let objects = chart(&[API, CIDR, "mode=userspace"])?;
    let config = config_file(find(&objects, "ConfigMap")?)?;
    let mut deployment = Deployment::new(&pod(&objects)?, &config, |rig| Variant::Nftables.unpack(rig))?;
    deployment.start()?;
    deployment.check_privileges("65534", NET_ADMIN)?;
    deployment.check_traffic()
}

/// Programs are attached to a cgroup of this test instead of the root, so that they see no other process of this machine.
#[test]
fn the_chart_in_ebpf_mode_serves_traffic() -> Result<()> {
    let cgroup = format!("extraArgs[0]=--ebpf-cgroup-root={}", bpf::cgroup()?.display());
    let pins = bpf::pin_directory("image")?;
    let directory = format!("extraArgs[1]=--ebpf-pin-directory={}", pins.display());
    let objects = chart(&[API, CIDR, "mode=ebpf", &cgroup, &directory])?;
    let config = config_file(find(&objects, "ConfigMap")?)?;
    let mut deployment = Deployment::new(&pod(&objects)?, &config, |rig| Variant::Nftables.unpack(rig))?;
    deployment.start()?;
    ensure!(pins.exists(), "programs outlive the process in {}", pins.display());
    deployment.check_privileges("0", NET_ADMIN | BPF | PERFMON)?;
    let checked = deployment.check_traffic();
    fs::remove_dir_all(pins)?;
    checked
}

#[test]
fn the_overlay_for_iptables_serves_traffic() -> Result<()> {
    let objects = overlay("iptables")?;
    let config = config_file(find(&objects, "ConfigMap")?)?;
    let mut deployment = Deployment::new(&pod(&objects)?, &config, |rig| Variant::Iptables.unpack(rig))?;
    deployment.start()?;
    deployment.check_privileges("0", NET_ADMIN | NET_RAW)?;
    deployment.check_traffic()
}

/// kubeadm's ConfigMap, as far as it says something; an empty mode means iptables.
const KUBEADM_CONFIG: &str = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: \"\"
  burst: 0
  contentType: \"\"
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
kind: KubeProxyConfiguration
mode: \"\"
";

#[test]
fn the_overlay_for_kubeadm_serves_traffic() -> Result<()> {
    let objects = overlay("kubeadm")?;
    let mut deployment =
        Deployment::new(&pod(&objects)?, KUBEADM_CONFIG, |rig| Variant::Iptables.unpack(rig))?;
    deployment.start()?;
    deployment.check_privileges("0", NET_ADMIN | NET_RAW)?;
    deployment.check_traffic()
}

/// The DaemonSet that kubeadm makes, with nothing but another image.
#[test]
fn the_image_takes_the_place_of_kube_proxy_with_its_command_line() -> Result<()> {
    let pod = json!({
        "containers": [{
            "name": "kube-proxy",
            "command": [
                "/usr/local/bin/kube-proxy",
                "--config=/var/lib/kube-proxy/config.conf",
                "--hostname-override=$(NODE_NAME)",
            ],
            "securityContext": { "privileged": true },
            "volumeMounts": [
                { "name": "kube-proxy", "mountPath": "/var/lib/kube-proxy" },
                { "name": "xtables-lock", "mountPath": "/run/xtables.lock" },
                { "name": "lib-modules", "mountPath": "/lib/modules", "readOnly": true },
            ],
        }],
        "volumes": [
            { "name": "kube-proxy", "configMap": { "name": "kube-proxy" } },
            { "name": "xtables-lock", "hostPath": { "path": "/run/xtables.lock" } },
            { "name": "lib-modules", "hostPath": { "path": "/lib/modules" } },
        ],
    });
    for (variant, mode) in [(Variant::Iptables, "\"\""), (Variant::Nftables, "nftables")] {
        let config = KUBEADM_CONFIG.replace("mode: \"\"", &format!("mode: {mode}"));
        let mut deployment = Deployment::new(&pod, &config, |rig| variant.unpack(rig))?;
        deployment.start()?;
        deployment.check_traffic()?;
    }
    Ok(())
}

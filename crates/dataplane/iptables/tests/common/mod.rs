//! What the tests of this crate share: clusters from manifests, tables in namespaces, rule sets in a comparable form.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod random;
pub mod simulator;

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use portwarden_iptables::{IptablesDataplane, Options, PACKET_COUNTERS};
use portwarden_model::object::{EndpointSlice, Node, Service};
use portwarden_model::{Changes, Cluster, DetectLocal, Event, Family, Interner, Kind, Settings, manifest};
use portwarden_testkit::Namespace;
use portwarden_testkit::drive::sync_to_end;
pub use portwarden_testkit::saved_rules::{assert_same, canonical};
use portwarden_xtables::{Programs, Variant};
use serde_json::Value;

pub const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

/// A file of the recordings of kube-proxy.
pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// The settings with which kube-proxy was recorded.
pub fn recorded_settings() -> Settings {
    Settings {
        detect_local: DetectLocal::ClusterCidr(vec![
            "10.244.0.0/16".parse().unwrap(),
            "fd00:244::/32".parse().unwrap(),
        ]),
        ..Settings::new("node-a")
    }
}

/// A cluster with all objects of a file with a List, and the Node of another.
pub fn cluster(settings: Settings, objects: &str, node: &str) -> Cluster {
    let mut cluster = Cluster::new(settings);
    let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node];
    for kind in kinds {
        cluster.apply(Event::ListStarted(kind));
    }
    let list: Value = serde_json::from_str(&fixture(objects)).unwrap();
    for item in list["items"].as_array().unwrap() {
        if let Some(event) = event(item) {
            cluster.apply(event);
        }
    }
    let node: manifest::Node = serde_json::from_str(&fixture(node)).unwrap();
    cluster.apply(Event::NodeApplied(Node::from_manifest(&node).0));
    cluster.apply(Event::HostAddresses(Box::from(host_addresses())));
    for kind in kinds {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    cluster
}

/// The addresses that the recorded node had.
pub fn host_addresses() -> [IpAddr; 4] {
    ["127.0.0.1", "::1", "10.200.0.2", "fd00:200::2"].map(|ip| ip.parse().unwrap())
}

/// The event that a source would send for a manifest.
pub fn event(item: &Value) -> Option<Event> {
    let mut names = Interner::default();
    match item["kind"].as_str() {
        Some("Service") => {
            let service: manifest::Service = serde_json::from_value(item.clone()).unwrap();
            Service::from_manifest(&service, &mut names).0.map(Event::ServiceApplied)
        }
        Some("EndpointSlice") => {
            let slice: manifest::EndpointSlice = serde_json::from_value(item.clone()).unwrap();
            EndpointSlice::from_manifest(&slice, &mut names).0.map(Event::SliceApplied)
        }
        other => panic!("a {other:?} among the objects"),
    }
}

/// A namespace whose iptables have a lock of their own, so that tests do not wait for each other.
pub struct Tables {
    pub namespace: Namespace,
    pub variant: Variant,
    lock: tempfile::TempDir,
}

impl Tables {
    pub fn new(name: &str, variant: Variant) -> Tables {
        let namespace = Namespace::new(format!("{name}-{variant:?}")).unwrap();
        Tables { namespace, variant, lock: tempfile::tempdir().unwrap() }
    }

    pub fn lock_file(&self) -> PathBuf {
        self.lock.path().join("xtables.lock")
    }

    pub fn programs(&self, family: Family) -> Programs {
        Programs::new(family, self.variant).env("XTABLES_LOCKFILE", self.lock_file())
    }

    pub fn dataplane(&self, family: Family, options: &Options) -> IptablesDataplane {
        let _inside = self.namespace.enter().unwrap();
        IptablesDataplane::with_programs(vec![self.programs(family)], options).unwrap()
    }

    /// Runs one of the family's programs: `""` for iptables itself, or `-save`, `-restore`.
    pub fn run(
        &self,
        family: Family,
        program: &str,
        arguments: &[&str],
        input: &str,
    ) -> anyhow::Result<String> {
        let stem = if family == Family::V4 { "iptables" } else { "ip6tables" };
        let variant = if self.variant == Variant::Nft { "nft" } else { "legacy" };
        self.namespace
            .command(&format!("{stem}-{variant}{program}"))
            .env("XTABLES_LOCKFILE", self.lock_file())
            .args(arguments)
            .input(input)
            .run()
    }

    /// A restore that runs and waits for its input.
    pub fn start_restore(&self, family: Family) -> RunningRestore {
        let stem = if family == Family::V4 { "iptables" } else { "ip6tables" };
        let variant = if self.variant == Variant::Nft { "nft" } else { "legacy" };
        let _inside = self.namespace.enter().unwrap();
        let child = Command::new(format!("{stem}-{variant}-restore"))
            .args(["--noflush", "-w", "5"])
            .env("XTABLES_LOCKFILE", self.lock_file())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        RunningRestore(child)
    }

    pub fn save(&self, family: Family) -> String {
        self.run(family, "-save", &[], "").unwrap()
    }

    /// All rules in comparable form.
    pub fn rules(&self, family: Family) -> String {
        canonical(&self.save(family))
    }

    /// Loads rules as saved; those that count need their counters first.
    pub fn load(&self, family: Family, saved: &str) {
        let inside = self.namespace.enter().unwrap();
        let mut accounting = portwarden_netlink::nfacct::Accounting::open().unwrap();
        PACKET_COUNTERS.iter().for_each(|counter| accounting.ensure(counter.object).unwrap());
        drop(inside);
        self.run(family, "-restore", &["-w", "5"], saved).unwrap();
    }
}

/// A restore that waits for its input.
pub struct RunningRestore(Child);

impl RunningRestore {
    /// Gives it what it waits for, and waits for its end.
    pub fn finish(mut self, input: &str) {
        self.0.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// Syncs everything.
pub fn full_sync(dataplane: &mut IptablesDataplane, tables: &Tables, cluster: &Cluster) {
    sync(dataplane, tables, cluster, &Changes::everything()).unwrap();
}

/// Syncs what changed.
pub fn sync(
    dataplane: &mut IptablesDataplane,
    tables: &Tables,
    cluster: &Cluster,
    changes: &Changes,
) -> Result<portwarden_model::Report, portwarden_model::SyncError> {
    use portwarden_model::Dataplane;
    let _inside = tables.namespace.enter().unwrap();
    let desired = cluster.desired(dataplane.families()[0]);
    sync_to_end(dataplane, desired, changes)
}

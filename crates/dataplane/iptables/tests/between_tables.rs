//! Packets that arrive when one table is committed and the next is not.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use portwarden_iptables::{IptablesDataplane, Options};
use portwarden_model::{Changes, Cluster, DetectLocal, Event, Family, Interner, Kind, Settings};
use portwarden_testkit::build::{endpoint, port, service, slice};
use portwarden_testkit::drive::sync_to_end;
use portwarden_testkit::rig::{Object, Rig};
use portwarden_testkit::topology::addresses::{CLUSTER_CIDR, NODE, SERVICE_CIDR};
use portwarden_testkit::{Topology, Transport, wait};
use portwarden_xtables::{Programs, Variant};

const FAMILY: Family = Family::V4;
const SERVICES: [&str; 2] = ["web", "api"];
const NODE_PORTS: [u16; 2] = [30_080, 30_081];
const TIMEOUT: Duration = Duration::from_secs(120);

/// A packet that is neither redirected nor refused would be lost, and with it every packet of its connection.
#[test]
fn a_service_redirects_or_refuses_at_every_moment() -> Result<()> {
    for variant in [Variant::Nft, Variant::Legacy] {
        let mut node = Node::new(variant)?;
        let mut dataplane = node.dataplane()?;
        node.sync(&mut dataplane, &Changes::everything())?;
        for (what, served) in [
            ("endpoints come", [true, false]),
            ("endpoints go", [false, false]),
            ("endpoints come again", [false, true]),
            ("endpoints of one Service come, and those of another go", [true, false]),
        ] {
            let changes = node.serve(served);
            node.sync_in_pieces(&mut dataplane, &changes).with_context(|| format!("{variant:?}, {what}"))?;
        }
        // What changed while no process ran.
        for served in [[false, true], [true, true], [true, false]] {
            node.serve(served);
            let mut dataplane = node.dataplane()?;
            node.sync_in_pieces(&mut dataplane, &Changes::everything())
                .with_context(|| format!("{variant:?}, at the start, {served:?}"))?;
        }
    }
    Ok(())
}

/// A node with two Services, and programs of which `iptables-restore` can pause after each table.
struct Node {
    topology: Topology,
    cluster: Cluster,
    served: [bool; 2],
    folder: tempfile::TempDir,
    variant: Variant,
}

impl Node {
    /// No Service has endpoints.
    fn new(variant: Variant) -> Result<Node> {
        let topology = Topology::builder().build()?;
        topology.pod(0).serve(Transport::Tcp, 8080)?;
        let detect_local = DetectLocal::ClusterCidr(CLUSTER_CIDR.both().into());
        let mut cluster = Cluster::new(Settings { detect_local, ..Settings::new("node-a") });
        cluster.apply(Event::HostAddresses(topology.node_addresses().into()));
        let mut names = Interner::default();
        cluster.apply(Object::from(Rig::node()).event(&mut names));
        for (number, name) in (10u8..).zip(SERVICES) {
            let http = port(80).node_port(NODE_PORTS[usize::from(number - 10)]);
            let object =
                service(name).of_type("NodePort").cluster_ip(SERVICE_CIDR.host(number).v4).port(http);
            cluster.apply(Object::from(object).event(&mut names));
        }
        for kind in Kind::ALL {
            cluster.apply(Event::ListDone(kind));
        }
        cluster.resolve();
        let node = Node { topology, cluster, served: [false; 2], folder: tempfile::tempdir()?, variant };
        node.install()?;
        Ok(node)
    }

    /// Puts the programs in place.
    fn install(&self) -> Result<()> {
        let (stem, folder) = (self.stem(), self.folder.path());
        for kind in ["", "-save"] {
            let name = format!("{stem}{kind}");
            symlink(installed(&name)?, folder.join(&name))?;
        }
        let name = format!("{stem}-restore");
        let script = format!(
            "#!/bin/sh\n\
             cd {folder}\n\
             test -e pause || exec {real} \"$@\"\n\
             number=0\n\
             : > table\n\
             while IFS= read -r line; do\n\
                 printf '%s\\n' \"$line\" >> table\n\
                 test \"$line\" = COMMIT || continue\n\
                 {real} \"$@\" < table || exit\n\
                 : > table\n\
                 number=$((number + 1))\n\
                 touch committed.$number\n\
                 while ! test -e go.$number; do sleep 0.01; done\n\
             done\n",
            folder = folder.display(),
            real = installed(&name)?.display(),
        );
        let path = folder.join(name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    fn stem(&self) -> &'static str {
        if self.variant == Variant::Nft { "iptables-nft" } else { "iptables-legacy" }
    }

    /// A process that starts.
    fn dataplane(&self) -> Result<IptablesDataplane> {
        let _inside = self.topology.node().namespace().enter()?;
        let lock = self.folder.path().join("xtables.lock");
        let programs = Programs::new(FAMILY, self.variant).in_folder(self.folder.path());
        Ok(IptablesDataplane::with_programs(
            vec![programs.env("XTABLES_LOCKFILE", lock)],
            &Options::default(),
        )?)
    }

    /// Gives endpoints to some Services, and returns what changes by that.
    fn serve(&mut self, served: [bool; 2]) -> Changes {
        self.served = served;
        let mut names = Interner::default();
        for (name, served) in SERVICES.into_iter().zip(served) {
            let mut object = slice(name, &format!("{name}-1")).port(port(8080));
            if served {
                object = object.endpoint(endpoint(self.topology.pod(0).ip().v4).on("node-a"));
            }
            self.cluster.apply(Object::from(object).event(&mut names));
        }
        self.cluster.resolve()[FAMILY].clone()
    }

    fn sync(&self, dataplane: &mut IptablesDataplane, changes: &Changes) -> Result<()> {
        let _inside = self.topology.node().namespace().enter()?;
        let synced = sync_to_end(dataplane, self.cluster.desired(FAMILY), changes);
        synced.map(drop).map_err(|error| anyhow!("{error}"))
    }

    /// Syncs, and connects to everything after each table.
    fn sync_in_pieces(&self, dataplane: &mut IptablesDataplane, changes: &Changes) -> Result<()> {
        let file = |name: String| self.folder.path().join(name);
        let pause = file("pause".to_owned());
        fs::write(&pause, "")?;
        let (mut tables, mut wrong) = (0, Vec::new());
        thread::scope(|scope| {
            let syncing = scope.spawn(|| self.sync(dataplane, changes));
            loop {
                let committed = file(format!("committed.{}", tables + 1));
                let is_committed = wait::until(TIMEOUT, "a table or the end", || {
                    if committed.exists() {
                        return Some(true);
                    }
                    syncing.is_finished().then_some(false)
                })?;
                if !is_committed {
                    break;
                }
                tables += 1;
                wrong.extend(self.lost()?.into_iter().map(|lost| format!("{lost} after {tables} tables")));
                fs::write(file(format!("go.{tables}")), "")?;
            }
            syncing.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
        })?;
        for number in 1..=tables {
            fs::remove_file(file(format!("committed.{number}")))?;
            fs::remove_file(file(format!("go.{number}")))?;
        }
        fs::remove_file(pause)?;
        ensure!(tables >= 2, "both tables change, but {tables} were committed");
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        for (index, name) in SERVICES.into_iter().enumerate() {
            let outcome = self.topology.outside().tcp((NODE.v4, NODE_PORTS[index]).into())?;
            ensure!(outcome.is_answered() == self.served[index], "at the end {name} is {outcome}");
        }
        Ok(())
    }

    /// Connections that were neither answered nor refused.
    fn lost(&self) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        for (index, number) in (0..SERVICES.len()).zip(10u8..) {
            let cluster: SocketAddr = (SERVICE_CIDR.host(number).v4, 80).into();
            let node_port: SocketAddr = (NODE.v4, NODE_PORTS[index]).into();
            for (client, address) in [
                (self.topology.pod(0), cluster),
                (self.topology.node(), cluster),
                (self.topology.outside(), node_port),
            ] {
                let outcome = client.tcp(address)?;
                if !outcome.is_answered() && !outcome.is_refused() {
                    lost.push(format!("{} to {address}: {outcome}", client.name()));
                }
            }
        }
        Ok(lost)
    }
}

/// Where PATH finds a program.
fn installed(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.exists());
    found.with_context(|| format!("{name} is not installed"))
}

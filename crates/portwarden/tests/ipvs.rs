//! Real virtual servers of ipvs mode, on a kernel that has IPVS: `make other-kernel` runs this in a virtual machine.

mod support;

use anyhow::{Result, ensure};
use support::Rig;

const SERVERS: &str = "-A -t 10.96.0.10:80 -s rr\n\
                       -a -t 10.96.0.10:80 -r 10.244.0.5:8080 -m\n\
                       -A -u 10.96.0.53:53 -s rr\n\
                       -A -t [fd00:10:96::a]:80 -s rr\n\
                       -A -t 172.16.0.1:443 -s rr\n\
                       -A -f 7 -s rr\n";

#[test]
#[ignore = "needs a kernel with IPVS: make other-kernel"]
fn virtual_servers_go_with_their_device_and_others_stay() -> Result<()> {
    let rig = Rig::new()?;
    let node = rig.node();
    let servers = || node.command("ipvsadm").args(["-S", "-n"]).run();
    node.command("ipvsadm").arg("-R").input(SERVERS).run()?;
    rig.write(
        "config.yaml",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nipvs:\n  excludeCIDRs: [172.16.0.0/12]\n",
    )?;
    let config = format!("--config={}", rig.path("config.yaml").display());
    let before = servers()?;
    rig.program().args(["--cleanup", &config]).run()?;
    ensure!(servers()? == before, "without the device they are somebody else's: {}", servers()?);

    node.command("ip").args(["link", "add", "kube-ipvs0", "type", "dummy"]).run()?;
    rig.program().args(["--cleanup", &config]).run()?;
    let left = servers()?;
    let left: Vec<&str> = left.lines().filter(|line| line.starts_with("-A")).collect();
    ensure!(left.len() == 2, "{left:?}");
    ensure!(left.iter().any(|line| line.contains("172.16.0.1:443")), "excluded: {left:?}");
    ensure!(left.iter().any(|line| line.starts_with("-A -f 7")), "of a packet mark: {left:?}");
    ensure!(node.command("ip").args(["link", "show", "kube-ipvs0"]).run().is_err(), "the device is gone");
    Ok(())
}

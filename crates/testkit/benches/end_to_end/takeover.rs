//! kube-proxy and Portwarden take over from each other in mode ipvs, while connections are open and new ones begin.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portwarden_netlink::ipvs::Ipvs;
use portwarden_testkit::Transport;
use portwarden_testkit::probe::Connection;

use crate::cluster::Size;
use crate::ipvs::change_arrives;
use crate::measure::{Stage, print_line};
use crate::subject::{Running, Subject};

const SIZE: Size = Size { services: 200, endpoints: 5 };
/// The Service with a pod that answers.
const SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)), 80);
const HEALTH: &str = "127.0.0.1:10256";
const TIMEOUT: Duration = Duration::from_secs(120);
const NEW_PER_SECOND: u32 = 50;
/// Connections that stay open, for each program.
const OPEN: usize = 10;

/// kube-proxy, Portwarden, kube-proxy: each starts when the one before has ended. Fails if a connection does.
pub(crate) fn run(ours: &Subject, reference: &Subject) -> Result<()> {
    let mut stage = Stage::new(SIZE)?;
    let mut kernel = {
        let _inside = stage.topology.node().namespace().enter()?;
        Ipvs::open()?.context("this kernel has no IPVS; run it in scripts/uml")?
    };
    let mut open: Vec<Connection> = Vec::new();
    let mut load = None;
    for subject in [reference, ours, reference] {
        let mut running =
            subject.start(stage.topology.node(), "ipvs", &stage.kubeconfig, stage.folder.path())?;
        await_healthy(&stage, &mut running)?;
        ensure!(
            change_arrives(&mut stage, &mut kernel, TIMEOUT)?,
            "{} does not write a change; its last log lines:\n{}",
            subject.name,
            running.last_log_lines()
        );
        await_rules(&stage)?;
        exchange(&mut open, subject.name)?;
        for _ in 0..OPEN {
            let (connection, outcome) = stage.topology.outside().probe().open(Transport::Tcp, SERVICE)?;
            ensure!(outcome.is_answered(), "a new connection under {}: {outcome}", subject.name);
            open.push(connection);
        }
        if load.is_none() {
            load = Some(stage.topology.outside().probe().load(Transport::Tcp, SERVICE, NEW_PER_SECOND)?);
        }
        print_line(&format!("{}: in charge, {} connections are open", subject.name, open.len()));
        running.process.terminate(Duration::from_secs(30))?;
        exchange(&mut open, "no program")?;
    }
    let tally = load.context("a load")?.stop()?;
    ensure!(tally.failed() == 0, "new connections failed: {tally}");
    print_line(&format!(
        "{} new connections, none failed; {} stayed open, none was lost",
        tally.answered(),
        open.len()
    ));
    Ok(())
}

fn exchange(open: &mut [Connection], under: &str) -> Result<()> {
    for connection in open {
        let outcome = connection.exchange()?;
        ensure!(outcome.is_answered(), "an open connection under {under}: {outcome}");
    }
    Ok(())
}

fn await_healthy(stage: &Stage, running: &mut Running) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    while !stage.topology.node().namespace().run(|| Ok(is_healthy().unwrap_or(false)))? {
        if !running.process.is_running() || Instant::now() > until {
            bail!("it is not healthy; its last log lines:\n{}", running.last_log_lines());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// kube-proxy creates virtual servers before the rules that masquerade, and reports itself healthy before both. A connection that begins in
/// between ends when the rules come, whichever program writes them.
fn await_rules(stage: &Stage) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    while !stage.topology.node().command("iptables-save").args(["-t", "nat"]).run()?.contains("-j MASQUERADE")
    {
        ensure!(Instant::now() < until, "no rule masquerades after {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn is_healthy() -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(HEALTH)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200"))
}

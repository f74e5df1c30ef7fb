//! The programs that are measured: Portwarden, and a kube-proxy if there is one to compare with.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use portwarden_testkit::Host;
use portwarden_testkit::netns::{NamespaceCommand, Process};

/// How the kernel counts processor time for other processes: in hundredths of a second, on every architecture that matters.
const TICKS_PER_SECOND: f64 = 100.0;

/// A program.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    program: PathBuf,
    /// Whether it is what all of this is about, rather than what it is compared with.
    pub(crate) ours: bool,
}

/// One that runs.
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) log: PathBuf,
}

impl Subject {
    /// The release binary, or what `PORTWARDEN` names.
    pub(crate) fn portwarden() -> Result<Subject> {
        let program = std::env::var_os("PORTWARDEN")
            .map_or_else(|| PathBuf::from("target/release/portwarden"), PathBuf::from);
        Subject::new("Portwarden", &program, true)
            .with_context(|| format!("no binary at {}; run `make build`", program.display()))
    }

    /// What `REFERENCE_KUBE_PROXY` names, if it is set.
    pub(crate) fn reference() -> Result<Option<Subject>> {
        let Some(program) = std::env::var_os("REFERENCE_KUBE_PROXY").filter(|program| !program.is_empty())
        else {
            return Ok(None);
        };
        let subject = Subject::new("kube-proxy", Path::new(&program), false);
        subject.context("REFERENCE_KUBE_PROXY must name a kube-proxy binary").map(Some)
    }

    fn new(name: &'static str, program: &Path, ours: bool) -> Result<Subject> {
        let program = program.canonicalize()?;
        let output = Command::new(&program).arg("--version").output()?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Subject { name, version, program, ours })
    }

    /// Starts it on a node, as shipped: nothing is set that it would not also do without.
    pub(crate) fn start(&self, node: &Host, mode: &str, kubeconfig: &Path, folder: &Path) -> Result<Running> {
        self.start_with(node.command(&self.program.display().to_string()), mode, kubeconfig, folder)
    }

    /// The same in a control group, which is named by its file of processes.
    pub(crate) fn start_in(
        &self,
        processes: &Path,
        node: &Host,
        mode: &str,
        kubeconfig: &Path,
        folder: &Path,
    ) -> Result<Running> {
        let enter = format!("echo $$ > {} && exec {} \"$@\"", processes.display(), self.program.display());
        self.start_with(node.command("sh").args(["-c", &enter, "sh"]), mode, kubeconfig, folder)
    }

    fn start_with(
        &self,
        command: NamespaceCommand,
        mode: &str,
        kubeconfig: &Path,
        folder: &Path,
    ) -> Result<Running> {
        let log = folder.join(format!("{}.log", self.name));
        let process = command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--proxy-mode={mode}"))
            .args([
                "--hostname-override=node-a",
                "--cluster-cidr=10.128.0.0/9",
                "--nodeport-addresses=primary",
            ])
            // Limits of the whole machine are no business of a benchmark.
            .args(["--conntrack-max-per-core=0", "--conntrack-min=0"])
            .env("XTABLES_LOCKFILE", folder.join("xtables.lock"))
            .spawn_logging(File::create(&log).context("cannot write a log")?)?;
        Ok(Running { process, log })
    }
}

impl Running {
    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> Result<u64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("no number")?;
        Ok(kilobytes * 1024)
    }

    /// Where its memory comes from.
    pub(crate) fn memory_by_kind(&self) -> Result<String> {
        let rollup = self.read("smaps_rollup")?;
        let kilobytes = |field: &str| -> f64 {
            let line = rollup.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
        };
        let (all, anonymous) = (kilobytes("Rss"), kilobytes("Anonymous"));
        Ok(format!(
            "memory: {:.1} MB of its own, {:.1} MB of files such as the program itself",
            anonymous * 1.024e-3,
            (all - anonymous) * 1.024e-3
        ))
    }

    /// Processor time so far, that of ended child processes included.
    pub(crate) fn processor(&self) -> Result<Duration> {
        let stat = self.read("stat")?;
        // The name may contain anything, blanks included; counting starts behind it.
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let ticks: f64 =
            fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
        Ok(Duration::from_secs_f64(ticks / TICKS_PER_SECOND))
    }

    /// The end of its log.
    pub(crate) fn last_log_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.process.id());
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}; did it end?"))
    }
}

//! Programs inside a namespace: `nft`, `iptables-save`, Portwarden itself.

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Namespace;
use crate::wait;

/// A program to run in a namespace.
#[derive(Debug)]
pub struct NamespaceCommand {
    namespace: Namespace,
    command: Command,
    input: Vec<u8>,
    mounts: Vec<(PathBuf, PathBuf)>,
}

impl NamespaceCommand {
    pub(super) fn new(namespace: Namespace, program: &str) -> NamespaceCommand {
        NamespaceCommand { namespace, command: Command::new(program), input: Vec::new(), mounts: Vec::new() }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> NamespaceCommand {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> NamespaceCommand {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> NamespaceCommand {
        self.command.env(name, value);
        self
    }

    /// Shows the program, and only it, the folder or file `source` at the path `target`, which must exist.
    pub fn mount(mut self, source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> NamespaceCommand {
        self.mounts.push((source.into(), target.into()));
        self
    }

    /// Sets the standard input of the program, which is empty by default. Only [`run`](Self::run) uses it.
    pub fn input(mut self, text: impl Into<Vec<u8>>) -> NamespaceCommand {
        self.input = text.into();
        self
    }

    /// Runs it to its end and gives what it wrote; an exit status other than 0 is an error with its messages.
    pub fn run(mut self) -> Result<String> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.start()?;
        let mut stdin = child.stdin.take().context("the child has no standard input")?;
        let output = thread::scope(|scope| {
            // Written aside, as a program may answer before it has read everything. One that stops reading early
            // has its reasons, which its exit status shows.
            let input = &self.input;
            scope.spawn(move || stdin.write_all(input).is_ok());
            child.wait_with_output()
        })?;
        if !output.status.success() {
            let messages = String::from_utf8_lossy(&output.stderr);
            bail!(
                "{} failed in namespace {}: {}: {}",
                self.text(),
                self.namespace.name(),
                output.status,
                messages
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it to its end without input, and gives its exit status and everything that it wrote.
    pub fn output(mut self) -> Result<Output> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.start()?.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    /// Starts it in the background, with this process's output; it is killed when the handle is dropped.
    pub fn spawn(mut self) -> Result<Process> {
        self.command.stdin(Stdio::null());
        Ok(Process { child: self.start()?, name: self.text() })
    }

    /// Like [`spawn`](Self::spawn), with its standard error written to `log`.
    pub fn spawn_logging(mut self, log: std::fs::File) -> Result<Process> {
        self.command.stderr(log);
        self.spawn()
    }

    /// A child process inherits the namespaces of the thread that starts it.
    fn start(&mut self) -> Result<Child> {
        let failed = format!("cannot start {}; is it installed?", self.text());
        if self.mounts.is_empty() {
            let _entered = self.namespace.enter()?;
            return self.command.spawn().context(failed);
        }
        let NamespaceCommand { namespace, command, mounts, .. } = self;
        // On a thread of its own, which ends in the mount namespace that it made.
        namespace.run(|| {
            unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
            let nothing = None::<&str>;
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
            for (source, target) in mounts.iter() {
                mount(Some(source), target, nothing, MsFlags::MS_BIND, nothing)
                    .with_context(|| format!("cannot mount {} at {}", source.display(), target.display()))?;
            }
            command.spawn().context(failed)
        })
    }

    fn text(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

/// What a program wrote, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// The last line of its standard error.
    pub fn last_error_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }
}

/// A program running in the background of a test; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to stop (SIGTERM) and waits for its end, at most for `timeout`.
    pub fn terminate(mut self, timeout: Duration) -> Result<ExitStatus> {
        let id = i32::try_from(self.child.id())?;
        kill(Pid::from_raw(id), Signal::SIGTERM).with_context(|| format!("cannot stop {}", self.name))?;
        let what = format!("{} to end after SIGTERM", self.name);
        wait::until(timeout, &what, || self.child.try_wait().transpose())?
            .context("cannot learn how it ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; any other failure cannot be reported here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

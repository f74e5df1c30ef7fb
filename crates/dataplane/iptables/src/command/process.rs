//! Runs one program to its end: input written, output read, time limited.

use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::Error;

/// Time between two looks at a program that has closed its output but not ended: nothing announces the end.
const INTERVAL: Duration = Duration::from_millis(1);

/// Writes what a program is to read.
pub(super) trait Input: FnOnce(&mut dyn Write) -> io::Result<()> + Send {}

impl<F: FnOnce(&mut dyn Write) -> io::Result<()> + Send> Input for F {}

/// A program that is about to run.
pub(super) struct Process {
    command: Command,
    text: String,
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Finished {
    command: String,
    status: String,
    pub(super) code: Option<i32>,
    output: String,
    pub(super) errors: String,
}

impl Process {
    pub(super) fn new(program: &Path, arguments: &[&str], environment: &[(OsString, OsString)]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: the legacy programs start modprobe, which must not outlive them with our pipes in its hands.
        command.process_group(0);
        let text = format!("{} {}", program.display(), arguments.join(" "));
        Process { command, text }
    }

    /// Runs it. After `limit` it is killed.
    pub(super) fn run(mut self, limit: Duration, input: impl Input) -> Result<Finished, Error> {
        let deadline = Instant::now() + limit;
        let mut child = self.command.spawn().map_err(|source| Error::Start {
            program: self.command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        let pipe = |source| Error::Pipe { command: self.text.clone(), source };
        let (output, errors) = match converse(&mut child, input, deadline) {
            Ok(Some(said)) => said,
            Ok(None) => {
                stop(&mut child);
                return Err(Error::TimedOut { command: self.text, limit });
            }
            Err(source) => {
                stop(&mut child);
                return Err(pipe(source));
            }
        };
        loop {
            if let Some(status) = child.try_wait().map_err(pipe)? {
                let (status, code) = (status.to_string(), status.code());
                return Ok(Finished { command: self.text, status, code, output, errors });
            }
            if Instant::now() >= deadline {
                stop(&mut child);
                return Err(Error::TimedOut { command: self.text, limit });
            }
            thread::sleep(INTERVAL);
        }
    }
}

/// Writes the input and reads both outputs to their ends; `None` if that took too long.
fn converse(child: &mut Child, input: impl Input, deadline: Instant) -> io::Result<Option<(String, String)>> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || write_input(stdin, input));
        for (index, pipe) in [stdout.map(Pipe::Output), stderr.map(Pipe::Errors)].into_iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || sender.send((index, read_all(pipe))));
        }
        drop(sender);
        let mut said = [String::new(), String::new()];
        for _ in 0..said.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok((index, text)) => said[index] = text?,
                Err(RecvTimeoutError::Timeout) => {
                    // Its end closes the pipes, which lets the threads end, for which the scope waits.
                    stop(child);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let [output, errors] = said;
        Ok(Some((output, errors)))
    })
}

enum Pipe {
    Output(std::process::ChildStdout),
    Errors(std::process::ChildStderr),
}

fn read_all(pipe: Option<Pipe>) -> io::Result<String> {
    let mut bytes = Vec::new();
    match pipe {
        Some(Pipe::Output(mut pipe)) => pipe.read_to_end(&mut bytes)?,
        Some(Pipe::Errors(mut pipe)) => pipe.read_to_end(&mut bytes)?,
        None => 0,
    };
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// A program that stops reading has its reasons, which its messages tell.
fn write_input(stdin: Option<ChildStdin>, input: impl Input) {
    let Some(stdin) = stdin else { return };
    let mut stdin = BufWriter::with_capacity(64 * 1024, stdin);
    let _ = input(&mut stdin).and_then(|()| stdin.flush());
}

/// Kills the program and what it started. It may have ended meanwhile, which is just as well.
fn stop(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.wait();
}

impl Finished {
    /// What it wrote, if it ended well.
    pub(super) fn successful(&self) -> Result<String, Error> {
        if self.code == Some(0) {
            return Ok(self.output.clone());
        }
        let (command, message) = (self.command.clone(), one_line(&self.errors));
        if message.contains("xtables lock") {
            return Err(Error::Locked { command, message });
        }
        Err(Error::Failed { command, status: self.status.clone(), message })
    }

    /// Whether it failed because what it was asked about is not there.
    pub(super) fn tells_absence(&self) -> bool {
        const TEXTS: [&str; 4] = [
            "No chain/target/match by that name",
            "No such file or directory",
            "does a matching rule exist",
            "does not exist",
        ];
        self.code != Some(0) && TEXTS.iter().any(|text| self.errors.contains(text))
    }
}

/// Messages without the advice to read the manual.
fn one_line(errors: &str) -> String {
    let said = |line: &&str| !line.is_empty() && !line.starts_with("Try `");
    let line = errors.lines().map(str::trim).filter(said).collect::<Vec<_>>().join("; ");
    if line.is_empty() { "it gave no reason".to_owned() } else { line }
}

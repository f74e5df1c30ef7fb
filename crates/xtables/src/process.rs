//! Runs one program to its end: input written, output read, time limited.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, pipe2};
use portwarden_netlink::process::spawn_bound;

use crate::children::Children;
use crate::error::Error;

/// Times between two looks at a program that has closed its outputs but not ended, which it usually does at once.
const FIRST_INTERVAL: Duration = Duration::from_micros(20);
const LAST_INTERVAL: Duration = Duration::from_millis(1);

/// What a pipe shall hold: with the usual 64 KiB both sides wait for each other hundreds of times.
const PIPE_BYTES: i32 = 1 << 20;

/// How much is read or written at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// The kernel wakes a waiting reader or writer of a pipe for every page of it. This pause lets more come together, and is too short for a wide
/// pipe to run full or empty.
const PAUSE: Duration = Duration::from_millis(5);

/// Writes what a program is to read.
pub(crate) type Input<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'a>;

/// Takes in what a program prints, piece by piece.
pub(crate) type Output<'a> = &'a mut dyn FnMut(&[u8]);

/// A program that is about to run.
pub(crate) struct Process<'a> {
    program: &'a Path,
    arguments: &'a [&'a str],
    environment: &'a [(OsString, OsString)],
    children: &'a Children,
}

/// Our ends of a program's pipes.
struct Pipes {
    stdin: File,
    stdout: File,
    stderr: File,
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    command: String,
    status: String,
    pub(crate) code: Option<i32>,
    output: String,
    pub(crate) errors: String,
}

impl<'a> Process<'a> {
    pub(crate) fn new(
        program: &'a Path,
        arguments: &'a [&'a str],
        environment: &'a [(OsString, OsString)],
        children: &'a Children,
    ) -> Self {
        Process { program, arguments, environment, children }
    }

    /// Runs it. After `limit` it is killed.
    pub(crate) fn run(self, limit: Duration, input: Option<Input<'_>>) -> Result<Finished, Error> {
        let mut output = Vec::new();
        let finished = self.stream(limit, input, &mut |piece| output.extend_from_slice(piece))?;
        Ok(Finished { output: text(output), ..finished })
    }

    /// The same; what it prints goes to `output` while it runs.
    pub(crate) fn stream(
        self,
        limit: Duration,
        input: Option<Input<'_>>,
        output: Output<'_>,
    ) -> Result<Finished, Error> {
        let deadline = Instant::now() + limit;
        let command = format!("{} {}", self.program.display(), self.arguments.join(" "));
        let (child, pipes) = self
            .start(&command)
            .map_err(|source| Error::Start { program: self.program.display().to_string(), source })?;
        let running = tracing::debug_span!("program", command = %command).entered();
        let messages = exchange(child, pipes, self.children, input, output, deadline);
        drop(running);
        let ended = messages.and_then(|messages| Ok(messages.zip(self.wait(child, deadline)?)));
        match ended {
            Ok(Some((_, WaitStatus::Signaled(..)))) if self.children.is_stopped() => {
                Err(Error::Stopped { command })
            }
            Ok(Some((errors, status))) => {
                let (status, code) = describe(status);
                Ok(Finished { command, status, code, output: String::new(), errors })
            }
            Ok(None) => {
                self.stop(child);
                Err(Error::TimedOut { command, limit })
            }
            Err(source) => {
                self.stop(child);
                Err(Error::Pipe { command, source })
            }
        }
    }

    fn start(&self, command: &str) -> io::Result<(Pid, Pipes)> {
        let (their_stdin, stdin) = pipe2(OFlag::O_CLOEXEC)?;
        let (stdout, their_stdout) = pipe2(OFlag::O_CLOEXEC)?;
        let (stderr, their_stderr) = pipe2(OFlag::O_CLOEXEC)?;
        let stdio = [their_stdin.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
        let child = self
            .children
            .start(command, || spawn_bound(self.program, self.arguments, self.environment, stdio))?;
        Ok((child, Pipes { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() }))
    }

    /// How a program ended that has closed its outputs; `None` if it does not end in time.
    fn wait(&self, child: Pid, deadline: Instant) -> io::Result<Option<WaitStatus>> {
        let mut interval = FIRST_INTERVAL;
        loop {
            if let Some(status) = self.children.try_wait(child)? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(interval);
            interval = LAST_INTERVAL.min(interval * 2);
        }
    }

    /// Kills the program and what it started, and waits for its end.
    fn stop(&self, child: Pid) {
        self.children.kill(child);
        while let Ok(None) = self.children.try_wait(child) {
            thread::sleep(LAST_INTERVAL);
        }
    }
}

/// For messages, and the exit code if there is one.
fn describe(status: WaitStatus) -> (String, Option<i32>) {
    match status {
        WaitStatus::Exited(_, code) => (format!("exit status: {code}"), Some(code)),
        WaitStatus::Signaled(_, signal, _) => (format!("killed by {signal}"), None),
        other => (format!("{other:?}"), None),
    }
}

/// Writes the input and reads both outputs to their ends. Returns the messages; `None` if that took too long.
fn exchange(
    child: Pid,
    pipes: Pipes,
    children: &Children,
    input: Option<Input<'_>>,
    output: Output<'_>,
    deadline: Instant,
) -> io::Result<Option<String>> {
    let Pipes { stdin, stdout, stderr } = pipes;
    thread::scope(|scope| {
        match input {
            Some(input) => drop(scope.spawn(move || write_input(stdin, input))),
            None => drop(stdin),
        }
        let messages = read_all([Some(stdout), Some(stderr)], output, deadline);
        if !matches!(messages, Ok(Some(_))) {
            // Its end closes the pipes, which lets the writer end, for which the scope waits.
            children.kill(child);
        }
        messages
    })
}

/// Reads from both pipes until the program has closed them.
fn read_all(
    [mut stdout, mut stderr]: [Option<File>; 2],
    output: Output<'_>,
    deadline: Instant,
) -> io::Result<Option<String>> {
    if let Some(stdout) = &stdout {
        widen(stdout);
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut printed = 0;
    let mut errors = Vec::new();
    while stdout.is_some() || stderr.is_some() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let [out_ready, err_ready] = ready([stdout.as_ref(), stderr.as_ref()], left)?;
        if err_ready {
            errors.extend_from_slice(read_piece(&mut stderr, &mut buffer)?);
        }
        if out_ready {
            let piece = read_piece(&mut stdout, &mut buffer)?;
            output(piece);
            printed += piece.len();
            if let Some(stdout) =
                stdout.as_ref().filter(|_| printed > BUFFER_BYTES && piece.len() < BUFFER_BYTES)
            {
                pause(stdout);
            }
        }
    }
    Ok(Some(text(errors)))
}

/// Reads what there is; forgets the pipe at its end.
fn read_piece<'a>(pipe: &mut Option<File>, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let Some(open) = pipe else { return Ok(&[]) };
    let length = match open.read(buffer) {
        Ok(0) => {
            *pipe = None;
            0
        }
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
        Err(error) => return Err(error),
    };
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Lets more come together in a pipe, unless its other end is closed: poll(2) reports that even when not asked to.
fn pause(pipe: &File) {
    let timeout = PollTimeout::try_from(PAUSE).unwrap_or(PollTimeout::ZERO);
    // An interruption only makes the pause shorter.
    let _ = poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::empty())], timeout);
}

/// Waits until one of the pipes can be read, and returns which.
fn ready(pipes: [Option<&File>; 2], limit: Duration) -> io::Result<[bool; 2]> {
    let open = || pipes.iter().enumerate().filter_map(|(index, pipe)| Some((index, (*pipe)?)));
    let mut watched: Vec<_> = open().map(|(_, pipe)| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)).collect();
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    match poll(&mut watched, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = [false; 2];
    for ((index, _), watched) in open().zip(&watched) {
        ready[index] = watched.any().unwrap_or(false);
    }
    Ok(ready)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A program that stops reading explains that in its messages.
fn write_input(pipe: File, input: Input<'_>) {
    if widen(&pipe) {
        // Best effort: otherwise the writes below wait by themselves.
        let _ = fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
    }
    let mut pipe = BufWriter::with_capacity(BUFFER_BYTES, RetryWhenFull(pipe));
    let _ = input(&mut pipe).and_then(|()| pipe.flush());
}

/// Writes to a pipe that may be full.
struct RetryWhenFull(File);

impl Write for RetryWhenFull {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Makes a pipe hold more, if it may: users have a limit for it.
fn widen(pipe: &File) -> bool {
    fcntl(pipe, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES)).is_ok()
}

impl Finished {
    /// What it wrote, if it ended well.
    pub(crate) fn into_output(self) -> Result<String, Error> {
        self.successful().map(|()| self.output)
    }

    /// Whether it ended well.
    pub(crate) fn successful(&self) -> Result<(), Error> {
        if self.code == Some(0) {
            return Ok(());
        }
        let (command, message) = (self.command.clone(), one_line(&self.errors));
        if message.contains("xtables lock") {
            return Err(Error::Locked { command, message });
        }
        Err(Error::Failed { command, status: self.status.clone(), message })
    }

    /// The error for one that ended well without having read its input.
    pub(crate) fn unread(&self) -> Error {
        let message = "it did not read what it was given".to_owned();
        Error::Failed { command: self.command.clone(), status: self.status.clone(), message }
    }

    /// Whether it failed because what it was asked about is not there.
    pub(crate) fn means_absent(&self) -> bool {
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

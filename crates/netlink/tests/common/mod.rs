//! Runs a test in a network namespace of its own.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use nix::sched::{CloneFlags, unshare};
use std::process::Command;

/// Runs `test` on a thread of its own that lives in a new, empty network namespace.
///
/// The namespace ends with the thread and the sockets opened in it. Programs started from the thread run in
/// the same namespace.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(|| {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            panic!("cannot create a network namespace ({error}): run the tests as root, e.g. `sudo -E cargo test`");
        }
        test();
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {program}, which this test needs: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?} failed with {}:\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a program that must succeed with the given input, and returns what it printed.
pub(crate) fn run_with_input(program: &str, arguments: &[&str], input: &str) -> String {
    use std::io::Write;
    use std::process::Stdio;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {program}, which this test needs: {error}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?} failed: {errors}\non this input:\n{input}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

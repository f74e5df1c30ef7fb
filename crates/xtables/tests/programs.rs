//! Programs that hang or are no longer needed.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use portwarden_model::Family;
use portwarden_testkit::wait;
use portwarden_xtables::{Error, Programs, RestoreError, Table, Transaction, Variant};

/// A folder whose `iptables-restore` is a script; the other programs do not exist.
fn folder(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iptables-restore");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn programs(folder: &Path) -> Programs {
    Programs::new(Family::V4, Variant::Installed).in_folder(folder)
}

fn transaction() -> Transaction {
    let mut transaction = Transaction::new();
    transaction.section(Table::Filter).make_chain("X");
    transaction
}

#[test]
fn a_program_that_hangs_is_killed_with_what_it_started() {
    // The child holds the pipes too, as modprobe would.
    let folder = folder("sleep 1000 & wait");
    let programs = programs(folder.path()).timeout(Duration::from_millis(100));
    let error = programs.restore(&transaction()).unwrap_err();
    assert!(matches!(error, RestoreError::Other(Error::TimedOut { .. })), "{error:?}");
}

#[test]
fn programs_can_be_killed_from_another_thread() {
    let folder = folder("touch \"$(dirname \"$0\")/started\"; sleep 1000");
    let programs = programs(folder.path());
    thread::scope(|scope| {
        let restore = scope.spawn(|| programs.restore(&transaction()).unwrap_err());
        let started = folder.path().join("started");
        wait::until(Duration::from_secs(60), "the program to start", || started.exists().then_some(()))
            .unwrap();
        programs.clone().kill_all();
        let error = restore.join().unwrap();
        assert!(matches!(error, RestoreError::Other(Error::Stopped { .. })), "{error:?}");
    });
    // Nor does it start any more.
    let error = programs.restore(&transaction()).unwrap_err();
    assert!(matches!(error, RestoreError::Other(Error::Stopped { .. })), "{error:?}");
}

#[test]
fn a_missing_program_is_named_with_advice() {
    let folder = folder("");
    let error = programs(folder.path()).check().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/iptables: it is not installed in"), "{text}");
}

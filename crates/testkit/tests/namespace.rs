//! Namespaces against the real kernel.

use std::net::{Ipv4Addr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use portwarden_testkit::Namespace;

fn own_namespace() -> PathBuf {
    std::fs::read_link("/proc/thread-self/ns/net").expect("procfs is mounted")
}

#[test]
fn work_runs_inside_and_the_caller_stays_outside() {
    let before = own_namespace();
    let namespace = Namespace::new("inside").unwrap();
    let inside = namespace.run(|| Ok(own_namespace())).unwrap();
    assert_ne!(inside, before);
    assert_eq!(namespace.run(|| Ok(own_namespace())).unwrap(), inside);
    assert_eq!(own_namespace(), before);
}

#[test]
fn a_guard_moves_one_thread_and_brings_it_back() {
    let before = own_namespace();
    let (outer, inner) = (Namespace::new("outer").unwrap(), Namespace::new("inner").unwrap());
    let entered = outer.enter().unwrap();
    let in_outer = own_namespace();
    {
        let _entered = inner.enter().unwrap();
        assert_ne!(own_namespace(), in_outer);
    }
    assert_eq!(own_namespace(), in_outer);
    drop(entered);
    assert_eq!(own_namespace(), before);
}

#[test]
fn a_panic_inside_goes_on_outside_and_leaves_the_namespace() {
    let before = own_namespace();
    let namespace = Namespace::new("panicking").unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _entered = namespace.enter().unwrap();
        namespace.run(|| -> anyhow::Result<()> { panic!("from inside") })
    }));
    let payload = panicked.expect_err("the panic must not be lost");
    assert_eq!(payload.downcast_ref(), Some(&"from inside"));
    assert_eq!(own_namespace(), before);
}

#[test]
fn a_socket_keeps_the_namespace_it_was_opened_in() {
    let namespace = Namespace::new("sockets").unwrap();
    namespace.command("ip").args(["link", "set", "lo", "up"]).run().unwrap();
    let port = 7;
    let _listener = namespace.run(|| Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port))?)).unwrap();
    // The same port is free elsewhere, and taken inside.
    let other = Namespace::new("elsewhere").unwrap();
    assert!(other.run(|| Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())).unwrap());
    assert!(namespace.run(|| Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err())).unwrap());
}

#[test]
fn programs_run_inside_with_their_input() {
    let namespace = Namespace::new("programs").unwrap();
    let text = namespace.command("nft").args(["-f", "-"]).input("add table ip probe").run().unwrap();
    assert_eq!(text, "");
    assert_eq!(namespace.command("nft").args(["list", "tables"]).run().unwrap(), "table ip probe\n");
    let elsewhere = Namespace::new("elsewhere").unwrap();
    assert_eq!(elsewhere.command("nft").args(["list", "tables"]).run().unwrap(), "");
}

#[test]
fn a_failing_program_is_quoted() {
    let namespace = Namespace::new("failing").unwrap();
    let error =
        namespace.command("nft").args(["list", "table", "ip", "absent"]).run().unwrap_err().to_string();
    assert!(error.contains("nft list table ip absent failed in namespace failing"), "{error}");
    assert!(error.contains("No such file"), "{error}");
    let error = format!("{:#}", namespace.command("no-such-program").run().unwrap_err());
    assert!(error.contains("cannot start no-such-program"), "{error}");
}

#[test]
fn a_background_program_stops_when_asked_or_dropped() {
    let namespace = Namespace::new("background").unwrap();
    let mut process = namespace.command("sleep").arg("60").spawn().unwrap();
    assert!(process.is_running());
    let status = process.terminate(Duration::from_secs(10)).unwrap();
    assert!(!status.success());

    let process = namespace.command("sleep").arg("60").spawn().unwrap();
    let id = process.id();
    drop(process);
    assert!(!PathBuf::from(format!("/proc/{id}")).exists());
}

#[test]
fn other_programs_can_open_it() {
    let namespace = Namespace::new("shared").unwrap();
    let inside = namespace.run(|| Ok(own_namespace())).unwrap();
    let path = namespace.path();
    assert_eq!(std::fs::read_link(path).unwrap(), inside);
}

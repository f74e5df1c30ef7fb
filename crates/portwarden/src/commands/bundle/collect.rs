//! What is in a bundle. Whatever cannot be collected is replaced by the reason.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use super::super::client::{Client, encode, get};
use super::super::{Request, doctor};
use crate::config::{Config, to_yaml};
use crate::host::{Instance, OtherInstance};

/// The largest part of a file or of a program's output.
const LARGEST: u64 = 8 << 20;

/// The longest time for a program.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Programs whose output shows the state of the kernel.
const PROGRAMS: [(&str, &[&str]); 12] = [
    ("nft", &["list", "ruleset"]),
    ("iptables-save", &["-c"]),
    ("ip6tables-save", &["-c"]),
    ("ipvsadm", &["-Ln"]),
    ("ipset", &["list", "-t"]),
    ("ip", &["-d", "address"]),
    ("ip", &["route", "show", "table", "all"]),
    ("ip", &["rule"]),
    ("conntrack", &["-S"]),
    ("ss", &["-ltnp"]),
    ("uname", &["-a"]),
    (
        "sysctl",
        &["-a", "--pattern", "^net\\.(netfilter|bridge|ipv[46]\\.(ip_forward|conf\\.(all|default)|vs))"],
    ),
];

/// Names and contents.
pub(super) fn all(request: &Request) -> Vec<(String, String)> {
    let mut files = vec![("version.txt".to_owned(), version())];
    let loaded = request.config();
    match loaded {
        Ok(loaded) => {
            files.push(("configuration.yaml".to_owned(), to_yaml(&loaded.config.document)));
            files.extend(from_process(request, &loaded.config));
            let report = doctor::examine(&doctor::node(loaded, request.configured_by()));
            files.push(("doctor.txt".to_owned(), report.text));
            files.push(("doctor.json".to_owned(), format!("{:#}", report.json)));
        }
        Err(error) => files.push(("configuration.yaml".to_owned(), format!("# {error:#}\n"))),
    }
    if let Some(path) = request.flags.config_file() {
        files.push(("configuration-file.yaml".to_owned(), last_part(path)));
    }
    files.push(("process.txt".to_owned(), process()));
    files.push(("log.txt".to_owned(), log(request.value("log"))));
    for (program, arguments) in PROGRAMS {
        let words = [&[program], arguments].concat().join(" ");
        let name: String = words
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' })
            .take(40)
            .collect();
        files.push((format!("kernel/{}.txt", name.trim_matches('-')), output(program, arguments)));
    }
    files
}

fn version() -> String {
    format!("portwarden {}\n{}\n", crate::version::OWN, crate::flags::reported_version(None))
}

/// What the running process says about itself and about the Services in question.
fn from_process(request: &Request, config: &Config) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let metrics = get(config.servers.metrics, "/metrics").map(|(_, body)| body);
    files.push(("metrics.txt".to_owned(), metrics.unwrap_or_else(|error| format!("{error:#}\n"))));
    let configz = get(config.servers.metrics, "/configz").map(|(_, body)| body);
    files.push(("configz.json".to_owned(), configz.unwrap_or_else(|error| format!("{error:#}\n"))));
    match Client::connect(config) {
        Ok(client) => {
            let mut ask = |name: String, path: &str| {
                let body = client.text(path).map_or_else(|error| format!("{error:#}\n"), |(_, body)| body);
                files.push((name, body));
            };
            ask("status.json".to_owned(), "/api/status");
            ask("timeline.json".to_owned(), "/api/timeline");
            ask("troubled-services.json".to_owned(), "/api/services?state=troubled");
            for service in &request.arguments {
                let full = if service.contains('/') { service.clone() } else { format!("default/{service}") };
                let path = format!("/api/explain?service={}", encode(&full));
                ask(format!("services/{}.json", full.replace('/', "-")), &path);
            }
        }
        Err(error) => files.push(("status.json".to_owned(), format!("{error:#}\n"))),
    }
    files
}

/// The command line and limits of the running process.
fn process() -> String {
    let id = match Instance::other() {
        None => return "no Portwarden runs on this node\n".to_owned(),
        Some(OtherInstance { process: None }) => return "it cannot be seen from this container\n".to_owned(),
        Some(OtherInstance { process: Some(id) }) => id,
    };
    let read = |name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
    let arguments = read("cmdline").replace('\0', " ");
    format!("{arguments}\n\n{}\n{}", read("status"), read("limits"))
}

fn log(path: Option<&str>) -> String {
    match path {
        Some(path) => last_part(path),
        None => match Instance::other().and_then(|other| other.process) {
            Some(id) => output("journalctl", &["--no-pager", "-n", "2000", &format!("_PID={id}")]),
            None => output("journalctl", &["--no-pager", "-n", "2000", "-u", "portwarden"]),
        },
    }
}

/// The end of a file.
fn last_part(path: &str) -> String {
    let read = || {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LARGEST)))?;
        let mut bytes = Vec::new();
        file.take(LARGEST).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| format!("cannot read {path}: {error}\n"))
}

/// What a program prints; the reason if it cannot be run or takes too long.
fn output(program: &str, arguments: &[&str]) -> String {
    let child = Program::new(program)
        .args(arguments)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return format!("cannot run {program}: {error}\n"),
    };
    let Some(stdout) = child.stdout.take() else { return String::new() };
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A part is better than nothing.
        let _ = stdout.take(LARGEST).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let until = Instant::now() + TIMEOUT;
    while !reader.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    // After its end this does nothing; a program that still runs has printed enough, or hangs.
    let _ = child.kill();
    let _ = child.wait();
    reader.join().unwrap_or_default()
}

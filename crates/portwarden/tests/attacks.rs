//! Attacks: kills at any moment, and objects as hostile as an API server would never let them through. Other Services notice nothing.
//!
//! `make test` does a part of each. `KILLS` and `HOSTILE` set how many, `PORTWARDEN` names another binary:
//!
//!     PORTWARDEN=$PWD/target/release/portwarden KILLS=334 HOSTILE=837 cargo test -p portwarden --test attacks -- --nocapture --test-threads 1

mod support;

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use serde_json::{Value, json};
use support::{HEALTH, Rig, node, service, slice};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";

/// Objects in one step: the program must keep up with bursts.
const AT_ONCE: usize = 40;

fn web(v4: bool) -> SocketAddr {
    SocketAddr::new(if v4 { V4 } else { V6 }.parse().expect("an address"), 80)
}

fn number(variable: &str, usually: usize) -> Result<usize> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}: {text:?} is not a number")),
        Err(_) => Ok(usually),
    }
}

/// A node with `demo/web`, whose endpoint answers, and no program yet.
fn rig() -> Result<Rig> {
    let mut rig = Rig::new()?;
    rig.use_iptables("nft")?;
    let pod = rig.topology.pod(0);
    pod.serve(Transport::Tcp, 8080)?;
    rig.objects(&[
        node(),
        service("web", V4, V6, "TCP", ""),
        slice("web", "TCP", &[(pod.ip().v4.into(), "node-a")], 8080),
        slice("web", "TCP", &[(pod.ip().v6.into(), "node-a")], 8080),
    ])?;
    Ok(rig)
}

fn started(mode: &str) -> Result<Rig> {
    let mut rig = rig()?;
    rig.start_mode(mode)?;
    rig.wait_for_service(web(true))?;
    rig.wait_for_service(web(false))?;
    Ok(rig)
}

/// The process is killed in whatever it does at the time: before its first sync, in the middle of it, at rest.
fn kills(mode: &str) -> Result<()> {
    let mut rig = started(mode)?;
    let load = rig.topology.outside().probe().load(Transport::Tcp, web(true), 100)?;
    let count = number("KILLS", 6)?;
    for round in 0..count {
        rig.kill();
        rig.start_mode(mode)?;
        sleep(Duration::from_millis([5, 20, 60, 150, 400][round % 5]));
    }
    rig.wait_for_service(web(false))?;
    let tally = load.stop()?;
    println!(
        "{mode}: {count} kills, {} connections, {} failed",
        tally.answered() + tally.failed(),
        tally.failed()
    );
    ensure!(tally.failed() == 0 && tally.answered() > 0, "{mode}: {tally}");
    ensure!(!rig.log().contains("panicked"), "{}", rig.log());
    Ok(())
}

#[test]
fn kills_lose_no_connection_with_nftables() -> Result<()> {
    kills("nftables")
}

#[test]
fn kills_lose_no_connection_with_iptables() -> Result<()> {
    kills("iptables")
}

/// Text that is more than text somewhere: in a shell, in `iptables-restore`, in nft, in a path, in a log.
fn strings() -> Vec<String> {
    let fixed = [
        "",
        " ",
        "a\nCOMMIT\n*nat\n-F",
        "a\" -j ACCEPT",
        "a'; reboot; '",
        "$(reboot)",
        "`reboot`",
        "%s%n%x",
        "../../etc/passwd",
        "-A KUBE-SERVICES -j DROP",
        "} table ip kube-proxy { }",
        "a\0b",
        "a\tb\r\n",
        "ÄÖÜ-ß",
        "имя",
        "名前",
        "😀😀",
        "\u{202e}gnirts",
        "\u{feff}x",
        "e\u{301}\u{301}\u{301}",
        "KUBE-SERVICES",
        "null",
        "true",
        "1e999",
        "-1",
        "..",
        "a/b/c",
        "UPPER",
        "under_score",
        "x.y.z",
    ];
    let mut all: Vec<String> = fixed.map(str::to_owned).into();
    all.extend([300, 5_000, 70_000].map(|length| "x".repeat(length)));
    all
}

fn addresses() -> Vec<Value> {
    let fixed = [
        "",
        "None",
        "none",
        "0.0.0.0",
        "255.255.255.255",
        "127.0.0.1",
        "::",
        "::1",
        "::ffff:10.96.0.77",
        "fe80::1%eth0",
        "224.0.0.1",
        "169.254.169.254",
        "10.96.0.1/24",
        "010.096.000.001",
        "0x0a600001",
        "10.96.0.256",
        "10.96.0",
        "1",
        "10.96.0.77 ",
        " 10.96.0.77",
        "10.96.0.77\n",
        "fd00::g",
        "example.com",
        "10.96.0.77,10.96.0.78",
        V4,
        V6,
    ];
    let mut all: Vec<Value> = fixed.map(|text| json!(text)).into();
    all.extend([json!(null), json!(7), json!([]), json!({}), json!(["10.96.0.77"]), json!(1e300)]);
    all
}

fn ports() -> Vec<Value> {
    vec![
        json!(0),
        json!(-1),
        json!(65536),
        json!(4_294_967_376_i64),
        json!(1e30),
        json!(80.5),
        json!("80"),
        json!("http"),
        json!(null),
        json!([]),
        json!({}),
        json!(true),
        json!(10256),
        json!(10249),
        json!(22),
        json!(i64::MIN),
        json!(u64::MAX),
    ]
}

fn ranges() -> Vec<Value> {
    let many: Vec<String> = (0..4_000).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250)).collect();
    let nested: Vec<String> = (0..=32).map(|bits| format!("10.0.0.0/{bits}")).collect();
    vec![
        json!(["0.0.0.0/0"]),
        json!(["::/0"]),
        json!(["1.2.3.4/33"]),
        json!(["1.2.3.4/-1"]),
        json!(["1.2.3.4"]),
        json!([""]),
        json!([" 10.0.0.0/8 "]),
        json!(["10.0.0.1/8", "10.0.0.0/8", "10.0.0.0/8"]),
        json!(["garbage"]),
        json!("10.0.0.0/8"),
        json!([7]),
        json!(null),
        json!(many),
        json!(nested),
    ]
}

/// A Service that would be fine, in a namespace of the attacker's.
fn plain(index: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": format!("hostile-{index}"), "namespace": "evil", "creationTimestamp": "2001-01-01T00:00:00Z" },
        "spec": {
            "type": "LoadBalancer", "clusterIP": format!("10.97.{}.{}", index / 250, index % 250 + 1), "externalTrafficPolicy": "Cluster",
            "ports": [{ "name": "p", "port": 80, "nodePort": 31_000 + index % 1_500, "protocol": "TCP" }],
        },
        "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.5" }] } },
    })
}

fn plain_slice(index: usize) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("hostile-{index}-slice"), "namespace": "evil",
            "labels": { "kubernetes.io/service-name": format!("hostile-{}", index / 2) },
        },
        "ports": [{ "name": "p", "port": 8080, "protocol": "TCP" }],
        "endpoints": [{ "addresses": ["10.244.9.9"], "conditions": { "ready": true }, "nodeName": "node-b" }],
    })
}

/// Where something hostile can stand in a Service, and what.
fn service_places() -> Vec<(&'static str, Vec<Value>)> {
    let text = || strings().into_iter().map(Value::from).collect::<Vec<_>>();
    let list = |values: Vec<Value>| values.into_iter().map(|value| json!([value])).collect::<Vec<_>>();
    let many_ports: Vec<Value> = (1..3_000).map(|n| json!({ "name": format!("p{n}"), "port": n })).collect();
    let same_ports: Vec<Value> = (0..300).map(|_| json!({ "name": "p", "port": 80 })).collect();
    vec![
        ("/metadata/name", text()),
        ("/metadata/namespace", text()),
        ("/metadata/creationTimestamp", text()),
        ("/spec/clusterIP", addresses()),
        ("/spec/clusterIPs", list(addresses())),
        ("/spec/externalIPs", list(addresses())),
        ("/status/loadBalancer/ingress", addresses().into_iter().map(|ip| json!([{ "ip": ip }])).collect()),
        ("/spec/ports/0/port", ports()),
        ("/spec/ports/0/nodePort", ports()),
        ("/spec/ports/0/name", text()),
        ("/spec/ports/0/protocol", text()),
        ("/spec/healthCheckNodePort", ports()),
        (
            "/spec/ports",
            vec![json!(many_ports), json!(same_ports), json!([]), json!(null), json!("80"), json!([null])],
        ),
        ("/spec/loadBalancerSourceRanges", ranges()),
        ("/spec/type", text()),
        ("/spec/externalTrafficPolicy", text()),
        ("/spec/internalTrafficPolicy", text()),
        ("/spec/sessionAffinity", text()),
        (
            "/spec/sessionAffinityConfig",
            ports().into_iter().map(|n| json!({ "clientIP": { "timeoutSeconds": n } })).collect(),
        ),
        ("/spec/ipFamilies", list(text())),
        ("/spec/trafficDistribution", text()),
        ("/spec", vec![json!(null), json!([]), json!(7)]),
    ]
}

fn slice_places() -> Vec<(&'static str, Vec<Value>)> {
    let text = || strings().into_iter().map(Value::from).collect::<Vec<_>>();
    let list = |values: Vec<Value>| values.into_iter().map(|value| json!([value])).collect::<Vec<_>>();
    let endpoint = |n: u32| json!({ "addresses": [format!("10.245.{}.{}", n / 250, n % 250 + 1)] });
    let many: Vec<Value> = (0..3_000).map(endpoint).collect();
    let contradicting: Vec<Value> = (0..50)
        .map(|n| {
            let conditions = json!({ "ready": n % 2 == 0, "serving": n % 3 == 0, "terminating": n % 5 == 0 });
            json!({ "addresses": ["10.244.9.9"], "nodeName": if n % 2 == 0 { "node-a" } else { "node-b" }, "conditions": conditions })
        })
        .collect();
    vec![
        ("/metadata/name", text()),
        ("/addressType", text()),
        ("/endpoints/0/addresses", list(addresses())),
        ("/endpoints/0/nodeName", text()),
        ("/endpoints/0/zone", text()),
        (
            "/endpoints/0/hints",
            text().into_iter().map(|zone| json!({ "forZones": [{ "name": zone }] })).collect(),
        ),
        ("/endpoints/0/conditions", ports().into_iter().map(|value| json!({ "ready": value })).collect()),
        (
            "/endpoints",
            vec![json!(many), json!(contradicting), json!([]), json!(null), json!([null]), json!("x")],
        ),
        ("/ports/0/port", ports()),
        ("/ports/0/name", text()),
        ("/ports/0/protocol", text()),
        ("/ports", vec![json!([]), json!(null), json!([null]), json!({})]),
    ]
}

/// All hostile objects: each differs from a plain one in one place.
fn hostile() -> Vec<Value> {
    let mut all = Vec::new();
    let mut put =
        |places: Vec<(&str, Vec<Value>)>, plain: fn(usize) -> Value, create: fn(&mut Value, &str) -> bool| {
            for (place, values) in places {
                for value in values {
                    let mut object = plain(all.len());
                    create(&mut object, place);
                    if let Some(target) = object.pointer_mut(place) {
                        *target = value;
                    }
                    all.push(object);
                }
            }
        };
    put(service_places(), plain, ensure_place);
    put(slice_places(), plain_slice, ensure_place);
    all
}

/// Makes the last field of a path, if the object does not have it.
fn ensure_place(object: &mut Value, place: &str) -> bool {
    let Some((parent, field)) = place.rsplit_once('/') else { return false };
    let Some(Value::Object(fields)) = object.pointer_mut(parent) else { return false };
    fields.entry(field).or_insert(Value::Null);
    true
}

fn withstands_hostile_objects(mode: &str) -> Result<()> {
    let mut rig = started(mode)?;
    let load = rig.topology.outside().probe().load(Transport::Tcp, web(true), 50)?;
    let all = hostile();
    let count = number("HOSTILE", 120)?.min(all.len());
    let chosen: Vec<&Value> = (0..count).map(|n| &all[n * all.len() / count]).collect();
    for (number, objects) in chosen.chunks(AT_ONCE).enumerate() {
        for (index, object) in objects.iter().enumerate() {
            rig.write(&format!("manifests/{number}-{index}.json"), &object.to_string())?;
        }
        ensure!(rig.is_running(), "it ended:\n{}", rig.log());
        ensure!(rig.get(HEALTH, "/livez")?.0 == 200, "{}", rig.log());
    }
    // A plain Service behind all of them is served, so they have all been read and written.
    let pod = rig.topology.pod(0).ip();
    let last = service("zz-last", "10.96.0.200", "fd00:10:96::200", "TCP", "");
    let endpoints = slice("zz-last", "TCP", &[(pod.v4.into(), "node-a")], 8080);
    rig.write("manifests/zz-last.yaml", &format!("{last}---\n{endpoints}"))?;
    rig.wait_for_service("10.96.0.200:80".parse()?)?;
    rig.wait_for_service(web(false))?;
    let tally = load.stop()?;
    let problems = rig.metric("portwarden_object_problems_total")?;
    println!(
        "{mode}: {count} of {} hostile objects, {problems} problems reported, {} connections to another Service, {} failed",
        all.len(),
        tally.answered() + tally.failed(),
        tally.failed()
    );
    ensure!(tally.failed() == 0 && tally.answered() > 0, "{mode}: {tally}");
    ensure!(problems > 0.0 && rig.is_running() && !rig.log().contains("panicked"), "{}", rig.log());
    let log = rig.log();
    let lines = log.lines().count();
    ensure!(lines < 3_000, "{lines} lines for {count} objects");
    // Everything goes when the objects go.
    for (number, objects) in chosen.chunks(AT_ONCE).enumerate() {
        for index in 0..objects.len() {
            std::fs::remove_file(rig.path(&format!("manifests/{number}-{index}.json")))?;
        }
    }
    rig.wait_until("nothing of them to be left", || {
        let rules = match mode {
            "nftables" => rig.node().command("nft").args(["list", "ruleset"]).run()?,
            _ => rig.command("iptables-save").run()?,
        };
        Ok(!rules.contains("evil/"))
    })?;
    ensure!(rig.node().tcp(web(true))?.is_answered());
    Ok(())
}

#[test]
fn hostile_objects_hurt_no_other_service_with_nftables() -> Result<()> {
    withstands_hostile_objects("nftables")
}

#[test]
fn hostile_objects_hurt_no_other_service_with_iptables() -> Result<()> {
    withstands_hostile_objects("iptables")
}

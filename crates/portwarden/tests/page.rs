//! The live page in a real browser. Screenshots are left in `target/page`.
//!
//! With `UPDATE_IMAGES=1`, the one that the README shows is made again.

mod support;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use portwarden_testkit::browser::{Browser, keys};
use support::{PAGE, Rig, cluster_cidr, node};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn save(browser: &Browser<'_>, name: &str) -> Result<()> {
    let folder = root().join("target/page");
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(format!("{name}.png")), browser.screenshot()?)?)
}

/// A Service with one port; each endpoint is an address, its node, and its conditions.
fn objects(name: &str, ip: &str, spec: &str, node_port: u16, endpoints: &[(&str, &str, &str)]) -> String {
    let (namespace, name) = name.split_once('/').unwrap_or(("demo", name));
    let status = if spec.contains("LoadBalancer") {
        "status: {loadBalancer: {ingress: [{ip: 203.0.113.20}]}}\n"
    } else {
        ""
    };
    let node_port = if node_port > 0 { format!(", nodePort: {node_port}") } else { String::new() };
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{clusterIP: {ip}, clusterIPs: [{ip}], {spec} ports: [{{name: http, port: 80{node_port}}}]}}\n{status}---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080}}]\nendpoints: {}\n",
        if endpoints.is_empty() { "[]" } else { "" }
    );
    for (address, node, conditions) in endpoints {
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "- {{addresses: [{address}], conditions: {{{conditions}}}, nodeName: {node}}}");
    }
    text
}

const READY: &str = "ready: true";

/// What a small shop runs; `pods` is how many pods the catalogue has.
fn shop(pods: usize) -> Vec<String> {
    let catalog: Vec<(String, String)> = (0..pods)
        .map(|pod| {
            (format!("10.244.{}.{}", pod % 4, 20 + pod), format!("node-{}", ["a", "b", "c", "d"][pod % 4]))
        })
        .collect();
    let catalog: Vec<(&str, &str, &str)> =
        catalog.iter().map(|(ip, node)| (ip.as_str(), node.as_str(), READY)).collect();
    let local = "type: LoadBalancer, externalTrafficPolicy: Local, loadBalancerSourceRanges: [198.51.100.0/24], sessionAffinity: ClientIP,";
    let terminating = "ready: false, serving: true, terminating: true";
    vec![
        node(),
        objects(
            "default/kubernetes",
            "10.96.0.1",
            "",
            0,
            &[("192.0.2.10", "cp-1", READY), ("192.0.2.11", "cp-2", READY)],
        ),
        objects("kube-system/metrics-server", "10.96.8.1", "", 0, &[("10.244.2.4", "node-c", READY)]),
        objects(
            "shop/checkout",
            "10.96.12.7",
            local,
            30080,
            &[
                ("10.244.0.7", "node-a", READY),
                ("10.244.1.7", "node-b", READY),
                ("10.244.2.9", "node-c", terminating),
            ],
        ),
        objects("shop/catalog", "10.96.40.12", "", 0, &catalog),
        objects("shop/search", "10.96.40.13", "", 0, &[]),
        objects(
            "payments/ledger",
            "10.96.21.9",
            "internalTrafficPolicy: Local,",
            0,
            &[("10.244.0.31", "node-a", READY)],
        ),
        objects(
            "monitoring/grafana",
            "10.96.77.3",
            "type: NodePort, externalTrafficPolicy: Local,",
            30300,
            &[("10.244.3.4", "node-d", READY)],
        ),
    ]
}

fn start(rig: &mut Rig) -> Result<()> {
    rig.start(&["--proxy-mode=nftables", "--cluster-cidr", &cluster_cidr(), "-v=2"])?;
    rig.wait_until("the page", || Ok(rig.get(PAGE, "/")?.0 == 200))
}

fn url(route: &str) -> String {
    format!("http://127.0.0.1:{PAGE}/{route}")
}

#[test]
fn a_small_cluster_is_shown_live_in_light_and_dark() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.objects(&shop(5))?;
    start(&mut rig)?;
    let namespace = rig.node().namespace().clone();
    let browser = Browser::start(&namespace, 1280, 1120)?;
    browser.open(&url(""))?;
    browser.wait_for("document.querySelector('#verdict').innerText === 'healthy'")?;
    browser.wait_for("document.querySelectorAll('.plot canvas').length === 4")?;
    browser.wait_for("document.querySelector('.card .value').innerText === '7'")?;
    rig.objects(&[shop(9), vec![objects("shop/new", "10.96.40.99", "", 0, &[])]].concat())?;
    browser.wait_for("document.querySelector('.card .value').innerText === '8'")?;
    rig.command("nft").args(["flush", "ruleset"]).run()?;
    browser.wait_for("document.querySelector('.entries').innerText.includes('Repaired in')")?;
    let update = std::env::var_os("UPDATE_IMAGES").is_some();
    if update {
        for step in 0..60 {
            rig.objects(&shop(5 + step % 7))?;
            std::thread::sleep(Duration::from_millis(300 + 100 * (step as u64 % 5)));
        }
    }
    save(&browser, "overview-light")?;
    if update {
        fs::create_dir_all(root().join("docs/images"))?;
        fs::copy(root().join("target/page/overview-light.png"), root().join("docs/images/page.png"))?;
    }
    browser.colour_scheme("dark")?;
    browser.wait_for("getComputedStyle(document.body).backgroundColor === 'rgb(13, 18, 23)'")?;
    save(&browser, "overview-dark")?;
    browser.open(&url("#/timeline"))?;
    browser.wait_for("document.querySelectorAll('.entries li').length >= 5")?;
    save(&browser, "timeline-dark")?;
    ensure!(browser.errors()?.is_empty(), "{:?}", browser.errors());
    rig.kill();
    browser.wait_for("!document.querySelector('#offline').hidden")?;
    Ok(())
}

#[test]
fn a_service_is_found_and_explained_with_the_keyboard_alone() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.objects(&shop(14))?;
    start(&mut rig)?;
    let namespace = rig.node().namespace().clone();
    let browser = Browser::start(&namespace, 1280, 1400)?;
    browser.open(&url(""))?;
    browser.wait_for("document.querySelector('#verdict').innerText === 'healthy'")?;
    browser.press("2")?;
    browser.wait_for("document.querySelectorAll('#services tbody tr').length === 7")?;
    save(&browser, "services-light")?;
    browser.press("/")?;
    browser.wait_for("document.activeElement.id === 'query'")?;
    browser.press("checkout")?;
    browser.wait_for("document.querySelectorAll('#services tbody tr').length === 1")?;
    // The box for problems comes first, then the Service.
    browser.press(&[keys::TAB, keys::TAB, keys::ENTER].concat())?;
    browser.wait_for("location.hash === '#/service/shop/checkout' && document.querySelector('.picture')")?;
    let text = browser.script("return document.querySelector('main').innerText")?;
    let text = text.as_str().unwrap_or_default();
    for wanted in [
        "session affinity: 10,800 s",
        "load balancer, only from 198.51.100.0/24",
        "to an endpoint on this node: the policy is Local",
        "terminating, and other endpoints are ready",
        "masqueraded unless the client is a pod",
    ] {
        ensure!(text.contains(wanted), "{wanted:?} is missing in {text}");
    }
    save(&browser, "service-light")?;
    browser.press("3")?;
    browser.wait_for("document.activeElement.id === 'to'")?;
    browser.press(&format!("203.0.113.20:80{}", keys::ENTER))?;
    browser.wait_for("document.querySelector('.summary')?.innerText.startsWith('Forwarded to the endpoint 10.244.0.7:8080')")?;
    save(&browser, "trace-light")?;
    browser.colour_scheme("dark")?;
    browser.open(&url("#/service/shop/catalog"))?;
    browser.wait_for("document.querySelectorAll('.picture .box').length === 11")?;
    save(&browser, "service-dark")?;
    browser.open(&url("#/service/shop/chekout"))?;
    browser.wait_for("document.querySelector('.notice.bad')?.innerText.includes('is not proxied')")?;
    let errors: Vec<String> = browser.errors()?.into_iter().filter(|error| !error.contains("404")).collect();
    ensure!(errors.is_empty(), "{errors:?}");
    Ok(())
}

#[test]
fn an_empty_cluster_and_thousands_of_services_are_shown() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.objects(&[node()])?;
    start(&mut rig)?;
    let namespace = rig.node().namespace().clone();
    let browser = Browser::start(&namespace, 1280, 1120)?;
    browser.open(&url(""))?;
    browser.wait_for("document.querySelector('.banner').innerText.includes('there is no Service yet')")?;
    save(&browser, "overview-empty")?;
    browser.open(&url("#/services"))?;
    browser.wait_for("document.querySelector('#services').innerText.includes('There is no Service yet')")?;
    // Right after the page was loaded, so that no load is due.
    rig.objects(&[node(), objects("demo/first", "10.96.99.1", "", 0, &[("10.244.1.7", "node-b", READY)])])?;
    browser.wait_for("document.querySelector('#services').innerText.includes('demo/first')")?;
    let many = (0..2000).map(|number| {
        let ip = format!("10.96.{}.{}", number / 250, number % 250 + 1);
        let endpoints = [("10.244.1.7", "node-b", READY)];
        let endpoints = if number % 97 == 0 { &[][..] } else { &endpoints };
        objects(&format!("team-{}/service-{number:04}", number % 7), &ip, "", 0, endpoints)
    });
    rig.objects(&std::iter::once(node()).chain(many).collect::<Vec<_>>())?;
    browser.wait_for("document.querySelector('.pager').innerText.includes('Page 1 of 40')")?;
    ensure!(browser.script("return document.querySelectorAll('#services tbody tr').length")? == 50);
    browser.press(keys::RIGHT)?;
    browser.wait_for("document.querySelector('.pager').innerText.includes('Page 2 of 40')")?;
    save(&browser, "services-thousands")?;
    browser.press("/")?;
    browser.press("service-1234")?;
    browser
        .wait_for("document.querySelector('#services tbody').innerText.includes('team-2/service-1234')")?;
    browser.press(&[keys::ESCAPE, "/"].concat())?;
    browser.press("10.96.4.9")?;
    browser.wait_for("document.querySelector('#services tbody').innerText.includes('service-1008')")?;
    browser.click("#troubled")?;
    browser.wait_for("document.querySelector('#services tbody').innerText.includes('No Service matches')")?;
    ensure!(browser.errors()?.is_empty(), "{:?}", browser.errors());
    Ok(())
}

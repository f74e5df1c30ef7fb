//! What is under `deploy/` fits the program: the manifests, what helm and kustomize make of them, the alerts, and the systemd unit.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use portwarden_testkit::apiserver::{ApiServer, Rights, Seen};
use portwarden_testkit::build::{endpoint, node, port, service, slice};
use portwarden_testkit::topology::addresses::NODE;
use serde_json::{Value, json};
use support::container::readable;
use support::deployment::config_file;
use support::rendered::{chart, find, overlay, pod, repository, tool};
use support::{HEALTH, Rig, cluster_cidr};

const WEB: &str = "10.96.0.10";
const API: &str = "apiServer.host=192.0.2.1";
const TAINT: &str = "portwarden.dev/not-ready";

/// The API group, resource and verb of a request.
fn asked(seen: &Seen) -> Result<(String, String, &'static str)> {
    let mut parts = seen.path.trim_matches('/').split('/');
    let group = match parts.next() {
        Some("api") => "",
        _ => parts.next().context("a group")?,
    };
    parts.next().context("a version")?;
    let parts: Vec<&str> = parts.collect();
    let (resource, named) = match parts.as_slice() {
        ["namespaces", _, resource, rest @ ..] | [resource, rest @ ..] => (*resource, !rest.is_empty()),
        [] => anyhow::bail!("{} names no resource", seen.path),
    };
    let verb = match (seen.method.as_str(), seen.watch, named) {
        ("GET", true, _) => "watch",
        ("GET", false, false) => "list",
        ("GET", false, true) => "get",
        ("POST", ..) => "create",
        ("PATCH", ..) => "patch",
        ("PUT", ..) => "update",
        (other, ..) => anyhow::bail!("{other} {}", seen.path),
    };
    Ok((group.to_owned(), resource.to_owned(), verb))
}

fn grants(rules: &[Value], group: &str, resource: &str, verb: &str) -> bool {
    let has = |rule: &Value, field: &str, wanted: &str| {
        rule[field].as_array().is_some_and(|all| all.iter().any(|one| one == wanted))
    };
    rules.iter().any(|rule| {
        has(rule, "apiGroups", group) && has(rule, "resources", resource) && has(rule, "verbs", verb)
    })
}

/// All rules of the roles that are bound to a service account.
fn rules(objects: &[Value]) -> Result<Vec<Value>> {
    let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
    let mut rules = Vec::new();
    for role in roles {
        let binding = objects.iter().find(|object| object["roleRef"]["name"] == role["metadata"]["name"]);
        let account = &binding.context("a binding")?["subjects"][0];
        ensure!(account["name"] == pod(objects)?["serviceAccountName"], "{account}");
        rules.extend(role["rules"].as_array().context("rules")?.iter().cloned());
    }
    Ok(rules)
}

/// Runs the program against an API server with everything that it may ask for, and gives its requests.
fn requests_of_the_program(startup_taint: bool) -> Result<Vec<Seen>> {
    let mut rig = Rig::new()?;
    let pod = rig.topology.pod(0);
    pod.serve(Transport::Tcp, 8080)?;
    let server = {
        let _entered = rig.node().namespace().enter()?;
        ApiServer::builder().tls().user("proxier", "system:kube-proxy", Rights::Everything).start()?
    };
    server.apply(node("node-a").ip(NODE.v4).ip(NODE.v6).taint("other").taint(TAINT));
    server.apply(service("web").cluster_ip(WEB).port(port(80).name("p")));
    server
        .apply(slice("web", "web-1").port(port(8080).name("p")).endpoint(endpoint(pod.ip().v4).on("node-a")));
    let kubeconfig = server.kubeconfig_as(&rig.path(""), "kubeconfig", "token: proxier")?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let cidr = format!("--cluster-cidr={}", cluster_cidr());
    let taint = format!("--remove-startup-taint={TAINT}=:NoSchedule");
    let mut arguments = vec![kubeconfig.as_str(), "--proxy-mode=nftables", &cidr];
    arguments.extend(startup_taint.then_some(taint.as_str()));
    rig.start_following(&arguments)?;
    rig.wait_for_service(format!("{WEB}:80").parse()?)?;
    rig.wait_until("the Event of the start", || Ok(!server.events().is_empty()))?;
    if startup_taint {
        rig.wait_for_log("removed the startup taint")?;
        ensure!(server.taints("node-a") == ["other"], "{:?}", server.taints("node-a"));
    }
    let requests = server.requests();
    for resource in ["services", "nodes", "endpointslices", "servicecidrs", "events"] {
        ensure!(requests.iter().any(|seen| seen.path.contains(resource)), "{resource} was not asked for");
    }
    Ok(requests)
}

#[test]
fn the_roles_grant_what_the_program_asks_for() -> Result<()> {
    let requests = requests_of_the_program(false)?;
    for objects in [overlay("base")?, overlay("iptables")?, chart(&[API])?] {
        let rules = rules(&objects)?;
        for seen in &requests {
            let (group, resource, verb) = asked(seen)?;
            ensure!(grants(&rules, &group, &resource, verb), "{verb} {resource} of {group:?} is not granted");
        }
        ensure!(!grants(&rules, "", "nodes", "patch"), "Nodes are changed only if there is a startup taint");
    }
    Ok(())
}

#[test]
fn the_startup_taint_is_removed_after_the_first_sync_with_a_permission_of_its_own() -> Result<()> {
    let requests = requests_of_the_program(true)?;
    let objects = chart(&[API, &format!("startupTaint={TAINT}")])?;
    let rules = rules(&objects)?;
    let mut verbs = BTreeSet::new();
    for seen in &requests {
        let (group, resource, verb) = asked(seen)?;
        ensure!(grants(&rules, &group, &resource, verb), "{verb} {resource} of {group:?} is not granted");
        if resource == "nodes" {
            verbs.insert(verb);
        }
    }
    ensure!(verbs.contains("patch"), "{verbs:?}");
    let pod = pod(&objects)?;
    let arguments = pod["containers"][0]["args"].as_array().context("arguments")?;
    ensure!(arguments.contains(&format!("--remove-startup-taint={TAINT}").into()), "{arguments:?}");
    Ok(())
}

/// Without the permission the program says what it lacks, and serves.
#[test]
fn a_startup_taint_that_may_not_be_removed_is_reported() -> Result<()> {
    let mut rig = Rig::new()?;
    let server = {
        let _entered = rig.node().namespace().enter()?;
        ApiServer::builder().tls().user("proxier", "system:kube-proxy", Rights::NodeProxier).start()?
    };
    server.apply(node("node-a").ip(NODE.v4).ip(NODE.v6).taint(TAINT));
    let kubeconfig = server.kubeconfig_as(&rig.path(""), "kubeconfig", "token: proxier")?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let taint = format!("--remove-startup-taint={TAINT}");
    rig.start_following(&[&kubeconfig, "--proxy-mode=nftables", &taint])?;
    rig.wait_for_log("needs the verbs get and patch on nodes")?;
    ensure!(server.taints("node-a") == [TAINT] && rig.is_running());
    Ok(())
}

/// Starts the program with a configuration file and fails unless it takes every field.
fn accepts(config: &str, mode: &str) -> Result<()> {
    let mut rig = Rig::new()?;
    rig.write("config.conf", config)?;
    let (config, written) = (rig.path("config.conf"), rig.path("written"));
    let (config, write) =
        (format!("--config={}", config.display()), format!("--write-config-to={}", written.display()));
    rig.start_following(&[&config, &write])?;
    rig.wait_for_log("\"Wrote configuration\"")?;
    ensure!(!rig.log().contains("lenient"), "{}", rig.log());
    let written = fs::read_to_string(written)?;
    ensure!(written.contains(&format!("mode: {mode}")), "{written}");
    Ok(())
}

#[test]
fn the_configurations_are_taken_as_they_are() -> Result<()> {
    for (objects, mode) in [
        (overlay("base")?, "nftables"),
        (overlay("iptables")?, "iptables"),
        (chart(&[API])?, "nftables"),
        (chart(&[API, "mode=ipvs", "clusterCIDR=10.244.0.0/16", "config.ipvs.scheduler=lc"])?, "ipvs"),
        (chart(&[API, "mode=userspace", "monitoring.serviceMonitor.enabled=true"])?, "userspace"),
    ] {
        accepts(&config_file(find(&objects, "ConfigMap")?)?, mode)?;
    }
    Ok(())
}

/// Chart and overlays differ in names only: limits, mounts and probes are the same.
#[test]
fn the_chart_and_the_overlays_agree() -> Result<()> {
    for (overlay, chart) in
        [(overlay("base")?, chart(&[API])?), (overlay("iptables")?, chart(&[API, "mode=iptables"])?)]
    {
        let (overlay, chart) = (pod(&overlay)?, pod(&chart)?);
        for field in ["securityContext", "hostNetwork", "priorityClassName", "tolerations", "nodeSelector"] {
            ensure!(overlay[field] == chart[field], "{field}: {} and {}", overlay[field], chart[field]);
        }
        for kind in ["initContainers", "containers"] {
            let (overlay, chart) = (&overlay[kind][0], &chart[kind][0]);
            for field in ["securityContext", "livenessProbe", "args", "name"] {
                ensure!(overlay[field] == chart[field], "{field}: {} and {}", overlay[field], chart[field]);
            }
            ensure!(mounts(overlay)? == mounts(chart)?, "{overlay} and {chart}");
        }
    }
    Ok(())
}

/// The paths that a container mounts.
fn mounts(container: &Value) -> Result<BTreeSet<String>> {
    let mounts = container["volumeMounts"].as_array().context("mounts")?;
    mounts.iter().map(|mount| Ok(mount["mountPath"].as_str().context("a path")?.to_owned())).collect()
}

#[test]
fn the_daemon_sets_probe_what_the_configurations_open() -> Result<()> {
    for objects in [overlay("base")?, overlay("iptables")?, chart(&[API])?] {
        let pod = pod(&objects)?;
        let container = &pod["containers"][0];
        let map = find(&objects, "ConfigMap")?;
        let volumes = pod["volumes"].as_array().context("volumes")?;
        let config = volumes.iter().find(|volume| volume["name"] == "config").context("the configuration")?;
        ensure!(config["configMap"]["name"] == map["metadata"]["name"], "{config}");
        let probe = &container["livenessProbe"]["httpGet"];
        ensure!(probe["path"] == "/livez" && probe["port"] == HEALTH, "{probe}");
        let folder = mounts(container)?.into_iter().find(|path| path.contains("portwarden"));
        ensure!(container["args"][0] == format!("--config={}/config.conf", folder.context("a folder")?));
        ensure!(config_file(map)?.contains(&format!("healthzBindAddress: 0.0.0.0:{HEALTH}")));
    }
    Ok(())
}

/// With kubeadm's objects, nothing but the DaemonSet is ours.
#[test]
fn a_take_over_uses_what_kube_proxy_has() -> Result<()> {
    let label = "portwarden.dev/proxy";
    for objects in [overlay("kubeadm")?, chart(&["takeOver.enabled=true", "mode=iptables"])?] {
        ensure!(objects.len() == 1, "{objects:#?}");
        let pod = pod(&objects)?;
        ensure!(pod["serviceAccountName"] == "kube-proxy", "{}", pod["serviceAccountName"]);
        let volumes = pod["volumes"].as_array().context("volumes")?;
        ensure!(volumes.iter().any(|volume| volume["configMap"]["name"] == "kube-proxy"), "{volumes:?}");
        ensure!(mounts(&pod["containers"][0])?.contains("/var/lib/kube-proxy"), "kubeadm's paths");
    }
    let objects = chart(&["takeOver.enabled=true"])?;
    ensure!(pod(&objects)?["nodeSelector"][label] == "portwarden", "only nodes that were chosen");
    let set = &overlay("kubeadm")?[0];
    ensure!(
        set["metadata"]["name"] == "kube-proxy"
            && set["spec"]["selector"]["matchLabels"]["k8s-app"] == "kube-proxy"
    );
    Ok(())
}

#[test]
fn the_chart_refuses_values_that_cannot_work() -> Result<()> {
    let chart_folder = repository("deploy/helm/portwarden");
    tool("helm", &["lint", "--strict", "--set", API, &chart_folder.to_string_lossy()])?;
    for (settings, message) in [
        (&[][..], "set apiServer.host"),
        (&[API, "mode=ebtables"], "mode"),
        (&[API, "imagee.tag=1"], "imagee"),
        (&[API, "monitoring.rules.enable=true"], "enable"),
        // Without quotes, a shell takes the backslash away from `portwarden\.dev/proxy`.
        (&[API, "nodeSelector.portwarden.dev/proxy=portwarden"], "nodeSelector"),
    ] {
        let error = chart(settings).err().with_context(|| format!("{settings:?} is accepted"))?;
        ensure!(format!("{error:#}").contains(message), "{error:#}");
    }
    Ok(())
}

/// What docs/upgrading.md says about looking at one node first.
#[test]
fn an_update_strategy_replaces_the_default() -> Result<()> {
    let strategy = |setting| {
        Ok::<_, anyhow::Error>(find(&chart(&[API, setting])?, "DaemonSet")?["spec"]["updateStrategy"].clone())
    };
    ensure!(strategy("updateStrategy.type=OnDelete")? == json!({"type": "OnDelete"}));
    let surge = strategy("updateStrategy.rollingUpdate.maxSurge=1")?;
    ensure!(surge["type"] == "RollingUpdate" && surge["rollingUpdate"]["maxSurge"] == 1, "{surge}");
    Ok(())
}

#[test]
fn monitoring_selects_the_pods_and_has_the_alerts() -> Result<()> {
    let objects = chart(&[
        API,
        "monitoring.serviceMonitor.enabled=true",
        "monitoring.rules.enabled=true",
        "monitoring.dashboard.enabled=true",
    ])?;
    let set = find(&objects, "DaemonSet")?;
    let (service, monitor) = (find(&objects, "Service")?, find(&objects, "ServiceMonitor")?);
    let contains = |labels: &Value, wanted: &Value| {
        let wanted = wanted.as_object().context("labels")?;
        Ok::<_, anyhow::Error>(wanted.iter().all(|(name, value)| labels[name] == *value))
    };
    ensure!(contains(&set["spec"]["template"]["metadata"]["labels"], &service["spec"]["selector"])?);
    ensure!(contains(&service["metadata"]["labels"], &monitor["spec"]["selector"]["matchLabels"])?);
    // The alert on missing metrics names the job.
    let job = monitor["spec"]["jobLabel"].as_str().context("a label")?;
    ensure!(service["metadata"]["labels"][job] == "portwarden", "{job}");
    let config = objects.iter().find(|object| object["data"]["config.conf"].is_string());
    let config = config_file(config.context("a configuration")?)?;
    ensure!(config.contains("metricsBindAddress: 0.0.0.0:10249"), "Prometheus reaches the metrics");
    let alerts: Value = serde_saphyr::from_str(&fs::read_to_string(files().join("alerts.yaml"))?)?;
    ensure!(find(&objects, "PrometheusRule")?["spec"] == alerts, "the chart has the alerts");
    let rule = fs::read_to_string(repository("deploy/kustomize/monitoring/prometheusrule.yaml"))?;
    let rule: Value = serde_saphyr::from_str(&rule)?;
    ensure!(rule["spec"] == alerts, "the component for kustomize has the alerts");
    let dashboard = objects.iter().find_map(|object| object["data"]["portwarden.json"].as_str());
    let dashboard: Value = serde_json::from_str(dashboard.context("a dashboard")?)?;
    ensure!(dashboard["title"] == "Portwarden");
    Ok(())
}

fn files() -> std::path::PathBuf {
    repository("deploy/helm/portwarden/files")
}

/// Every alert fires on the figures that it is about, and on no others.
#[test]
fn the_alerts_pass_their_tests() -> Result<()> {
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let output = Command::new("promtool").args(arguments).current_dir(files()).output();
        let output = output.context("cannot run promtool; install prometheus")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    // Each has a test in which it fires.
    let tests = fs::read_to_string(files().join("alerts_test.yaml"))?;
    let alerts: Value = serde_saphyr::from_str(&fs::read_to_string(files().join("alerts.yaml"))?)?;
    for rule in alerts["groups"][0]["rules"].as_array().context("rules")? {
        let line = format!(
            "        alertname: {}\n        exp_alerts:\n",
            rule["alert"].as_str().context("a name")?
        );
        ensure!(tests.contains(&line), "no test in which {} fires", rule["alert"]);
    }
    Ok(())
}

/// A setting of the systemd unit.
fn setting<'a>(unit: &'a str, name: &str) -> Result<&'a str> {
    let value = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.with_context(|| format!("the unit has no {name}"))
}

/// systemd accepts the unit, and the program serves with the unit's user, capabilities and no way to get more.
#[test]
fn the_systemd_unit_is_valid_and_leaves_the_program_enough() -> Result<()> {
    let mut rig = Rig::new()?;
    let program = rig.path("portwarden");
    fs::copy(env!("CARGO_BIN_EXE_portwarden"), &program)?;
    let unit = fs::read_to_string(repository("deploy/systemd/portwarden.service"))?;
    let unit = unit.replace("/usr/local/bin/portwarden", &program.to_string_lossy());
    let unit = unit.replace("/etc/portwarden/manifests", &rig.path("manifests").to_string_lossy());
    rig.write("portwarden.service", &unit)?;
    let file = rig.path("portwarden.service");
    // 10 is the most exposed; what remains is the network, which is the program's purpose.
    for arguments in [&["verify"][..], &["security", "--offline=yes", "--threshold=25"]] {
        let output = Command::new("systemd-analyze").args(arguments).arg(&file).output();
        let output = output.context("cannot run systemd-analyze; install systemd")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let options = unit.lines().find_map(|line| line.strip_prefix("Environment=\"PORTWARDEN_OPTIONS="));
    let options: Vec<&str> = options.context("options")?.trim_end_matches('"').split(' ').collect();
    let capabilities = setting(&unit, "CapabilityBoundingSet")?;
    ensure!(setting(&unit, "AmbientCapabilities")? == capabilities);
    ensure!(setting(&unit, "NoNewPrivileges")? == "yes" && setting(&unit, "DynamicUser")? == "yes");
    let wanted =
        capabilities.split(' ').map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()));
    let wanted = format!("-all{}", wanted.collect::<String>());
    rig.topology.pod(0).serve(Transport::Tcp, 8080)?;
    let address = rig.topology.pod(0).ip().v4;
    rig.objects(&[
        support::node(),
        support::service("web", WEB, "fd00:10:96::a", "TCP", ""),
        support::slice("web", "TCP", &[(address.into(), "node-a")], 8080),
    ])?;
    for path in ["", "manifests", "manifests/objects.yaml"] {
        readable(&rig.path(path))?;
    }
    // The size of the table belongs to the host, not to the namespace of this test.
    let own = ["--hostname-override=node-a", "--conntrack-max-per-core=0"];
    rig.command(&program.to_string_lossy()).args(&options).args(own).arg("--init-only").run()?;
    let limited = rig
        .command("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
        .args(["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}={wanted}")))
        .arg(&program)
        .args(&options)
        .args(own);
    rig.start_command(limited)?;
    rig.wait_for_service(format!("{WEB}:80").parse()?)?;
    ensure!(!rig.log().lines().any(|line| line.starts_with('E')), "{}", rig.log());
    ensure!(rig.stop()?.success());
    Ok(())
}

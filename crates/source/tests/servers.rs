//! The source against the testkit's API server, and against a real kube-apiserver and etcd when the environment names them.

mod support;

use http::Method;
use portwarden_model::{Event, Kind, NamespacedName};
use portwarden_source::Health;
use portwarden_source::kubernetes::{Client, ClientOptions, EventRecorder, NewEvent, Regarding, Severity};
use serde_json::{Value, json};

use support::follower::{DEADLINE, Follower};
use support::real::{RealServer, binaries};
use support::server::Server;

fn options(kubeconfig: std::path::PathBuf) -> ClientOptions {
    ClientOptions { kubeconfig: Some(kubeconfig), qps: -1.0, ..ClientOptions::default() }
}

async fn client(kubeconfig: std::path::PathBuf) -> Client {
    Client::new(options(kubeconfig), None).await.expect("the kubeconfig is good")
}

fn service(name: &str, ip: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
           "spec": {"clusterIP": ip, "ports": [{"port": 80}]}})
}

const SERVICES: &str = "/api/v1/namespaces/default/services";
const NODES: &str = "/api/v1/nodes";

#[tokio::test]
async fn the_source_works_with_our_own_server() {
    println!("the API server is the testkit's");
    everything_works(Server::own().await).await;
}

#[tokio::test]
async fn the_source_works_with_a_real_server() {
    let Some((program, etcd)) = binaries() else {
        println!(
            "no real API server is used: set KUBEBUILDER_ASSETS, or TEST_ASSET_KUBE_APISERVER and TEST_ASSET_ETCD"
        );
        return;
    };
    println!("the API server is {}, with {}", program.display(), etcd.display());
    everything_works(Server::Real(Box::new(RealServer::start(&program, &etcd).await))).await;
}

/// One server for all of it: starting a real one takes longer than everything else together.
async fn everything_works(mut server: Server) {
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "z1"}}});
    server.send(Method::POST, NODES, node).await;
    server
        .send(
            Method::POST,
            NODES,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}}),
        )
        .await;

    support::answers::are_as_they_should_be(&server).await;
    lists_and_watches(&server, "application/vnd.kubernetes.protobuf").await;
    lists_and_watches(&server, "application/json").await;
    refusals_are_explained(&server).await;
    if let Server::Real(server) = &server {
        client_certificates_are_accepted(server).await;
    }
    the_node_is_followed(&server).await;
    events_are_recorded(&server).await;
    a_restart_is_survived(&mut server).await;
}

async fn lists_and_watches(server: &Server, content_type: &str) {
    server.send(Method::POST, SERVICES, service("web", "10.96.0.80")).await;
    server.send(Method::POST, SERVICES, service("headless", "None")).await;
    let kubeconfig = server.kubeconfig("proxier", "token: proxier");
    let options = ClientOptions { content_type: content_type.to_owned(), ..options(kubeconfig) };
    let client = Client::new(options, None).await.expect("the kubeconfig is good");
    let mut follower = Follower::start(client, "node-a");
    follower.until_listed().await;
    assert_eq!(follower.names(Kind::Service), ["default/kubernetes", "default/web"]);
    assert_eq!(follower.names(Kind::Node), ["node-a"]);
    assert_eq!(follower.names(Kind::ServiceCidr), ["kubernetes"]);
    let Some(Event::NodeApplied(node)) = follower.objects.get(&(Kind::Node, "node-a".to_owned())) else {
        panic!("the Node is there")
    };
    assert_eq!(node.zone.as_ref().map(|zone| zone.as_str()), Some("z1"));

    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": ["10.244.0.5"], "nodeName": "node-a"}], "ports": [{"name": "", "port": 8080}]});
    server.send(Method::POST, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice).await;
    follower.until("the slice comes", |f| f.names(Kind::EndpointSlice) == ["default/web-1"]).await;

    let label = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}});
    server.send(Method::PATCH, &format!("{SERVICES}/web"), label).await;
    follower
        .until("a Service of another proxy goes", |f| f.names(Kind::Service) == ["default/kubernetes"])
        .await;

    for path in [
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1".to_owned(),
        format!("{SERVICES}/web"),
        format!("{SERVICES}/headless"),
    ] {
        server.send(Method::DELETE, &path, Value::Null).await;
    }
    follower.until("the slice goes", |f| f.names(Kind::EndpointSlice).is_empty()).await;
    assert_eq!(follower.problems, []);
    assert!(follower.health.values().all(|health| *health == Health::Following), "{:?}", follower.health);
    follower.task.abort();
}

async fn refusals_are_explained(server: &Server) {
    let mut follower = Follower::start(client(server.kubeconfig("nobody", "token: nobody")).await, "node-a");
    let failing = |f: &Follower, part: &str| match f.health.get(part) {
        Some(Health::Failing(text)) => Some(text.clone()),
        _ => None,
    };
    follower.until("Services are refused", |f| failing(f, "Services").is_some()).await;
    let text = failing(&follower, "Services").expect("it is refused");
    assert!(text.contains("User \"nobody\" cannot") && text.contains("resource \"services\""), "{text}");
    follower.until("ServiceCIDRs count as listed", |f| f.lists.contains_key(&Kind::ServiceCidr)).await;
    follower.task.abort();

    let mut follower = Follower::start(client(server.kubeconfig("wrong", "token: wrong")).await, "node-a");
    follower.until("the token is refused", |f| failing(f, "Services").is_some()).await;
    let text = failing(&follower, "Services").expect("it is refused");
    assert!(text.contains("401") && text.contains("the token of user \"wrong\""), "{text}");
    follower.task.abort();
}

async fn client_certificates_are_accepted(server: &RealServer) {
    let identity = server.authority.user("system:kube-proxy", "none");
    for (file, text) in [("proxier.crt", &identity.certificate), ("proxier.key", &identity.key)] {
        std::fs::write(server.folder.path().join(file), text).expect("a file");
    }
    let user = "client-certificate: proxier.crt, client-key: proxier.key";
    let mut follower = Follower::start(client(server.kubeconfig("certificate", user)).await, "node-a");
    follower.until_listed().await;
    assert_eq!(follower.names(Kind::Node), ["node-a"]);
    follower.task.abort();
}

async fn the_node_is_followed(server: &Server) {
    let client = client(server.kubeconfig("proxier", "token: proxier")).await;
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let cidrs = json!({"spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]}});
    let mut follower = Follower::start(client, "node-a");
    follower.until_listed().await;
    server.send(Method::PATCH, &format!("{NODES}/node-a/status"), addresses).await;
    server.send(Method::PATCH, &format!("{NODES}/node-a"), cidrs).await;
    let is_complete = |event: &Event| match event {
        Event::NodeApplied(node) => {
            node.ips == [std::net::IpAddr::from([192, 0, 2, 1])] && node.pod_cidrs.len() == 1
        }
        _ => false,
    };
    let key = (Kind::Node, "node-a".to_owned());
    follower.until("the Node has all it needs", |f| f.objects.get(&key).is_some_and(is_complete)).await;
}

async fn events_are_recorded(server: &Server) {
    let (recorder, work) = EventRecorder::new(
        client(server.kubeconfig("proxier", "token: proxier")).await,
        "kube-proxy",
        "kube-proxy-host",
    );
    let work = tokio::spawn(work);
    let about = |regarding, note: &str| NewEvent {
        regarding,
        severity: Severity::Warning,
        reason: "FailedToStartServiceHealthcheck".into(),
        action: "Listen".into(),
        note: note.into(),
    };
    for _ in 0..2 {
        recorder.record(about(Regarding::Node("node-a".into()), "first"));
    }
    recorder.record(about(Regarding::Service(NamespacedName::new("default", "kubernetes")), "second"));
    drop(recorder);
    tokio::time::timeout(DEADLINE, work).await.expect("in time").expect("it does not panic");
    let events =
        server.send(Method::GET, "/apis/events.k8s.io/v1/namespaces/default/events", Value::Null).await;
    let of_kind = |kind: &str| {
        let events = events["items"].as_array().expect("a list");
        let ours = events.iter().filter(|event| event["reportingInstance"] == "kube-proxy-host");
        ours.filter(|event| event["regarding"]["kind"] == kind).collect::<Vec<_>>()
    };
    let [node] = of_kind("Node")[..] else { panic!("one Event about the Node: {events}") };
    assert_eq!((&node["note"], &node["series"]["count"]), (&json!("first"), &json!(2)));
    let [service] = of_kind("Service")[..] else { panic!("one Event about the Service: {events}") };
    assert_eq!(service["regarding"]["namespace"], "default");
}

async fn a_restart_is_survived(server: &mut Server) {
    let mut follower =
        Follower::start(client(server.kubeconfig("proxier", "token: proxier")).await, "node-a");
    follower.until_listed().await;
    server.kill();
    follower
        .until("the loss is reported", |f| matches!(f.health.get("Services"), Some(Health::Failing(_))))
        .await;
    server.restart().await;
    server.send(Method::POST, SERVICES, service("late", "10.96.0.81")).await;
    follower.until("the new Service comes", |f| f.names(Kind::Service).contains(&"default/late")).await;
    follower.until("all is well", |f| f.health.values().all(|health| *health == Health::Following)).await;
    assert_eq!(follower.gone, Vec::<String>::new(), "nothing disappeared in between");
    follower.task.abort();
}

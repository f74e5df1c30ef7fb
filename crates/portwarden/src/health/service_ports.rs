//! `healthCheckNodePort` of Services: load balancers ask there whether this node has local endpoints.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use portwarden_model::{Family, HealthCheck, NamespacedName, NodePortAddresses, PerFamily};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, error};

use super::state::SharedHealth;
use crate::engine::HealthCheckPorts;
use crate::events::Events;
use crate::follow::is_due;
use crate::http::{Answer, ConnectionLimit, Handler, Limits, Sockets, bind, json, serve, with_header};

/// What the servers use from the rest of the program.
#[derive(Clone)]
pub struct ServicePortsContext {
    /// The health of the proxy, which is part of every answer.
    pub health: SharedHealth,
    /// Reports failures.
    pub events: Events,
    /// The name of the Node, for those reports.
    pub node: String,
    /// The limit of open connections over all these ports together: any number of Services must not use up the descriptors.
    pub connections: ConnectionLimit,
}

/// The open ports.
pub struct ServicePorts {
    context: ServicePortsContext,
    open: BTreeMap<(Family, NamespacedName), Open>,
    /// The last reported error of each port that cannot be opened.
    failed: BTreeMap<(Family, NamespacedName), String>,
}

/// The servers of one Service; dropping it stops them.
struct Open {
    port: u16,
    addresses: Vec<SocketAddr>,
    local_endpoints: Arc<AtomicUsize>,
    servers: JoinSet<()>,
}

impl ServicePorts {
    /// Without open ports.
    pub fn new(context: ServicePortsContext) -> Self {
        ServicePorts { context, open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Opens and closes ports as the engine publishes them, until the engine ends.
    pub async fn follow(mut self, mut wanted: watch::Receiver<PerFamily<HealthCheckPorts>>) {
        loop {
            let present = wanted.borrow_and_update().clone();
            self.reconcile(&present).await;
            if !is_due(&mut wanted, !self.failed.is_empty()).await {
                return;
            }
        }
    }

    /// Closes ports that are no longer needed, opens new ones, and updates the endpoint counts.
    pub async fn reconcile(&mut self, wanted: &PerFamily<HealthCheckPorts>) {
        let closing = self.open.extract_if(.., |(family, service), open| {
            let family_wants = &wanted[*family];
            family_wants.ports.get(service).is_none_or(|check| {
                open.port != check.port.get()
                    || open.addresses != addresses(*family, &family_wants.addresses, *check)
            })
        });
        for ((_, service), mut open) in closing.collect::<Vec<_>>() {
            debug!(%service, port = open.port, "Closing healthcheck");
            // Waits, because the same port may be opened again below.
            open.servers.shutdown().await;
        }
        self.failed.retain(|(family, service), _| wanted[*family].ports.contains_key(service));
        for (family, family_wants) in wanted.iter() {
            for (service, check) in &family_wants.ports {
                match self.open.get(&(family, service.clone())) {
                    Some(open) => open.local_endpoints.store(check.local_endpoints, Ordering::Relaxed),
                    None => self.open(family, service, &family_wants.addresses, *check),
                }
            }
        }
    }

    /// The addresses on which the port of a Service is open.
    pub fn bound(&self, family: Family, service: &NamespacedName) -> &[SocketAddr] {
        self.open.get(&(family, service.clone())).map_or(&[], |open| &open.addresses)
    }

    fn open(&mut self, family: Family, service: &NamespacedName, on: &NodePortAddresses, check: HealthCheck) {
        let key = (family, service.clone());
        let addresses = addresses(family, on, check);
        debug!(%service, port = check.port, ?addresses, "Opening healthcheck");
        let listeners: io::Result<Vec<TcpListener>> =
            addresses.iter().map(|address| bind(*address, Sockets::OneFamily)).collect();
        match listeners {
            Ok(listeners) => {
                self.failed.remove(&key);
                let local_endpoints = Arc::new(AtomicUsize::new(check.local_endpoints));
                let handler = handler(service, local_endpoints.clone(), self.context.health.clone());
                let mut servers = JoinSet::new();
                for listener in listeners {
                    let (handler, connections) = (handler.clone(), self.context.connections.clone());
                    servers.spawn(async move {
                        serve(listener, Limits::default(), connections, handler).await;
                    });
                }
                let port = check.port.get();
                self.open.insert(key, Open { port, addresses, local_endpoints, servers });
            }
            Err(error) => self.report(key, check.port.get(), &error),
        }
    }

    /// Reports a failure, once for each error.
    fn report(&mut self, key: (Family, NamespacedName), port: u16, error: &io::Error) {
        let node = &self.context.node;
        let service = key.1.clone();
        let note = format!("node {node} failed to start healthcheck \"{service}\" on port {port}: {error}");
        if self.failed.get(&key) != Some(&note) {
            error!(%service, node, port, err = %error, "Failed to start healthcheck");
            let reason = "FailedToStartServiceHealthcheck";
            self.context.events.service_warning(service, reason, "Listen", note.clone());
            self.failed.insert(key, note);
        }
    }
}

fn addresses(family: Family, on: &NodePortAddresses, check: HealthCheck) -> Vec<SocketAddr> {
    let wildcard = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let on = match on {
        NodePortAddresses::All => &[wildcard][..],
        NodePortAddresses::Only(ips) => ips,
    };
    on.iter().map(|ip| SocketAddr::new(*ip, check.port.get())).collect()
}

fn handler(service: &NamespacedName, local_endpoints: Arc<AtomicUsize>, health: SharedHealth) -> Handler {
    let service = service.clone();
    Arc::new(move |_| {
        let healthy = health.report(Instant::now()).0.healthy;
        let answer = answer(&service, local_endpoints.load(Ordering::Relaxed), healthy);
        Box::pin(async { answer })
    })
}

fn answer(service: &NamespacedName, count: usize, healthy: bool) -> Answer {
    let status = if count > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let (namespace, name) = (Value::from(service.namespace()), Value::from(service.name()));
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    with_header(
        json(status, body),
        HeaderName::from_static("x-load-balancing-endpoint-weight"),
        HeaderValue::from(count),
    )
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn free_port() -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        listener.local_addr().expect("bound").port()
    }

    fn ports(started: bool) -> (ServicePorts, SharedHealth) {
        let health = SharedHealth::new(Duration::from_secs(30));
        if started {
            health.updated(Family::V4, Instant::now());
        }
        let context = ServicePortsContext {
            health: health.clone(),
            events: Events::default(),
            node: "node-a".to_owned(),
            connections: ConnectionLimit::new(
                256,
                prometheus::IntCounter::new("refused", "for this test").expect("a counter"),
            ),
        };
        (ServicePorts::new(context), health)
    }

    fn web() -> NamespacedName {
        NamespacedName::new("demo", "web")
    }

    fn wanted(port: u16, local_endpoints: usize, addresses: &[&str]) -> PerFamily<HealthCheckPorts> {
        let port = NonZeroU16::new(port).expect("a port");
        let addresses = match addresses {
            [] => NodePortAddresses::All,
            some => NodePortAddresses::Only(some.iter().map(|ip| ip.parse().expect("an address")).collect()),
        };
        let ports = [(web(), HealthCheck { port, local_endpoints })].into();
        PerFamily { v4: HealthCheckPorts { addresses, ports }, v6: HealthCheckPorts::default() }
    }

    async fn ask(port: u16) -> Option<String> {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"POST /any/path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    #[tokio::test]
    async fn answers_are_those_of_kube_proxy() {
        let (mut ports, health) = ports(true);
        let port = free_port();
        ports.reconcile(&wanted(port, 2, &[])).await;
        let answer = ask(port).await.expect("answers");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: application/json\r\n"));
        assert!(answer.contains("x-content-type-options: nosniff\r\n"));
        assert!(answer.contains("x-load-balancing-endpoint-weight: 2\r\n"));
        let body = "{\n\t\"service\": {\n\t\t\"namespace\": \"demo\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
        assert!(answer.ends_with(body), "{answer}");
        ports.reconcile(&wanted(port, 0, &[])).await;
        assert!(ask(port).await.expect("answers").starts_with("HTTP/1.1 503"), "no local endpoint");
        ports.reconcile(&wanted(port, 1, &[])).await;
        health.queued(Family::V4, Instant::now() - Duration::from_secs(61));
        let late = ask(port).await.expect("answers");
        assert!(
            late.starts_with("HTTP/1.1 503") && late.contains("\"serviceProxyHealthy\": false"),
            "{late}"
        );
    }

    #[tokio::test]
    async fn node_eligibility_does_not_count() {
        let (mut ports, health) = ports(true);
        health.set_node_eligible(false);
        let port = free_port();
        ports.reconcile(&wanted(port, 1, &[])).await;
        assert!(ask(port).await.expect("answers").starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn ports_follow_the_services_and_their_addresses() {
        let (mut ports, _) = ports(true);
        let (first, second) = (free_port(), free_port());
        ports.reconcile(&wanted(first, 1, &["127.0.0.1", "127.0.0.2"])).await;
        assert_eq!(ports.bound(Family::V4, &web()).len(), 2);
        ports.reconcile(&wanted(second, 1, &["127.0.0.1"])).await;
        assert!(ask(second).await.is_some());
        assert!(ask(first).await.is_none(), "the old port is closed");
        ports.reconcile(&wanted(second, 1, &[])).await;
        assert_eq!(
            ports.bound(Family::V4, &web()),
            [format!("0.0.0.0:{second}").parse().expect("an address")]
        );
        ports.reconcile(&PerFamily::default()).await;
        assert!(ask(second).await.is_none());
    }

    /// Health-check ports of several Services, by name, port and local endpoints.
    fn several(services: &[(&str, u16, usize)]) -> PerFamily<HealthCheckPorts> {
        let mut all = wanted(1, 0, &["127.0.0.1"]);
        all.v4.ports.clear();
        for (name, port, local_endpoints) in services {
            let check = HealthCheck {
                port: NonZeroU16::new(*port).expect("a port"),
                local_endpoints: *local_endpoints,
            };
            all.v4.ports.insert(NamespacedName::new("demo", name), check);
        }
        all
    }

    #[tokio::test]
    async fn each_service_has_its_own_count() {
        let (mut ports, _) = ports(true);
        let numbers = [free_port(), free_port(), free_port()];
        ports.reconcile(&several(&[("a", numbers[0], 0), ("b", numbers[1], 1), ("c", numbers[2], 17)])).await;
        for (port, count, status) in [(numbers[0], 0, 503), (numbers[1], 1, 200), (numbers[2], 17, 200)] {
            let answer = ask(port).await.expect("answers");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
            assert!(answer.contains(&format!("x-load-balancing-endpoint-weight: {count}\r\n")), "{answer}");
            assert!(answer.contains(&format!("\"localEndpoints\": {count},")), "{answer}");
        }
    }

    #[tokio::test]
    async fn one_sync_can_remove_keep_move_and_add() {
        let (mut ports, _) = ports(true);
        let [gone, kept, before, after, new] = std::array::from_fn(|_| free_port());
        ports.reconcile(&several(&[("gone", gone, 1), ("kept", kept, 1), ("moved", before, 1)])).await;
        for port in [gone, kept, before] {
            assert!(ask(port).await.is_some(), "{port}");
        }
        ports.reconcile(&several(&[("kept", kept, 2), ("moved", after, 3), ("new", new, 4)])).await;
        for port in [gone, before] {
            assert!(ask(port).await.is_none(), "{port} is closed");
        }
        for (port, count) in [(kept, 2), (after, 3), (new, 4)] {
            let answer = ask(port).await.expect("answers");
            assert!(answer.contains(&format!("x-load-balancing-endpoint-weight: {count}\r\n")), "{answer}");
        }
    }

    /// The weight says what is here, whether the proxy is healthy or not.
    #[tokio::test]
    async fn an_unhealthy_proxy_keeps_the_weight_and_recovers() {
        let (mut ports, health) = ports(true);
        let port = free_port();
        ports.reconcile(&wanted(port, 3, &["127.0.0.1"])).await;
        health.queued(Family::V4, Instant::now() - Duration::from_secs(61));
        let answer = ask(port).await.expect("answers");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("x-load-balancing-endpoint-weight: 3\r\n"), "{answer}");
        health.updated(Family::V4, Instant::now());
        let answer = ask(port).await.expect("answers");
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("\"serviceProxyHealthy\": true"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn a_taken_port_is_tried_again_and_harms_no_other() {
        let (mut ports, _) = ports(true);
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = taken.local_addr().expect("bound").port();
        let mut both = wanted(port, 1, &["127.0.0.1"]);
        let other = free_port();
        let check = HealthCheck { port: NonZeroU16::new(other).expect("a port"), local_endpoints: 1 };
        both.v4.ports.insert(NamespacedName::new("demo", "other"), check);
        ports.reconcile(&both).await;
        assert!(ask(other).await.is_some());
        assert_eq!(ports.failed.len(), 1);
        drop(taken);
        ports.reconcile(&both).await;
        assert!(ask(port).await.expect("answers").starts_with("HTTP/1.1 200"));
        assert!(ports.failed.is_empty());
    }
}

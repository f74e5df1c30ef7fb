//! The proxy with real sockets on loopback addresses.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use portwarden_model::{Backend, Family, NamespacedName, PerFamily, Pool, PortName, Protocol};
use prometheus::IntCounter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::proxy::{LoopbackContext, LoopbackProxy};
use crate::engine::{LoopbackPort, LoopbackPorts};
use crate::metrics::{BuildInfo, Metrics};

/// Long enough for anything; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

struct Bench {
    proxy: LoopbackProxy,
    metrics: Metrics,
    turned_away: IntCounter,
}

impl Bench {
    fn new() -> Self {
        let metrics = Metrics::new(&BuildInfo::default()).expect("metrics");
        metrics.loopback.show(Box::new(|| vec![(Family::V6, Protocol::Udp, 7)])).expect("metrics");
        let turned_away = IntCounter::new("turned_away", "for this test").expect("a counter");
        let context = LoopbackContext { metrics: metrics.loopback.clone(), turned_away: turned_away.clone() };
        Bench { proxy: LoopbackProxy::new(context), metrics, turned_away }
    }

    async fn want(&mut self, port: u16, endpoints: &[SocketAddr]) {
        self.want_sticky(port, endpoints, None).await;
    }

    async fn want_sticky(&mut self, port: u16, endpoints: &[SocketAddr], affinity: Option<u32>) {
        let backend = |address: &SocketAddr| Backend::new(*address, true);
        let wanted = LoopbackPort {
            name: PortName {
                service: NamespacedName::new("demo", "web"),
                port: "p".into(),
                protocol: Protocol::Tcp,
            },
            port,
            endpoints: Pool::new(&endpoints.iter().map(backend).collect::<Vec<_>>()),
            affinity: affinity.and_then(NonZeroU32::new),
        };
        let ports = if endpoints.is_empty() { vec![] } else { vec![wanted] };
        let wanted = PerFamily { v4: LoopbackPorts::of(ports), v6: LoopbackPorts::default() };
        self.proxy.reconcile(&wanted).await;
    }

    fn shows(&self, line: &str) -> bool {
        self.metrics.text().lines().any(|shown| shown == line)
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("bound").port()
}

/// An endpoint that says its letter, then sends everything back, and ends when the client has ended.
async fn echo(letter: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reading, mut writing) = stream.split();
                writing.write_all(&[letter]).await?;
                tokio::io::copy(&mut reading, &mut writing).await?;
                writing.write_all(b"!").await?;
                writing.shutdown().await
            });
        }
    });
    address
}

async fn connect(port: u16) -> std::io::Result<TcpStream> {
    tokio::time::timeout(PATIENCE, TcpStream::connect(("127.0.0.1", port))).await?
}

/// The letter of the endpoint that a new connection leads to; nothing if it is closed.
async fn letter(stream: &mut TcpStream) -> Option<u8> {
    let mut letter = [0];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut letter)).await.expect("an answer in time");
    matches!(read, Ok(1)).then_some(letter[0])
}

#[tokio::test]
async fn bytes_and_ends_pass_in_both_directions() {
    let (port, endpoint) = (free_port(), echo(b'a').await);
    let mut bench = Bench::new();
    bench.want(port, &[endpoint]).await;
    let mut stream = connect(port).await.expect("open");
    let sent: Vec<u8> = (0..200_000u32).map(|number| number.to_le_bytes()[0]).collect();
    let (mut reading, mut writing) = stream.split();
    let (_, received) = tokio::join!(
        async {
            writing.write_all(&sent).await.expect("sends");
            writing.shutdown().await.expect("ends");
        },
        async {
            let mut received = Vec::new();
            reading.read_to_end(&mut received).await.expect("receives");
            received
        }
    );
    assert_eq!((received.first(), received.last()), (Some(&b'a'), Some(&b'!')), "an answer after the end");
    assert!(received[1..received.len() - 1] == sent, "every byte comes back");
}

#[tokio::test]
async fn a_client_hears_of_the_endpoints_end_and_may_go_on_sending() {
    let (port, listener) = (free_port(), TcpListener::bind("127.0.0.1:0").await.expect("binds"));
    let mut bench = Bench::new();
    bench.want(port, &[listener.local_addr().expect("bound")]).await;
    let mut client = connect(port).await.expect("open");
    let (mut backend, _) = listener.accept().await.expect("a connection");
    backend.shutdown().await.expect("ends");
    let mut nothing = [0];
    assert_eq!(client.read(&mut nothing).await.expect("the end"), 0);
    client.write_all(b"still here").await.expect("sends");
    client.shutdown().await.expect("ends");
    let mut received = String::new();
    backend.read_to_string(&mut received).await.expect("receives");
    assert_eq!(received, "still here");
}

#[tokio::test]
async fn established_connections_outlive_other_endpoints_and_end_with_the_port() {
    let (port, first, second) = (free_port(), echo(b'a').await, echo(b'b').await);
    let mut bench = Bench::new();
    bench.want(port, &[first]).await;
    let mut old = connect(port).await.expect("open");
    assert_eq!(letter(&mut old).await, Some(b'a'));
    bench.want(port, &[second]).await;
    let mut new = connect(port).await.expect("open");
    assert_eq!(letter(&mut new).await, Some(b'b'));
    old.write_all(b"x").await.expect("sends");
    assert_eq!(letter(&mut old).await, Some(b'x'), "the old one goes on");
    assert!(bench.shows("kubeproxy_nftables_localhost_nodeport_listeners{ip_family=\"IPv4\"} 1"));
    bench.want(port, &[]).await;
    assert!(connect(port).await.is_err(), "the port is closed");
    assert_eq!(letter(&mut old).await, None);
    assert!(bench.shows("kubeproxy_nftables_localhost_nodeport_listeners{ip_family=\"IPv4\"} 0"));
}

#[tokio::test]
async fn all_clients_of_a_sticky_service_have_one_endpoint() {
    let (port, first, second) = (free_port(), echo(b'a').await, echo(b'b').await);
    let mut bench = Bench::new();
    bench.want_sticky(port, &[first, second], Some(600)).await;
    let chosen = letter(&mut connect(port).await.expect("open")).await;
    for _ in 0..20 {
        assert_eq!(letter(&mut connect(port).await.expect("open")).await, chosen);
    }
    let (other, expected) = if chosen == Some(b'a') { (second, b'b') } else { (first, b'a') };
    bench.want_sticky(port, &[other], Some(600)).await;
    assert_eq!(letter(&mut connect(port).await.expect("open")).await, Some(expected));
}

#[tokio::test]
async fn an_endpoint_that_is_gone_closes_the_connection() {
    let (port, gone) = (free_port(), free_port());
    let mut bench = Bench::new();
    bench.want(port, &[SocketAddr::from(([127, 0, 0, 1], gone))]).await;
    assert_eq!(letter(&mut connect(port).await.expect("open")).await, None);
}

#[tokio::test]
async fn a_taken_port_is_told_counted_and_tried_again() {
    let endpoint = echo(b'a').await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = taken.local_addr().expect("bound").port();
    let mut bench = Bench::new();
    bench.want(port, &[endpoint]).await;
    let failures =
        "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family=\"IPv4\"}";
    assert!(bench.shows(&format!("{failures} 1")), "{}", bench.metrics.text());
    assert!(bench.shows("kubeproxy_nftables_localhost_nodeport_listeners{ip_family=\"IPv4\"} 0"));
    drop(taken);
    bench.want(port, &[endpoint]).await;
    assert_eq!(letter(&mut connect(port).await.expect("open")).await, Some(b'a'));
    assert!(bench.shows(&format!("{failures} 1")));
}

#[tokio::test]
async fn idle_clients_cannot_take_everything() {
    let (port, endpoint) = (free_port(), echo(b'a').await);
    let mut bench = Bench::new();
    bench.want(port, &[endpoint]).await;
    let mut idle = Vec::new();
    for _ in 0..256 {
        let mut client = connect(port).await.expect("open");
        assert_eq!(letter(&mut client).await, Some(b'a'));
        idle.push(client);
    }
    let mut one_more = connect(port).await.expect("open");
    assert_eq!(letter(&mut one_more).await, None, "turned away at once");
    assert_eq!(bench.turned_away.get(), 1);
    idle.pop();
    let served = async { while letter(&mut connect(port).await.expect("open")).await.is_none() {} };
    tokio::time::timeout(PATIENCE, served).await.expect("room again");
}

#[tokio::test]
async fn metrics_have_the_names_and_labels_of_the_reference() {
    let metrics = Metrics::new(&BuildInfo::default()).expect("metrics");
    assert!(!metrics.text().contains("localhost_nodeport"), "nothing is shown unless it is wanted");
    let bench = Bench::new();
    let rejected = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total";
    assert!(
        bench.shows(&format!("{rejected}{{ip_family=\"IPv6\",protocol=\"UDP\"}} 7")),
        "{}",
        bench.metrics.text()
    );
    assert!(bench.shows(&format!("# TYPE {rejected} counter")));
}

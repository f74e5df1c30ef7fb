//! Clients that keep a way busy, and endpoints that answer them.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use portwarden_testkit::Host;

/// Clients at a time, each with a thread.
const CLIENTS: usize = 16;

/// Connections that an endpoint serves at a time.
const SERVERS: usize = 64;

const MESSAGE: usize = 64;
const CHUNK: usize = 256 << 10;

/// What a client wants from an endpoint, as the first byte of a connection.
const ECHO: u8 = b'e';
const STREAM: u8 = b's';
const HOLD: u8 = b'h';

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Connect, one request, close.
    Connections,
    /// Requests over connections that stay open.
    Requests,
    /// Bytes from endpoint to client.
    Throughput,
}

impl Task {
    pub(crate) const ALL: [Task; 3] = [Task::Connections, Task::Requests, Task::Throughput];

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Task::Connections => "connections/s",
            Task::Requests => "requests/s",
            Task::Throughput => "MiB/s",
        }
    }
}

/// What a round did.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Connections, requests or MiB.
    pub(crate) operations: f64,
    pub(crate) took: Duration,
    /// The time that all but one in a hundred operations took at most.
    pub(crate) p99: Duration,
}

/// Keeps a way busy for a while.
pub(crate) fn run(client: &Host, task: Task, target: SocketAddr, round: Duration) -> Result<Measured> {
    let start = Instant::now();
    let until = start + round;
    let clients = if task == Task::Throughput { 4 } else { CLIENTS };
    let threads: Vec<_> = (0..clients)
        .map(|_| client.namespace().spawn(move || one_client(task, target, until)))
        .collect::<Result<_>>()?;
    let (mut operations, mut times) = (0.0, Vec::new());
    for thread in threads {
        let (done, taken) = thread.join().ok().context("a client panicked")???;
        operations += done;
        times.extend(taken);
    }
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    Ok(Measured { operations, took: start.elapsed(), p99 })
}

fn one_client(task: Task, target: SocketAddr, until: Instant) -> std::io::Result<(f64, Vec<Duration>)> {
    let (mut operations, mut times) = (0.0, Vec::new());
    match task {
        Task::Connections => {
            while Instant::now() < until {
                let mut stream = open(target, ECHO)?;
                exchange(&mut stream)?;
                operations += 1.0;
            }
        }
        Task::Requests => {
            let mut stream = open(target, ECHO)?;
            while Instant::now() < until {
                let start = Instant::now();
                exchange(&mut stream)?;
                times.push(start.elapsed());
                operations += 1.0;
            }
        }
        Task::Throughput => {
            let mut stream = open(target, STREAM)?;
            let mut buffer = vec![0; CHUNK];
            while Instant::now() < until {
                operations += stream.read(&mut buffer)? as f64 / f64::from(1 << 20);
            }
        }
    }
    Ok((operations, times))
}

/// Connections that stay open and do nothing.
pub(crate) fn open_idle(target: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    (0..count).map(|_| Ok(open(target, HOLD)?)).collect()
}

fn open(target: SocketAddr, want: u8) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[want])?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut message = [1; MESSAGE];
    stream.write_all(&message)?;
    stream.read_exact(&mut message)
}

/// Serves all tasks on a port of a host.
pub(crate) fn serve(host: &Host, port: u16) -> Result<()> {
    let address = SocketAddr::new(IpAddr::V4(host.ip().v4), port);
    let listener = host.namespace().run(|| Ok(TcpListener::bind(address)?))?;
    for _ in 0..SERVERS {
        let listener = listener.try_clone()?;
        thread::spawn(move || {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                // A client that goes away ends its connection, not the endpoint.
                if let Ok(true) = answer(&mut stream) {
                    held.push(stream);
                }
            }
        });
    }
    Ok(())
}

/// Serves a connection to its end. Returns whether it is to be held open.
fn answer(stream: &mut TcpStream) -> std::io::Result<bool> {
    stream.set_nodelay(true)?;
    let mut want = [0];
    stream.read_exact(&mut want)?;
    match want {
        [STREAM] => {
            let chunk = vec![0; CHUNK];
            loop {
                stream.write_all(&chunk)?;
            }
        }
        [HOLD] => Ok(true),
        _ => {
            let mut message = [0; MESSAGE];
            loop {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)?;
            }
        }
    }
}

use std::future::poll_fn;
use std::net::SocketAddr;

use nix::sys::socket::{getsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use super::*;
use crate::core::clock::tests::advance;
use crate::core::socket::start_connecting;

/// A relay between two peers that the test holds: client and endpoint.
async fn connected() -> io::Result<(TcpStream, TcpStream, Relay)> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (clients, endpoints) = (TcpListener::bind(any).await?, TcpListener::bind(any).await?);
    let client = TcpStream::connect(clients.local_addr()?).await?;
    let (accepted, _) = clients.accept().await?;
    let dialled = start_connecting(endpoints.local_addr()?, None)?;
    dialled.writable().await?;
    let (endpoint, _) = endpoints.accept().await?;
    Ok((client, endpoint, Relay::new(accepted, dialled)))
}

fn test<T>(work: impl Future<Output = io::Result<T>>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work).expect("sockets on the loopback device")
}

/// Polls once. What was sent before is there by then, or comes with a later poll.
async fn poll_once(relay: &mut Relay, counters: &Counters) -> Option<Step> {
    tokio::task::yield_now().await;
    poll_fn(|cx| {
        Poll::Ready(match relay.poll(cx, counters) {
            Poll::Ready(step) => Some(step),
            Poll::Pending => None,
        })
    })
    .await
}

fn ticks_of_half_closed() -> u32 {
    u32::try_from(HALF_CLOSED.as_secs() / PERIOD.as_secs()).expect("few")
}

#[test]
fn the_kernel_checks_an_endpoint_once_its_connection_has_seen_a_tick() {
    test(async {
        let (_client, _endpoint, mut relay) = connected().await?;
        let counters = Counters::default();
        assert!(poll_once(&mut relay, &counters).await.is_none());
        assert!(
            !getsockopt(&relay.endpoint, sockopt::KeepAlive)?,
            "a call that short connections do without"
        );
        assert!(relay.tick.is_some());
        advance();
        assert!(poll_once(&mut relay, &counters).await.is_none());
        assert!(getsockopt(&relay.endpoint, sockopt::KeepAlive)?);
        assert!(getsockopt(&relay.endpoint, sockopt::TcpNoDelay)?);
        assert_eq!(getsockopt(&relay.endpoint, sockopt::TcpKeepIdle)?, 15);
        assert!(relay.tick.is_none(), "nothing is left to do at a tick");
        Ok(())
    });
}

#[test]
fn a_half_closed_connection_ends_after_its_time_without_a_byte() {
    test(async {
        let (mut client, mut endpoint, mut relay) = connected().await?;
        let counters = Counters::default();
        client.shutdown().await?;
        while relay.up.state() != State::Ended {
            assert!(poll_once(&mut relay, &counters).await.is_none());
        }
        for _ in 0..ticks_of_half_closed() {
            advance();
            assert!(poll_once(&mut relay, &counters).await.is_none());
        }
        // A byte in the other direction starts the time again.
        endpoint.write_all(b"x").await?;
        let mut received = [0];
        while client.try_read(&mut received).is_err() {
            assert!(poll_once(&mut relay, &counters).await.is_none());
        }
        for _ in 0..ticks_of_half_closed() {
            advance();
            assert!(poll_once(&mut relay, &counters).await.is_none());
        }
        advance();
        let step = poll_once(&mut relay, &counters).await;
        let Some(Step::Ended(Err(error))) = step else { panic!("{step:?}") };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(relay);
        let error = client.read(&mut received).await.expect_err("a reset, not an end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        Ok(())
    });
}

#[test]
fn a_connection_that_lasts_goes_on_after_it_was_parked() {
    test(async {
        let (mut client, endpoint, mut relay) = connected().await?;
        let counters = Counters::default();
        let mut received = [0];
        for round in 1..=LASTING {
            client.write_all(&[round]).await?;
            let mut reported = false;
            while endpoint.try_read(&mut received).is_err() {
                match poll_once(&mut relay, &counters).await {
                    Some(Step::Lasting) => reported = true,
                    Some(step) => panic!("{step:?}"),
                    None => {}
                }
            }
            assert_eq!((received, reported), ([round], round == LASTING));
        }
        // Bytes that come while no worker has it are not lost.
        let parked = relay.park()?;
        client.write_all(b"x").await?;
        let mut relay = parked.resume()?;
        while endpoint.try_read(&mut received).is_err() {
            assert!(poll_once(&mut relay, &counters).await.is_none(), "reported once");
        }
        assert_eq!(&received, b"x");
        assert_eq!(counters.bytes_to_endpoints.get(), u64::from(LASTING) + 1);
        Ok(())
    });
}

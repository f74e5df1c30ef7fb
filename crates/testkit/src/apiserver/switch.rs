//! A connection that can be closed, reset or frozen from outside.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Decides over one connection. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Switch {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    frozen: AtomicBool,
    reset: AtomicBool,
    closed: Notify,
}

impl Switch {
    /// Ends the connection in order.
    pub(super) fn close(&self) {
        self.state.closed.notify_one();
    }

    /// Ends the connection with a reset.
    pub(super) fn reset(&self) {
        self.state.reset.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Lets nothing through any more.
    pub(super) fn freeze(&self) {
        self.state.frozen.store(true, Ordering::Relaxed);
    }

    /// Waits until the connection is to end.
    pub(super) async fn closed(&self) {
        self.state.closed.notified().await;
    }
}

/// The connection under a switch.
#[derive(Debug)]
pub(super) struct Switched {
    stream: TcpStream,
    switch: Switch,
}

impl Switched {
    pub(super) fn new(stream: TcpStream, switch: Switch) -> Switched {
        Switched { stream, switch }
    }

    fn is_frozen(&self) -> bool {
        self.switch.state.frozen.load(Ordering::Relaxed)
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        if self.switch.state.reset.load(Ordering::Relaxed) {
            // Closing with no time to linger is how a socket sends a reset.
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let _ = setsockopt(&self.stream, sockopt::Linger, &linger);
        }
    }
}

impl AsyncRead for Switched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A frozen connection can only be dropped.
        if self.is_frozen() { Poll::Pending } else { Pin::new(&mut self.stream).poll_read(cx, buf) }
    }
}

impl AsyncWrite for Switched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_frozen() { Poll::Pending } else { Pin::new(&mut self.stream).poll_write(cx, bytes) }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_frozen() { Poll::Pending } else { Pin::new(&mut self.stream).poll_flush(cx) }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_frozen() { Poll::Pending } else { Pin::new(&mut self.stream).poll_shutdown(cx) }
    }
}

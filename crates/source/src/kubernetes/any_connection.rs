//! One type for connections of every kind: TCP, through a proxy, with TLS to the proxy.
//!
//! The HTTP client is generic over its connection. With one type the compiler builds it once, and not once for each kind, which
//! took a fifth more processor time for this crate.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder};

/// Opens connections.
pub(super) type Connector = BoxCloneSyncService<Uri, AnyConnection, BoxError>;

/// Hides the type of a connector.
pub(super) fn boxed<C>(connector: C) -> Connector
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Stream + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let service = ServiceBuilder::new()
        .map_response(|stream| AnyConnection(Box::new(stream)))
        .map_err(Into::into)
        .service(connector);
    BoxCloneSyncService::new(service)
}

/// What every connection can do.
pub(super) trait Stream: Read + Write + Connection + Send + Unpin {}

impl<S: Read + Write + Connection + Send + Unpin> Stream for S {}

/// A connection of any kind.
pub(super) struct AnyConnection(Box<dyn Stream>);

impl AnyConnection {
    fn pinned(self: Pin<&mut Self>) -> Pin<&mut dyn Stream> {
        Pin::new(self.get_mut().0.as_mut())
    }
}

impl Read for AnyConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.pinned().poll_read(context, buffer)
    }
}

impl Write for AnyConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.pinned().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.pinned().poll_write_vectored(context, slices)
    }
}

impl Connection for AnyConnection {
    fn connected(&self) -> Connected {
        self.0.connected()
    }
}

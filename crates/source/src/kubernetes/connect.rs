//! The HTTP client: TLS, HTTP/2 with pings, proxies.
//!
//! kube's own stack speaks HTTP/1.1 only, which would cost the API server one connection per watch; with HTTP/2 all watches
//! of a node share one, and pings tell a dead one within a minute.

use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use tower::{BoxError, Service, ServiceBuilder};

use super::access::{Access, AccessError};
use super::resolve::TimedResolver;

const CONNECT: Duration = Duration::from_secs(10);
/// A silent connection is asked for a sign of life after this time, and given up after the next.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);
/// How much may be on its way to us: enough for speed, and little enough that memory stays small.
const STREAM_WINDOW: u32 = 512 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Builds the client. May run a credential plugin and so take its time; connects to nothing yet.
pub(super) fn client(access: &Access, resolver: TimedResolver) -> Result<kube::Client, AccessError> {
    // An error means that there is a default already, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(PING_AFTER));
    connector.set_keepalive_interval(Some(PING_PATIENCE));
    connector.set_keepalive_retries(Some(3));
    let Some(proxy) = &access.proxy else { return over(connector, access) };
    match proxy.uri().scheme_str() {
        Some("socks5" | "socks5h") => {
            let mut socks = SocksV5::new(proxy.uri().clone(), connector);
            if let Some((user, password)) = proxy.raw_auth() {
                socks = socks.with_auth(user.to_owned(), password.to_owned());
            }
            over(socks, access)
        }
        Some("http") => over(tunnel(connector, access), access),
        Some("https") => over(tunnel(tls(connector, access)?, access), access),
        _ => Err(AccessError::Address { text: proxy.uri().to_string(), what: "a proxy" }),
    }
}

fn tunnel<H>(connector: H, access: &Access) -> Tunnel<H> {
    let proxy = access.proxy.as_ref();
    let tunnel = Tunnel::new(proxy.map(|proxy| proxy.uri().clone()).unwrap_or_default(), connector);
    match proxy.and_then(|proxy| proxy.basic_auth()) {
        Some(header) => tunnel.with_auth(header.clone()),
        None => tunnel,
    }
}

fn tls<H>(connector: H, access: &Access) -> Result<HttpsConnector<H>, AccessError> {
    let credentials =
        |source| AccessError::Credentials { place: access.identity.clone(), source: Box::new(source) };
    let tls = access.config.rustls_client_config().map_err(credentials)?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &access.config.tls_server_name {
        let wrong = |_| AccessError::Address { text: name.clone(), what: "a TLS server" };
        let name = name.clone().try_into().map_err(wrong)?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(connector))
}

/// The client over any way to reach the server.
fn over<H>(connector: H, access: &Access) -> Result<kube::Client, AccessError>
where
    H: Service<Uri> + Clone + Send + Sync + 'static,
    H::Response: Connection + Read + Write + Send + Unpin + 'static,
    H::Future: Send + 'static,
    H::Error: Into<BoxError>,
{
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_PATIENCE)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(tls(connector, access)?);
    let credentials =
        |source| AccessError::Credentials { place: access.identity.clone(), source: Box::new(source) };
    let service = ServiceBuilder::new()
        .layer(access.config.base_uri_layer())
        .option_layer(access.config.auth_layer().map_err(credentials)?)
        .layer(access.config.extra_headers_layer().map_err(credentials)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, "default"))
}

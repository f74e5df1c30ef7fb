//! The HTTP client: TLS, HTTP/2 with pings, proxies.
//!
//! kube's own stack speaks HTTP/1.1 only, which would cost the API server one connection per watch; with HTTP/2 all watches
//! of a node share one, and pings detect a dead one within a minute.

use std::time::Duration;

use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use tower::{BoxError, ServiceBuilder};

use super::any_connection::{Connector, boxed};
use super::credentials::{Access, AccessError};
use super::dns::TimedResolver;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A silent connection gets a ping after this time, and is closed if no answer follows in time.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// How many bytes the server may send ahead: enough for speed, and few enough that memory stays small.
const STREAM_WINDOW: u32 = 512 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Builds the client. Runs a credential plugin if there is one, which can take long; opens no connection yet.
pub(super) fn client(access: &Access, resolver: TimedResolver) -> Result<kube::Client, AccessError> {
    // An error means that the default is already set.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let connector = tls(through_proxy(tcp(resolver), access)?, access)?;
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(access.config.base_uri_layer())
        .option_layer(access.config.auth_layer().map_err(|source| unusable(access, source))?)
        .layer(access.config.extra_headers_layer().map_err(|source| unusable(access, source))?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, "default"))
}

fn tcp(resolver: TimedResolver) -> Connector {
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(PING_AFTER));
    connector.set_keepalive_interval(Some(PING_TIMEOUT));
    connector.set_keepalive_retries(Some(3));
    boxed(connector)
}

fn through_proxy(connector: Connector, access: &Access) -> Result<Connector, AccessError> {
    let Some(proxy) = &access.proxy else { return Ok(connector) };
    let tunnel = |connector| {
        let tunnel = Tunnel::new(proxy.uri().clone(), connector);
        match proxy.basic_auth() {
            Some(header) => boxed(tunnel.with_auth(header.clone())),
            None => boxed(tunnel),
        }
    };
    match proxy.uri().scheme_str() {
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(proxy.uri().clone(), connector);
            Ok(match proxy.raw_auth() {
                Some((user, password)) => boxed(socks.with_auth(user.to_owned(), password.to_owned())),
                None => boxed(socks),
            })
        }
        Some("http") => Ok(tunnel(connector)),
        Some("https") => Ok(tunnel(boxed(tls(connector, access)?))),
        _ => Err(AccessError::Address { text: proxy.uri().to_string(), what: "a proxy" }),
    }
}

fn tls(connector: Connector, access: &Access) -> Result<HttpsConnector<Connector>, AccessError> {
    let tls = access.config.rustls_client_config().map_err(|source| unusable(access, source))?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &access.config.tls_server_name {
        let wrong = |_| AccessError::Address { text: name.clone(), what: "a TLS server" };
        let name = name.clone().try_into().map_err(wrong)?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(connector))
}

fn unusable(access: &Access, source: kube::Error) -> AccessError {
    AccessError::Credentials { place: access.identity.clone(), source: Box::new(source) }
}

//! `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, by the rules of Go programs such as kube-proxy.

use std::net::IpAddr;

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// The proxy variables of the process environment.
#[derive(Debug, Default)]
pub(crate) struct ProxyEnvironment {
    /// `HTTP_PROXY`, for servers without TLS.
    pub(crate) http: String,
    /// `HTTPS_PROXY`, for servers with TLS.
    pub(crate) https: String,
    /// `NO_PROXY`: hosts, domains and ranges that need no proxy.
    pub(crate) no: String,
}

impl ProxyEnvironment {
    /// Those of this process. Go ignores `ALL_PROXY`, and so do we.
    pub(crate) fn of_process() -> Self {
        let variable = |upper: &str, lower: &str| {
            let value = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
            value(upper).or_else(|| value(lower)).unwrap_or_default()
        };
        ProxyEnvironment {
            http: variable("HTTP_PROXY", "http_proxy"),
            https: variable("HTTPS_PROXY", "https_proxy"),
            no: variable("NO_PROXY", "no_proxy"),
        }
    }

    /// The proxy for a server.
    pub(crate) fn towards(&self, server: &Uri) -> Option<Intercept> {
        // A proxy on another machine cannot reach this host, where a load balancer for the API servers often runs.
        if is_this_host(server.host()?) {
            return None;
        }
        let no = self.exceptions(port(server));
        let matcher = Matcher::builder().http(self.http.clone()).https(self.https.clone()).no(no);
        matcher.build().intercept(server)
    }

    /// The exceptions that apply to this port, without their ports.
    fn exceptions(&self, port: u16) -> String {
        let counts = |entry: &str| match with_port(entry) {
            Some((host, own)) => (own == port).then(|| host.to_owned()),
            None => Some(entry.to_owned()),
        };
        let entries = self.no.split(',').map(|entry| entry.trim().trim_start_matches('*'));
        // An asterisk alone matches every host.
        let all = self.no.split(',').any(|entry| entry.trim() == "*");
        if all {
            "*,0.0.0.0/0,::/0".to_owned()
        } else {
            entries.filter_map(counts).collect::<Vec<_>>().join(",")
        }
    }
}

fn is_this_host(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn port(server: &Uri) -> u16 {
    server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 })
}

/// The parts of `host:port` or `[ip]:port`; `None` for an entry without a port, such as an IPv6 address.
fn with_port(entry: &str) -> Option<(&str, u16)> {
    if entry.parse::<IpAddr>().is_ok() || entry.contains('/') {
        return None;
    }
    let (host, port) = entry.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_through(no: &str, server: &str) -> bool {
        let proxies = ProxyEnvironment {
            http: "http://plain:3128".to_owned(),
            https: "http://proxy:3128".to_owned(),
            no: no.to_owned(),
        };
        proxies.towards(&server.parse().unwrap()).is_some()
    }

    #[test]
    fn a_server_on_this_host_is_never_behind_a_proxy() {
        for server in
            ["https://localhost:6443", "https://127.0.0.1:6443", "http://127.1.2.3", "https://[::1]:6443"]
        {
            assert!(!goes_through("", server), "{server}");
        }
        assert!(goes_through("", "https://192.0.2.1:6443"));
        assert!(goes_through("", "https://localhost.example.com"));
    }

    #[test]
    fn exceptions_are_hosts_domains_and_ranges_some_with_a_port() {
        for (no, server, through) in [
            ("192.0.2.1", "https://192.0.2.1:6443", false),
            ("192.0.2.0/24", "https://192.0.2.1:6443", false),
            ("192.0.2.1:6443", "https://192.0.2.1:6443", false),
            ("192.0.2.1:6443", "https://192.0.2.1:443", true),
            ("192.0.2.1:443", "https://192.0.2.1", false),
            ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443", false),
            ("2001:db8::1", "https://[2001:db8::1]:6443", false),
            ("2001:db8::/32", "https://[2001:db8::1]:6443", false),
            ("10.0.0.0/8, example.com", "https://api.example.com", false),
            ("*.example.com", "https://api.example.com", false),
            ("example.com", "https://api.example.org", true),
            ("*", "https://api.example.org", false),
            ("*", "https://192.0.2.1", false),
        ] {
            assert_eq!(goes_through(no, server), through, "NO_PROXY={no} {server}");
        }
    }

    #[test]
    fn the_scheme_of_the_server_decides() {
        let proxies =
            ProxyEnvironment { https: "http://proxy:3128".to_owned(), ..ProxyEnvironment::default() };
        assert!(proxies.towards(&"https://a".parse().unwrap()).is_some());
        assert!(proxies.towards(&"http://a".parse().unwrap()).is_none());
    }
}

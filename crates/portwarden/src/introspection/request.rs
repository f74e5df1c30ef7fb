//! Which requests are answered, and how their queries are read.

use std::net::{IpAddr, SocketAddr};

use hyper::header::HOST;
use hyper::{HeaderMap, Method, StatusCode};

/// Why a request is turned away before anything is read for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) text: &'static str,
}

/// Checks method and origin.
///
/// A page of another site cannot read our answers, because none allows it. It could still point a name of its own at this address and then
/// count as the same site (DNS rebinding). So the `Host` header must be an address or `localhost`, which no other site can have.
pub(super) fn check(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    let refuse = |status, text| Err(Refusal { status, text });
    if method != Method::GET && method != Method::HEAD {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "this server is read-only: use GET");
    }
    if !headers.get(HOST).and_then(|host| host.to_str().ok()).is_some_and(is_address_or_localhost) {
        return refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "open this page by IP address or as localhost: under other names it could be read by other sites",
        );
    }
    let fetch = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if fetch("sec-fetch-site") == Some("cross-site") && fetch("sec-fetch-mode") != Some("navigate") {
        return refuse(StatusCode::FORBIDDEN, "other sites may not use this server");
    }
    Ok(())
}

fn is_address_or_localhost(host: &str) -> bool {
    let without_port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = without_port.map_or(host, |(name, _)| name);
    let bracketed = |text: &str| {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        inner.is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok())
    };
    name.eq_ignore_ascii_case("localhost")
        || host.parse::<SocketAddr>().is_ok()
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4())
        || bracketed(name)
        || bracketed(host)
}

/// The parameters of a query string. Of several with one name the first counts.
#[derive(Debug, Default)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Parameters(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decode(name), decode(value)))
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Undoes percent encoding. What is not encoded correctly stays as it is.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let digit = |index: usize| after.get(index).and_then(|b| char::from(*b).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', ..) => bytes.push(b' '),
            (other, ..) => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (hyper::header::HeaderName::from_static(name), HeaderValue::from_str(value).expect("text"))
            })
            .collect()
    }

    #[test]
    fn only_addresses_and_localhost_are_answered() {
        for host in [
            "127.0.0.1:10266",
            "127.0.0.1",
            "localhost:8080",
            "LocalHost",
            "[::1]:10266",
            "[::1]",
            "10.0.0.7:1",
        ] {
            assert_eq!(check(&Method::GET, &headers(&[("host", host)])), Ok(()), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:10266",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "::1",
            "[evil]:80",
            "node-a:10266",
        ] {
            let refused = check(&Method::GET, &headers(&[("host", host)])).expect_err(host);
            assert_eq!(refused.status, StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
        assert!(check(&Method::GET, &HeaderMap::new()).is_err());
    }

    #[test]
    fn only_reading_is_possible_and_not_from_other_sites() {
        let local = [("host", "localhost")];
        assert_eq!(check(&Method::HEAD, &headers(&local)), Ok(()));
        let post = check(&Method::POST, &headers(&local)).expect_err("read-only");
        assert_eq!(post.status, StatusCode::METHOD_NOT_ALLOWED);
        let cross =
            |mode| [("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode)];
        assert!(check(&Method::GET, &headers(&cross("no-cors"))).is_err());
        assert_eq!(check(&Method::GET, &headers(&cross("navigate"))), Ok(()), "a link may lead here");
    }

    #[test]
    fn queries_are_decoded() {
        let parameters =
            Parameters::parse("query=a%20b+c&page=2&page=3&bad=%zz%4&empty&to=%5Bfd00%3A%3A1%5D%3A80");
        assert_eq!(parameters.get("query"), Some("a b c"));
        assert_eq!(parameters.get("page"), Some("2"));
        assert_eq!(parameters.get("bad"), Some("%zz%4"));
        assert_eq!(parameters.get("empty"), Some(""));
        assert_eq!(parameters.get("to"), Some("[fd00::1]:80"));
        assert_eq!(parameters.get("missing"), None);
    }
}

//! The errors of a request, with messages that say what to do.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};

use super::credentials::TokenError;
use crate::wire::{Status, WireError};

/// Why a request failed. Each cause may be temporary, so every request is retried.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no connection.
    #[error("cannot reach the API server at {server}: {problem}")]
    Connect {
        /// Address of the API server, as configured.
        server: String,
        /// What went wrong, and what to check.
        problem: String,
    },
    /// The TLS handshake failed.
    #[error("no TLS connection to the API server at {server}: {problem}")]
    Tls {
        /// Address of the API server, as configured.
        server: String,
        /// What went wrong, and what to check.
        problem: String,
    },
    /// Our own credentials cannot be read.
    #[error("no credentials: {0}")]
    Credentials(String),
    /// No response in time.
    #[error("the API server at {server} did not answer within {} s", after.as_secs())]
    Timeout {
        /// Address of the API server, as configured.
        server: String,
        /// The limit that the request exceeded.
        after: Duration,
    },
    /// The server rejects our credentials.
    #[error(
        "the API server at {server} does not accept {identity} (401 Unauthorized); expired or of another cluster?"
    )]
    Unauthorized {
        /// Address of the API server, as configured.
        server: String,
        /// Describes our credentials.
        identity: String,
    },
    /// The server accepts our credentials, but not the request. Its message names the user, the verb and the resource.
    #[error("{message}; grant it with a ClusterRole such as system:node-proxier, bound to that user")]
    Forbidden {
        /// The message of the server.
        message: String,
    },
    /// There is no such resource or object.
    #[error("the API server has no {what} (404 Not Found)")]
    NotFound {
        /// The path that was requested.
        what: String,
    },
    /// The version or page to continue from is too old.
    #[error("the version to continue from is too old: {message}")]
    Expired {
        /// The message of the server.
        message: String,
    },
    /// The server has not reached our version yet.
    #[error("the API server is behind: {message}")]
    Behind {
        /// The message of the server.
        message: String,
    },
    /// The server announces ever more pages.
    #[error(
        "the list has no end: {pages} pages, and the API server announces more; check the API server or the proxy in front of it"
    )]
    EndlessList {
        /// How many were read.
        pages: u32,
    },
    /// The server is overloaded.
    #[error("the API server asks to wait (429 Too Many Requests)")]
    TooManyRequests {
        /// `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Any other refusal.
    #[error("the API server answered {code} {message}")]
    Refused {
        /// The HTTP status code.
        code: u16,
        /// The message of the server.
        message: String,
        /// `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The response has another media type than requested.
    #[error(
        "the API server answered with {0:?} instead of protobuf or JSON; is something else at its address?"
    )]
    OtherMedia(String),
    /// The connection broke while the response was read.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// A streaming list did not end.
    #[error("the API server does not end its streaming list")]
    NoInitialEvents,
    /// The server ended a watch as soon as it began.
    #[error("the API server ended the watch at once")]
    EndedAtOnce,
    /// The response cannot be decoded.
    #[error("the API server's answer {0}")]
    Wire(#[from] WireError),
}

impl RequestError {
    /// The wait that the server asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            RequestError::TooManyRequests { retry_after } | RequestError::Refused { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// Whether new credentials or certificate authorities may help.
    pub(crate) fn needs_new_credentials(&self) -> bool {
        matches!(
            self,
            RequestError::Unauthorized { .. } | RequestError::Tls { .. } | RequestError::Credentials(_)
        )
    }

    /// Whether the failure is a normal end of a connection, which needs no action.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            RequestError::Broken(_)
                | RequestError::EndedAtOnce
                | RequestError::Expired { .. }
                | RequestError::Behind { .. }
        )
    }

    /// Whether the server does not support the request.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(
            self,
            RequestError::NoInitialEvents | RequestError::Refused { code: 400 | 405 | 406 | 422 | 501, .. }
        )
    }

    /// Whether an ordinary list may succeed where a streaming one failed: the server answers.
    pub(crate) fn suggests_ordinary_list(&self) -> bool {
        matches!(
            self,
            RequestError::NoInitialEvents
                | RequestError::Refused { .. }
                | RequestError::EndedAtOnce
                | RequestError::Broken(_)
                | RequestError::Wire(_)
        )
    }

    /// From the status in a response.
    pub(crate) fn from_status(status: &Status, path: &str, retry_after: Option<Duration>) -> RequestError {
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let retry_after =
            retry_after.or_else(|| u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs));
        let message = status.message.clone();
        match status.code {
            403 => RequestError::Forbidden { message },
            404 => RequestError::NotFound { what: path.to_owned() },
            _ if status.is_expired() => RequestError::Expired { message },
            _ if status.is_version_too_large() => RequestError::Behind { message },
            429 => RequestError::TooManyRequests { retry_after },
            code => RequestError::Refused { code: u16::try_from(code).unwrap_or(0), message, retry_after },
        }
    }

    /// From an error of the HTTP client.
    pub(crate) fn from_transport(error: &kube::Error, server: &str, trust: &str) -> RequestError {
        let server = server.to_owned();
        if let kube::Error::Auth(_) = error {
            return RequestError::Credentials(chain(error));
        }
        if let Some(tls) = find::<rustls::Error>(error) {
            return RequestError::Tls { server, problem: tls_problem(tls, trust) };
        }
        if find::<kube::client::AuthError>(error).is_some() {
            return RequestError::Credentials(chain(error));
        }
        let transport = find::<hyper_util::client::legacy::Error>(error);
        if let Some(broken) = transport.filter(|error| !error.is_connect()) {
            return RequestError::Broken(
                causes(broken).skip(1).last().map_or_else(|| broken.to_string(), chain),
            );
        }
        let problem = match find::<io::Error>(error).map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => {
                "connection refused; is it running, and is the address right?".to_owned()
            }
            Some(io::ErrorKind::TimedOut) => {
                "connecting takes too long; is the address right, and does a firewall drop packets?"
                    .to_owned()
            }
            Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
                "there is no route to it".to_owned()
            }
            _ => transport.map_or_else(|| chain(error), |error| chain(error)),
        };
        RequestError::Connect { server, problem }
    }
}

impl From<TokenError> for RequestError {
    fn from(error: TokenError) -> Self {
        RequestError::Credentials(chain(&error))
    }
}

/// What the TLS library can verify.
const ALGORITHMS: &str =
    "TLS 1.2 or 1.3, and certificates with RSA from 2048 bits, ECDSA P-256 or P-384, or Ed25519";

fn tls_problem(error: &rustls::Error, trust: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!("its certificate is not signed by {trust}")
        }
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "its certificate has expired, or this host's clock is wrong".to_owned(),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "its certificate is not valid yet, or this host's clock is wrong".to_owned(),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("{error}; use an address that its certificate names, or set tls-server-name"),
        rustls::Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            format!("it supports none of the algorithms that we do: {ALGORITHMS}")
        }
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => {
            format!(
                "it speaks a version of TLS that we do not, probably 1.0 or 1.1; we support {ALGORITHMS}: allow a newer version on \
                 the API server (--tls-min-version is only a minimum) or on the proxy in front of it"
            )
        }
        rustls::Error::AlertReceived(alert) => {
            format!(
                "it refused the connection ({alert:?}); is our client certificate expired or of another cluster?"
            )
        }
        rustls::Error::InvalidCertificate(
            CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        ) => format!("its certificate uses an algorithm that we do not support; we support {ALGORITHMS}"),
        other => other.to_string(),
    }
}

/// An error and its causes in one line, without repetitions.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        error.source()
    })
}

/// The first error of a type among the causes. IO errors hide others inside, without naming them as their source.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    causes(error).find_map(|cause| {
        let inside = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let nested = inside.and_then(|inside| {
            let inside: &(dyn Error + 'static) = inside;
            find::<E>(inside)
        });
        cause.downcast_ref::<E>().or(nested)
    })
}

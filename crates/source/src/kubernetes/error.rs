//! What can go wrong with a request, told so that somebody can act on it.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::CertificateError;

use super::token::TokenError;
use crate::wire::{Status, WireError};

/// Why a request failed. All of these may go away by themselves, so all are retried.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No connection came about.
    #[error("cannot reach the API server at {server}: {problem}")]
    Connect {
        /// Its address.
        server: String,
        /// What went wrong and what to look at.
        problem: String,
    },
    /// A connection came about, but no trust.
    #[error("no TLS connection to the API server at {server}: {problem}")]
    Tls {
        /// Its address.
        server: String,
        /// What went wrong and what to look at.
        problem: String,
    },
    /// Our own credentials cannot be read.
    #[error("no credentials: {0}")]
    Credentials(String),
    /// No answer in time.
    #[error("the API server at {server} did not answer within {} s", after.as_secs())]
    Timeout {
        /// Its address.
        server: String,
        /// How long we waited.
        after: Duration,
    },
    /// The server does not know us.
    #[error(
        "the API server at {server} does not accept {identity} (401 Unauthorized); expired or of another cluster?"
    )]
    Unauthorized {
        /// Its address.
        server: String,
        /// Who we said we are.
        identity: String,
    },
    /// The server knows us, and says no. Its own words name the user, the verb and the resource.
    #[error("{message}; grant it with a ClusterRole such as system:node-proxier, bound to that user")]
    Forbidden {
        /// What the server says.
        message: String,
    },
    /// There is no such resource or object.
    #[error("the API server has no {what} (404 Not Found)")]
    NotFound {
        /// The path.
        what: String,
    },
    /// The version or page that we go on from is too old.
    #[error("the version to go on from is too old: {message}")]
    Expired {
        /// What the server says.
        message: String,
    },
    /// The server is not yet as far as we are.
    #[error("the API server is behind: {message}")]
    Behind {
        /// What the server says.
        message: String,
    },
    /// The server has too much to do.
    #[error("the API server asks to wait (429 Too Many Requests)")]
    TooManyRequests {
        /// How long, if it said so.
        retry_after: Option<Duration>,
    },
    /// Any other refusal.
    #[error("the API server answered {code} {message}")]
    Refused {
        /// The HTTP status code.
        code: u16,
        /// What the server says.
        message: String,
        /// When to come back, if it said so.
        retry_after: Option<Duration>,
    },
    /// The answer is of a type that we did not ask for.
    #[error(
        "the API server answered with {0:?} instead of protobuf or JSON; is something else at its address?"
    )]
    OtherMedia(String),
    /// The connection broke while the answer was read.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// A streaming list brought no end.
    #[error("the API server does not end its streaming list")]
    NoInitialEvents,
    /// The server ended a watch as soon as it began.
    #[error("the API server ended the watch at once")]
    EndedAtOnce,
    /// The answer makes no sense.
    #[error("the API server's answer {0}")]
    Wire(#[from] WireError),
}

impl RequestError {
    /// How long the server wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            RequestError::TooManyRequests { retry_after } | RequestError::Refused { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// Whether only new credentials or new trust can help.
    pub(crate) fn needs_new_access(&self) -> bool {
        matches!(
            self,
            RequestError::Unauthorized { .. } | RequestError::Tls { .. } | RequestError::Credentials(_)
        )
    }

    /// Whether the failure is part of the life of a connection, rather than something to act on.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            RequestError::Broken(_)
                | RequestError::EndedAtOnce
                | RequestError::Expired { .. }
                | RequestError::Behind { .. }
        )
    }

    /// Whether the server does not know what was asked for, rather than being unable to give it.
    pub(crate) fn is_unknown_feature(&self) -> bool {
        matches!(
            self,
            RequestError::NoInitialEvents | RequestError::Refused { code: 400 | 405 | 406 | 422 | 501, .. }
        )
    }

    /// Whether an ordinary list may succeed where a streaming one has failed: the server answers, and understood the question.
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

    /// From a status inside or around an answer.
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

    /// From what the HTTP client says when there is no answer.
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
        rustls::Error::AlertReceived(alert) => {
            format!(
                "it refused the connection ({alert:?}); is our client certificate expired or of another cluster?"
            )
        }
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

//! `Status`: the error object of an API server.

use prost::Message;
use serde::Deserialize;

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// A sentence for people.
    #[prost(string, tag = "3")]
    pub message: String,
    /// A machine-readable word, such as `Expired`.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// Causes and retry delay.
    #[prost(message, optional, tag = "5")]
    pub details: Option<Details>,
    /// The HTTP status code.
    #[prost(int32, tag = "6")]
    pub code: i32,
}

/// Details of a [`Status`].
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// In no order.
    #[prost(message, repeated, tag = "4")]
    pub causes: Vec<Cause>,
    /// 0 if unset.
    #[prost(int32, tag = "5")]
    pub retry_after_seconds: i32,
}

/// One cause of a failure.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cause {
    /// A machine-readable word.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// A sentence for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

impl Status {
    /// Whether a resource version or a page is too old to continue from.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_str(), "Expired" | "Gone")
    }

    /// Whether the server has not reached the requested version yet.
    pub fn is_version_too_large(&self) -> bool {
        self.details
            .iter()
            .flat_map(|details| &details.causes)
            .any(|cause| cause.reason == "ResourceVersionTooLarge")
    }
}

//! `Status`: how an API server says no.

use prost::Message;
use serde::Deserialize;

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// A sentence for people.
    #[prost(string, tag = "3")]
    pub message: String,
    /// A word for machines, such as `Expired`.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// More about it.
    #[prost(message, optional, tag = "5")]
    pub details: Option<Details>,
    /// The HTTP status code.
    #[prost(int32, tag = "6")]
    pub code: i32,
}

/// More about a failure.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// The single causes.
    #[prost(message, repeated, tag = "4")]
    pub causes: Vec<Cause>,
    /// When to come back.
    #[prost(int32, tag = "5")]
    pub retry_after_seconds: i32,
}

/// One cause of a failure.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cause {
    /// A word for machines.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// A sentence for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

impl Status {
    /// Whether a resource version or a page is too old to go on from.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_str(), "Expired" | "Gone")
    }

    /// Whether the server has not yet reached the version that was asked for.
    pub fn is_version_too_large(&self) -> bool {
        self.details
            .iter()
            .flat_map(|details| &details.causes)
            .any(|cause| cause.reason == "ResourceVersionTooLarge")
    }
}

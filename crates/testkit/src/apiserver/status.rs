//! How the server says no.

use bytes::Bytes;
use prost::Message;
use serde_json::json;

use super::encode::{ListMeta, Media, envelope};
use super::resource::Target;

/// A request that is not answered as wished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) causes: Vec<Cause>,
    pub(super) retry_after: Option<u32>,
}

/// One cause of a refusal.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Cause {
    #[prost(string, required, tag = "1")]
    reason: String,
    #[prost(string, required, tag = "2")]
    message: String,
    #[prost(string, required, tag = "3")]
    field: String,
}

impl Cause {
    pub(super) fn new(reason: &str, message: &str) -> Cause {
        Cause { reason: reason.to_owned(), message: message.to_owned(), field: String::new() }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, required, tag = "1")]
    metadata: ListMeta,
    #[prost(string, required, tag = "2")]
    status: String,
    #[prost(string, required, tag = "3")]
    message: String,
    #[prost(string, required, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<Details>,
    #[prost(int32, required, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(message, repeated, tag = "4")]
    causes: Vec<Cause>,
    #[prost(uint32, required, tag = "5")]
    retry_after_seconds: u32,
}

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, reason, message: message.into(), causes: Vec::new(), retry_after: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal::new(400, "BadRequest", message)
    }

    /// A watch from a version whose changes are no longer known.
    pub(super) fn too_old(version: u64, oldest: u64) -> Refusal {
        Refusal::new(410, "Expired", format!("too old resource version: {version} ({oldest})"))
    }

    /// A page of a list that is no longer known.
    pub(super) fn old_page() -> Refusal {
        let message = "The provided continue parameter is too old to display a consistent list result. \
                       You can start a new list without the continue parameter.";
        Refusal::new(410, "Expired", message)
    }

    /// A version that does not exist yet.
    pub(super) fn too_large(version: u64, current: u64) -> Refusal {
        let message = format!("Too large resource version: {version}, current: {current}");
        Refusal {
            causes: vec![Cause::new("ResourceVersionTooLarge", "Too large resource version")],
            retry_after: Some(1),
            ..Refusal::new(504, "Timeout", message)
        }
    }

    pub(super) fn not_found(target: &Target) -> Refusal {
        let resource = target.resource;
        let message =
            format!("{} \"{}\" not found", qualified(resource.name(), resource.group()), target.name);
        Refusal::new(404, "NotFound", message)
    }

    pub(super) fn already_exists(target: &Target, name: &str) -> Refusal {
        let resource = qualified(target.resource.name(), target.resource.group());
        Refusal::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists"))
    }

    pub(super) fn conflict(target: &Target) -> Refusal {
        let resource = qualified(target.resource.name(), target.resource.group());
        let message = format!(
            "Operation cannot be fulfilled on {resource} \"{}\": the object has been modified; \
             please apply your changes to the latest version and try again",
            target.name
        );
        Refusal::new(409, "Conflict", message)
    }

    pub(super) fn forbidden(target: &Target, name: &str, user: &str, verb: &str) -> Refusal {
        let resource = target.resource;
        let what = qualified(resource.name(), resource.group());
        let what = if name.is_empty() { what } else { format!("{what} \"{name}\"") };
        let place = match target.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        let message = format!(
            "{what} is forbidden: User \"{user}\" cannot {verb} resource \"{}\" in API group \"{}\" {place}",
            resource.name(),
            resource.group()
        );
        Refusal::new(403, "Forbidden", message)
    }

    pub(super) fn encode(&self, media: Media) -> Bytes {
        match media {
            Media::Protobuf => envelope("v1", "Status", &self.protobuf().encode_to_vec()),
            Media::Json => self.json().into(),
        }
    }

    fn protobuf(&self) -> Status {
        let details = self.has_details().then(|| Details {
            causes: self.causes.clone(),
            retry_after_seconds: self.retry_after.unwrap_or(0),
        });
        Status {
            metadata: ListMeta::default(),
            status: "Failure".to_owned(),
            message: self.message.clone(),
            reason: self.reason.to_owned(),
            details,
            code: self.code.into(),
        }
    }

    /// Written by hand, in the order of a real server.
    fn json(&self) -> String {
        let mut details = String::new();
        if self.has_details() {
            let causes: Vec<_> = self
                .causes
                .iter()
                .map(|cause| json!({"reason": cause.reason, "message": cause.message}))
                .collect();
            let content = json!({"causes": causes, "retryAfterSeconds": self.retry_after.unwrap_or(0)});
            details = format!(r#","details":{content}"#);
        }
        format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":{},"reason":{}{details},"code":{}}}"#,
            json!(self.message),
            json!(self.reason),
            self.code
        )
    }

    fn has_details(&self) -> bool {
        !self.causes.is_empty() || self.retry_after.is_some()
    }
}

fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

//! `/flagz` and `/statusz`: text, or an object if the client accepts one.

use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderName, HeaderValue};
use portwarden_model::Timestamp;
use serde_json::{Map, Value, json};

use super::{Identity, Shown};
use crate::engine::Moment;
use crate::http::{Answer, Request, answer, text, with_header};

const WARNING: &str =
    "Warning: this page is for people who look for a fault; its form may change at any time.";

/// The parts of both pages that never change.
pub(super) struct Zpages {
    component: &'static str,
    version: String,
    flags: Vec<(&'static str, String)>,
    started: Timestamp,
}

/// The format that a client accepts.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// An object of this API version, as JSON (which is YAML too).
    Object {
        version: &'static str,
        media_type: &'static str,
    },
    /// No supported format.
    Unknown,
}

impl Zpages {
    pub(super) fn new(identity: &Identity) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "nanoseconds of any plausible year fit")]
        let started = Timestamp::from_nanos((identity.started * 1e9) as i64);
        Zpages {
            component: identity.component,
            version: identity.version.clone(),
            flags: identity.flags.clone(),
            started,
        }
    }

    /// All flags with their values.
    pub(super) fn flagz(&self, request: &Request) -> Answer {
        self.answer(
            request,
            "Flagz",
            || {
                let lines: Vec<String> =
                    self.flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
                format!("\n{} flagz\n{WARNING}\n\n{}", self.component, lines.concat())
            },
            || {
                let flags: Map<String, Value> = self
                    .flags
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), value.clone().into()))
                    .collect();
                json!({ "flags": flags })
            },
        )
    }

    /// Versions, start time and paths.
    pub(super) fn statusz(&self, request: &Request, shown: &Shown) -> Answer {
        let up = Moment::now().wall.as_nanos().saturating_sub(self.started.as_nanos()).max(0) / 1_000_000_000;
        let paths = paths(shown);
        self.answer(request, "Statusz", || {
            format!(
                "\n{} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\nEmulation version: {}\nPaths: {}\n",
                self.component, self.started, up / 3600, up / 60 % 60, up % 60, self.binary_version(), self.emulation_version(), paths.join(" ")
            )
        }, || {
            json!({
                "startTime": Timestamp::from_nanos(self.started.as_nanos() / 1_000_000_000 * 1_000_000_000).to_string(),
                "uptimeSeconds": up,
                "goVersion": "",
                "binaryVersion": self.binary_version(),
                "emulationVersion": self.emulation_version(),
                "paths": paths,
            })
        })
    }

    /// `1.37.0` of `v1.37.0+something`.
    fn binary_version(&self) -> &str {
        self.version.trim_start_matches('v').split(['+', '-']).next().unwrap_or_default()
    }

    /// `1.37` of `1.37.0`.
    fn emulation_version(&self) -> &str {
        let version = self.binary_version();
        version.rsplit_once('.').map_or(version, |(minor, _)| minor)
    }

    fn answer(
        &self,
        request: &Request,
        kind: &str,
        as_text: impl FnOnce() -> String,
        as_object: impl FnOnce() -> Value,
    ) -> Answer {
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        match form(accept, kind) {
            Form::Text => text(StatusCode::OK, as_text()),
            Form::Unknown => not_acceptable(),
            Form::Object { version, media_type } => {
                let mut object = Map::new();
                object.insert("kind".to_owned(), kind.into());
                object.insert("apiVersion".to_owned(), format!("config.k8s.io/{version}").into());
                object.insert("metadata".to_owned(), json!({ "name": self.component }));
                if let Value::Object(fields) = as_object() {
                    object.extend(fields);
                }
                let answer = answer(StatusCode::OK, media_type, Value::Object(object).to_string());
                if version == "v1alpha1" { deprecated(answer) } else { answer }
            }
        }
    }
}

fn deprecated(answer: Answer) -> Answer {
    let warning = HeaderValue::from_static("299 - \"v1alpha1 of this page is deprecated; ask for v1beta1\"");
    with_header(answer, HeaderName::from_static("warning"), warning)
}

/// The first supported format in an `Accept` header.
fn form(accept: &str, kind: &str) -> Form {
    if accept.trim().is_empty() {
        return Form::Text;
    }
    for item in accept.split(',') {
        let mut parts = item.split(';').map(str::trim);
        let media_type = match parts.next().unwrap_or_default() {
            "*/*" | "text/*" | "text/plain" => return Form::Text,
            "application/json" | "application/*" => "application/json",
            "application/yaml" => "application/yaml",
            _ => continue,
        };
        let parameter = |name: &str| {
            parts
                .clone()
                .filter_map(|part| part.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
        };
        let version = match parameter("v") {
            Some("v1beta1") => "v1beta1",
            Some("v1alpha1") => "v1alpha1",
            _ => continue,
        };
        if parameter("g") == Some("config.k8s.io") && parameter("as") == Some(kind) {
            return Form::Object { version, media_type };
        }
    }
    Form::Unknown
}

fn not_acceptable() -> Answer {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "only text/plain, or application/json and application/yaml with v, g and as, can be had here",
        "reason": "NotAcceptable",
        "code": 406,
    });
    crate::http::json(StatusCode::NOT_ACCEPTABLE, status.to_string())
}

/// The existing pages.
fn paths(shown: &Shown) -> Vec<&'static str> {
    [
        ("/configz", true),
        ("/debug", shown.profiling),
        ("/flagz", shown.flagz),
        ("/healthz", true),
        ("/metrics", true),
        ("/proxyMode", true),
    ]
    .into_iter()
    .filter_map(|(path, exists)| exists.then_some(path))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_decides_about_the_form() {
        let object = |version, media_type| Form::Object { version, media_type };
        for (accept, wanted) in [
            ("", Form::Text),
            ("*/*", Form::Text),
            ("text/html, text/plain", Form::Text),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", object("v1beta1", "application/json")),
            (
                "application/yaml; v=v1alpha1; g=config.k8s.io; as=Flagz",
                object("v1alpha1", "application/yaml"),
            ),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", Form::Unknown),
            ("application/json", Form::Unknown),
            ("application/json, text/plain", Form::Text),
            ("image/png", Form::Unknown),
        ] {
            assert_eq!(form(accept, "Flagz"), wanted, "{accept:?}");
        }
    }
}

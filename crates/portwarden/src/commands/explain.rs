//! `portwarden explain`: why packets to a Service go where they go.

use anyhow::bail;
use serde_json::json;

use super::{Answer, Command, Request};
use crate::explain;
use crate::flags;

pub(super) const COMMAND: Command = Command {
    name: "explain",
    arguments: "[NAMESPACE/]SERVICE [flags]",
    summary: "why packets to a Service go where they go",
    about: "Prints what happens to connections at each address of a Service, and for each endpoint why it is used or not.",
    flags: &[],
    takes_proxy_flags: true,
    examples: &[(
        "portwarden explain demo/web --manifests examples --hostname-override node-a",
        "one Service of a folder",
    )],
    exit_codes: &[(0, "the Service is proxied"), (2, "it is not, or its objects cannot be read")],
    run,
};

fn run(request: &Request) -> anyhow::Result<Answer> {
    let [service] = request.arguments.as_slice() else {
        bail!("which Service? portwarden explain [NAMESPACE/]NAME [flags]");
    };
    let config = request.config()?.config;
    let text = explain::explain(service, &config, flags::reported_version(None))?;
    let json = json!({ "text": text });
    Ok(Answer::good(text, json))
}

//! `portwarden explain`: why packets to a Service go where they go, and whether the kernel does the same.
//!
//! The running process answers, if there is one; otherwise objects are read from the source that the flags name and resolved with the same
//! model. What the kernel holds is read here, and compared.

mod kernel;
mod text;

use anyhow::bail;
use portwarden_model::NamespacedName;
use serde::{Deserialize, Serialize};

use super::client::{Client, Reply, encode};
use super::{Answer, Command, CommandFlag, GOOD, Request};
use crate::config::Config;
use crate::config::options::{KUBECONFIG, MANIFESTS, MASTER};
use crate::explain;
use crate::flags;
use crate::host::Instance;
use crate::introspection::api::Status;
use crate::introspection::{
    Packet, PacketExplanation, ServiceExplanation, explain_packet, explain_service, similar_services,
};
use crate::modes::Mode;

pub(super) use kernel::KernelCheck;

/// The exit status if there is no such Service, or the kernel differs.
const BAD: u8 = 1;

pub(super) const COMMAND: Command = Command {
    name: "explain",
    arguments: "SERVICE | ADDRESS:PORT[/PROTOCOL] | --to ADDRESS:PORT[/PROTOCOL] [--from ADDRESS] [flags]",
    summary: "why packets go where they go, and what the kernel really holds",
    about: "Explains a Service ([NAMESPACE/]NAME), an address and port, or a packet: what happens to new connections at each address, \
            source ranges, session affinity, masquerading, and for each endpoint why it is used or not. The running process answers; \
            with --manifests, --kubeconfig or --master, objects are read from there. What the kernel holds is read back and compared.",
    flags: &[
        CommandFlag {
            name: "to",
            letter: None,
            placeholder: "ADDRESS:PORT[/PROTOCOL]",
            help: "The destination of a packet; without a protocol, TCP.",
            values: &[],
        },
        CommandFlag {
            name: "from",
            letter: None,
            placeholder: "ADDRESS",
            help: "The source of the packet: a pod, this node, or a client elsewhere.",
            values: &[],
        },
        CommandFlag {
            name: "kernel",
            letter: None,
            placeholder: "WHETHER",
            help: "Whether to read back what the kernel holds: auto (if that is allowed), always or never.",
            values: &["auto", "always", "never"],
        },
    ],
    takes_proxy_flags: true,
    examples: &[
        ("portwarden explain demo/web", "one Service"),
        ("portwarden explain 10.96.0.10:80", "the Service at an address"),
        ("portwarden explain --from 10.244.0.7 --to 10.96.0.10:53/udp", "one packet"),
        (
            "portwarden explain demo/web --manifests examples --hostname-override node-a",
            "without a running process, from a folder of manifests",
        ),
    ],
    exit_codes: &[
        (0, "it is explained, and the kernel agrees or was not read"),
        (1, "no Service has that name or address, or the kernel differs"),
        (2, "the question cannot be answered"),
    ],
    run,
};

/// What is asked.
enum Question {
    Service(NamespacedName),
    Packet { to: String, from: Option<String>, packet: Packet },
}

/// What is known about it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Explained {
    Service(ServiceExplanation),
    Packet(Box<PacketExplanation>),
}

fn run(request: &Request) -> anyhow::Result<Answer> {
    let question = Question::parse(request)?;
    let config = request.config_or_defaults()?.config;
    let (explained, mode) = match answer(request, &config, &question)? {
        Found::Explained(explained, mode) => (explained, mode),
        Found::Unknown(message) => {
            let json = serde_json::json!({ "error": message });
            return Ok(Answer { text: format!("{message}\n"), json, code: BAD });
        }
    };
    let check = match request.value("kernel").unwrap_or("auto") {
        "never" => KernelCheck::skipped("not read: --kernel=never"),
        "auto" if Instance::other().is_none() => {
            KernelCheck::skipped("not read: no Portwarden runs on this node; --kernel=always reads it anyway")
        }
        wish => match (kernel::check(mode, &explained), wish) {
            (Err(error), "always") => return Err(error),
            (Err(error), _) => KernelCheck::skipped(&format!("not read: {error:#}")),
            (Ok(check), _) => check,
        },
    };
    let code = if check.differs() || explained.is_unserved() { BAD } else { GOOD };
    let json = serde_json::json!({ "explanation": explained, "mode": mode.as_str(), "kernel": check });
    Ok(Answer { text: text::of(&explained, &check), json, code })
}

impl Question {
    fn parse(request: &Request) -> anyhow::Result<Self> {
        let packet = |to: &str, from: Option<&str>| {
            let packet = Packet::parse(to, from)?;
            Ok(Question::Packet { to: to.to_owned(), from: from.map(str::to_owned), packet })
        };
        match (request.arguments.as_slice(), request.value("to"), request.value("from")) {
            ([], Some(to), from) => packet(to, from),
            ([to], None, from) if to.contains(':') => packet(to, from),
            ([service], None, None) => {
                let (namespace, name) = service.split_once('/').unwrap_or(("default", service));
                Ok(Question::Service(NamespacedName::new(namespace, name)))
            }
            ([_], None, Some(_)) => {
                bail!("--from needs --to ADDRESS:PORT: a packet goes to an address, not to a Service")
            }
            ([], None, _) => {
                bail!(
                    "what? Give a Service ([NAMESPACE/]NAME), an ADDRESS:PORT, or --to ADDRESS:PORT; see portwarden explain --help"
                )
            }
            _ => bail!(
                "one question at a time: a Service, an ADDRESS:PORT, or --to; see portwarden explain --help"
            ),
        }
    }
}

impl Explained {
    /// Whether no Service has the address.
    fn is_unserved(&self) -> bool {
        matches!(self, Explained::Packet(packet) if packet.service.is_none())
    }
}

enum Found {
    Explained(Explained, Mode),
    Unknown(String),
}

/// The running process answers, unless flags name a source of objects.
fn answer(request: &Request, config: &Config, question: &Question) -> anyhow::Result<Found> {
    let names_source =
        [MANIFESTS, KUBECONFIG, MASTER].iter().any(|key| request.flags.values.value(*key).is_some());
    if names_source {
        return from_source(config, question);
    }
    match Client::connect(config) {
        Ok(client) => from_process(&client, question),
        // The file of a process that does not run names a source of objects, too.
        Err(_) if request.flags.config_file().is_some() => from_source(config, question),
        Err(error) => Err(error.context(
            "there is no running process to ask; give --manifests or --kubeconfig to read objects from there",
        )),
    }
}

fn from_process(client: &Client, question: &Question) -> anyhow::Result<Found> {
    let mode = match client.get::<Status>("/api/status")? {
        Reply::Answer(status) => status.mode,
        Reply::Refused(error) => bail!("{} answers: {}", client.address(), error.error),
    };
    let Some(mode) = Mode::from_name(&mode) else {
        bail!("the process is in mode {mode}, which this version does not know")
    };
    let explained = match question {
        Question::Service(service) => {
            match client
                .get::<ServiceExplanation>(&format!("/api/explain?service={}", encode(service.as_str())))?
            {
                Reply::Answer(explanation) => Explained::Service(explanation),
                Reply::Refused(error) => {
                    return Ok(Found::Unknown(unknown(&error.error, &error.did_you_mean)));
                }
            }
        }
        Question::Packet { to, from, .. } => {
            let from = from.as_ref().map(|from| format!("&from={}", encode(from))).unwrap_or_default();
            match client.get::<PacketExplanation>(&format!("/api/explain?to={}{from}", encode(to)))? {
                Reply::Answer(explanation) => Explained::Packet(Box::new(explanation)),
                Reply::Refused(error) => bail!("{}", error.error),
            }
        }
    };
    Ok(Found::Explained(explained, mode))
}

fn from_source(config: &Config, question: &Question) -> anyhow::Result<Found> {
    let cluster = explain::read_cluster(config, flags::reported_version(None))?;
    let source = config.mode.source_address();
    let explained = match question {
        Question::Service(service) => match explain_service(&cluster, service, source) {
            Some(explanation) => Explained::Service(explanation),
            None => {
                let reason = format!(
                    "Service {service} is not proxied: it does not exist, is headless, is of type ExternalName, or is assigned to another proxy"
                );
                return Ok(Found::Unknown(unknown(&reason, &similar_services(&cluster, service))));
            }
        },
        Question::Packet { packet, .. } => {
            Explained::Packet(Box::new(explain_packet(&cluster, *packet, source)))
        }
    };
    Ok(Found::Explained(explained, config.mode))
}

fn unknown(reason: &str, similar: &[String]) -> String {
    if similar.is_empty() {
        reason.to_owned()
    } else {
        format!("{reason}; did you mean {}?", similar.join(", "))
    }
}

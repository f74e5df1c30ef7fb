//! The arguments of a command: its own flags, the proxy's flags, and everything else.

use std::collections::BTreeMap;

use anyhow::Context;

use super::Command;
use super::running_flags::RunningFlags;
use crate::config::options::{CONFIG, KUBECONFIG, MANIFESTS, MASTER};
use crate::config::{self, LoadedConfig};
use crate::flags::{self, FlagError, Flags, Program};

/// What a command was asked for.
pub(crate) struct Request {
    /// What is no flag.
    pub(crate) arguments: Vec<String>,
    /// Flags of the proxy.
    pub(crate) flags: Flags,
    own: BTreeMap<&'static str, String>,
}

/// What the arguments mean.
pub(super) enum Parsed {
    /// `--help`.
    Help,
    Run(Request),
}

impl Request {
    pub(super) fn parse(command: &'static Command, arguments: &[String]) -> Result<Parsed, FlagError> {
        let mut own = BTreeMap::new();
        let mut rest = Vec::new();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if matches!(argument.as_str(), "--help" | "-h") {
                return Ok(Parsed::Help);
            }
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            let is = |flag: &super::CommandFlag| {
                name.strip_prefix("--") == Some(flag.name)
                    || flag.letter.is_some_and(|letter| name.strip_prefix('-') == Some(&*letter.to_string()))
            };
            let Some(flag) = command.all_flags().find(|flag| is(flag)) else {
                rest.push(argument.clone());
                continue;
            };
            let value = match value {
                Some(value) => value,
                None => arguments.next().cloned().ok_or_else(|| FlagError::NoValue(name.to_owned()))?,
            };
            if !flag.values.is_empty() && !flag.values.contains(&value.as_str()) {
                let reason = format!("must be one of {}", flag.values.join(", "));
                return Err(FlagError::Value { flag: name.to_owned(), value, reason });
            }
            own.insert(flag.name, value);
        }
        let (flags, arguments) = if command.takes_proxy_flags {
            flags::parse_command(&rest)?
        } else {
            if let Some(flag) = rest.iter().find(|argument| argument.starts_with('-') && argument.len() > 1) {
                let name = flag.trim_start_matches('-').to_owned();
                return Err(FlagError::Unknown { name, suggestion: None });
            }
            (Flags::default(), rest)
        };
        Ok(Parsed::Run(Request { arguments, flags, own }))
    }

    /// The value of a flag of the command's own.
    pub(crate) fn value(&self, flag: &str) -> Option<&str> {
        self.own.get(flag).map(String::as_str)
    }

    pub(super) fn wants_json(&self) -> bool {
        self.value("output") == Some("json")
    }

    /// The configuration that the proxy's flags name. Where they do not say what to serve, that of the running process, if there is one, with
    /// these flags.
    pub(crate) fn config(&self) -> anyhow::Result<LoadedConfig> {
        match self.running() {
            Some(running) => running.config(&self.flags).with_context(|| {
                let process = running.process();
                format!("the configuration of the running process ({process}) cannot be used; give flags, such as --config")
            }),
            None => Ok(config::load(Program::Portwarden, &self.flags, config::read_file)?),
        }
    }

    /// The same for commands that only need to find the running process: if its configuration cannot be read, as in a container or without
    /// root, the defaults show where it usually listens.
    pub(crate) fn config_or_defaults(&self) -> anyhow::Result<LoadedConfig> {
        self.config().or_else(|_| Ok(config::load(Program::Portwarden, &self.flags, config::read_file)?))
    }

    /// The process whose configuration is used.
    pub(crate) fn configured_by(&self) -> Option<u32> {
        self.running().map(|running| running.process())
    }

    fn running(&self) -> Option<RunningFlags> {
        let given = &self.flags.values;
        let complete =
            [CONFIG, KUBECONFIG, MASTER, MANIFESTS].iter().any(|source| given.value(*source).is_some());
        if complete { None } else { RunningFlags::read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Answer, CommandFlag};

    static SHOW: Command = Command {
        name: "show",
        arguments: "",
        summary: "",
        about: "",
        flags: &[CommandFlag { name: "to", letter: None, placeholder: "X", help: "", values: &[] }],
        takes_proxy_flags: true,
        examples: &[],
        exit_codes: &[],
        run: |_| Ok(Answer::of_text(String::new())),
    };

    fn parse(arguments: &[&str]) -> Result<Parsed, FlagError> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        Request::parse(&SHOW, &arguments)
    }

    #[test]
    fn own_flags_proxy_flags_and_arguments_may_be_mixed() {
        let Ok(Parsed::Run(request)) =
            parse(&["a", "--to=b", "--manifests", "folder", "-o", "json", "c", "--masquerade-all"])
        else {
            panic!("it is good")
        };
        assert_eq!(request.arguments, ["a", "c"]);
        assert_eq!(request.value("to"), Some("b"));
        assert_eq!(request.flags.values.text(MANIFESTS), "folder");
        assert!(request.wants_json());
    }

    #[test]
    fn mistakes_are_refused() {
        assert!(matches!(parse(&["--to"]), Err(FlagError::NoValue(_))));
        assert!(matches!(parse(&["-o", "xml"]), Err(FlagError::Value { .. })));
        assert!(matches!(parse(&["--no-such"]), Err(FlagError::Unknown { .. })));
        assert!(matches!(parse(&["--no-such", "-h"]), Ok(Parsed::Help)));
    }
}

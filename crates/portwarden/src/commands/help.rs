//! `portwarden help`, and `--help` of each command.

use std::fmt::Write;

use anyhow::bail;
use serde_json::json;

use super::{ALL, Answer, Command, CommandFlag, Request, find};
use crate::flags::wrap;

pub(super) const COMMAND: Command = Command {
    name: "help",
    arguments: "[COMMAND]",
    summary: "what the commands are, or all about one of them",
    about: "Lists the commands, or explains one of them. `portwarden --help` explains the flags of the proxy itself.",
    flags: &[],
    takes_proxy_flags: false,
    examples: &[
        ("portwarden help", "all commands"),
        ("portwarden help explain", "the arguments, flags and exit status of one"),
    ],
    exit_codes: &[(0, "help was printed"), (2, "there is no such command")],
    run,
};

fn run(request: &Request) -> anyhow::Result<Answer> {
    match request.arguments.as_slice() {
        [] => {
            let commands: Vec<_> =
                ALL.iter().map(|command| json!({"name": command.name, "summary": command.summary})).collect();
            Ok(Answer::good(overview(), json!({ "commands": commands })))
        }
        [name, ..] => match find(name) {
            Some(command) => Ok(Answer::of_text(of(command))),
            None => bail!("there is no command {name:?}; `portwarden help` lists them"),
        },
    }
}

/// One line for each command, for `portwarden --help`.
pub(crate) fn list() -> String {
    let mut text = String::new();
    for command in &ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  portwarden {:<12} {}", command.name, command.summary);
    }
    text
}

fn overview() -> String {
    format!(
        "Portwarden makes this node's kernel send connections for Kubernetes Services to their endpoints.\n\n\
         Usage:\n  portwarden [flags]              run the proxy; `portwarden --help` explains the flags\n  \
         portwarden COMMAND [arguments]  do one of these and end\n\n\
         Commands:\n{}\n\
         `portwarden COMMAND --help` explains a command. Each prints JSON with -o json.\n",
        list()
    )
}

/// All about one command.
pub(super) fn of(command: &Command) -> String {
    let Command { name, arguments, summary, about, .. } = command;
    let mut text = format!("portwarden {name}: {summary}\n\n");
    wrap(&mut text, about, 0);
    let _ = write!(text, "\nUsage:\n  portwarden {name} {arguments}\n\nFlags:\n");
    command.all_flags().for_each(|flag| describe(&mut text, flag));
    text.push_str("  -h, --help\n        Print this text.\n");
    if command.takes_proxy_flags {
        text.push_str(
            "\nThe flags of the proxy (`portwarden --help`) are taken, too. Without --config, --kubeconfig, --master or\n\
             --manifests, the configuration of the running process counts, with the flags that are given in its place.\n",
        );
    }
    text.push_str("\nExamples:\n");
    for (line, shows) in command.examples {
        let _ = writeln!(text, "  {line}\n        {shows}");
    }
    text.push_str("\nExit status:\n");
    for (code, meaning) in command.exit_codes {
        let _ = writeln!(text, "  {code}  {meaning}");
    }
    text
}

fn describe(text: &mut String, flag: &CommandFlag) {
    let letter = flag.letter.map_or(String::new(), |letter| format!("-{letter}, "));
    let _ = writeln!(text, "  {letter}--{} {}", flag.name, flag.placeholder);
    wrap(text, flag.help, 8);
}

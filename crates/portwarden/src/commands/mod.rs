//! The commands of `portwarden`, such as `portwarden explain`. They exist only under our own name: `kube-proxy` has none.
//!
//! | file | what |
//! |---|---|
//! | `request.rs` | the arguments of a command |
//! | `running_flags.rs` | the flags of the running process, for commands whose flags do not name a source |
//! | `help.rs` | `portwarden help`, and `--help` of each command |
//! | `client.rs` | questions to the running process |
//! | `completion.rs`, `man.rs` | completion scripts and the manual page, from the same tables |
//! | one file or folder each | the commands |
//!
//! A new command is a row in [`ALL`].

mod bundle;
mod client;
mod completion;
mod diff;
mod doctor;
mod explain;
mod help;
mod man;
mod request;
mod running_flags;
mod status;

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use crate::flags::{self, FlagError, Program};

pub(crate) use help::list;
pub(crate) use request::Request;

/// Every command, in the order in which help lists them.
static ALL: [Command; 8] = [
    status::COMMAND,
    explain::COMMAND,
    doctor::COMMAND,
    diff::COMMAND,
    bundle::COMMAND,
    completion::COMMAND,
    man::COMMAND,
    help::COMMAND,
];

/// The exit status if the answer is good.
const GOOD: u8 = 0;
/// The exit status if a command could not do its work.
const FAILED: u8 = 2;

/// One command.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// What follows the name.
    pub(crate) arguments: &'static str,
    /// What it does, in a few words.
    pub(crate) summary: &'static str,
    /// What it does, in a few sentences.
    pub(crate) about: &'static str,
    /// Its own flags, besides `--output` and `--help`.
    pub(crate) flags: &'static [CommandFlag],
    /// Whether it takes the flags of the proxy, too.
    pub(crate) takes_proxy_flags: bool,
    /// Command lines, each with what it shows.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// The meaning of each exit status.
    pub(crate) exit_codes: &'static [(u8, &'static str)],
    pub(crate) run: fn(&Request) -> anyhow::Result<Answer>,
}

/// A flag that only some commands have. All of them take a value.
pub(crate) struct CommandFlag {
    pub(crate) name: &'static str,
    pub(crate) letter: Option<char>,
    /// The name of the value.
    pub(crate) placeholder: &'static str,
    pub(crate) help: &'static str,
    /// All possible values, if they can be listed.
    pub(crate) values: &'static [&'static str],
}

/// The flag of every command.
static OUTPUT: CommandFlag = CommandFlag {
    name: "output",
    letter: Some('o'),
    placeholder: "FORMAT",
    help: "How the answer is printed: text or json.",
    values: &["text", "json"],
};

/// What a command found out.
pub(crate) struct Answer {
    /// For people; ends with a newline.
    pub(crate) text: String,
    /// For programs.
    pub(crate) json: Value,
    /// The exit status.
    pub(crate) code: u8,
}

impl Answer {
    /// A good answer.
    pub(crate) fn good(text: String, json: Value) -> Self {
        Answer { text, json, code: GOOD }
    }

    /// A text that has no structure.
    pub(crate) fn of_text(text: String) -> Self {
        let json = Value::from(text.as_str());
        Answer::good(text, json)
    }
}

impl Command {
    /// Its own flags and the one of every command.
    pub(crate) fn all_flags(&self) -> impl Iterator<Item = &CommandFlag> {
        self.flags.iter().chain([&OUTPUT])
    }
}

/// The command of that name.
pub(crate) fn find(name: &str) -> Option<&'static Command> {
    ALL.iter().find(|command| command.name == name)
}

/// The commands whose name is nearly this one.
pub(crate) fn similar(name: &str) -> Option<&'static Command> {
    ALL.iter().find(|command| {
        flags::distance(name, command.name) <= 2 || (name.len() >= 3 && command.name.starts_with(name))
    })
}

/// Runs a command with the arguments after its name.
pub(crate) fn main(command: &'static Command, arguments: &[String]) -> ExitCode {
    let request = match Request::parse(command, arguments) {
        Ok(request::Parsed::Help) => {
            print(&help::of(command));
            return ExitCode::SUCCESS;
        }
        Ok(request::Parsed::Run(request)) => request,
        Err(error) => return refuse(command, &error),
    };
    match (command.run)(&request) {
        Ok(answer) => {
            if request.wants_json() {
                print(&format!("{:#}\n", answer.json));
            } else {
                print(&answer.text);
            }
            ExitCode::from(answer.code)
        }
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn refuse(command: &Command, error: &FlagError) -> ExitCode {
    eprintln!("Error: {error}");
    eprintln!("Usage: {} {} {}", Program::Portwarden.name(), command.name, command.arguments);
    eprintln!("See `portwarden {} --help`.", command.name);
    ExitCode::from(FAILED)
}

/// Prints to standard output. A closed pipe (`portwarden help | head`) is not an error.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_described_completely() {
        let mut names = BTreeSet::new();
        for command in &ALL {
            assert!(names.insert(command.name), "{}: twice", command.name);
            assert!(!command.summary.ends_with('.') && command.about.ends_with('.'), "{}", command.name);
            assert!(!command.examples.is_empty(), "{}: no example", command.name);
            assert!(command.exit_codes.iter().any(|(code, _)| *code == GOOD), "{}", command.name);
            for (line, _) in command.examples {
                assert!(line.contains("portwarden"), "{line}");
            }
        }
    }

    #[test]
    fn no_flag_of_a_command_hides_one_of_the_proxy() {
        let proxy: BTreeSet<&str> = Program::Portwarden.flags().map(|(_, row)| row.flag).collect();
        for command in ALL.iter().filter(|command| command.takes_proxy_flags) {
            for flag in command.all_flags() {
                assert!(!proxy.contains(flag.name), "{} --{}", command.name, flag.name);
            }
        }
    }

    #[test]
    fn mistyped_commands_are_recognised() {
        assert_eq!(similar("hlep").map(|command| command.name), Some("help"));
        assert_eq!(similar("compl").map(|command| command.name), Some("completion"));
        assert!(similar("xyzzy").is_none());
    }
}

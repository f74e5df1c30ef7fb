//! `portwarden completion`: scripts that let a shell complete commands and flags, from the same tables as help.

use std::fmt::Write;

use anyhow::bail;

use super::{ALL, Answer, Command, CommandFlag, Request};
use crate::flags::Program;
use crate::modes::Mode;

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

pub(super) const COMMAND: Command = Command {
    name: "completion",
    arguments: "bash|zsh|fish",
    summary: "a script that completes commands and flags in a shell",
    about: "Prints a script for a shell. It completes the names of commands and flags, and the values of flags that \
            have few.",
    flags: &[],
    takes_proxy_flags: false,
    examples: &[
        ("source <(portwarden completion bash)", "completion in this bash"),
        (
            "portwarden completion bash > /etc/bash_completion.d/portwarden",
            "completion in every bash, with the package bash-completion",
        ),
        ("portwarden completion zsh > /usr/local/share/zsh/site-functions/_portwarden", "completion in zsh"),
        ("portwarden completion fish > ~/.config/fish/completions/portwarden.fish", "completion in fish"),
    ],
    exit_codes: &[(0, "the script was printed"), (2, "there is no script for this shell")],
    run,
};

fn run(request: &Request) -> anyhow::Result<Answer> {
    let script = match request.arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bash"] => bash(),
        ["zsh"] => zsh(),
        ["fish"] => fish(),
        _ => bail!("which shell? portwarden completion {}", SHELLS.join("|")),
    };
    Ok(Answer::of_text(script))
}

/// A flag of the proxy or of a command.
struct Flag<'a> {
    name: &'a str,
    help: &'a str,
    values: Vec<&'a str>,
    takes_value: bool,
    takes_file: bool,
}

fn proxy_flags() -> Vec<Flag<'static>> {
    let current = Program::Portwarden.flags().filter(|(_, row)| row.deprecated.is_none());
    let flag = |row: &'static crate::config::options::Row| Flag {
        name: row.flag,
        help: row.help,
        values: match row.flag {
            "proxy-mode" => Mode::ALL.map(Mode::as_str).into(),
            "logging-format" => vec!["text", "json"],
            "detect-local-mode" => vec!["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"],
            _ => Vec::new(),
        },
        takes_value: row.kind.alone().is_none(),
        takes_file: matches!(row.flag, "config" | "kubeconfig" | "manifests" | "write-config-to"),
    };
    current.map(|(_, row)| flag(row)).collect()
}

fn command_flags(command: &'static Command) -> Vec<Flag<'static>> {
    let own = |flag: &'static CommandFlag| Flag {
        name: flag.name,
        help: flag.help,
        values: flag.values.to_vec(),
        takes_value: true,
        takes_file: matches!(flag.placeholder, "FILE" | "PATH"),
    };
    let help = Flag {
        name: "help",
        help: "Print all about this command.",
        values: Vec::new(),
        takes_value: false,
        takes_file: false,
    };
    let mut flags: Vec<Flag<'static>> =
        command.flags.iter().chain([&super::OUTPUT]).map(own).chain([help]).collect();
    if command.takes_proxy_flags {
        flags.extend(proxy_flags().into_iter().filter(|flag| flag.name != "help"));
    }
    flags
}

/// What completes the first argument of a command.
fn arguments(command: &Command) -> Vec<&'static str> {
    match command.name {
        "completion" => SHELLS.into(),
        "help" => ALL.iter().map(|command| command.name).collect(),
        _ => Vec::new(),
    }
}

fn words(flags: &[Flag<'_>]) -> String {
    flags.iter().map(|flag| format!("--{}", flag.name)).collect::<Vec<_>>().join(" ")
}

fn names() -> String {
    ALL.iter().map(|command| command.name).collect::<Vec<_>>().join(" ")
}

fn bash() -> String {
    let mut cases = String::new();
    // Writing to a string cannot fail.
    for command in &ALL {
        let mut candidates = words(&command_flags(command));
        for argument in arguments(command) {
            let _ = write!(candidates, " {argument}");
        }
        let _ = writeln!(cases, "        {}) words=\"{candidates}\" ;;", command.name);
    }
    let mut values = String::new();
    let mut all = proxy_flags();
    all.extend(ALL.iter().flat_map(|command| command.flags.iter().chain([&super::OUTPUT])).map(|flag| {
        Flag {
            name: flag.name,
            help: flag.help,
            values: flag.values.to_vec(),
            takes_value: true,
            takes_file: matches!(flag.placeholder, "FILE" | "PATH"),
        }
    }));
    all.sort_by_key(|flag| flag.name);
    all.dedup_by_key(|flag| flag.name);
    for flag in all.iter().filter(|flag| flag.takes_value) {
        let candidates = match (flag.takes_file, flag.values.is_empty()) {
            (true, _) => "COMPREPLY=($(compgen -f -- \"$current\"))".to_owned(),
            (false, false) => {
                format!("COMPREPLY=($(compgen -W \"{}\" -- \"$current\"))", flag.values.join(" "))
            }
            (false, true) => "COMPREPLY=()".to_owned(),
        };
        let _ = writeln!(values, "        --{}) {candidates}; return ;;", flag.name);
    }
    format!(
        "# Completion of portwarden in bash. Made by `portwarden completion bash`.\n\
         _portwarden() {{\n    \
             local current previous words\n    \
             current=\"${{COMP_WORDS[COMP_CWORD]}}\"\n    \
             previous=\"${{COMP_WORDS[COMP_CWORD-1]}}\"\n    \
             # Bash splits --flag=value at the equals sign.\n    \
             if [ \"$current\" = \"=\" ]; then current=\"\"; \n    \
             elif [ \"$previous\" = \"=\" ]; then previous=\"${{COMP_WORDS[COMP_CWORD-2]}}\"; fi\n    \
             case \"$previous\" in\n{values}        \
             -o) COMPREPLY=($(compgen -W \"text json\" -- \"$current\")); return ;;\n    \
             esac\n    \
             case \"${{COMP_WORDS[1]}}\" in\n{cases}        \
             *) words=\"{}\"\n           \
             [ \"$COMP_CWORD\" -eq 1 ] && words=\"{} $words\" ;;\n    \
             esac\n    \
             COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n\
         }}\n\
         complete -o default -F _portwarden portwarden\n",
        words(&proxy_flags()),
        names()
    )
}

fn zsh() -> String {
    let escape =
        |text: &str| text.replace('\'', "'\\''").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
    let spec = |flag: &Flag<'_>| {
        let help = escape(first_sentence(flag.help));
        let action = match (flag.takes_value, flag.takes_file, flag.values.is_empty()) {
            (false, ..) => String::new(),
            (true, true, _) => ":file:_files".to_owned(),
            (true, false, false) => format!(":value:({})", flag.values.join(" ")),
            (true, false, true) => ":value: ".to_owned(),
        };
        let equals = if flag.takes_value { "=" } else { "" };
        format!("'--{}{equals}[{help}]{action}'", flag.name)
    };
    let specs = |flags: &[Flag<'_>]| flags.iter().map(spec).collect::<Vec<_>>().join(" \\\n      ");
    let mut described = String::new();
    let mut cases = String::new();
    for command in &ALL {
        let _ = writeln!(described, "    '{}:{}'", command.name, escape(command.summary));
        let first = match arguments(command).as_slice() {
            [] => "'*: :'".to_owned(),
            some => format!("'1:argument:({})'", some.join(" ")),
        };
        let _ = writeln!(
            cases,
            "    {})\n      _arguments {first} \\\n      {} ;;",
            command.name,
            specs(&command_flags(command))
        );
    }
    format!(
        "#compdef portwarden\n# Completion of portwarden in zsh. Made by `portwarden completion zsh`.\n\
         _portwarden() {{\n  local -a commands\n  commands=(\n{described}  )\n  \
         if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n    _describe command commands\n    return\n  fi\n  \
         local command=$words[2]\n  \
         case $command in\n    {})\n      shift words\n      (( CURRENT-- )) ;;\n  esac\n  \
         case $command in\n{cases}    *)\n      _arguments \\\n      {} ;;\n  esac\n}}\n\
         if [ \"$funcstack[1]\" = \"_portwarden\" ]; then _portwarden \"$@\"; else compdef _portwarden portwarden; fi\n",
        names().replace(' ', "|"),
        specs(&proxy_flags())
    )
}

fn fish() -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    let mut text =
        String::from("# Completion of portwarden in fish. Made by `portwarden completion fish`.\n");
    let none = format!("not __fish_seen_subcommand_from {}", names());
    let line = |text: &mut String, condition: &str, flag: &Flag<'_>| {
        let value = match (flag.takes_value, flag.takes_file, flag.values.is_empty()) {
            (false, ..) => String::new(),
            (true, true, _) => " -r -F".to_owned(),
            (true, false, false) => format!(" -x -a '{}'", flag.values.join(" ")),
            (true, false, true) => " -x".to_owned(),
        };
        let help = escape(first_sentence(flag.help));
        let _ = writeln!(text, "complete -c portwarden -n '{condition}' -l {}{value} -d '{help}'", flag.name);
    };
    let _ = writeln!(text, "complete -c portwarden -f");
    for command in &ALL {
        let summary = escape(command.summary);
        let _ = writeln!(text, "complete -c portwarden -n '{none}' -a {} -d '{summary}'", command.name);
        let condition = format!("__fish_seen_subcommand_from {}", command.name);
        for argument in arguments(command) {
            let _ = writeln!(text, "complete -c portwarden -n '{condition}' -a {argument}");
        }
        command_flags(command).iter().for_each(|flag| line(&mut text, &condition, flag));
    }
    proxy_flags().iter().for_each(|flag| line(&mut text, &none, flag));
    text
}

/// Shells show one line.
fn first_sentence(help: &str) -> &str {
    help.split_once(". ").map_or(help, |(first, _)| first).trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_knows_every_command_and_every_flag() {
        for script in [bash(), zsh(), fish()] {
            for command in &ALL {
                assert!(script.contains(command.name), "{}: {script}", command.name);
            }
            for flag in proxy_flags() {
                assert!(script.contains(flag.name), "{}", flag.name);
            }
            assert!(script.contains("nftables"), "the modes");
            assert!(!script.contains("metrics-port"), "deprecated flags are left out");
        }
    }
}

//! The text of `--help`.

use std::fmt::Write;

use super::Program;
use super::table::{Flag, GROUPS, visible};

const WIDTH: usize = 100;
const INDENT: usize = 8;

/// The short text to print before the message of a [`FlagError`](super::FlagError) that asks for it.
pub fn usage(program: Program) -> String {
    let name = program.name();
    format!("Usage:\n  {name} [flags]\n\nSee all flags with `{name} --help`.\n")
}

/// The whole text, grouped by subject; flags that should no longer be used are left out.
pub(super) fn help(program: Program) -> String {
    let name = program.name();
    let mut text = format!(
        "{name} makes this node's kernel send connections for Kubernetes Services to their endpoints.\n\n\
         Usage:\n  {name} [flags]\n{}\n\
         With --config, flags marked (file) are ignored: the file decides. An underscore in a flag's name\n\
         is read as a dash. A switch takes a value only after an equals sign: --masquerade-all=false.\n",
        subcommands(program)
    );
    for group in GROUPS {
        let flags: Vec<&Flag> =
            group.flags.iter().filter(|flag| visible(flag, program) && flag.deprecated.is_none()).collect();
        if flags.is_empty() {
            continue;
        }
        let _ = write!(text, "\n{}:\n", group.title);
        for flag in flags {
            describe(&mut text, flag);
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// What only our own name offers.
fn subcommands(program: Program) -> &'static str {
    match program {
        Program::KubeProxy => "",
        Program::Portwarden => {
            "  portwarden explain [NAMESPACE/]SERVICE [flags]   why packets to a Service go where they go\n"
        }
    }
}

fn describe(text: &mut String, flag: &Flag) {
    let short = flag.short.map_or(String::new(), |letter| format!("-{letter}, "));
    let placeholder = match flag.slot.placeholder() {
        value if value.is_empty() || value.starts_with('[') => value.to_owned(),
        value => format!(" {value}"),
    };
    let _ = writeln!(text, "  {short}--{}{placeholder}", flag.name);
    let mut words = flag.help.to_owned();
    if !matches!(flag.default, "" | "false" | "[]") {
        let _ = write!(words, " Default: {}.", flag.default);
    }
    if !flag.beside_file {
        words.push_str(" (file)");
    }
    wrap(text, &words);
}

fn wrap(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split(' ') {
        let length = word.chars().count();
        if column == 0 {
            text.push_str(&" ".repeat(INDENT));
            column = INDENT;
        } else if column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(INDENT));
            column = INDENT;
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

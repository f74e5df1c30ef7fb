//! The text of `--help`.

use std::fmt::Write;

use super::Program;
use crate::config::options::{Group, Row};

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
    for (group, title) in Group::TITLES {
        let mut flags =
            program.flags().filter(|(_, row)| row.group == group && row.deprecated.is_none()).peekable();
        if flags.peek().is_some() {
            let _ = write!(text, "\n{title}:\n");
            flags.for_each(|(_, row)| describe(&mut text, row));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// What only our own name offers.
fn subcommands(program: Program) -> String {
    match program {
        Program::KubeProxy => String::new(),
        Program::Portwarden => {
            format!("\nCommands (`portwarden help` explains them):\n{}", crate::commands::list())
        }
    }
}

fn describe(text: &mut String, row: &Row) {
    let letter = row.letter.map_or(String::new(), |letter| format!("-{letter}, "));
    let placeholder = match row.kind.placeholder() {
        value if value.is_empty() || value.starts_with('[') => value.to_owned(),
        value => format!(" {value}"),
    };
    let _ = writeln!(text, "  {letter}--{}{placeholder}", row.flag);
    let mut words = row.help.to_owned();
    let default = row.shown_default();
    if !matches!(default.as_str(), "" | "false" | "[]") {
        let _ = write!(words, " Default: {default}.");
    }
    if !row.beside_file {
        words.push_str(" (file)");
    }
    wrap(text, &words, INDENT);
}

/// Breaks words into lines, each with an indent.
pub(crate) fn wrap(text: &mut String, words: &str, indent: usize) {
    let mut column = 0;
    for word in words.split(' ') {
        let length = word.chars().count();
        if column != 0 && column + 1 + length <= WIDTH {
            text.push(' ');
            column += 1;
        } else {
            if column != 0 {
                text.push('\n');
            }
            text.push_str(&" ".repeat(indent));
            column = indent;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

//! From arguments to flags, by the rules of Go's pflag.

use super::{Flags, Program, help};
use crate::config::options::{HELP, Row};

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// What to do.
    pub invocation: Invocation,
    /// Lines for standard error about flags that should no longer be used.
    pub deprecations: Vec<String>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Invocation {
    /// Print this text to standard output and end with success.
    Print(String),
    /// Go on with these flags.
    Run(Box<Flags>),
}

/// Why a command line cannot be used. The process prints it as `Error: …` and ends with status 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// Something like `--=x`.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    /// No such flag.
    #[error("unknown flag: --{name}{}", hint(suggestion))]
    Unknown {
        /// The name as given.
        name: String,
        /// A flag with nearly that name.
        suggestion: Option<&'static str>,
    },
    /// No such one-letter flag.
    #[error("unknown shorthand flag: {letter:?} in -{group}")]
    UnknownLetter {
        /// The letter that is no flag.
        letter: char,
        /// The letters it stood among.
        group: String,
    },
    /// The command line ends where a value should stand.
    #[error("flag needs an argument: {0}")]
    NoValue(String),
    /// The value does not suit the flag.
    #[error("invalid argument {value:?} for {flag:?} flag: {reason}")]
    Value {
        /// The flag as the operator wrote it.
        flag: String,
        /// The value as the operator wrote it.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that is no flag.
    #[error(
        "{program:?} does not take any arguments, got [{}]{}",
        quoted(arguments),
        argument_hint(switch, command)
    )]
    Arguments {
        /// The name by which the program was called.
        program: &'static str,
        /// All of them.
        arguments: Vec<String>,
        /// A switch that the first of them was meant for, with its value.
        switch: Option<(&'static str, String)>,
        /// A command that the first of them was meant for.
        command: Option<&'static str>,
    },
}

impl FlagError {
    /// Whether the usage text goes before the message.
    pub fn wants_usage(&self) -> bool {
        !matches!(self, FlagError::Arguments { .. })
    }
}

/// Reads the arguments after the program's name.
pub fn parse(program: Program, arguments: &[String]) -> Result<Parsed, FlagError> {
    read(program, arguments)?.finish()
}

/// Reads the arguments of a command of ours: flags of the proxy, and everything that is no flag.
pub(crate) fn parse_command(arguments: &[String]) -> Result<(Flags, Vec<String>), FlagError> {
    let parser = read(Program::Portwarden, arguments)?;
    Ok((parser.flags, parser.positional))
}

fn read(program: Program, arguments: &[String]) -> Result<Parser, FlagError> {
    let mut parser = Parser {
        program,
        flags: Flags::default(),
        deprecations: Vec::new(),
        positional: Vec::new(),
        switch: None,
        meant_for: None,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let after_switch = parser.switch.take();
        match argument.strip_prefix("--") {
            Some("") => {
                parser.positional.extend(arguments.by_ref().cloned());
            }
            Some(long) => parser.long(argument, long, &mut arguments)?,
            None => match argument.strip_prefix('-') {
                Some(letters) if !letters.is_empty() => parser.letters(letters, &mut arguments)?,
                _ => {
                    if parser.positional.is_empty() {
                        parser.meant_for = after_switch.map(|switch| (switch, argument.clone()));
                    }
                    parser.positional.push(argument.clone());
                }
            },
        }
    }
    Ok(parser)
}

struct Parser {
    program: Program,
    flags: Flags,
    deprecations: Vec<String>,
    positional: Vec<String>,
    /// The switch that the last argument set without a value.
    switch: Option<&'static str>,
    /// The switch before the first argument that is no flag, with that argument.
    meant_for: Option<(&'static str, String)>,
}

type Rest<'a> = std::slice::Iter<'a, String>;

impl Parser {
    fn long(&mut self, argument: &str, long: &str, rest: &mut Rest<'_>) -> Result<(), FlagError> {
        if long.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(argument.to_owned()));
        }
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let dashed = name.replace('_', "-");
        let flag = self.program.flags().find(|(_, row)| row.flag == dashed);
        let flag = flag.ok_or_else(|| self.unknown(name))?;
        let alone = flag.1.kind.alone();
        self.switch = alone.filter(|_| value.is_none()).map(|_| flag.1.flag);
        let value = match value.or(alone) {
            Some(value) => value,
            None => rest.next().ok_or_else(|| FlagError::NoValue(format!("--{name}")))?,
        };
        self.set(flag, value)
    }

    /// `-v2`, `-v=2`, `-v 2`, and letters that need no value one after the other.
    fn letters(&mut self, group: &str, rest: &mut Rest<'_>) -> Result<(), FlagError> {
        let mut letters = group.chars();
        while let Some(letter) = letters.next() {
            let unknown = || FlagError::UnknownLetter { letter, group: group.to_owned() };
            let flag =
                self.program.flags().find(|(_, row)| row.letter == Some(letter)).ok_or_else(unknown)?;
            let after = letters.as_str();
            let inline = after.strip_prefix('=').filter(|value| !value.is_empty());
            let value = match (inline, flag.1.kind.alone()) {
                (Some(value), _) => value,
                (None, Some(alone)) => {
                    self.set(flag, alone)?;
                    continue;
                }
                (None, None) if !after.is_empty() => after,
                (None, None) => {
                    rest.next().ok_or_else(|| FlagError::NoValue(format!("{letter:?} in -{group}")))?.as_str()
                }
            };
            return self.set(flag, value);
        }
        Ok(())
    }

    fn set(&mut self, (index, row): (usize, &Row), value: &str) -> Result<(), FlagError> {
        let before = self.flags.values.at(index).cloned();
        let after = row.kind.parse(value, before).map_err(|reason| FlagError::Value {
            flag: row.letter.map_or(format!("--{}", row.flag), |letter| format!("-{letter}, --{}", row.flag)),
            value: value.to_owned(),
            reason,
        })?;
        self.flags.values.set_at(index, after);
        if let Some(instead) = row.deprecated {
            self.deprecations.push(format!("Flag --{} has been deprecated, {instead}", row.flag));
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> FlagError {
        let name_with_dashes = name.replace('_', "-");
        let nearest = self
            .program
            .flags()
            .map(|(_, row)| (distance(&name_with_dashes, row.flag), row.flag))
            .filter(|(distance, _)| *distance <= 3 && *distance < name.len())
            .min();
        FlagError::Unknown { name: name.to_owned(), suggestion: nearest.map(|(_, name)| name) }
    }

    /// Help comes before complaints about arguments, those come before the version.
    fn finish(self) -> Result<Parsed, FlagError> {
        let Parser { program, flags, deprecations, positional, meant_for, .. } = self;
        if flags.values.get(HELP) {
            return Ok(Parsed { invocation: Invocation::Print(help::help(program)), deprecations });
        }
        if positional.iter().any(|argument| !argument.is_empty()) {
            // kube-proxy's own message has no advice.
            let switch = meant_for
                .filter(|(_, value)| program == Program::Portwarden && value.parse::<bool>().is_ok());
            let first = positional
                .iter()
                .find(|argument| !argument.is_empty())
                .filter(|_| program == Program::Portwarden);
            let command = first.and_then(|name| crate::commands::similar(name)).map(|command| command.name);
            return Err(FlagError::Arguments {
                program: program.name(),
                arguments: positional,
                switch,
                command,
            });
        }
        let invocation = match flags.version().and_then(|version| version.output()) {
            Some(version) => Invocation::Print(version),
            None => Invocation::Run(Box::new(flags)),
        };
        Ok(Parsed { invocation, deprecations })
    }
}

fn argument_hint(switch: &Option<(&'static str, String)>, command: &Option<&'static str>) -> String {
    match (switch, command) {
        (Some((flag, value)), _) => {
            format!("; a switch takes its value after an equals sign: --{flag}={value}")
        }
        (None, Some(command)) => {
            format!("; a command comes first: did you mean `portwarden {command}`?")
        }
        (None, None) => String::new(),
    }
}

fn hint(suggestion: &Option<&'static str>) -> String {
    suggestion.map(|name| format!(" (did you mean --{name}?)")).unwrap_or_default()
}

fn quoted(arguments: &[String]) -> String {
    arguments.iter().map(|argument| format!("{argument:?}")).collect::<Vec<_>>().join(" ")
}

/// How many letters have to be put in, taken out or replaced to get from one name to the other.
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests;

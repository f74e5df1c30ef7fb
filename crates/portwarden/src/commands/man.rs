//! `portwarden man`: the manual page, from the same tables as help.

use std::fmt::Write;

use super::{ALL, Answer, Command, CommandFlag, Request};
use crate::config::options::{Group, Row};
use crate::flags::Program;

pub(super) const COMMAND: Command = Command {
    name: "man",
    arguments: "",
    summary: "the manual page",
    about: "Prints the manual page portwarden(8): commands, flags, files, exit status.",
    flags: &[],
    takes_proxy_flags: false,
    examples: &[
        ("portwarden man | man -l -", "read it"),
        ("portwarden man > /usr/local/share/man/man8/portwarden.8", "install it"),
    ],
    exit_codes: &[(0, "the page was printed")],
    run,
};

fn run(_: &Request) -> anyhow::Result<Answer> {
    Ok(Answer::of_text(page()))
}

fn page() -> String {
    let mut page = format!(
        ".TH PORTWARDEN 8 \"\" \"Portwarden {}\" \"System administration\"\n\
         .SH NAME\nportwarden \\- sends connections for Kubernetes Services to their endpoints\n\
         .SH SYNOPSIS\n.B portwarden\n[\\fIflags\\fR]\n.br\n.B portwarden\n\\fIcommand\\fR [\\fIarguments\\fR]\n.br\n.B kube-proxy\n[\\fIflags\\fR]\n\
         .SH DESCRIPTION\nPortwarden runs on every node of a cluster in the place of kube-proxy. It follows Services and EndpointSlices, and writes\n\
         rules that make the kernel forward connections. Called as \\fBkube-proxy\\fR it has exactly that program's command line.\n\
         .PP\nThe rules stay when the process ends. \\fBportwarden \\-\\-cleanup\\fR removes them.\n\
         .SH COMMANDS\n",
        crate::version::OWN
    );
    ALL.iter().for_each(|command| describe_command(&mut page, command));
    page.push_str(
        ".SH FLAGS\nWith \\fB\\-\\-config\\fR, most flags are ignored: the file decides. A switch takes a value only after an equals sign.\n",
    );
    for (group, title) in Group::TITLES {
        let mut flags = Program::Portwarden
            .flags()
            .filter(|(_, row)| row.group == group && row.deprecated.is_none())
            .peekable();
        if flags.peek().is_some() {
            // Writing to a string cannot fail.
            let _ = writeln!(page, ".SS {}", escape(title));
            flags.for_each(|(_, row)| describe_flag(&mut page, row));
        }
    }
    page.push_str(
        ".SH EXIT STATUS\nThe proxy ends with 0 after SIGTERM and SIGINT, and with 1 after an error. Commands end with 0 if the answer is good, with 1 if it\n\
         is not, and with 2 if they could not find out.\n\
         .SH SIGNALS\n.TP\nSIGHUP\nRead the configuration again.\n.TP\nSIGTERM, SIGINT\nEnd; the rules stay in place.\n\
         .SH SEE ALSO\n.BR nft (8),\n.BR iptables (8),\n.BR ipvsadm (8),\n.BR conntrack (8)\n",
    );
    page
}

fn describe_command(page: &mut String, command: &Command) {
    let _ = writeln!(
        page,
        ".SS portwarden {} {}\n{}",
        escape(command.name),
        escape(command.arguments),
        escape(command.about)
    );
    for CommandFlag { name, placeholder, help, .. } in command.flags {
        let _ =
            writeln!(page, ".TP\n\\fB\\-\\-{}\\fR \\fI{}\\fR\n{}", escape(name), placeholder, escape(help));
    }
    for (line, shows) in command.examples {
        let _ = writeln!(page, ".PP\n.nf\n    {}\n.fi\n.RS\n{}\n.RE", escape(line), escape(shows));
    }
    page.push_str(".PP\nExit status:\n");
    for (code, meaning) in command.exit_codes {
        let _ = writeln!(page, ".br\n{code}: {}", escape(meaning));
    }
}

fn describe_flag(page: &mut String, row: &Row) {
    let letter = row.letter.map_or(String::new(), |letter| format!("\\fB\\-{letter}\\fR, "));
    let _ = writeln!(
        page,
        ".TP\n{letter}\\fB\\-\\-{}\\fR \\fI{}\\fR",
        escape(row.flag),
        escape(row.kind.placeholder())
    );
    let default = row.shown_default();
    let default = match default.as_str() {
        "" | "false" | "[]" => String::new(),
        some => format!(" Default: {some}."),
    };
    let _ = writeln!(page, "{}", escape(&format!("{}{default}", row.help)));
}

/// Text that troff takes literally.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_every_current_flag_is_on_the_page() {
        let page = page();
        for command in &ALL {
            assert!(page.contains(&format!(".SS portwarden {}", command.name)), "{}", command.name);
        }
        for (_, row) in Program::Portwarden.flags().filter(|(_, row)| row.deprecated.is_none()) {
            assert!(page.contains(&format!("\\fB\\-\\-{}\\fR", escape(row.flag))), "{}", row.flag);
        }
        let known = [".TH ", ".SH ", ".SS ", ".TP", ".PP", ".B ", ".BR ", ".br", ".nf", ".fi", ".RS", ".RE"];
        for line in page.lines().filter(|line| line.starts_with('.')) {
            assert!(known.iter().any(|request| line.starts_with(request)), "{line}");
        }
    }
}

//! Which lines `iptables-restore` complains about.

/// The lines that the messages name, each once, with the reason.
///
/// There are three forms: `Error occurred at line: 6` after the reason, `line 4 failed: reason` or without one, and
/// `line 3: RULE_APPEND failed (reason): rule in chain X`. A missing kernel module is named in a separate warning.
pub(super) fn parse(errors: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut previous = "";
    let warning = errors.lines().map(str::trim).find(|text| text.starts_with("Warning: Extension"));
    let warning = warning.map(|text| format!("; {text}")).unwrap_or_default();
    for text in errors.lines().map(str::trim).filter(|text| !text.is_empty()) {
        let reason = if text.starts_with("Error occurred at line") { previous } else { text };
        if let Some(number) =
            line_number(text).filter(|number| lines.iter().all(|(known, _)| known != number))
        {
            lines.push((number, format!("{}{warning}", without_program(reason))));
        }
        previous = text;
    }
    lines
}

fn line_number(text: &str) -> Option<usize> {
    let mut words = text.split([' ', ':']).filter(|word| !word.is_empty());
    words.find(|word| *word == "line")?;
    words.next()?.parse().ok()
}

/// `iptables-restore v1.8.9 (legacy): reason` without the program.
fn without_program(text: &str) -> &str {
    match text.split_once(": ") {
        Some((program, reason)) if program.contains("restore") => reason,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_syntax_is_reported_with_the_reason_before_the_line() {
        let errors = "iptables-nft-restore v1.8.9 (nf_tables): Couldn't load match `bogus':No such file or directory\n\n\
                      Error occurred at line: 6\n\
                      Try `iptables-nft-restore -h' or 'iptables-nft-restore --help' for more information.\n";
        assert_eq!(parse(errors), [(6, "Couldn't load match `bogus':No such file or directory".to_owned())]);
    }

    #[test]
    fn a_refusal_of_the_kernel_names_all_lines() {
        let errors = "iptables-nft-restore v1.8.9 (nf_tables): \n\
                      line 3: RULE_APPEND failed (No such file or directory): rule in chain KUBE-A\n\
                      line 4: RULE_APPEND failed (No such file or directory): rule in chain KUBE-A\n";
        let numbers: Vec<_> = parse(errors).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [3, 4]);
    }

    #[test]
    fn what_the_kernel_does_not_know_is_part_of_the_reason() {
        let errors = "Warning: Extension recent revision 0 not supported, missing kernel module?\n\
                      iptables-nft-restore v1.8.9 (nf_tables): \n\
                      line 3: RULE_APPEND failed (No such file or directory): rule in chain KUBE-A\n";
        let lines = parse(errors);
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0]
                .1
                .ends_with("; Warning: Extension recent revision 0 not supported, missing kernel module?")
        );
    }

    #[test]
    fn the_legacy_variant_gives_little_reason() {
        assert_eq!(parse("iptables-restore: line 5 failed\n"), [(5, "line 5 failed".to_owned())]);
        assert_eq!(
            parse("iptables-nft-restore: line 4 failed: No chain/target/match by that name.\n"),
            [(4, "line 4 failed: No chain/target/match by that name.".to_owned())]
        );
    }

    #[test]
    fn other_messages_name_no_line() {
        assert_eq!(parse("Another app is currently holding the xtables lock; still 4s 0us time ahead\n"), []);
        assert_eq!(parse("command line arguments are wrong\n"), []);
        assert_eq!(parse(""), []);
    }
}

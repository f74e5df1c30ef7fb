//! The documents keep up with the program: links lead somewhere, and docs/troubleshooting.md knows every warning and error of the log.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Where this repository begins.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below a folder whose names end like this.
fn files(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            found.extend(files(&path, end)?);
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
    Ok(found)
}

/// A page without blocks of code, in which brackets are not links and `#` begins no heading.
fn prose(page: &str) -> String {
    let mut fenced = false;
    let mut before_is_blank = true;
    let mut inside = false;
    let mut text = String::new();
    for line in page.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        // A block that is indented by four spaces begins after an empty line.
        inside = line.starts_with("    ") && (inside || before_is_blank);
        before_is_blank = line.trim().is_empty();
        if !fence && !fenced && !inside {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The names under which the headings of a page can be linked, made as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings =
        page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The targets of all links and pictures of a page.
fn links(page: &str) -> Vec<String> {
    let after = page.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn every_link_between_documents_leads_somewhere() -> Result<()> {
    let mut broken = Vec::new();
    let mut followed = 0;
    for path in files(&root(), ".md")? {
        let page = prose(&fs::read_to_string(&path)?);
        for link in links(&page).into_iter().filter(|link| !link.contains("://")) {
            followed += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            let found = match (target.exists(), anchor) {
                (exists, "") => exists,
                (false, _) => false,
                (true, anchor) => anchors(&prose(&fs::read_to_string(&target)?)).contains(anchor),
            };
            if !found {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    ensure!(followed > 50, "only {followed} links were found");
    ensure!(broken.is_empty(), "{broken:#?}");
    Ok(())
}

/// The string literal at the beginning of a text, with lines that are continued joined, and what follows it.
fn literal(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut value = String::new();
    loop {
        let (before, after) = rest.split_at(rest.find(['"', '\\'])?);
        value.push_str(before);
        if let Some(after) = after.strip_prefix('"') {
            return Some((value, after));
        }
        let escaped = after.chars().nth(1)?;
        rest = &after[1 + escaped.len_utf8()..];
        match escaped {
            '\n' => rest = rest.trim_start(),
            escaped => value.push(escaped),
        }
    }
}

/// The message of a logging macro, which is the first of its arguments that is a literal; `text` begins after the macro's parenthesis.
fn message(text: &str) -> Option<String> {
    let (mut rest, mut depth, mut argument_begins) = (text, 0, true);
    loop {
        rest = rest.trim_start();
        if let Some((value, after)) = literal(rest) {
            if depth == 0 && argument_begins {
                return Some(value);
            }
            (rest, argument_begins) = (after, false);
            continue;
        }
        let c = rest.chars().next()?;
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => return None,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        argument_begins = c == ',' && depth == 0;
        rest = &rest[c.len_utf8()..];
    }
}

/// The code of all crates that are part of the program, without tests.
fn program() -> Result<String> {
    let mut code = String::new();
    for path in files(&root().join("crates"), ".rs")? {
        let name = path.to_string_lossy();
        let part = ["testkit", "simulation", "image", "/tests", "/benches", "/examples"];
        if part.iter().any(|part| name.contains(part)) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        code.push_str(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
    }
    Ok(code)
}

#[test]
fn every_warning_and_error_of_the_log_is_in_the_handbook() -> Result<()> {
    let handbook = fs::read_to_string(root().join("docs/troubleshooting.md"))?;
    let part = |from: &str, to: &str| {
        let (_, rest) = handbook.split_once(from).with_context(|| from.to_owned())?;
        Ok::<_, anyhow::Error>(rest.split_once(to).with_context(|| to.to_owned())?.0)
    };
    let sections = part("## Log lines that ask for action", "## Log lines that ask for nothing")?;
    let rows = part("## Log lines that ask for nothing", "## Checks of `portwarden doctor`")?;
    let headings: Vec<&str> = sections.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    // A section may name further lines, between backticks. Shorter texts are names of other things.
    let further = sections.lines().filter(|line| !line.starts_with('#'));
    let further = further.flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|text| text.len() > 15);
    let rows = rows.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once("` |")?.0));
    let lines: Vec<&str> = headings.into_iter().chain(rows).collect();
    let known: Vec<&str> = lines.iter().copied().chain(further).collect();
    let code = program()?;
    let mut messages = BTreeSet::new();
    for macro_call in ["warn!(", "error!("] {
        messages.extend(code.split(macro_call).skip(1).filter_map(message));
    }
    // The words of a failed sync, of a server that cannot listen.
    for field in ["sync_failed: ", "failure: "] {
        messages.extend(code.split(field).skip(1).filter_map(|rest| Some(literal(rest)?.0)));
    }
    // These are nothing but a text that is put in; the texts are found by the fields above, and notices have a section.
    messages.retain(|message| !message.starts_with('{'));
    ensure!(messages.len() > 60, "only {} messages were found", messages.len());
    let is_known = |message: &&String| known.iter().any(|text| message.starts_with(text));
    let missing: Vec<&String> = messages.iter().filter(|message| !is_known(message)).collect();
    ensure!(missing.is_empty(), "docs/troubleshooting.md lacks {missing:#?}");
    let gone: Vec<&&str> = lines.iter().filter(|text| !code.contains(**text)).collect();
    ensure!(gone.is_empty(), "the program no longer says {gone:#?}");
    Ok(())
}

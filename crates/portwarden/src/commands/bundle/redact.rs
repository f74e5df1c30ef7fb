//! Cuts credentials out of text.

/// What takes the place of a credential.
const CUT: &str = "[cut]";

/// Names of fields, flags and headers whose value is a credential, in lower case.
const NAMES: [&str; 14] = [
    "token",
    "password",
    "passwd",
    "secret",
    "authorization",
    "client-key-data",
    "client-certificate-data",
    "certificate-authority-data",
    "private-key",
    "privatekey",
    "api-key",
    "apikey",
    "access-key",
    "cookie",
];

/// The text without credentials: values of fields that are called so, private keys, JSON web tokens, and passwords in URLs.
pub(super) fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && !line.contains("-----END") {
            in_key = true;
            out.push_str(CUT);
            out.push('\n');
        } else if in_key {
            in_key = !line.contains("-----END");
        } else if line.contains("-----BEGIN") {
            out.push_str(CUT);
            out.push('\n');
        } else {
            out.push_str(&redact_line(line));
        }
    }
    out
}

fn redact_line(line: &str) -> String {
    let lower = line.to_lowercase();
    let named = NAMES.iter().filter_map(|name| value_start(&lower, name)).min();
    let line = match named {
        Some(start) if line.is_char_boundary(start) => {
            let end = if line.ends_with('\n') { "\n" } else { "" };
            format!("{} {CUT}{end}", &line[..start])
        }
        _ => line.to_owned(),
    };
    let words = line.split_inclusive(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '='));
    words.map(redact_word).collect()
}

/// Where the value after a name begins: behind `name:`, `name=`, `"name":`, `name "`, also if the name is a part of a longer word.
fn value_start(lower: &str, name: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = lower.get(from..).and_then(|rest| rest.find(name)) {
        let end = from + at + name.len();
        let rest = lower.get(end..)?;
        let word_end = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '"' | '\'')));
        if let Some(offset) = word_end
            && matches!(rest.as_bytes().get(offset), Some(b':' | b'='))
        {
            // A file is no secret, and its name helps.
            let suffix = rest.get(..offset).unwrap_or_default();
            if !suffix.contains("file") && !suffix.contains("path") {
                return Some(end + offset + 1);
            }
        }
        from = end;
    }
    None
}

/// A JSON web token, or a URL with a password.
fn redact_word(word: &str) -> String {
    if word.starts_with("eyJ") && word.matches('.').count() >= 2 {
        return format!("{CUT}{}", word.get(word.trim_end().len()..).unwrap_or_default());
    }
    if let Some((scheme, rest)) = word.split_once("://")
        && let Some((user, host)) = rest.split_once('@')
        && user.contains(':')
    {
        return format!("{scheme}://{CUT}@{host}");
    }
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_of_credentials_are_cut_and_the_rest_stays() {
        for (text, wanted) in [
            ("    token: abc\n", "    token: [cut]\n"),
            ("client-key-data: LS0t\nserver: https://x\n", "client-key-data: [cut]\nserver: https://x\n"),
            ("{\"bearerToken\": \"abc\", \"x\": 1}", "{\"bearerToken\": [cut]"),
            ("Authorization: Bearer abc", "Authorization: [cut]"),
            ("tokenFile: /var/run/token\n", "tokenFile: /var/run/token\n"),
            ("err=\"unknown field\" services=3", "err=\"unknown field\" services=3"),
            ("proxy http://user:pass@proxy:3128 used", "proxy http://[cut]@proxy:3128 used"),
            ("sent eyJhbGciOi.eyJzdWIi.c2ln now", "sent [cut] now"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter\n",
                "[cut]\nafter\n",
            ),
        ] {
            assert_eq!(redact(text), wanted);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            redact(&text);
        }

        #[test]
        fn a_token_never_stays(before in "[a-z ]{0,20}", after in "[a-z ]{0,20}", separator in "(: |=|: \"|\": \")") {
            let text = format!("{before} token{separator}s3cr3t-v4lu3 {after}");
            prop_assert!(!redact(&text).contains("s3cr3t-v4lu3"));
        }
    }
}

//! `IP:port` as Go splits and joins it.

use portwarden_model::parse_ip;

/// Splits `host:port` or `[host]:port`; nothing is checked about either part.
pub(crate) fn split(text: &str) -> Option<(&str, &str)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').and_then(|(host, rest)| Some((host, rest.strip_prefix(':')?)))?,
        None => text.split_once(':')?,
    };
    let stray = |part: &str| part.contains(['[', ']']);
    (!port.contains(':') && !stray(host) && !stray(port)).then_some((host, port))
}

/// Adds the port unless the text already has one; what is neither `IP` nor `host:port` is left alone.
pub(crate) fn with_port(text: &str, port: i64) -> String {
    if split(text).is_some() || parse_ip(text).is_none() {
        return text.to_owned();
    }
    if text.contains(':') { format!("[{text}]:{port}") } else { format!("{text}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_split_as_go_splits_them() {
        assert_eq!(split("1.2.3.4:80"), Some(("1.2.3.4", "80")));
        assert_eq!(split("[::1]:80"), Some(("::1", "80")));
        assert_eq!(split(":80"), Some(("", "80")));
        assert_eq!(split("host:"), Some(("host", "")));
        for text in [
            "",
            "1.2.3.4",
            "::1",
            "[::1]",
            "[::1]80",
            "[::1]:80:90",
            "::1:80",
            "[::1",
            "a[b]:80",
            "[a[b]:80",
            "a]:80",
            "a:8]0",
        ] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn a_port_is_added_only_to_a_bare_address() {
        assert_eq!(with_port("1.2.3.4", 80), "1.2.3.4:80");
        assert_eq!(with_port("::1", 80), "[::1]:80");
        assert_eq!(with_port("1.2.3.4:90", 80), "1.2.3.4:90");
        assert_eq!(with_port("[::1]", 80), "[::1]");
        assert_eq!(with_port("example", 80), "example");
        assert_eq!(with_port("", 80), "");
    }
}

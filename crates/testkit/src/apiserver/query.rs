//! What a request asks for beside its path.

use super::status::Refusal;

/// The parameters of lists and watches; empty for what is not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) watch: bool,
    pub(super) label_selector: String,
    pub(super) field_selector: String,
    pub(super) resource_version: String,
    pub(super) resource_version_match: String,
    pub(super) limit: usize,
    pub(super) r#continue: String,
    pub(super) allow_watch_bookmarks: bool,
    pub(super) send_initial_events: Option<bool>,
    pub(super) timeout_seconds: Option<u64>,
}

impl Query {
    pub(super) fn parse(text: &str) -> Result<Query, Refusal> {
        let mut query = Query::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decoded(value);
            let number = || {
                let wrong = |_| Refusal::bad_request(format!("{key}: {value:?} is not a number"));
                value.parse::<u64>().map_err(wrong)
            };
            match key {
                "watch" => query.watch = is_true(&value),
                "labelSelector" => query.label_selector = value,
                "fieldSelector" => query.field_selector = value,
                "resourceVersion" => query.resource_version = value,
                "resourceVersionMatch" => query.resource_version_match = value,
                "limit" => query.limit = usize::try_from(number()?).unwrap_or(usize::MAX),
                "continue" => query.r#continue = value,
                "allowWatchBookmarks" => query.allow_watch_bookmarks = is_true(&value),
                "sendInitialEvents" => query.send_initial_events = Some(is_true(&value)),
                "timeoutSeconds" => query.timeout_seconds = Some(number()?),
                _ => {}
            }
        }
        Ok(query)
    }

    /// The version; nothing for the newest, 0 for any.
    pub(super) fn version(&self) -> Result<Option<u64>, Refusal> {
        match self.resource_version.as_str() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Refusal::bad_request(format!("Invalid value: {text:?}: strconv.ParseUint: invalid syntax"))
            }),
        }
    }
}

fn is_true(value: &str) -> bool {
    matches!(value, "" | "1" | "true")
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let byte = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if byte.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read() {
        let query = Query::parse(
            "watch=true&labelSelector=%21a%2Fb&resourceVersion=5&sendInitialEvents=true&timeoutSeconds=300&other=1",
        )
        .unwrap();
        assert!(query.watch);
        assert_eq!(query.label_selector, "!a/b");
        assert_eq!(query.version(), Ok(Some(5)));
        assert_eq!((query.send_initial_events, query.timeout_seconds), (Some(true), Some(300)));
        assert_eq!(Query::parse("").unwrap().version(), Ok(None));
        assert_eq!(Query::parse("limit=x").unwrap_err().code, 400);
        assert_eq!(Query::parse("resourceVersion=x").unwrap().version().unwrap_err().code, 400);
    }
}

//! Label and field selectors.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::object::Stored;
use super::resource::Resource;

/// Which objects of a kind a request is about.
#[derive(Debug, Clone, Default)]
pub(super) struct Selection {
    /// Empty for all.
    pub(super) namespace: String,
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelTerm {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

impl Selection {
    /// Reads both selectors; an unknown field is an error, as in a real server.
    pub(super) fn parse(
        resource: Resource,
        namespace: &str,
        labels: &str,
        fields: &str,
    ) -> Result<Selection> {
        let labels = split(labels).into_iter().map(LabelTerm::parse).collect::<Result<_>>()?;
        let fields = split(fields).into_iter().map(FieldTerm::parse).collect::<Result<Vec<_>>>()?;
        for FieldTerm { path, .. } in &fields {
            let known = matches!(path.as_str(), "metadata.name" | "metadata.namespace")
                || resource == Resource::Services && matches!(path.as_str(), "spec.clusterIP" | "spec.type");
            if !known {
                bail!("field label not supported: {path}");
            }
        }
        Ok(Selection { namespace: namespace.to_owned(), labels, fields })
    }

    pub(super) fn matches(&self, stored: &Stored) -> bool {
        (self.namespace.is_empty() || self.namespace == stored.key.namespace)
            && self.labels.iter().all(|term| term.matches(&stored.metadata().labels))
            && self.fields.iter().all(|term| (stored.field(&term.path) == term.value) == term.equal)
    }

    /// Whether it selects by more than the namespace.
    pub(super) fn is_selective(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// The one name that is selected, if it is one.
    pub(super) fn name(&self) -> Option<&str> {
        let name = self.fields.iter().find(|term| term.path == "metadata.name" && term.equal);
        name.map(|term| term.value.as_str())
    }
}

impl LabelTerm {
    fn parse(text: &str) -> Result<LabelTerm> {
        let term = |key: &str, test| Ok(LabelTerm { key: key.trim().to_owned(), test });
        let one = |value: &str| vec![value.trim().to_owned()];
        if let Some(key) = text.strip_prefix('!') {
            return term(key, Test::Missing);
        }
        if let Some((head, values)) = text.split_once('(') {
            let values =
                values.trim_end_matches(')').split(',').map(|value| value.trim().to_owned()).collect();
            return match head.split_whitespace().collect::<Vec<_>>().as_slice() {
                [key, "in"] => term(key, Test::In(values)),
                [key, "notin"] => term(key, Test::NotIn(values)),
                _ => bail!("unable to parse requirement: {text}"),
            };
        }
        match text.split_once('=') {
            None => term(text, Test::Exists),
            Some((key, value)) => match key.strip_suffix('!') {
                Some(key) => term(key, Test::NotIn(one(value))),
                None => term(key, Test::In(one(value.trim_start_matches('=')))),
            },
        }
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
        }
    }
}

impl FieldTerm {
    fn parse(text: &str) -> Result<FieldTerm> {
        let Some((path, value)) = text.split_once('=') else { bail!("invalid selector: {text}") };
        let (path, equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
        let value = value.trim_start_matches('=').to_owned();
        Ok(FieldTerm { path: path.to_owned(), value, equal })
    }
}

/// Terms are separated by commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = text.split(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::service;

    fn matches(labels: &str, fields: &str) -> bool {
        let web = service("web").cluster_ip("10.96.0.1").label("tier", "front").label("empty", "");
        let selection = Selection::parse(Resource::Services, "", labels, fields).unwrap();
        selection.matches(&Stored::new(web.into(), 1))
    }

    #[test]
    fn labels_select() {
        for yes in [
            "",
            "tier",
            "empty",
            "!other",
            "tier=front",
            "tier==front",
            "tier!=back",
            "other!=x",
            "tier in (back, front)",
            "tier notin (back,middle),!other",
            "other notin (a)",
        ] {
            assert!(matches(yes, ""), "{yes}");
        }
        for no in [
            "!tier",
            "other",
            "!empty",
            "tier=back",
            "tier!=front",
            "tier in (back)",
            "tier notin (front)",
            "tier,other",
        ] {
            assert!(!matches(no, ""), "{no}");
        }
    }

    #[test]
    fn fields_select() {
        for yes in
            ["metadata.name=web", "spec.clusterIP!=None", "metadata.namespace=demo,spec.type=ClusterIP"]
        {
            assert!(matches("", yes), "{yes}");
        }
        assert!(!matches("", "metadata.name!=web"));
        assert!(!matches("", "spec.clusterIP=None"));
        let unknown = Selection::parse(Resource::Nodes, "", "", "spec.clusterIP!=None").unwrap_err();
        assert_eq!(unknown.to_string(), "field label not supported: spec.clusterIP");
    }
}

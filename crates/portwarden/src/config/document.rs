//! The configuration as a document: what `--write-config-to` writes and `/configz` shows.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value as Json;

use super::options::{MODE, OutOfScope, Row, Values, fields};
use super::yaml;
use crate::modes::Mode;

/// The group of the configuration, and the key under which `/configz` shows it.
const GROUP: &str = "kubeproxy.config.k8s.io";
/// The only version of the configuration.
pub(super) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The kind of the configuration.
pub(super) const KIND: &str = "KubeProxyConfiguration";

/// The file that `--write-config-to` writes.
pub fn to_yaml(document: &Values) -> String {
    match serde_json::to_value(Whole(document)).expect(SERIALIZABLE) {
        Json::Object(fields) => yaml::text(&fields),
        other => other.to_string(),
    }
}

/// The body of `/configz`.
pub fn to_configz(document: &Values) -> String {
    serde_json::to_string(&BTreeMap::from([(GROUP, Whole(document))])).expect(SERIALIZABLE)
}

const SERIALIZABLE: &str = "a document has only text for keys";

impl Values {
    /// The mode that is named; an unknown name, which validation reports, counts as the default.
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_name(self.text(MODE)).unwrap_or(Mode::DEFAULT)
    }

    /// What is shown of a field, if anything.
    pub(super) fn shown(&self, index: usize, row: &Row) -> Option<Json> {
        let unknown = row.out_of_scope == OutOfScope::Unknown && !row.scope.includes(self.mode());
        match self.at(index) {
            _ if unknown => None,
            Some(value) if row.hidden_if_zero && value.is_zero() => None,
            value if row.hidden_if_default && value == row.default_value().as_ref() => None,
            Some(value) => Some(value.to_json()),
            None if row.hidden_if_zero => None,
            None if row.kind.is_text() => Some(Json::from("")),
            None => Some(Json::Null),
        }
    }
}

/// The fields with what they belong to.
struct Whole<'a>(&'a Values);

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", KIND)?;
        map.serialize_entry("apiVersion", API_VERSION)?;
        Section { document: self.0, prefix: "" }.entries(&mut map)?;
        map.end()
    }
}

/// The fields whose paths start alike.
struct Section<'a> {
    document: &'a Values,
    prefix: &'a str,
}

impl Section<'_> {
    /// Whether any of its fields is shown. kube-proxy does not know sections in which none is.
    fn is_shown(&self) -> bool {
        fields().any(|(index, row)| {
            row.field.starts_with(self.prefix) && self.document.shown(index, row).is_some()
        })
    }

    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let mut section = "";
        for (index, row) in fields() {
            match row.field.strip_prefix(self.prefix).map(|rest| rest.split_once('.').ok_or(rest)) {
                Some(Err(name)) => {
                    if let Some(value) = self.document.shown(index, row) {
                        map.serialize_entry(name, &value)?;
                    }
                }
                // The fields of a section stand together in the table.
                Some(Ok((name, _))) if name != section => {
                    section = name;
                    let prefix = format!("{}{name}.", self.prefix);
                    let own = Section { document: self.document, prefix: &prefix };
                    if own.is_shown() {
                        map.serialize_entry(name, &own)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Serialize for Section<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.entries(&mut map)?;
        map.end()
    }
}

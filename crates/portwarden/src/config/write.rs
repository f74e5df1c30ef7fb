//! The effective configuration as a file and as `/configz`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::document::{API_VERSION, Document, GROUP, KIND};
use super::yaml;

/// The document with what it is, in the order of `/configz`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Named<'a> {
    kind: &'static str,
    api_version: &'static str,
    #[serde(flatten)]
    document: &'a Document,
}

impl<'a> Named<'a> {
    fn new(document: &'a Document) -> Self {
        Named { kind: KIND, api_version: API_VERSION, document }
    }
}

const SERIALIZABLE: &str = "a document has only text for keys";

/// The file that `--write-config-to` writes.
pub fn to_yaml(document: &Document) -> String {
    match serde_json::to_value(Named::new(document)).expect(SERIALIZABLE) {
        Value::Object(fields) => yaml::text(&fields),
        other => other.to_string(),
    }
}

/// The body of `/configz`.
pub fn to_configz(document: &Document) -> String {
    serde_json::to_string(&BTreeMap::from([(GROUP, Named::new(document))])).expect(SERIALIZABLE)
}

/// Every field with its value, such as `iptables.masqueradeBit`; lists count as one value.
pub(super) fn leaves(document: &Document) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    collect(&mut leaves, String::new(), serde_json::to_value(document).expect(SERIALIZABLE));
    leaves
}

fn collect(leaves: &mut BTreeMap<String, Value>, path: String, value: Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                collect(leaves, path, value);
            }
        }
        value => {
            leaves.insert(path, value);
        }
    }
}

//! Writes over HTTP, in JSON.

use bytes::Bytes;
use http::{HeaderMap, Method, header::CONTENT_TYPE};
use portwarden_model::{Family, parse_ip};
use serde_json::{Map, Value};

use super::encode::{self, Media};
use super::object::{Key, metadata_mut, parse};
use super::resource::{Resource, Target};
use super::status::Refusal;
use super::store::Store;
use crate::rig::Object;

/// Carries out a write; gives the object that came out of it.
pub(super) fn write(
    store: &mut Store,
    method: &Method,
    target: &Target,
    headers: &HeaderMap,
    body: &[u8],
    media: Media,
) -> Result<Bytes, Refusal> {
    let value = if *method == Method::DELETE { Value::Null } else { content(method, headers, body)? };
    if target.resource == Resource::Events {
        return event(store, method, target, value).map(|event| event.to_string().into());
    }
    let found = store.get(target.resource, &target.namespace, &target.name);
    let object = match *method {
        Method::POST => {
            let object = checked(target, value)?;
            let name = metadata_name(&object);
            if store.get(target.resource, &target.namespace, &name).is_some() {
                return Err(Refusal::already_exists(target, &name));
            }
            object
        }
        Method::PUT => {
            let found = found.ok_or_else(|| Refusal::not_found(target))?;
            refuse_old_version(target, &value, &found.metadata().resource_version)?;
            checked(target, value)?
        }
        Method::PATCH => {
            let found = found.ok_or_else(|| Refusal::not_found(target))?;
            refuse_old_version(target, &value, &found.metadata().resource_version)?;
            let mut now: Value = serde_json::from_slice(found.json()).unwrap_or_default();
            merge(&mut now, value);
            checked(target, now)?
        }
        Method::DELETE => {
            let gone = store.delete(target.resource, &target.namespace, &target.name);
            return gone.map(|gone| encode::object(media, &gone)).ok_or_else(|| Refusal::not_found(target));
        }
        _ => return Err(Refusal::new(405, "MethodNotAllowed", "the server does not allow this method")),
    };
    Ok(encode::object(media, &store.apply(object)))
}

/// A write that names a version changes that version, or nothing.
fn refuse_old_version(target: &Target, value: &Value, current: &str) -> Result<(), Refusal> {
    let version = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if version.is_empty() || version == current { Ok(()) } else { Err(Refusal::conflict(target)) }
}

fn content(method: &Method, headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let wanted = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    if given.split(';').next() != Some(wanted) {
        return Err(Refusal::new(415, "UnsupportedMediaType", format!("{given:?} is not {wanted}")));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::bad_request(error.to_string()))
}

/// Events are kept as they come.
fn event(store: &mut Store, method: &Method, target: &Target, mut value: Value) -> Result<Value, Refusal> {
    let created = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match *method {
        Method::POST => {
            let key = Key::new(&target.namespace, &created);
            if store.events.contains_key(&key) {
                return Err(Refusal::already_exists(target, &created));
            }
            value["metadata"]["namespace"] = Value::from(target.namespace.as_str());
            store.events.insert(key, value.clone());
            Ok(value)
        }
        Method::PATCH => {
            let key = Key::new(&target.namespace, &target.name);
            let event = store.events.get_mut(&key).ok_or_else(|| Refusal::not_found(target))?;
            merge(event, value);
            Ok(event.clone())
        }
        _ => Err(Refusal::new(405, "MethodNotAllowed", "the server does not allow this method")),
    }
}

/// Reads an object and gives it the defaults that a proxy relies on.
fn checked(target: &Target, value: Value) -> Result<Object, Refusal> {
    let wrong = |error: serde_json::Error| Refusal::bad_request(error.to_string());
    let mut object = parse(target.resource, value).map_err(wrong)?;
    let metadata = metadata_mut(&mut object);
    if metadata.name.is_empty() {
        metadata.name.clone_from(&target.name);
    }
    metadata.namespace.clone_from(&target.namespace);
    if metadata.name.is_empty() || target.resource.is_namespaced() && metadata.namespace.is_empty() {
        return Err(Refusal::new(
            422,
            "Invalid",
            "metadata: Required value: name and namespace are required",
        ));
    }
    match &mut object {
        Object::Service(service) => {
            let spec = &mut service.spec;
            if spec.cluster_ips.is_empty() && !spec.cluster_ip.is_empty() {
                spec.cluster_ips = vec![spec.cluster_ip.clone()];
            }
            if spec.ip_families.is_empty() {
                let families = spec.cluster_ips.iter().filter_map(|ip| parse_ip(ip)).map(Family::of);
                spec.ip_families = families.map(|family| family.as_str().to_owned()).collect();
            }
            default(&mut spec.r#type, "ClusterIP");
            default(&mut spec.session_affinity, "None");
            spec.internal_traffic_policy.get_or_insert_with(|| "Cluster".to_owned());
            spec.ports.iter_mut().for_each(|port| default(&mut port.protocol, "TCP"));
        }
        Object::Slice(slice) => {
            for port in &mut slice.ports {
                port.protocol.get_or_insert_with(|| "TCP".to_owned());
            }
        }
        Object::Node(_) | Object::ServiceCidr(_) => {}
    }
    Ok(object)
}

fn default(field: &mut String, value: &str) {
    if field.is_empty() {
        value.clone_into(field);
    }
}

fn metadata_name(object: &Object) -> String {
    super::object::metadata(object).name.clone()
}

/// JSON merge patch (RFC 7396).
fn merge(into: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Value::Object(into) = into else { return };
    for (key, value) in patch {
        if value.is_null() {
            into.remove(&key);
        } else {
            merge(into.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patches_merge_as_the_standard_says() {
        let mut value = json!({"a": "b", "c": {"d": "e", "f": "g"}, "list": [1, 2]});
        merge(&mut value, json!({"a": "z", "c": {"f": null, "new": {"x": null, "y": 1}}, "list": [3]}));
        assert_eq!(value, json!({"a": "z", "c": {"d": "e", "new": {"y": 1}}, "list": [3]}));
    }
}

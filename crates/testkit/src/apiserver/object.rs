//! One object as the server keeps it, and its bytes in both media.
//!
//! A server sends far more than a proxy needs: who changed which field, which pod is behind an endpoint. It is all here, so
//! that clients have to skip it.

use std::sync::OnceLock;

use bytes::{BufMut, Bytes};
use portwarden_model::manifest::{EndpointSlice, Metadata, Time};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::Serialize;
use serde_json::{Value, json};

use super::resource::Resource;
use crate::rig::Object;

/// When everything was created: bytes are the same in every run.
const CREATED: Time = Time { seconds: 1_794_772_174, nanos: 0 };

/// Who an object is, among those of its kind; ordered as lists are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// An object of some version.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) key: Key,
    pub(super) version: u64,
    pub(super) object: Object,
    protobuf: OnceLock<Bytes>,
    json: OnceLock<Bytes>,
}

impl Stored {
    pub(super) fn new(mut object: Object, version: u64) -> Stored {
        metadata_mut(&mut object).resource_version = version.to_string();
        let metadata = metadata(&object);
        let key = Key { namespace: metadata.namespace.clone(), name: metadata.name.clone() };
        Stored { key, version, object, protobuf: OnceLock::new(), json: OnceLock::new() }
    }

    pub(super) fn resource(&self) -> Resource {
        resource(&self.object)
    }

    pub(super) fn metadata(&self) -> &Metadata {
        metadata(&self.object)
    }

    /// A field that selectors know.
    pub(super) fn field(&self, path: &str) -> &str {
        match (path, &self.object) {
            ("metadata.name", _) => &self.key.name,
            ("metadata.namespace", _) => &self.key.namespace,
            ("spec.clusterIP", Object::Service(service)) => &service.spec.cluster_ip,
            ("spec.type", Object::Service(service)) => &service.spec.r#type,
            _ => "",
        }
    }

    /// The message, without its envelope.
    pub(super) fn protobuf(&self) -> &Bytes {
        self.protobuf.get_or_init(|| protobuf(&self.object).into())
    }

    /// The JSON object, without `kind` and `apiVersion`.
    pub(super) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| json(&self.object).to_string().into())
    }
}

/// The content of a bookmark: an object of the kind, with nothing but a version.
pub(super) fn bookmark(resource: Resource, version: u64, ends_initial_events: bool) -> (Bytes, Bytes) {
    let mut object = empty(resource);
    let metadata = metadata_mut(&mut object);
    metadata.resource_version = version.to_string();
    if ends_initial_events {
        metadata.annotations.insert("k8s.io/initial-events-end".to_owned(), "true".to_owned());
    }
    let mut json = plain_json(&object);
    if let Some(metadata) = json["metadata"].as_object_mut() {
        metadata.remove("name");
    }
    if resource == Resource::EndpointSlices {
        json["endpoints"] = Value::Null;
        json["ports"] = Value::Null;
    }
    (plain_protobuf(&object).into(), json.to_string().into())
}

/// An object of a kind, with everything at its default.
pub(super) fn empty(resource: Resource) -> Object {
    match resource {
        Resource::Services | Resource::Events => Object::Service(Box::default()),
        Resource::EndpointSlices => Object::Slice(EndpointSlice::default()),
        Resource::Nodes => Object::Node(Default::default()),
        Resource::ServiceCidrs => Object::ServiceCidr(Default::default()),
    }
}

/// Reads an object that a client sends.
pub(super) fn parse(resource: Resource, value: Value) -> serde_json::Result<Object> {
    Ok(match resource {
        Resource::Services | Resource::Events => Object::Service(Box::new(serde_json::from_value(value)?)),
        Resource::EndpointSlices => Object::Slice(serde_json::from_value(value)?),
        Resource::Nodes => Object::Node(serde_json::from_value(value)?),
        Resource::ServiceCidrs => Object::ServiceCidr(serde_json::from_value(value)?),
    })
}

pub(super) fn resource(object: &Object) -> Resource {
    match object {
        Object::Service(_) => Resource::Services,
        Object::Slice(_) => Resource::EndpointSlices,
        Object::Node(_) => Resource::Nodes,
        Object::ServiceCidr(_) => Resource::ServiceCidrs,
    }
}

pub(super) fn metadata(object: &Object) -> &Metadata {
    match object {
        Object::Service(service) => &service.metadata,
        Object::Slice(slice) => &slice.metadata,
        Object::Node(node) => &node.metadata,
        Object::ServiceCidr(cidr) => &cidr.metadata,
    }
}

pub(super) fn metadata_mut(object: &mut Object) -> &mut Metadata {
    match object {
        Object::Service(service) => &mut service.metadata,
        Object::Slice(slice) => &mut slice.metadata,
        Object::Node(node) => &mut node.metadata,
        Object::ServiceCidr(cidr) => &mut cidr.metadata,
    }
}

/// What a server adds to an object's metadata.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Additions {
    #[prost(string, required, tag = "2")]
    #[serde(skip)]
    generate_name: String,
    #[prost(string, required, tag = "4")]
    #[serde(skip)]
    self_link: String,
    #[prost(int64, required, tag = "7")]
    generation: i64,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<ManagedFields>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ManagedFields {
    #[prost(string, required, tag = "1")]
    manager: String,
    #[prost(string, required, tag = "2")]
    operation: String,
    #[prost(string, required, tag = "3")]
    api_version: String,
    #[prost(message, optional, tag = "4")]
    time: Option<Time>,
    #[prost(string, required, tag = "6")]
    fields_type: String,
    #[prost(message, optional, tag = "7")]
    #[serde(skip)]
    fields_v1: Option<FieldsV1>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldsV1 {
    #[prost(string, required, tag = "1")]
    raw: String,
}

/// The pod behind an endpoint.
#[derive(Clone, PartialEq, Message, Serialize)]
struct TargetReference {
    #[prost(string, required, tag = "1")]
    kind: String,
    #[prost(string, required, tag = "2")]
    namespace: String,
    #[prost(string, required, tag = "3")]
    name: String,
    #[prost(string, required, tag = "4")]
    uid: String,
}

fn additions(object: &Object) -> Additions {
    let managed_fields = ManagedFields {
        manager: "kube-controller-manager".to_owned(),
        operation: "Update".to_owned(),
        api_version: resource(object).api_version(),
        time: Some(CREATED),
        fields_type: "FieldsV1".to_owned(),
        fields_v1: Some(FieldsV1 { raw: managed(object).to_string() }),
    };
    Additions {
        generate_name: String::new(),
        self_link: String::new(),
        generation: 1,
        creation_timestamp: Some(CREATED),
        managed_fields: vec![managed_fields],
    }
}

/// Which fields are set.
fn managed(object: &Object) -> Value {
    let labels = metadata(object).labels.keys().map(|key| (format!("f:{key}"), json!({})));
    let labels: serde_json::Map<String, Value> = labels.collect();
    json!({"f:metadata": {"f:labels": labels}, "f:spec": {}, "f:endpoints": {}, "f:ports": {}})
}

fn target_reference(slice: &EndpointSlice, index: usize) -> TargetReference {
    TargetReference {
        kind: "Pod".to_owned(),
        namespace: slice.metadata.namespace.clone(),
        name: format!("{}-{index:05}", slice.metadata.name),
        uid: format!("9f0c2c1e-5d1b-4b57-8d0e-{index:012x}"),
    }
}

fn plain_protobuf(object: &Object) -> Vec<u8> {
    match object {
        Object::Service(service) => service.encode_to_vec(),
        Object::Slice(slice) => slice.encode_to_vec(),
        Object::Node(node) => node.encode_to_vec(),
        Object::ServiceCidr(cidr) => cidr.encode_to_vec(),
    }
}

fn protobuf(object: &Object) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut metadata = metadata(object).encode_to_vec();
    metadata.extend_from_slice(&additions(object).encode_to_vec());
    put_field(&mut bytes, 1, &metadata);
    // Empty metadata are the two bytes that everything begins with.
    let rest = match object {
        Object::Slice(slice) => {
            for (index, endpoint) in slice.endpoints.iter().enumerate() {
                let mut endpoint = endpoint.encode_to_vec();
                put_field(&mut endpoint, 4, &target_reference(slice, index).encode_to_vec());
                put_field(&mut bytes, 2, &endpoint);
            }
            let (address_type, ports) = (slice.address_type.clone(), slice.ports.clone());
            Object::Slice(EndpointSlice { address_type, ports, ..EndpointSlice::default() })
        }
        other => {
            let mut rest = other.clone();
            *metadata_mut(&mut rest) = Metadata::default();
            rest
        }
    };
    bytes.extend(plain_protobuf(&rest).into_iter().skip(2));
    bytes
}

/// Appends a field that has a length.
pub(super) fn put_field(into: &mut impl BufMut, number: u32, content: &[u8]) {
    encode_key(number, WireType::LengthDelimited, into);
    encode_varint(content.len() as u64, into);
    into.put_slice(content);
}

fn plain_json(object: &Object) -> Value {
    let value = match object {
        Object::Service(service) => serde_json::to_value(service),
        Object::Slice(slice) => serde_json::to_value(slice),
        Object::Node(node) => serde_json::to_value(node),
        Object::ServiceCidr(cidr) => serde_json::to_value(cidr),
    };
    value.unwrap_or_default()
}

fn json(object: &Object) -> Value {
    let mut value = plain_json(object);
    let mut additions = serde_json::to_value(additions(object)).unwrap_or_default();
    additions["managedFields"][0]["fieldsV1"] = managed(object);
    if let (Some(metadata), Value::Object(additions)) = (value["metadata"].as_object_mut(), additions) {
        metadata.extend(additions);
    }
    if let (Object::Slice(slice), Some(endpoints)) = (object, value["endpoints"].as_array_mut()) {
        for (index, endpoint) in endpoints.iter_mut().enumerate() {
            endpoint["targetRef"] = serde_json::to_value(target_reference(slice, index)).unwrap_or_default();
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{endpoint, node, port, service, service_cidr, slice};

    #[test]
    fn both_media_say_the_same_to_a_client_that_skips_the_rest() {
        let pods = slice("web", "web-1").port(port(8080)).endpoint(endpoint("10.244.0.10").on("node-a"));
        let objects: [Object; 4] = [
            service("web").cluster_ip("10.96.0.1").port(port(80)).label("a", "b").into(),
            pods.endpoint(endpoint("10.244.0.11").ready(false)).into(),
            node("node-a").ip("192.0.2.1").zone("z1").into(),
            service_cidr("kubernetes", ["10.96.0.0/16"]).into(),
        ];
        for object in objects {
            let stored = Stored::new(object, 7);
            let bytes = stored.protobuf().clone();
            let decoded = match &stored.object {
                Object::Service(_) => Object::Service(Box::new(Message::decode(bytes).unwrap())),
                Object::Slice(_) => Object::Slice(Message::decode(bytes).unwrap()),
                Object::Node(_) => Object::Node(Message::decode(bytes).unwrap()),
                Object::ServiceCidr(_) => Object::ServiceCidr(Message::decode(bytes).unwrap()),
            };
            assert_eq!(decoded, stored.object);
            let value: Value = serde_json::from_slice(stored.json()).unwrap();
            assert_eq!(value["metadata"]["managedFields"][0]["manager"], "kube-controller-manager");
            assert_eq!(parse(stored.resource(), value).unwrap(), stored.object);
            assert!(stored.protobuf().len() > plain_protobuf(&stored.object).len() + 100);
        }
    }
}

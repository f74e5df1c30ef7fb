//! Parses the text of one file: YAML or JSON, several documents, lists.
//!
//! YAML becomes JSON first. Each document is then read twice: first its outline, to find the kinds of its objects, then the objects that
//! a proxy uses, into their types. So objects of other kinds may have any shape.

use std::fmt;

use portwarden_model::manifest;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_path_to_error::{Path, Track};

use super::{kinds, yaml};

/// An object of a kind that a proxy uses.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Object {
    Service(Box<manifest::Service>),
    EndpointSlice(manifest::EndpointSlice),
    Node(manifest::Node),
    ServiceCidr(manifest::ServiceCidr),
}

/// The content of a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Content {
    /// The objects that a proxy uses, in order.
    pub(super) objects: Vec<Object>,
    /// `apiVersion` and kind of the others.
    pub(super) ignored: Vec<String>,
    /// Those that are probably mistakes.
    pub(super) unknown: Vec<Unknown>,
}

/// An object of a kind that does not exist.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    /// Its `apiVersion` and kind.
    pub(super) what: String,
    /// What was probably meant, to be appended to a message; may be empty.
    pub(super) hint: String,
}

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(super) struct ParseError {
    pub(super) line: u64,
    pub(super) reason: String,
}

/// Reads all documents of a file.
pub(super) fn parse(text: &str) -> Result<Content, ParseError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if !text.trim_start().starts_with('{') {
        return yaml(text);
    }
    // The inline form of YAML looks like JSON, but does not parse as JSON.
    json(text).or_else(|error| yaml(text).map_err(|_| error))
}

fn yaml(text: &str) -> Result<Content, ParseError> {
    let mut content = Content::default();
    for (first_line, document) in documents(text) {
        let at = |line: u64, reason: String| ParseError { line: first_line + line.max(1) - 1, reason };
        let json = yaml::to_json(document)
            .map_err(|error| at(error.location().map_or(1, |location| location.line()), plain(&error)))?;
        let mut json_documents = serde_json::Deserializer::from_slice(&json).into_iter::<Option<Outline>>();
        let outline = json_documents.next().unwrap_or(Ok(None));
        let outline = outline.map_err(|error| at(1, without_position(&error)))?;
        let Some(outline) = outline else { continue };
        let plan = outline.plan(&mut content).map_err(|reason| at(1, reason))?;
        let objects = plan.read(&mut serde_json::Deserializer::from_slice(&json)).map_err(|error| {
            let path = path_of_error(&plan, &json);
            at(yaml::line(document, &path).unwrap_or(1), named(&path, &error))
        })?;
        content.objects.extend(objects);
    }
    Ok(content)
}

fn json(text: &str) -> Result<Content, ParseError> {
    let mut content = Content::default();
    let mut outlines = serde_json::Deserializer::from_slice(text.as_bytes()).into_iter::<Outline>();
    let (mut start, mut lines_before) = (0, 0);
    while let Some(outline) = outlines.next() {
        let document = text.get(start..).unwrap_or_default();
        let here = lines_before + leading_lines(document) + 1;
        // The outline reader counts lines from the start of the file, the document reader from the start of the document.
        let outline = outline
            .map_err(|error| ParseError { line: error.line() as u64, reason: without_position(&error) })?;
        let plan = outline.plan(&mut content).map_err(|reason| ParseError { line: here, reason })?;
        let mut from = serde_json::Deserializer::from_slice(document.as_bytes());
        let objects = plan.read(&mut from).map_err(|error| {
            let path = path_of_error(&plan, document.as_bytes());
            ParseError { line: lines_before + error.line() as u64, reason: named(&path, &error) }
        })?;
        content.objects.extend(objects);
        let end = outlines.byte_offset();
        lines_before += text.get(start..end).unwrap_or_default().matches('\n').count() as u64;
        start = end;
    }
    Ok(content)
}

/// The documents of a YAML text, each with the number of its first line. By the rules of YAML, three dashes begin a document even
/// inside a block of text, so no parser is needed to find it.
fn documents(text: &str) -> Vec<(u64, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut first_line, mut offset) = (0, 1, 0);
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        let begins = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if begins {
            documents.push((first_line, &text[start..offset]));
            (start, first_line) = (offset, number);
        }
        offset += line.len();
    }
    documents.push((first_line, &text[start..]));
    documents.retain(|(_, document)| !is_empty(document));
    documents
}

/// Whether a document has comments and markers only.
fn is_empty(document: &str) -> bool {
    document.lines().all(|line| {
        let line = line.strip_prefix("---").unwrap_or(line).trim_start();
        line.is_empty() || line.starts_with('#') || line.trim_end() == "..."
    })
}

fn leading_lines(text: &str) -> u64 {
    let blank = text.len() - text.trim_start().len();
    text.get(..blank).unwrap_or_default().matches('\n').count() as u64
}

/// The field that cannot be read. The document is read once more for it, because following the path costs time that documents without
/// errors need not spend.
fn path_of_error(plan: &Plan, json: &[u8]) -> Path {
    let mut track = Track::new();
    let mut json = serde_json::Deserializer::from_slice(json);
    let _ = plan.read(serde_path_to_error::Deserializer::new(&mut json, &mut track));
    track.path()
}

/// The reason with the field, such as `spec.ports[0].port: `.
fn named(path: &Path, error: &serde_json::Error) -> String {
    let reason = without_position(error);
    let path = path.to_string();
    if path.is_empty() || path == "." { reason } else { format!("{path}: {reason}") }
}

/// The message without the position, which counts from the start of the document and would contradict ours.
fn plain(error: &serde_saphyr::Error) -> String {
    let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let cut = text.rfind(" at line ").unwrap_or(text.len());
    text.get(..cut).unwrap_or(&text).trim_end_matches([':', ',', ' ']).to_owned()
}

fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rfind(" at line ").and_then(|cut| text.get(..cut)).unwrap_or(&text);
    // The parser names Rust's types.
    let is_number = |kind: &str| kind.starts_with(['i', 'u']) && kind[1..].parse::<u8>().is_ok();
    match text.rsplit_once(", expected ") {
        Some((found, kind)) if is_number(kind) => {
            format!("{found}, expected a whole number of {} bits", &kind[1..])
        }
        _ => text.to_owned(),
    }
}

/// The fields that identify a document.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Outline {
    api_version: Option<String>,
    kind: Option<String>,
    items: Option<Vec<Outline>>,
}

/// What to read of a document.
#[derive(Debug)]
enum Plan {
    Object(Use),
    List(Vec<Use>),
}

/// The type to read an object as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Service,
    EndpointSlice,
    Node,
    ServiceCidr,
    Ignore,
}

impl Outline {
    fn plan(&self, content: &mut Content) -> Result<Plan, String> {
        let (version, kind) = self.identity(None)?;
        let Some(item_kind) = kind.strip_suffix("List") else {
            return Ok(Plan::Object(Use::of(version, kind, content)));
        };
        // Items of a list of one kind (ServiceList) do not repeat what they are.
        let inherited = (!item_kind.is_empty()).then_some((version, item_kind));
        let uses = self.items.iter().flatten().map(|item| {
            let (version, kind) = item.identity(inherited)?;
            Ok(Use::of(version, kind, content))
        });
        Ok(Plan::List(uses.collect::<Result<_, String>>()?))
    }

    fn identity<'a>(&'a self, inherited: Option<(&'a str, &'a str)>) -> Result<(&'a str, &'a str), String> {
        let version = self.api_version.as_deref().or(inherited.map(|(version, _)| version));
        let kind = self.kind.as_deref().or(inherited.map(|(_, kind)| kind));
        match (version, kind) {
            (Some(version), Some(kind)) => Ok((version, kind)),
            (_, None) => Err("no `kind`: this is not a Kubernetes object".to_owned()),
            (None, Some(kind)) => Err(format!("{kind} without `apiVersion`")),
        }
    }
}

impl Use {
    fn of(version: &str, kind: &str, content: &mut Content) -> Use {
        match (version, kind) {
            ("v1", "Service") => Use::Service,
            ("v1", "Node") => Use::Node,
            ("discovery.k8s.io/v1", "EndpointSlice") => Use::EndpointSlice,
            ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR") => Use::ServiceCidr,
            _ => {
                let what = format!("{version} {kind}");
                match kinds::mistake(version, kind) {
                    Some(hint) => content.unknown.push(Unknown { what, hint }),
                    None => content.ignored.push(what),
                }
                Use::Ignore
            }
        }
    }
}

impl Plan {
    fn read<'de, D: Deserializer<'de>>(&self, from: D) -> Result<Vec<Object>, D::Error> {
        match self {
            Plan::Object(wanted) => Ok(wanted.deserialize(from)?.into_iter().collect()),
            Plan::List(items) => from.deserialize_map(ListVisitor { items }),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Use {
    type Value = Option<Object>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<Object>, D::Error> {
        Ok(Some(match self {
            Use::Service => Object::Service(Deserialize::deserialize(from)?),
            Use::EndpointSlice => Object::EndpointSlice(Deserialize::deserialize(from)?),
            Use::Node => Object::Node(Deserialize::deserialize(from)?),
            Use::ServiceCidr => Object::ServiceCidr(Deserialize::deserialize(from)?),
            Use::Ignore => {
                IgnoredAny::deserialize(from)?;
                return Ok(None);
            }
        }))
    }
}

/// Reads the map around `items`.
struct ListVisitor<'a> {
    items: &'a [Use],
}

impl<'de> Visitor<'de> for ListVisitor<'_> {
    type Value = Vec<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Object>, A::Error> {
        let mut objects = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                objects = map.next_value_seed(ItemsSeed { items: self.items })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(objects)
    }
}

/// Reads `items`, each as what the outline said it is.
struct ItemsSeed<'a> {
    items: &'a [Use],
}

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = Vec<Object>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<Object>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_> {
    type Value = Vec<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Object>, A::Error> {
        let mut objects = Vec::new();
        for wanted in self.items {
            let Some(object) = seq.next_element_seed(*wanted)? else { break };
            objects.extend(object);
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(objects)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Vec<Object>, E> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(content: &Content) -> Vec<String> {
        let name = |object: &Object| match object {
            Object::Service(o) => format!("Service {}", o.metadata.name),
            Object::EndpointSlice(o) => format!("EndpointSlice {}", o.metadata.name),
            Object::Node(o) => format!("Node {}", o.metadata.name),
            Object::ServiceCidr(o) => format!("ServiceCIDR {}", o.metadata.name),
        };
        content.objects.iter().map(name).collect()
    }

    #[test]
    fn several_documents_with_comments_and_empty_ones() {
        let text = "# all of it\n---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: None}\n---\n# nothing\n--- # more\nkind: Node\napiVersion: v1\nmetadata:\n  name: n\n...\n---\n";
        let content = parse(text).expect("it is good");
        assert_eq!(names(&content), ["Service a", "Node n"]);
        let Object::Service(service) = &content.objects[0] else { panic!("a Service comes first") };
        assert_eq!(service.spec.cluster_ip, "None");
    }

    #[test]
    fn lists_hold_objects_of_many_kinds_or_of_one() {
        let mixed = "
apiVersion: v1
items:
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s}, addressType: IPv4}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {type: {odd: shape}}}
- {apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: c}, spec: {cidrs: [10.0.0.0/8]}}
kind: List
";
        let content = parse(mixed).expect("it is good");
        assert_eq!(names(&content), ["EndpointSlice s", "ServiceCIDR c"]);
        assert_eq!(content.ignored, ["apps/v1 Deployment"]);
        let one = r#"{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#;
        assert_eq!(names(&parse(one).expect("it is good")), ["Service a", "Service b"]);
        let none = "apiVersion: v1\nkind: List\nitems:\n";
        assert_eq!(parse(none), Ok(Content::default()));
    }

    #[test]
    fn json_with_tabs_and_several_documents() {
        let text = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Service\",\n\t\"metadata\": {\"name\": \"a\"}\n}\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n\"}}\n";
        assert_eq!(names(&parse(text).expect("it is good")), ["Service a", "Node n"]);
    }

    #[test]
    fn the_inline_form_of_yaml_is_not_taken_for_json() {
        let text = "{apiVersion: v1, kind: Service, metadata: {name: a}}";
        assert_eq!(names(&parse(text).expect("it is good")), ["Service a"]);
    }

    #[test]
    fn other_groups_with_the_same_kind_are_ignored() {
        let text =
            "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: odd}\n";
        let content = parse(text).expect("it is good");
        assert_eq!(content.ignored, ["serving.knative.dev/v1 Service"]);
        assert!(content.objects.is_empty());
    }

    #[test]
    fn misspelt_kinds_differ_from_those_that_a_proxy_does_not_use() {
        let text = "apiVersion: v1\nkind: Servcie\n---\napiVersion: v1\nkind: ConfigMap\n";
        let content = parse(text).expect("it is good");
        let hint = "; did you mean v1 Service?".to_owned();
        assert_eq!(content.unknown, [Unknown { what: "v1 Servcie".to_owned(), hint }]);
        assert_eq!(content.ignored, ["v1 ConfigMap"]);
    }

    #[test]
    fn errors_name_the_line_in_the_file() {
        let good = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\n";
        let line = |text: &str| parse(text).expect_err("it is bad").line;
        assert_eq!(
            line(&format!("{good}apiVersion: v1\nkind: Service\nspec:\n  ports:\n  - port: many\n")),
            9
        );
        assert_eq!(line(&format!("{good}apiVersion: v1\nkind: [\n")), 6);
        assert_eq!(line(&format!("{good}metadata: {{name: a}}\n")), 4);
        let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  spec:\n    healthCheckNodePort: x\n";
        assert_eq!(line(list), 7);
        let json = "{\"apiVersion\":\"v1\",\"kind\":\"Node\"}\n\n{\"apiVersion\":\"v1\",\n\"kind\":\"Service\",\n\"spec\":{\"ports\":7}}";
        assert_eq!(line(json), 5);
        assert_eq!(line("{\"apiVersion\":\"v1\",\"kind\":\"Node\"}\n\n{}"), 3);
    }

    #[test]
    fn errors_say_what_is_wrong_without_a_second_position() {
        let error =
            parse("apiVersion: v1\nkind: Service\nspec:\n  ports:\n  - port: many\n").expect_err("it is bad");
        assert_eq!(
            error.to_string(),
            "line 5: spec.ports[0].port: invalid type: string \"many\", expected a whole number of 32 bits"
        );
        let json = parse(
            "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"spec\":{\"ports\":[{\"port\":\"eighty\"}]}}",
        );
        let error = json.expect_err("it is bad").to_string();
        assert!(error.starts_with("line 1: spec.ports[0].port: invalid type: string \"eighty\""), "{error}");
        let error = parse("kind: Service\nkind: Node\napiVersion: v1\n").expect_err("it is bad");
        assert_eq!(error.to_string(), "line 2: duplicate mapping key: kind not allowed here");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse(&text);
        }

        #[test]
        fn no_damage_to_a_file_panics(at in 0usize..400, with in "[\\x00-\\x7f]{0,3}") {
            let mut text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a, labels: {x: y}}\n  spec:\n    clusterIP: 10.0.0.1\n    ports: [{port: 80}]\n---\n{\"apiVersion\": \"discovery.k8s.io/v1\", \"kind\": \"EndpointSlice\", \"endpoints\": [{\"addresses\": [\"10.1.0.1\"]}]}\n".to_owned();
            let at = at % text.len();
            text.replace_range(at..=at, &with);
            let _ = parse(&text);
        }
    }
}

//! A large list, from bytes to cluster: how long it takes, and how much memory is in use after it.
//!
//! Not a statistical benchmark: memory is counted once, in a fresh process.

use std::time::{Duration, Instant};

use bytes::Bytes;
use portwarden_model::manifest::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice, Metadata};
use portwarden_model::{Cluster, Event, Interner, Kind, Settings};
use portwarden_source::wire::{Item, ListDecoder, Manifest, Media};
use prost::Message;

const SLICES: usize = 5000;
const ENDPOINTS: usize = 50;
/// What the network brings at once.
const PIECE: usize = 16 << 10;

fn main() {
    for media in [Media::Protobuf, Media::Json] {
        // The body is made by a child, so that this process has never held it as objects.
        let Some(path) =
            std::env::args().find_map(|argument| argument.strip_prefix("--body=").map(str::to_owned))
        else {
            run_in_child(media);
            continue;
        };
        let wanted = std::env::args().any(|argument| argument == media.as_str());
        if wanted {
            measure(media, &path);
        }
    }
}

fn run_in_child(media: Media) {
    let file = std::env::temp_dir().join(format!("portwarden-list-{}.bin", std::process::id()));
    std::fs::write(&file, body(media)).expect("a file");
    let program = std::env::current_exe().expect("this program");
    let status = std::process::Command::new(program)
        .arg(format!("--body={}", file.display()))
        .arg(media.as_str())
        .status()
        .expect("this program runs");
    std::fs::remove_file(&file).expect("it is there");
    assert!(status.success());
}

fn measure(media: Media, path: &str) {
    let file = std::fs::File::open(path).expect("the body");
    let size = file.metadata().expect("it is there").len();
    let mut decode = Duration::ZERO;
    let mut reader = std::io::BufReader::with_capacity(PIECE, file);
    let mut cluster = Cluster::new(Settings::new("node-0"));
    let mut names = Interner::default();
    let mut decoder = ListDecoder::<EndpointSlice>::new(media);
    cluster.apply(Event::ListStarted(Kind::EndpointSlice));
    loop {
        let bytes = std::io::BufRead::fill_buf(&mut reader).expect("it can be read");
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len();
        let start = Instant::now();
        decoder.push(bytes);
        while let Some(item) = decoder.next_item().expect("it is a list") {
            let Item::Object(slice) = item else { panic!("all objects are good") };
            cluster.apply(slice.applied(&mut names).0);
        }
        decode += start.elapsed();
        std::io::BufRead::consume(&mut reader, length);
    }
    decoder.finish().expect("it is complete");
    cluster.apply(Event::ListDone(Kind::EndpointSlice));
    println!(
        "{SLICES} slices x {ENDPOINTS} endpoints, {}: {:.1} MB decoded and applied in {:.0} ms, {:.1} MB resident after it",
        media.as_str(),
        size as f64 / 1e6,
        decode.as_secs_f64() * 1000.0,
        resident() as f64 / 1e6
    );
}

/// Memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it says so");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn slice(index: usize) -> EndpointSlice {
    let endpoint = |number: usize| {
        let number = index * ENDPOINTS + number;
        Endpoint {
            addresses: vec![format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255)],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            }),
            node_name: Some(format!("node-{}", number % 5000)),
            hints: None,
        }
    };
    let metadata = Metadata {
        name: format!("service-{index}-abcde"),
        namespace: format!("namespace-{}", index % 100),
        uid: format!("00000000-0000-0000-0000-{index:012}"),
        resource_version: index.to_string(),
        labels: [("kubernetes.io/service-name".to_owned(), format!("service-{index}"))].into(),
        ..Metadata::default()
    };
    let port = EndpointPort { name: Some("http".into()), protocol: Some("TCP".into()), port: Some(8080) };
    EndpointSlice {
        metadata,
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
        ports: vec![port],
        address_type: "IPv4".into(),
    }
}

fn body(media: Media) -> Vec<u8> {
    match media {
        Media::Json => {
            let items: Vec<_> = (0..SLICES).map(slice).collect();
            let list = serde_json::json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": "1"}, "items": items});
            list.to_string().into_bytes()
        }
        Media::Protobuf => {
            let items: Vec<Bytes> = (0..SLICES).map(|index| slice(index).encode_to_vec().into()).collect();
            let type_meta = TypeMeta { kind: "EndpointSliceList".into() };
            let envelope =
                Envelope { type_meta: Some(type_meta), raw: List { items }.encode_to_vec().into() };
            [b"k8s\0".as_slice(), &envelope.encode_to_vec()].concat()
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

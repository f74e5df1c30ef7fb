//! Lists, single objects, and the beginning of watches.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::body::Pieces;
use super::encode::{self, ListMeta, Media};
use super::fault::GoneAs;
use super::object::Key;
use super::query::Query;
use super::resource::{Resource, Target};
use super::selector::Selection;
use super::shared::{Behaviour, Shared, StreamingLists};
use super::status::Refusal;
use super::store::{Snapshot, Store};
use super::watch::Watch;

/// How long a watch lasts when the client does not say.
const WATCH_LASTS: Duration = Duration::from_secs(1800);

/// Where a list continues, in the form of a real server.
#[derive(Serialize, Deserialize)]
struct Continue {
    v: String,
    rv: u64,
    start: String,
}

/// A list, or a page of it.
pub(super) fn list(
    store: &Store,
    behaviour: &Behaviour,
    target: &Target,
    selection: &Selection,
    query: &Query,
    media: Media,
) -> Result<Vec<Bytes>, Refusal> {
    let mut limit = if query.limit == 0 { usize::MAX } else { query.limit.min(behaviour.largest_page) };
    let (snapshot, version, start) = if query.r#continue.is_empty() {
        if query.resource_version == "0" && behaviour.watch_cache {
            limit = usize::MAX;
        }
        let (snapshot, version) = first_page(store, target.resource, query)?;
        (snapshot, version, None)
    } else {
        let (version, start) = parse_continue(&query.r#continue)?;
        let snapshot = store.at(target.resource, version).map_err(|_| Refusal::old_page())?;
        (snapshot, version, Some(start))
    };
    let selected = snapshot.iter().filter(|(key, stored)| {
        start.as_ref().is_none_or(|start| *key >= start) && selection.matches(stored)
    });
    let mut selected: Vec<_> = selected.map(|(_, stored)| stored).collect();
    let mut meta = ListMeta { resource_version: version.to_string(), ..ListMeta::default() };
    if let Some(next) = selected.get(limit) {
        meta.r#continue = encode_continue(version, &next.key);
        let remaining = i64::try_from(selected.len() - limit).unwrap_or(i64::MAX);
        meta.remaining_item_count = Some(remaining).filter(|_| !selection.is_selective());
        selected.truncate(limit);
    }
    Ok(encode::list(media, target.resource, &meta, selected.into_iter().map(AsRef::as_ref)))
}

/// The state that a list begins with, and its version.
fn first_page(store: &Store, resource: Resource, query: &Query) -> Result<(Snapshot, u64), Refusal> {
    let current = store.version();
    let exact = match query.resource_version_match.as_str() {
        "" => query.limit > 0,
        "Exact" => true,
        "NotOlderThan" => false,
        other => return Err(Refusal::bad_request(format!("resourceVersionMatch: {other:?} is not known"))),
    };
    match query.version()? {
        None | Some(0) => Ok((store.now(resource), current)),
        Some(version) if version > current => Err(Refusal::too_large(version, current)),
        Some(version) if exact => {
            let too_old =
                |_| Refusal::new(410, "Expired", "The resourceVersion for the provided list is too old.");
            Ok((store.at(resource, version).map_err(too_old)?, version))
        }
        Some(_) => Ok((store.now(resource), current)),
    }
}

fn encode_continue(version: u64, next: &Key) -> String {
    let start = format!("{}/{}", next.namespace, next.name);
    let token = Continue { v: "meta.k8s.io/v1".to_owned(), rv: version, start };
    BASE64URL_NOPAD.encode(json!(token).to_string().as_bytes())
}

fn parse_continue(text: &str) -> Result<(u64, Key), Refusal> {
    let wrong = || Refusal::bad_request("continue key is not valid");
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| wrong())?;
    let token: Continue = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
    let (namespace, name) = token.start.split_once('/').ok_or_else(wrong)?;
    Ok((token.rv, Key::new(namespace, name)))
}

/// A single object.
pub(super) fn get(store: &Store, target: &Target, media: Media) -> Result<Bytes, Refusal> {
    let stored = store.get(target.resource, &target.namespace, &target.name);
    stored.map(|stored| encode::object(media, &stored)).ok_or_else(|| Refusal::not_found(target))
}

/// Opens a watch.
pub(super) fn watch(
    shared: &Arc<Shared>,
    target: &Target,
    selection: Selection,
    query: &Query,
    media: Media,
) -> Result<Pieces, Refusal> {
    let behaviour = shared.behaviour();
    let with_list = with_list(&behaviour, query)?;
    if with_list == WithList::Fails {
        let message = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled";
        let refusal = Refusal::new(500, "InternalError", message);
        return Ok(Pieces::All(vec![encode::error_event(media, &refusal)]));
    }
    let versions = shared.versions();
    let store = shared.store();
    let current = store.version();
    let version = query.version()?;
    let mut initial = Vec::new();
    let position = match version {
        Some(version) if version > current && with_list == WithList::AndBookmark => {
            return Err(Refusal::too_large(version, current));
        }
        Some(version) if version > 0 && with_list == WithList::No => {
            if let Err(compacted) = store.after(target.resource, version) {
                let refusal = Refusal::too_old(version, compacted.oldest);
                return match behaviour.gone_as {
                    GoneAs::Status => Err(refusal),
                    GoneAs::Event => Ok(Pieces::All(vec![encode::error_event(media, &refusal)])),
                };
            }
            version
        }
        _ => {
            let objects = store.now(target.resource);
            let selected = objects.values().filter(|stored| selection.matches(stored));
            initial.extend(selected.map(|stored| encode::event(media, "ADDED", stored)));
            current
        }
    };
    if with_list == WithList::AndBookmark {
        initial.push(encode::bookmark_event(media, target.resource, position, true));
    }
    let now = Instant::now();
    let lasts = query.timeout_seconds.map_or(WATCH_LASTS, Duration::from_secs);
    let bookmark =
        query.allow_watch_bookmarks.then(|| (behaviour.bookmark_every, now + behaviour.bookmark_every));
    Ok(Pieces::Watch(Box::new(Watch {
        shared: shared.clone(),
        resource: target.resource,
        selection,
        media,
        position,
        initial,
        bookmark,
        due: now + lasts,
        versions,
        ended: false,
    })))
}

/// Whether a watch begins with all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WithList {
    No,
    AndBookmark,
    Fails,
}

fn with_list(behaviour: &Behaviour, query: &Query) -> Result<WithList, Refusal> {
    let invalid = |message: &str| Err(Refusal::new(422, "Invalid", message));
    match (query.send_initial_events, behaviour.streaming_lists) {
        (None, _) | (_, StreamingLists::Unknown) => Ok(WithList::No),
        (Some(_), StreamingLists::Refused) => invalid(
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ),
        (Some(_), _) if query.resource_version_match != "NotOlderThan" => invalid(
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (Some(true), _) if !query.allow_watch_bookmarks => {
            invalid("allowWatchBookmarks: Required value: sendInitialEvents requires bookmarks")
        }
        (Some(false), _) => Ok(WithList::No),
        (Some(true), StreamingLists::Failing) => Ok(WithList::Fails),
        (Some(true), StreamingLists::Supported) => Ok(WithList::AndBookmark),
    }
}

//! Who may do what.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::resource::{Resource, Target};
use super::shared::Behaviour;
use super::status::Refusal;

/// A user that the server authenticates by token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The bearer token.
    pub token: String,
    /// The name that error messages show.
    pub name: String,
    /// What they may do.
    pub rights: Rights,
}

/// The rights of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Everything.
    Everything,
    /// What the ClusterRole `system:node-proxier` grants.
    NodeProxier,
    /// Nothing.
    Nothing,
}

impl User {
    /// A user with these rights.
    pub fn new(token: &str, name: &str, rights: Rights) -> User {
        User { token: token.to_owned(), name: name.to_owned(), rights }
    }
}

impl Rights {
    fn allow(self, verb: &str, resource: Resource) -> bool {
        match (self, resource) {
            (Rights::Everything, _) => true,
            (Rights::Nothing, _) => false,
            (Rights::NodeProxier, Resource::Nodes) => matches!(verb, "get" | "list" | "watch"),
            (Rights::NodeProxier, Resource::Events) => matches!(verb, "create" | "patch" | "update"),
            (Rights::NodeProxier, _) => matches!(verb, "list" | "watch"),
        }
    }
}

/// Refuses strangers.
pub(super) fn authenticate<'a>(
    behaviour: &'a Behaviour,
    headers: &HeaderMap,
) -> Result<Option<&'a User>, Refusal> {
    if behaviour.users.is_empty() {
        return Ok(None);
    }
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = header.strip_prefix("Bearer ").unwrap_or_default();
    let user = behaviour.users.iter().find(|user| user.token == token);
    user.map(Some).ok_or_else(|| Refusal::new(401, "Unauthorized", "Unauthorized"))
}

/// Refuses what a user may not do. `name` is the object that is asked for, if it is a single one.
pub(super) fn authorise(
    behaviour: &Behaviour,
    user: Option<&User>,
    verb: &str,
    target: &Target,
    name: &str,
) -> Result<(), Refusal> {
    let allowed = user.is_none_or(|user| user.rights.allow(verb, target.resource));
    if allowed && !behaviour.forbidden.contains(&target.resource) {
        return Ok(());
    }
    let user = user.map_or("system:anonymous", |user| user.name.as_str());
    Err(Refusal::forbidden(target, name, user, verb))
}

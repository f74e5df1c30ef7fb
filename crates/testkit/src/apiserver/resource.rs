//! What the server has, and under which paths.

use anyhow::{Result, bail};
use portwarden_model::Kind;

/// A kind of object as its paths name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// `/api/v1/services`.
    Services,
    /// `/api/v1/nodes`.
    Nodes,
    /// `/apis/discovery.k8s.io/v1/endpointslices`.
    EndpointSlices,
    /// `/apis/networking.k8s.io/v1/servicecidrs`.
    ServiceCidrs,
    /// `/apis/events.k8s.io/v1/events`.
    Events,
}

impl Resource {
    /// All of them.
    pub const ALL: [Resource; 5] = [
        Resource::Services,
        Resource::Nodes,
        Resource::EndpointSlices,
        Resource::ServiceCidrs,
        Resource::Events,
    ];

    /// The API group; empty for the core.
    pub fn group(self) -> &'static str {
        match self {
            Resource::Services | Resource::Nodes => "",
            Resource::EndpointSlices => "discovery.k8s.io",
            Resource::ServiceCidrs => "networking.k8s.io",
            Resource::Events => "events.k8s.io",
        }
    }

    /// The name in paths and permissions.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Services => "services",
            Resource::Nodes => "nodes",
            Resource::EndpointSlices => "endpointslices",
            Resource::ServiceCidrs => "servicecidrs",
            Resource::Events => "events",
        }
    }

    /// `kind` of one object.
    pub fn kind_name(self) -> &'static str {
        match self {
            Resource::Services => "Service",
            Resource::Nodes => "Node",
            Resource::EndpointSlices => "EndpointSlice",
            Resource::ServiceCidrs => "ServiceCIDR",
            Resource::Events => "Event",
        }
    }

    /// `apiVersion` of one object.
    pub fn api_version(self) -> String {
        if self.group().is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group()) }
    }

    /// Whether its objects live in namespaces.
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Resource::Nodes | Resource::ServiceCidrs)
    }

    /// The path of all its objects.
    pub fn path(self) -> String {
        if self.group().is_empty() {
            format!("/api/v1/{}", self.name())
        } else {
            format!("/apis/{}/v1/{}", self.group(), self.name())
        }
    }

    /// The model's word for it; nothing for Events.
    pub fn of_kind(kind: Kind) -> Resource {
        match kind {
            Kind::Service => Resource::Services,
            Kind::EndpointSlice => Resource::EndpointSlices,
            Kind::Node => Resource::Nodes,
            Kind::ServiceCidr => Resource::ServiceCidrs,
        }
    }
}

/// What a path is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) resource: Resource,
    /// Empty for all namespaces, and for objects without one.
    pub(super) namespace: String,
    /// Empty for all objects.
    pub(super) name: String,
}

impl Target {
    /// Reads a path. A `/status` at its end leads to the object itself.
    pub(super) fn parse(path: &str) -> Result<Target> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => bail!("no API at {path}"),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let (plural, name) = match rest {
            [plural] => (*plural, ""),
            [plural, name] | [plural, name, "status"] => (*plural, *name),
            _ => bail!("no resource at {path}"),
        };
        let matches = |resource: &Resource| (resource.group(), resource.name()) == (group, plural);
        match Resource::ALL.into_iter().find(matches) {
            Some(resource) if resource.is_namespaced() || namespace.is_empty() => {
                Ok(Target { resource, namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => bail!("no resource at {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_understood() {
        let target = |resource, namespace: &str, name: &str| Target {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let parse = |path: &str| Target::parse(path).unwrap();
        assert_eq!(parse("/api/v1/services"), target(Resource::Services, "", ""));
        assert_eq!(parse("/api/v1/namespaces/a/services/b"), target(Resource::Services, "a", "b"));
        assert_eq!(parse("/api/v1/nodes/n/status"), target(Resource::Nodes, "", "n"));
        for resource in Resource::ALL {
            assert_eq!(parse(&resource.path()), target(resource, "", ""));
        }
        for wrong in ["/", "/api/v1", "/api/v2/services", "/apis/x/v1/services", "/api/v1/namespaces/a/nodes"]
        {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}

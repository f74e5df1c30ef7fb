//! The API paths and selectors of the objects that a proxy needs.

use portwarden_model::Kind;
use portwarden_model::manifest::{LABEL_HEADLESS, LABEL_PROXY_NAME};

/// A kind of object and its request.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    pub(crate) path: &'static str,
    /// For messages.
    pub(crate) name: &'static str,
    label_selector: Option<String>,
    field_selector: Option<String>,
    /// The effect of its absence; `None` if a proxy cannot work without it.
    pub(crate) without: Option<&'static str>,
}

impl Resource {
    /// All Nodes.
    pub(crate) fn all_nodes() -> Resource {
        resource("/api/v1/nodes", "Nodes")
    }

    /// Selectors let the server filter, so that other objects are not sent.
    pub(crate) fn of(kind: Kind, node_name: &str) -> Resource {
        match kind {
            Kind::Service => Resource {
                label_selector: Some(format!("!{LABEL_PROXY_NAME}")),
                field_selector: Some("spec.clusterIP!=None".to_owned()),
                ..resource("/api/v1/services", "Services")
            },
            Kind::EndpointSlice => Resource {
                label_selector: Some(format!("!{LABEL_HEADLESS}")),
                ..resource("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlices")
            },
            Kind::Node => Resource {
                field_selector: Some(format!("metadata.name={node_name}")),
                ..resource("/api/v1/nodes", "Node")
            },
            Kind::ServiceCidr => Resource {
                without: Some("connections to cluster IPs of no Service are not refused"),
                ..resource("/apis/networking.k8s.io/v1/servicecidrs", "ServiceCIDRs")
            },
        }
    }

    /// The path with the selectors and these parameters; empty ones are left out.
    pub(crate) fn query(&self, parameters: &[(&str, &str)]) -> String {
        let selectors = [("labelSelector", &self.label_selector), ("fieldSelector", &self.field_selector)];
        let selectors = selectors.iter().map(|(key, value)| (*key, value.as_deref().unwrap_or_default()));
        let mut query = self.path.to_owned();
        let mut separator = '?';
        for (key, value) in selectors.chain(parameters.iter().copied()).filter(|(_, value)| !value.is_empty())
        {
            query.push(separator);
            query.push_str(key);
            query.push('=');
            percent_encode(value, &mut query);
            separator = '&';
        }
        query
    }
}

fn resource(path: &'static str, name: &'static str) -> Resource {
    Resource { path, name, label_selector: None, field_selector: None, without: None }
}

fn percent_encode(text: &str, into: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            into.push(char::from(byte));
        } else {
            into.push('%');
            into.push(char::from(HEX[usize::from(byte >> 4)]));
            into.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_those_of_kube_proxy() {
        let query = |kind| Resource::of(kind, "node a/b").query(&[("limit", "500"), ("continue", "")]);
        assert_eq!(
            query(Kind::Service),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone&limit=500"
        );
        assert_eq!(
            query(Kind::EndpointSlice),
            "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless&limit=500"
        );
        assert_eq!(query(Kind::Node), "/api/v1/nodes?fieldSelector=metadata.name%3Dnode%20a%2Fb&limit=500");
        assert_eq!(query(Kind::ServiceCidr), "/apis/networking.k8s.io/v1/servicecidrs?limit=500");
    }
}

//! Defaults that an API server would set: manifests in files lack them.

use portwarden_model::{Family, Problem, manifest, parse_ip};

/// The namespace of objects without one.
const NAMESPACE: &str = "default";

/// Sets the defaults of a Service. A problem is a field that only an API server could set.
pub(super) fn service(service: &mut manifest::Service) -> Vec<Problem> {
    namespace(&mut service.metadata);
    let spec = &mut service.spec;
    if spec.cluster_ip.is_empty()
        && let Some(first) = spec.cluster_ips.first()
    {
        spec.cluster_ip = first.clone();
    }
    if spec.cluster_ips.is_empty() && !spec.cluster_ip.is_empty() {
        spec.cluster_ips = vec![spec.cluster_ip.clone()];
    }
    if spec.ip_families.is_empty() {
        let families = spec.cluster_ips.iter().map(|ip| parse_ip(ip).map(|ip| Family::of(ip).to_string()));
        spec.ip_families = families.collect::<Option<_>>().unwrap_or_default();
    }
    if !spec.cluster_ip.is_empty() || spec.r#type == "ExternalName" {
        return Vec::new();
    }
    vec![Problem {
        object: format!("Service {}/{}", service.metadata.namespace, service.metadata.name),
        field: "spec.clusterIP".to_owned(),
        text: "missing, and with files there is no API server to assign one; not proxied".to_owned(),
    }]
}

/// Sets the defaults of an EndpointSlice.
pub(super) fn endpoint_slice(slice: &mut manifest::EndpointSlice) {
    namespace(&mut slice.metadata);
    for port in &mut slice.ports {
        port.name.get_or_insert_default();
    }
}

fn namespace(metadata: &mut manifest::Metadata) {
    if metadata.namespace.is_empty() {
        metadata.namespace = NAMESPACE.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_follow_from_the_addresses() {
        let mut from = manifest::Service::default();
        from.spec.cluster_ips = vec!["fd00::1".into(), "10.0.0.1".into()];
        assert_eq!(service(&mut from), []);
        assert_eq!(from.spec.cluster_ip, "fd00::1");
        assert_eq!(from.spec.ip_families, ["IPv6", "IPv4"]);
        assert_eq!(from.metadata.namespace, "default");
    }

    #[test]
    fn a_missing_cluster_ip_is_reported() {
        let mut from = manifest::Service::default();
        assert_eq!(service(&mut from).len(), 1);
        from.spec.cluster_ip = "None".into();
        assert_eq!(service(&mut from), [], "headless on purpose");
        let mut external = manifest::Service::default();
        external.spec.r#type = "ExternalName".into();
        assert_eq!(service(&mut external), []);
    }
}

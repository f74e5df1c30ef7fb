//! Kinds of objects that a proxy does not use: which of them are mistakes.

/// What a proxy uses.
const USED: [(&str, &str); 4] = [
    ("v1", "Service"),
    ("v1", "Node"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("networking.k8s.io/v1", "ServiceCIDR"),
];

/// All other kinds of `v1`.
const CORE: [&str; 16] = [
    "Binding",
    "ComponentStatus",
    "ConfigMap",
    "Endpoints",
    "Event",
    "LimitRange",
    "List",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "ResourceQuota",
    "Secret",
    "ServiceAccount",
];

/// If an object that is not used is probably a mistake: advice that continues a message, or nothing to say.
pub(super) fn mistake(version: &str, kind: &str) -> Option<String> {
    let group = version.split('/').next().unwrap_or_default();
    let of_kubernetes = !group.contains('.') || group.ends_with(".k8s.io");
    if !of_kubernetes || (version == "v1" && CORE.contains(&kind)) {
        return None;
    }
    let meant = USED.iter().find(|(_, used)| is_similar(kind, used));
    match meant {
        Some((version, used)) => Some(format!("; did you mean {version} {used}?")),
        None => (version == "v1").then(String::new),
    }
}

/// Whether one name becomes the other with at most two letters put in, taken out, replaced or swapped with the next one.
fn is_similar(one: &str, other: &str) -> bool {
    let lower = |text: &str| text.to_lowercase().into_bytes();
    let (one, other) = (lower(one), lower(other));
    let same_from_start = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[same_from_start..], &other[same_from_start..]);
    let same_from_end = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    one.len().max(other.len()) - same_from_end <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kinds_of_kubernetes_can_be_mistaken() {
        assert_eq!(mistake("v1", "Secret"), None);
        assert_eq!(mistake("apps/v1", "Deployment"), None);
        assert_eq!(mistake("serving.knative.dev/v1", "Service"), None);
        assert_eq!(mistake("v1", "Foo").as_deref(), Some(""));
        assert_eq!(mistake("v1", "service").as_deref(), Some("; did you mean v1 Service?"));
        assert_eq!(mistake("v1", "Serivce").as_deref(), Some("; did you mean v1 Service?"));
        let slice = Some("; did you mean discovery.k8s.io/v1 EndpointSlice?");
        assert_eq!(mistake("v1", "EndpointSlice").as_deref(), slice);
        assert_eq!(mistake("discovery.k8s.io/v1beta1", "EndpointSlices").as_deref(), slice);
    }
}

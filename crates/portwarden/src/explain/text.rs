//! Formats an explanation as text.

use std::fmt::Write;

use portwarden_model::{
    EndpointExplanation, Explanation, Exposure, Family, FrontendExplanation, Masquerade, NamespacedName,
    PortExplanation, Topology,
};

/// One Service in one family.
pub(super) fn explanation(service: &NamespacedName, family: Family, explanation: &Explanation) -> String {
    let mut out = format!("{service}, {family}\n");
    for port in &explanation.ports {
        write_port(&mut out, port);
    }
    for port in &explanation.unmatched {
        let name = if port.port.as_str().is_empty() { "without name" } else { port.port.as_str() };
        let _ = writeln!(
            out,
            "  slice {} has a port {name} ({}) that matches no port of the Service",
            port.slice, port.protocol
        );
    }
    for slice in &explanation.other_family {
        let _ = writeln!(out, "  slice {slice} belongs to the other IP family and is not used here");
    }
    out
}

/// The Service does not exist; suggests similar names.
pub(super) fn unknown<'a>(
    service: &NamespacedName,
    known: impl Iterator<Item = &'a NamespacedName>,
) -> String {
    let mut alike: Vec<&str> =
        known.filter(|other| other.name() == service.name()).map(NamespacedName::as_str).collect();
    alike.sort_unstable();
    let hint = if alike.is_empty() { String::new() } else { format!("; did you mean {}?", alike.join(", ")) };
    format!(
        "Service {service} is not proxied: it does not exist, is headless, is of type ExternalName, or is assigned to another proxy{hint}"
    )
}

fn write_port(out: &mut String, port: &PortExplanation) {
    let name = if port.name.port.as_str().is_empty() { "without name" } else { port.name.port.as_str() };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "  port {name} ({})", port.name.protocol);
    for frontend in &port.frontends {
        write_frontend(out, frontend);
    }
    match port.topology {
        Some(Topology::SameNode) => {
            out.push_str("    topology hints: only endpoints hinted for this node are used\n");
        }
        Some(Topology::SameZone) => {
            out.push_str("    topology hints: only endpoints hinted for this node's zone are used\n");
        }
        Some(Topology::Everywhere) | None => {}
    }
    if port.endpoints.is_empty() {
        out.push_str("    no endpoints\n");
    }
    for endpoint in &port.endpoints {
        write_endpoint(out, endpoint);
    }
}

fn write_frontend(out: &mut String, explained: &FrontendExplanation) {
    let frontend = &explained.frontend;
    let kind = match frontend.exposure {
        Exposure::ClusterIp => "cluster IP",
        Exposure::ExternalIp => "external IP",
        Exposure::LoadBalancerIp => "load-balancer IP",
        Exposure::NodePort => "node port",
    };
    let address = match frontend.ip {
        Some(ip) => std::net::SocketAddr::new(ip, frontend.port).to_string(),
        None => format!("port {} of this node's addresses", frontend.port),
    };
    let _ = writeln!(out, "    {kind} {address}");
    if explained.from_node == explained.from_elsewhere {
        let _ = writeln!(out, "      {}", explained.from_node);
    } else {
        let _ = writeln!(out, "      from this node: {}", explained.from_node);
        let _ = writeln!(out, "      from elsewhere: {}", explained.from_elsewhere);
    }
    let masqueraded = match frontend.masquerade {
        Masquerade::Never => return,
        Masquerade::NotFromPods => {
            "masqueraded unless the client is a pod: the endpoint sees the node's address"
        }
        Masquerade::FromHost => {
            "masqueraded if the client is a process on this node: the endpoint sees the node's address"
        }
        Masquerade::Always => "masqueraded: the endpoint sees the node's address",
    };
    let _ = writeln!(out, "      {masqueraded}");
}

fn write_endpoint(out: &mut String, endpoint: &EndpointExplanation) {
    let node = endpoint.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let _ = write!(out, "    endpoint {}{node}: ", endpoint.address);
    let _ = match (&endpoint.cluster, &endpoint.local) {
        (Some(cluster), Some(local)) => writeln!(out, "policy Cluster: {cluster}; policy Local: {local}"),
        (Some(one), None) | (None, Some(one)) => writeln!(out, "{one}"),
        (None, None) => writeln!(out, "no frontend needs it"),
    };
}

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
            "  slice {} has a port {name} ({}) that no port of the Service leads to",
            port.slice, port.protocol
        );
    }
    for slice in &explanation.other_family {
        let _ = writeln!(out, "  slice {slice} is of the other family");
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
    let hint = if alike.is_empty() { String::new() } else { format!("; there is {}", alike.join(", ")) };
    format!(
        "there is no Service {service} that is proxied: it may not exist, be headless, be of type ExternalName, or have another proxy{hint}"
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
            out.push_str("    hints narrow the endpoints of the cluster to those for this node\n");
        }
        Some(Topology::SameZone) => {
            out.push_str("    hints narrow the endpoints of the cluster to those for this zone\n");
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
    let place = match frontend.ip {
        Some(ip) => std::net::SocketAddr::new(ip, frontend.port).to_string(),
        None => format!("port {} of this node's addresses", frontend.port),
    };
    let _ = writeln!(out, "    {kind} {place}");
    if explained.from_node == explained.from_elsewhere {
        let _ = writeln!(out, "      {}", explained.from_node);
    } else {
        let _ = writeln!(out, "      from this node: {}", explained.from_node);
        let _ = writeln!(out, "      from elsewhere: {}", explained.from_elsewhere);
    }
    let hidden = match frontend.masquerade {
        Masquerade::Never => return,
        Masquerade::NotFromPods => "the source address of everybody but pods is hidden",
        Masquerade::FromHost => "the source address of processes on this host is hidden",
        Masquerade::Always => "the source address is hidden",
    };
    let _ = writeln!(out, "      {hidden}");
}

fn write_endpoint(out: &mut String, endpoint: &EndpointExplanation) {
    let node = endpoint.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let _ = write!(out, "    endpoint {}{node}: ", endpoint.address);
    let _ = match (&endpoint.cluster, &endpoint.local) {
        (Some(cluster), Some(local)) => writeln!(out, "cluster-wide {cluster}; on this node {local}"),
        (Some(one), None) | (None, Some(one)) => writeln!(out, "{one}"),
        (None, None) => writeln!(out, "not needed"),
    };
}

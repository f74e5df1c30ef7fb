//! An explanation for people.

use std::fmt::Write;

use super::Explained;
use super::kernel::{KernelCheck, KernelFrontend, key_of, packet_key};
use crate::introspection::{
    ExplainedEndpoint, ExplainedFamily, ExplainedFrontend, ExplainedPort, PacketExplanation,
    ServiceExplanation,
};

/// Rules or elements that are shown for a difference.
const EVIDENCE: usize = 12;

/// All of it.
pub(super) fn of(explained: &Explained, kernel: &KernelCheck) -> String {
    let mut out = String::new();
    match explained {
        Explained::Service(service) => write_service(&mut out, service, kernel),
        Explained::Packet(packet) => write_packet(&mut out, packet, kernel),
    }
    // Writing to a string cannot fail.
    if let Some(reason) = kernel.reason() {
        let _ = writeln!(out, "The kernel was {reason}.");
    } else if kernel.differs() {
        out.push_str("THE KERNEL DIFFERS from what it should hold, see above. If this lasts for more than a second, `portwarden status` may say why.\n");
    } else if !kernel.all().is_empty() {
        out.push_str("The kernel was read back and agrees.\n");
    }
    out
}

fn write_service(out: &mut String, service: &ServiceExplanation, kernel: &KernelCheck) {
    for family in &service.families {
        let _ = writeln!(out, "{}, {}", service.service, family.family);
        write_family(out, family, kernel);
    }
    for refused in &service.refused {
        let _ = writeln!(out, "THE KERNEL REFUSES the Service for {}: {}", refused.family, refused.reason);
    }
}

fn write_family(out: &mut String, family: &ExplainedFamily, kernel: &KernelCheck) {
    for port in &family.ports {
        write_port(out, port, kernel);
    }
    for note in &family.notes {
        let _ = writeln!(out, "  {note}");
    }
}

fn write_port(out: &mut String, port: &ExplainedPort, kernel: &KernelCheck) {
    let name = if port.name.is_empty() { "without name" } else { &port.name };
    let _ = writeln!(out, "  port {name} ({})", port.protocol);
    for frontend in &port.frontends {
        write_frontend(out, port, frontend, kernel);
    }
    if let Some(seconds) = port.affinity {
        let _ = writeln!(
            out,
            "    session affinity: a client keeps its endpoint for {seconds} s after its last connection"
        );
    }
    if let Some(topology) = &port.topology {
        let _ = writeln!(out, "    {topology}");
    }
    if port.endpoint_count == 0 {
        out.push_str("    no endpoints\n");
    }
    for endpoint in &port.endpoints {
        write_endpoint(out, endpoint);
    }
    if port.endpoints.len() < port.endpoint_count {
        let _ = writeln!(out, "    and {} more endpoints", port.endpoint_count - port.endpoints.len());
    }
}

fn write_frontend(
    out: &mut String,
    port: &ExplainedPort,
    frontend: &ExplainedFrontend,
    kernel: &KernelCheck,
) {
    // "node port 30080 of this node's addresses", not "node port port 30080 ...".
    let address = frontend.address.strip_prefix("port ").unwrap_or(&frontend.address);
    let _ = writeln!(out, "    {} {address}", frontend.exposure.words());
    let (node, elsewhere) = (&frontend.from_node, &frontend.from_elsewhere);
    if node.reason == elsewhere.reason {
        let _ = writeln!(out, "      {}", node.reason);
    } else {
        let _ = writeln!(out, "      from this node: {}", node.reason);
        let _ = writeln!(out, "      from elsewhere: {}", elsewhere.reason);
    }
    if !frontend.active {
        return;
    }
    if node.pool.is_some() || elsewhere.pool.is_some() {
        let _ = writeln!(out, "      {}", frontend.masquerade);
    }
    if frontend.restricted {
        let _ = writeln!(out, "      only for clients in {}", port.source_ranges.join(", "));
    }
    if let Some(found) = key_of(port, frontend).and_then(|key| kernel.of(&key)) {
        write_kernel(out, found, "      ");
    }
}

fn write_kernel(out: &mut String, found: &KernelFrontend, indent: &str) {
    if let Some(adapted) = &found.adapted {
        let _ = writeln!(out, "{indent}{adapted}");
    }
    if found.differences.is_empty() {
        return;
    }
    for difference in &found.differences {
        let _ = writeln!(out, "{indent}!! THE KERNEL DIFFERS: {difference}");
    }
    for line in found.evidence.iter().take(EVIDENCE) {
        let _ = writeln!(out, "{indent}   {line}");
    }
    if found.evidence.len() > EVIDENCE {
        let _ = writeln!(out, "{indent}   and {} more", found.evidence.len() - EVIDENCE);
    }
}

fn write_endpoint(out: &mut String, endpoint: &ExplainedEndpoint) {
    let node = endpoint.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let _ = write!(out, "    endpoint {}{node}: ", endpoint.address);
    let _ = match (&endpoint.cluster, &endpoint.local) {
        (Some(cluster), Some(local)) => {
            writeln!(out, "policy Cluster: {}; policy Local: {}", cluster.reason, local.reason)
        }
        (Some(one), None) | (None, Some(one)) => writeln!(out, "{}", one.reason),
        (None, None) => writeln!(out, "no frontend needs it"),
    };
}

fn write_packet(out: &mut String, packet: &PacketExplanation, kernel: &KernelCheck) {
    let from = packet.from.as_ref().map(|from| format!("from {from} ")).unwrap_or_default();
    let _ = writeln!(out, "A new connection {from}to {}", packet.to);
    let _ = writeln!(out, "  {}", packet.summary);
    for step in &packet.steps {
        let _ = writeln!(out, "  - {step}");
    }
    for endpoint in &packet.endpoints {
        let _ = writeln!(out, "    endpoint {endpoint}");
    }
    if packet.endpoints.len() < packet.endpoint_count {
        let _ = writeln!(out, "    and {} more endpoints", packet.endpoint_count - packet.endpoints.len());
    }
    for neighbour in &packet.neighbours {
        let _ = writeln!(out, "  the same address also has {neighbour}");
    }
    if let Some(found) = packet_key(packet).and_then(|key| kernel.of(&key)) {
        write_kernel(out, found, "  ");
    }
    if let Some(service) = &packet.service {
        let _ = writeln!(out, "  All about the Service: portwarden explain {service}");
    }
}

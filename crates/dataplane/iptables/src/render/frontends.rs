//! What a Service adds to the chains that all Services share: how its addresses and node ports are recognised.

use portwarden_model::{Exposure, Frontend, PoolKind, ProxiedService, Verdict};
use portwarden_xtables::{Table, count_lines};

use super::{Context, Port, refusal, rule};
use crate::names::{EXTERNAL_SERVICES, LOOPBACK_COUNTER, NODE_PORTS, PROXY_FIREWALL, Role, SERVICES};

/// A chain to which all Services contribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SharedChain {
    /// Cluster addresses without endpoints.
    FilterServices,
    /// External addresses and node ports without endpoints.
    FilterExternalServices,
    /// Ports on which load balancers ask for this node's health.
    FilterNodePorts,
    /// Load-balancer addresses that only some may use.
    FilterProxyFirewall,
    /// Addresses with endpoints.
    NatServices,
    /// Node ports with endpoints.
    NatNodePorts,
}

impl SharedChain {
    /// All of them, by table.
    pub(crate) const ALL: [SharedChain; 6] = [
        SharedChain::FilterServices,
        SharedChain::FilterExternalServices,
        SharedChain::FilterNodePorts,
        SharedChain::FilterProxyFirewall,
        SharedChain::NatServices,
        SharedChain::NatNodePorts,
    ];

    pub(crate) fn table(self) -> Table {
        match self {
            SharedChain::NatServices | SharedChain::NatNodePorts => Table::Nat,
            _ => Table::Filter,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            SharedChain::FilterServices | SharedChain::NatServices => SERVICES,
            SharedChain::FilterExternalServices => EXTERNAL_SERVICES,
            SharedChain::FilterNodePorts | SharedChain::NatNodePorts => NODE_PORTS,
            SharedChain::FilterProxyFirewall => PROXY_FIREWALL,
        }
    }
}

/// The lines of one Service in each shared chain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SharedLines([Box<str>; SharedChain::ALL.len()]);

impl SharedLines {
    /// Renders one Service.
    pub(crate) fn render(service: &ProxiedService, context: &Context) -> SharedLines {
        let mut lines = Lines::default();
        for port in &service.ports {
            let port = Port::new(port, context);
            for frontend in port.port.frontends.iter().filter(|frontend| frontend.is_allowed()) {
                lines.frontend(&port, frontend);
            }
            if let Some(check) = service.health_check {
                let (name, number) = (&port.name, check.port);
                rule!(
                    lines.of(SharedChain::FilterNodePorts),
                    "-A {NODE_PORTS} -m comment --comment \"{name} health check node port\" \
                     -m tcp -p tcp --dport {number} -j ACCEPT"
                );
            }
        }
        SharedLines(lines.0.map(String::into_boxed_str))
    }

    /// The lines in one chain.
    pub(crate) fn in_chain(&self, chain: SharedChain) -> &str {
        &self.0[chain as usize]
    }

    /// How many lines there are in a table.
    pub(crate) fn count(&self, table: Table) -> usize {
        let chains = SharedChain::ALL.into_iter().filter(|chain| chain.table() == table);
        chains.map(|chain| count_lines(self.in_chain(chain))).sum()
    }
}

#[derive(Default)]
struct Lines([String; SharedChain::ALL.len()]);

impl Lines {
    fn of(&mut self, chain: SharedChain) -> &mut String {
        &mut self.0[chain as usize]
    }

    fn frontend(&mut self, port: &Port<'_>, frontend: &Frontend) {
        match frontend.exposure {
            Exposure::ClusterIp => self.cluster_ip(port, frontend),
            Exposure::ExternalIp => self.external_ip(port, frontend, "external IP", Role::External),
            Exposure::LoadBalancerIp => {
                self.external_ip(port, frontend, "loadbalancer IP", port.load_balancer_role());
                if port.has_firewall() {
                    self.firewall(port, frontend);
                }
            }
            Exposure::NodePort => self.node_port(port, frontend),
        }
    }

    fn cluster_ip(&mut self, port: &Port<'_>, frontend: &Frontend) {
        let Some(ip) = frontend.ip else { return };
        let (name, p, number) = (&port.name, port.protocol, frontend.port);
        let role = match frontend.from_elsewhere {
            Verdict::Forward(PoolKind::Cluster) => Role::Cluster,
            Verdict::Forward(PoolKind::Local) => Role::Local,
            Verdict::Reject | Verdict::Drop => {
                if let Some((why, target)) = refusal(frontend.from_elsewhere) {
                    rule!(
                        self.of(SharedChain::FilterServices),
                        "-A {SERVICES} -m comment --comment \"{name} {why}\" -m {p} -p {p} -d {ip} --dport {number} -j {target}"
                    );
                }
                return;
            }
        };
        let chain = port.chains.chain(role);
        rule!(
            self.of(SharedChain::NatServices),
            "-A {SERVICES} -m comment --comment \"{name} cluster IP\" -m {p} -p {p} -d {ip} --dport {number} -j {chain}"
        );
    }

    fn external_ip(&mut self, port: &Port<'_>, frontend: &Frontend, what: &str, role: Role) {
        let Some(ip) = frontend.ip else { return };
        let (name, p, number) = (&port.name, port.protocol, frontend.port);
        if port.port.has_endpoints {
            let chain = port.chains.chain(role);
            rule!(
                self.of(SharedChain::NatServices),
                "-A {SERVICES} -m comment --comment \"{name} {what}\" -m {p} -p {p} -d {ip} --dport {number} -j {chain}"
            );
        }
        if let Some((why, target)) = refusal(frontend.from_elsewhere) {
            rule!(
                self.of(SharedChain::FilterExternalServices),
                "-A {EXTERNAL_SERVICES} -m comment --comment \"{name} {why}\" -m {p} -p {p} -d {ip} --dport {number} -j {target}"
            );
        }
    }

    /// Sees only what the port's firewall chain did not send on to an endpoint.
    fn firewall(&mut self, port: &Port<'_>, frontend: &Frontend) {
        let Some(ip) = frontend.ip else { return };
        let (name, p, number) = (&port.name, port.protocol, frontend.port);
        let chain = port.chains.chain(Role::Firewall);
        rule!(
            self.of(SharedChain::FilterProxyFirewall),
            "-A {PROXY_FIREWALL} -m comment --comment \"{name} traffic not accepted by {chain}\" \
             -m {p} -p {p} -d {ip} --dport {number} -j DROP"
        );
    }

    fn node_port(&mut self, port: &Port<'_>, frontend: &Frontend) {
        let (name, p, number) = (&port.name, port.protocol, frontend.port);
        if port.port.has_endpoints {
            let chain = port.chains.chain(Role::External);
            let lines = self.of(SharedChain::NatNodePorts);
            if port.context.count_loopback {
                rule!(
                    lines,
                    "-A {NODE_PORTS} -m comment --comment {name} -m {p} -p {p} -d 127.0.0.0/8 --dport {number} \
                     -m nfacct --nfacct-name {LOOPBACK_COUNTER} -j {chain}"
                );
            }
            rule!(
                lines,
                "-A {NODE_PORTS} -m comment --comment {name} -m {p} -p {p} --dport {number} -j {chain}"
            );
        }
        if let Some((why, target)) = refusal(frontend.from_elsewhere) {
            rule!(
                self.of(SharedChain::FilterExternalServices),
                "-A {EXTERNAL_SERVICES} -m comment --comment \"{name} {why}\" -m addrtype --dst-type LOCAL \
                 -m {p} -p {p} --dport {number} -j {target}"
            );
        }
    }
}

//! The chains that belong to one Service alone: external traffic, source ranges, choice of endpoints, endpoints.

use portwarden_model::{Exposure, Frontend, Masquerade, PoolKind, ProxiedService, Verdict};
use portwarden_xtables::count_lines;

use super::{Context, Port, rule};
use crate::names::{MARK_MASQ, PROXY_FIREWALL, Role, ServiceChain};

/// The chains of one Service with their rules, all in the nat table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OwnChains {
    /// The rules of all chains, one after the other.
    text: String,
    chains: Vec<Chain>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chain {
    name: ServiceChain,
    /// Where its rules end in the text of all.
    end: usize,
    rules: usize,
}

impl OwnChains {
    /// Renders one Service.
    pub(crate) fn render(service: &ProxiedService, context: &Context) -> OwnChains {
        let mut own = OwnChains::default();
        own.render_again(service, context);
        own
    }

    /// Renders another Service in place of this one, into the same memory.
    pub(crate) fn render_again(&mut self, service: &ProxiedService, context: &Context) {
        self.text.clear();
        self.chains.clear();
        for port in &service.ports {
            Port::new(port, context).chains(self);
        }
    }

    /// The chains with their rules.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ServiceChain, &str)> {
        self.counted().map(|(name, rules, _)| (name, rules))
    }

    /// The chains with their rules and the number of them.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (ServiceChain, &str, usize)> {
        let starts = std::iter::once(0).chain(self.chains.iter().map(|chain| chain.end));
        let chains = self.chains.iter().zip(starts);
        chains.map(|(chain, start)| (chain.name, &self.text[start..chain.end], chain.rules))
    }

    /// How many rules there are in all chains.
    pub(crate) fn rules(&self) -> usize {
        self.chains.iter().map(|chain| chain.rules).sum()
    }

    /// Adds a chain; `fill` appends its rules.
    pub(super) fn add(&mut self, name: ServiceChain, fill: impl FnOnce(&mut String)) {
        let start = self.text.len();
        fill(&mut self.text);
        let rules = count_lines(&self.text[start..]);
        self.chains.push(Chain { name, end: self.text.len(), rules });
    }
}

/// The names of the chains that [`OwnChains`] would have, in the same order. They are known much sooner than the rules.
pub(crate) fn own_chain_names(service: &ProxiedService, context: &Context, names: &mut Vec<ServiceChain>) {
    for port in &service.ports {
        let port = Port::new(port, context);
        names.extend(port.roles().map(|(role, _)| port.chains.chain(role)));
        names.extend(port.endpoint_names());
    }
}

/// What fills the chain of a role.
#[derive(Debug, Clone, Copy)]
enum Content<'a> {
    External(&'a Frontend),
    Firewall,
    Choice(PoolKind),
}

impl<'a> Port<'a> {
    /// The chains that the port has, but for those of endpoints.
    fn roles(&self) -> impl Iterator<Item = (Role, Content<'a>)> + use<'a> {
        let port = self.port;
        // kube-proxy makes the chain even if the settings allow none of the addresses that would lead to it.
        let external = port.frontends.iter().find(|frontend| frontend.exposure != Exposure::ClusterIp);
        let external = external.filter(|_| port.has_endpoints);
        let external = external.map(|frontend| (Role::External, Content::External(frontend)));
        let firewall = self.has_firewall().then_some((Role::Firewall, Content::Firewall));
        let choices = [(Role::Cluster, PoolKind::Cluster), (Role::Local, PoolKind::Local)];
        let choices = choices.into_iter().filter(|(_, kind)| !port.pool(*kind).is_empty());
        let choices = choices.map(|(role, kind)| (role, Content::Choice(kind)));
        external.into_iter().chain(firewall).chain(choices)
    }

    fn chains(&self, own: &mut OwnChains) {
        let targets = self.targets();
        for (role, content) in self.roles() {
            let chain = self.chains.chain(role);
            own.add(chain, |rules| match content {
                Content::External(frontend) => self.external_rules(frontend, rules),
                Content::Firewall => self.firewall_rules(rules),
                Content::Choice(kind) => {
                    self.cluster_ip_masquerade(kind, rules);
                    self.dispatch_rules(chain, self.port.pool(kind), &targets, rules);
                }
            });
        }
        self.endpoint_chains(&targets, own);
    }

    /// Traffic to the cluster address that may come from outside the cluster must find its way back through this node.
    fn cluster_ip_masquerade(&self, kind: PoolKind, rules: &mut String) {
        let Some(frontend) = self.port.frontends.iter().find(|frontend| {
            frontend.exposure == Exposure::ClusterIp && frontend.from_elsewhere == Verdict::Forward(kind)
        }) else {
            return;
        };
        let not_pods = match (frontend.masquerade, &self.context.pods) {
            (Masquerade::Always, _) => String::new(),
            (Masquerade::NotFromPods, Some(pods)) => format!(" ! {pods}"),
            _ => return,
        };
        let Some(ip) = frontend.ip else { return };
        let chain = self.chains.chain(if kind == PoolKind::Local { Role::Local } else { Role::Cluster });
        let (name, p, number) = (&self.name, self.protocol, frontend.port);
        rule!(
            rules,
            "-A {chain} -m comment --comment \"{name} cluster IP\" -m {p} -p {p} -d {ip} --dport {number}{not_pods} -j {MARK_MASQ}"
        );
    }

    /// All frontends but the cluster address end up here; they share one policy.
    fn external_rules(&self, frontend: &Frontend, rules: &mut String) {
        let name = &self.name;
        let chain = self.chains.chain(Role::External);
        let cluster = self.chains.chain(Role::Cluster);
        if frontend.masquerade == Masquerade::Always {
            rule!(
                rules,
                "-A {chain} -m comment --comment \"masquerade traffic for {name} external destinations\" -j {MARK_MASQ}"
            );
        } else {
            // What starts on this node behaves as if it went out to a load balancer and came back: to any endpoint.
            if let Some(pods) = &self.context.pods {
                rule!(
                    rules,
                    "-A {chain} -m comment --comment \"pod traffic for {name} external destinations\" {pods} -j {cluster}"
                );
            }
            rule!(
                rules,
                "-A {chain} -m comment --comment \"masquerade LOCAL traffic for {name} external destinations\" \
                 -m addrtype --src-type LOCAL -j {MARK_MASQ}"
            );
            rule!(
                rules,
                "-A {chain} -m comment --comment \"route LOCAL traffic for {name} external destinations\" \
                 -m addrtype --src-type LOCAL -j {cluster}"
            );
        }
        match frontend.from_elsewhere {
            Verdict::Forward(PoolKind::Cluster) => rule!(rules, "-A {chain} -j {cluster}"),
            Verdict::Forward(PoolKind::Local) => {
                rule!(rules, "-A {chain} -j {}", self.chains.chain(Role::Local));
            }
            // Falls out of the chain, keeps its destination, and is refused in the filter table.
            Verdict::Drop | Verdict::Reject => {}
        }
    }

    fn firewall_rules(&self, rules: &mut String) {
        let Some(sources) = &self.port.source_ranges else { return };
        let name = &self.name;
        let chain = self.chains.chain(Role::Firewall);
        let external = self.chains.chain(Role::External);
        for range in &sources.ranges {
            rule!(
                rules,
                "-A {chain} -m comment --comment \"{name} loadbalancer IP\" -s {range} -j {external}"
            );
        }
        if sources.frontends_too {
            for ip in self.load_balancer_ips() {
                rule!(
                    rules,
                    "-A {chain} -m comment --comment \"{name} loadbalancer IP\" -s {ip} -j {external}"
                );
            }
        }
        // No target: it only counts.
        rule!(
            rules,
            "-A {chain} -m comment --comment \"other traffic to {name} will be dropped by {PROXY_FIREWALL}\""
        );
    }

    fn load_balancer_ips(&self) -> impl Iterator<Item = std::net::IpAddr> {
        let frontends = self.port.frontends.iter();
        frontends
            .filter(|frontend| frontend.exposure == Exposure::LoadBalancerIp)
            .filter_map(|frontend| frontend.ip)
    }
}

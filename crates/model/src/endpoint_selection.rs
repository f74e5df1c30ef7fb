//! Which endpoints a service port uses: readiness, termination, locality and hints.
//!
//! Nothing else decides this. `portwarden explain` runs the same code with a [`DecisionObserver`].

#[cfg(test)]
mod tests;

use crate::endpoints::{Candidate, HintMatch};
use crate::name::PortName;
use crate::pool::{Backend, Pool};

/// Which pools the traffic policies of a service port need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeededPools {
    pub(crate) cluster: bool,
    pub(crate) local: bool,
}

/// The endpoints that a service port uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Selection {
    pub(crate) cluster: Pool,
    pub(crate) local: Pool,
    /// A usable endpoint exists somewhere in the cluster, even if no pool holds it.
    pub(crate) has_any: bool,
}

/// How hints narrow the cluster-wide pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Hints are not used.
    Everywhere,
    /// Only endpoints hinted for this node.
    SameNode,
    /// Only endpoints hinted for this node's zone.
    SameZone,
}

/// Why an endpoint is in a pool, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The endpoint is ready.
    Ready,
    /// Terminating but still serving, and no endpoint is ready.
    TerminatingFallback,
    /// Ready, but hinted for other nodes while another endpoint is hinted for this node.
    HintedForOtherNodes,
    /// Ready, but hinted for other zones while another endpoint is hinted for this node's zone.
    HintedForOtherZones,
    /// The policy is Local, and the endpoint runs on another node.
    OnAnotherNode,
    /// Neither ready nor terminating.
    NotReady,
    /// Terminating, and other endpoints are ready.
    TerminatingWhileOthersAreReady,
    /// Terminating, and no longer serving.
    TerminatingAndNotServing,
}

impl Reason {
    /// Whether the endpoint is used.
    pub fn used(self) -> bool {
        matches!(self, Reason::Ready | Reason::TerminatingFallback)
    }
}

/// Receives decisions while they are made. The unit type ignores them at no cost.
pub(crate) trait DecisionObserver {
    /// The decisions that follow concern this port.
    fn port(&mut self, _name: &PortName) {}
    /// How hints narrow the cluster-wide pool.
    fn topology(&mut self, _topology: Topology) {}
    /// Whether an endpoint is in the cluster-wide pool.
    fn cluster(&mut self, _candidate: &Candidate<'_>, _reason: Reason) {}
    /// Whether an endpoint is in the local pool.
    fn local(&mut self, _candidate: &Candidate<'_>, _reason: Reason) {}
}

impl DecisionObserver for () {}

/// Fills the needed pools.
pub(crate) fn select_endpoints(
    candidates: &[Candidate<'_>],
    needed: NeededPools,
    observer: &mut impl DecisionObserver,
) -> Selection {
    let mut selection = Selection::default();
    if needed.cluster {
        let topology = topology(candidates);
        observer.topology(topology);
        let (pool, fallback) =
            ready_or_fallback(candidates, |c| c.conditions.ready && available(c, topology), |_| true);
        selection.has_any = !pool.is_empty();
        for candidate in candidates {
            observer.cluster(candidate, cluster_reason(candidate, topology, fallback));
        }
        selection.cluster = Pool::new(&pool);
    }
    if needed.local {
        selection.has_any |= candidates.iter().any(usable);
        let (pool, fallback) = ready_or_fallback(candidates, |c| c.conditions.ready && c.local, |c| c.local);
        for candidate in candidates {
            observer.local(candidate, local_reason(candidate, fallback));
        }
        let same = pool.len() == selection.cluster.len() && pool.iter().copied().eq(selection.cluster.iter());
        selection.local = if same { selection.cluster.clone() } else { Pool::new(&pool) };
    }
    selection
}

/// The preferred endpoints or, if there are none, the terminating ones that still serve; and whether the fallback was used.
fn ready_or_fallback(
    candidates: &[Candidate<'_>],
    preferred: impl Fn(&Candidate<'_>) -> bool,
    eligible: impl Fn(&Candidate<'_>) -> bool,
) -> (Vec<Backend>, bool) {
    let pick = |test: &dyn Fn(&Candidate<'_>) -> bool| -> Vec<Backend> {
        candidates.iter().filter(|c| test(c)).map(Candidate::backend).collect()
    };
    let pool = pick(&preferred);
    if pool.is_empty() { (pick(&|c| is_fallback(c) && eligible(c)), true) } else { (pool, false) }
}

/// Hints count only if every ready endpoint has one and at least one matches this node. Node hints take precedence over zone hints.
fn topology(candidates: &[Candidate<'_>]) -> Topology {
    let ready = || candidates.iter().filter(|c| c.conditions.ready);
    let counts = |hint: fn(&Candidate<'_>) -> HintMatch| {
        ready().all(|c| hint(c) != HintMatch::Absent) && ready().any(|c| hint(c) == HintMatch::ThisNode)
    };
    if counts(|c| c.node_hint) {
        Topology::SameNode
    } else if counts(|c| c.zone_hint) {
        Topology::SameZone
    } else {
        Topology::Everywhere
    }
}

fn available(candidate: &Candidate<'_>, topology: Topology) -> bool {
    match topology {
        Topology::Everywhere => true,
        Topology::SameNode => candidate.node_hint == HintMatch::ThisNode,
        Topology::SameZone => candidate.zone_hint == HintMatch::ThisNode,
    }
}

fn is_fallback(candidate: &Candidate<'_>) -> bool {
    candidate.conditions.serving && candidate.conditions.terminating
}

fn usable(candidate: &Candidate<'_>) -> bool {
    candidate.conditions.ready || is_fallback(candidate)
}

fn cluster_reason(candidate: &Candidate<'_>, topology: Topology, fallback: bool) -> Reason {
    match (candidate.conditions.ready, topology) {
        (true, _) if available(candidate, topology) => Reason::Ready,
        (true, Topology::SameNode) => Reason::HintedForOtherNodes,
        (true, _) => Reason::HintedForOtherZones,
        (false, _) => unready_reason(candidate, fallback),
    }
}

fn local_reason(candidate: &Candidate<'_>, fallback: bool) -> Reason {
    match (candidate.local, candidate.conditions.ready) {
        (false, _) => Reason::OnAnotherNode,
        (true, true) => Reason::Ready,
        (true, false) => unready_reason(candidate, fallback),
    }
}

fn unready_reason(candidate: &Candidate<'_>, fallback: bool) -> Reason {
    match (candidate.conditions.terminating, candidate.conditions.serving) {
        (false, _) => Reason::NotReady,
        (true, false) => Reason::TerminatingAndNotServing,
        (true, true) if fallback => Reason::TerminatingFallback,
        (true, true) => Reason::TerminatingWhileOthersAreReady,
    }
}

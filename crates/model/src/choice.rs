//! Which endpoints a service port uses: readiness, termination, locality and hints.
//!
//! This is the one place where that is decided. Whoever wants to know why gets it from the same code through [`Why`].

#[cfg(test)]
mod tests;

use crate::endpoints::{Candidate, HintMatch};
use crate::name::PortName;
use crate::pool::{Backend, Pool};

/// Which pools the policies of a service port ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) cluster: bool,
    pub(crate) local: bool,
}

/// The pools of a service port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Choice {
    pub(crate) cluster: Pool,
    pub(crate) local: Pool,
    /// A usable endpoint exists somewhere, even if no pool holds it.
    pub(crate) has_any: bool,
}

/// How hints narrow the cluster-wide pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Not at all.
    Everywhere,
    /// To endpoints hinted for this node.
    SameNode,
    /// To endpoints hinted for this node's zone.
    SameZone,
}

/// Why an endpoint is in a pool, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is ready.
    Ready,
    /// It is going away but still answers, and nothing better exists.
    TerminatingFallback,
    /// It is ready, but hinted for other nodes while one is hinted for ours.
    HintedForOtherNodes,
    /// It is ready, but hinted for other zones while one is hinted for ours.
    HintedForOtherZones,
    /// It runs on another node, and the policy is Local.
    OnAnotherNode,
    /// It is neither ready nor going away.
    NotReady,
    /// It is going away, and ready ones exist.
    TerminatingWhileOthersAreReady,
    /// It is going away and no longer answers.
    TerminatingAndNotServing,
}

impl Reason {
    /// Whether the endpoint is used.
    pub fn used(self) -> bool {
        matches!(self, Reason::Ready | Reason::TerminatingFallback)
    }
}

/// Listens to decisions while they are made. The unit type does not care, and costs nothing.
pub(crate) trait Why {
    /// The decisions that follow are about this port.
    fn port(&mut self, _name: &PortName) {}
    /// The cluster-wide pool is narrowed like this.
    fn topology(&mut self, _topology: Topology) {}
    /// An endpoint is in the cluster-wide pool, or not.
    fn cluster(&mut self, _candidate: &Candidate<'_>, _reason: Reason) {}
    /// An endpoint is in the local pool, or not.
    fn local(&mut self, _candidate: &Candidate<'_>, _reason: Reason) {}
}

impl Why for () {}

/// Fills the pools that are needed.
pub(crate) fn choose(candidates: &[Candidate<'_>], needs: Needs, why: &mut impl Why) -> Choice {
    let mut choice = Choice::default();
    if needs.cluster {
        let topology = topology(candidates);
        why.topology(topology);
        let (pool, fallback) = select(candidates, |c| c.conditions.ready && available(c, topology), |_| true);
        choice.has_any = !pool.is_empty();
        for candidate in candidates {
            why.cluster(candidate, cluster_reason(candidate, topology, fallback));
        }
        choice.cluster = Pool::new(&pool);
    }
    if needs.local {
        choice.has_any |= candidates.iter().any(usable);
        let (pool, fallback) = select(candidates, |c| c.conditions.ready && c.local, |c| c.local);
        for candidate in candidates {
            why.local(candidate, local_reason(candidate, fallback));
        }
        let same = pool.len() == choice.cluster.len() && pool.iter().copied().eq(choice.cluster.iter());
        choice.local = if same { choice.cluster.clone() } else { Pool::new(&pool) };
    }
    choice
}

/// The preferred endpoints or, if there is none, those going away that still answer; and whether that was so.
fn select(
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

/// Hints count only if every ready endpoint has one and at least one is for us; node hints come first.
fn topology(candidates: &[Candidate<'_>]) -> Topology {
    let ready = || candidates.iter().filter(|c| c.conditions.ready);
    let counts = |hint: fn(&Candidate<'_>) -> HintMatch| {
        ready().all(|c| hint(c) != HintMatch::Absent) && ready().any(|c| hint(c) == HintMatch::Us)
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
        Topology::SameNode => candidate.node_hint == HintMatch::Us,
        Topology::SameZone => candidate.zone_hint == HintMatch::Us,
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

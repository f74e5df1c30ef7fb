//! What holds for any cluster and any sequence of events.

mod changes;
mod convergence;
mod invariants;
mod manifests;
mod naive;
mod server;

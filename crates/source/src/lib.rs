//! Where objects come from: a Kubernetes API server or a folder of manifests.
//!
//! A source runs on the process's single-threaded runtime and pushes [`Update`]s into a [`Sink`]: batches of model events,
//! problems with objects (each once), and its own state. Nothing else leaves this crate.

pub mod files;
pub mod kubernetes;
mod report;
mod settle;
mod sink;
pub mod wire;

pub use sink::{Batch, Closed, Health, Sink, Status, Update};

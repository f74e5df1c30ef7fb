//! Where objects come from: a Kubernetes API server or a folder of manifests.
//!
//! A source runs on the process's single-threaded runtime and pushes [`Update`]s into a [`Sink`]: batches of model events,
//! problems with objects (each once), and its own state.

pub mod files;
pub mod kubernetes;
mod manifest;
mod reported_problems;
mod sink;
pub mod wire;

pub use sink::{Batch, Closed, Health, Running, Sink, Status, Update};

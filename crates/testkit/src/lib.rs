//! Namespaces, traffic, an API server and scenarios for tests.
//!
//! The bench every dataplane is tried on: a small dual-stack cluster made of real network namespaces
//! ([`topology`]), and probes that send real TCP and UDP through it and say what became of them ([`probe`]). A [`rig`] puts a
//! dataplane into it, the [`oracle`] predicts the outcome, and [`scenario`]s describe it in files.

pub mod apiserver;
pub mod bpf;
pub mod browser;
pub mod drive;
pub mod harness;
pub mod netns;
pub mod oracle;
pub mod probe;
pub mod random;
pub mod rig;
mod route;
pub mod saved_rules;
pub mod scenario;
pub mod strategies;
pub mod topology;
pub mod wait;

pub use netns::Namespace;
pub use portwarden_model::build;
pub use probe::{Outcome, Refusal, Transport};
pub use topology::{Host, Topology};

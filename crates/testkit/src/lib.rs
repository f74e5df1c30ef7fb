//! Namespaces, traffic, an API server and scenarios for tests.
//!
//! The bench every dataplane is tried on: a small dual-stack cluster made of real network namespaces
//! ([`topology`]), and probes that send real TCP and UDP through it and say what became of them ([`probe`]).

pub mod netns;
pub mod probe;
mod route;
pub mod topology;
pub mod wait;

pub use netns::Namespace;
pub use probe::{Outcome, Refusal, Transport};
pub use topology::{Host, Topology};

//! The binary as a library, so that tests build the same parts as `main` does.
//!
//! ```text
//! arguments, file ──> config ──> app ──> source ──> engine ──> dataplanes
//!                                 └────> servers: health, status, introspection
//! ```

pub mod app;
pub mod command;
pub(crate) mod commands;
pub mod config;
pub mod engine;
pub mod events;
pub(crate) mod explain;
pub mod flags;
mod follow;
pub mod health;
pub mod host;
pub mod http;
pub mod introspection;
pub mod logging;
pub mod metrics;
pub mod modes;
pub mod status;
pub mod version;

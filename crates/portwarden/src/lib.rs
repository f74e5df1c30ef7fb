//! The binary as a library.

pub mod config;
pub mod flags;

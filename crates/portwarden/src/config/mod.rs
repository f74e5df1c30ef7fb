//! Configuration.
pub mod decode;
pub mod document;
pub mod duration;
pub mod gates;
mod host_port;
pub mod quantity;
mod tree;

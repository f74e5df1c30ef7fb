//! Health: whether the rules in the kernel are up to date, and whether the node accepts traffic.
//!
//! | file | what |
//! |---|---|
//! | `state.rs` | [`SharedHealth`]: written by the engine, read by the servers |
//! | `server.rs` | `/healthz` and `/livez` |
//! | `service_ports.rs` | `healthCheckNodePort` of Services |

mod server;
mod service_ports;
mod state;

pub use server::handler;
pub use service_ports::{ServicePorts, ServicePortsContext};
pub use state::SharedHealth;

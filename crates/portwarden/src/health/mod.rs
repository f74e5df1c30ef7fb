//! Health: whether the rules in the kernel are up to date, and whether the node wants traffic.
//!
//! | file | what |
//! |---|---|
//! | `state.rs` | [`SharedHealth`]: noted by the engine, read by the servers |
//! | `server.rs` | `/healthz` and `/livez` |
//! | `service_ports.rs` | the health-check node ports of Services |

mod server;
mod service_ports;
mod state;

pub use server::handler;
pub use service_ports::{ServicePorts, ServicePortsContext};
pub use state::SharedHealth;

//! Small HTTP servers that survive their clients.
//!
//! A node's health must be answerable whatever else talks to the port: connections are bounded (the oldest one makes room), headers are
//! bounded in size, number and time, and no connection lives for ever.

mod answer;
mod listen;
mod serve;
mod server;

pub use answer::{Answer, answer, compressible, json, not_found, text, with_header};
pub use listen::{Sockets, bind};
pub use serve::{Handler, Limits, Request, serve};
pub use server::{BindError, Plan, Server};

//! HTTP servers with limits.
//!
//! A health check must get its answer whatever other clients do: the number of connections is limited (a new one closes the oldest), headers
//! are limited in size, number and time, and every connection has a maximum age.

mod answer;
mod listen;
mod serve;
mod server;

pub use answer::{Answer, Body, answer, compressible, json, not_found, stream, text, with_header};
pub use listen::{Sockets, bind};
pub use serve::{ConnectionLimit, Handler, Limits, Request, serve};
pub use server::{BindError, Server, ServerOptions};

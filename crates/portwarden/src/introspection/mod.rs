//! A view into the running process: the answers for `portwarden status`, `portwarden explain` and the live page.
//!
//! An HTTP server of its own, on a loopback address by default, read-only.
//!
//! | path | answer | file |
//! |---|---|---|
//! | `/` and its files | the live page | `page.rs` |
//! | `/api/status` | [`api::Status`] | `status.rs` |
//! | `/api/events` | the same once a second, as server-sent events | `stream.rs` |
//! | `/api/series` | [`api::Series`], for plots | `activity/samples.rs` |
//! | `/api/timeline` | [`api::Timeline`] | `activity.rs` |
//! | `/api/services?query=&state=troubled&page=` | [`api::ServicePage`] | `services.rs` |
//! | `/api/explain?service=NAMESPACE/NAME` | [`ServiceExplanation`] | `explanation.rs` |
//! | `/api/explain?to=IP:PORT/PROTOCOL&from=IP` | [`PacketExplanation`] | `packet.rs` |
//!
//! An error is an [`api::ApiError`] with a status that is not 200. `request.rs` decides which requests are answered, `server.rs` answers them.
//!
//! The engine is not slowed: it publishes what it does into [`Activity`], and looks up Services only on request, for a limited number of
//! requests with a bounded amount of work each.

mod activity;
pub mod api;
mod explanation;
mod packet;
mod page;
mod request;
mod server;
mod services;
mod status;
mod stream;

#[cfg(test)]
mod tests;

pub use activity::{Activity, SyncRecord};
pub use explanation::{
    Action, EndpointUse, ExplainedEndpoint, ExplainedFamily, ExplainedFrontend, ExplainedPort,
    ExplainedVerdict, ExposureName, ServiceExplanation, explain_service, similar_services,
};
pub use packet::{Origin, Packet, PacketError, PacketExplanation, explain_packet};
pub use server::Introspection;
pub use status::{Identity, Sources};

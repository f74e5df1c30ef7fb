//! The configuration: as written, as validated, and the one way between them.
//!
//! ```text
//! bytes ──decode──> Document ─┐
//!                             ├─validate──> Config ──write──> file, /configz
//! arguments ──parse──> Flags ─┘              └──reload_plan──> what a changed file means
//! ```
//!
//! | file | what |
//! |---|---|
//! | `document.rs` | [`Document`](document::Document): a file as written, every field optional |
//! | `tree.rs`, `decode.rs` | bytes to a document, with remarks on unknown and repeated fields |
//! | `defaults.rs`, `effective.rs` | what is filled in, and whether file or flag wins |
//! | `validate.rs` and its folder | every rule, each where its value gets its final type |
//! | `typed.rs` | [`Config`]: what the program runs on |
//! | `load.rs` | the whole way, with the file read by the caller |
//! | `problems.rs` | all that is wrong, each with its field |
//! | `node_checks.rs` | what only makes sense, or not, on this very node |
//! | `write.rs`, `yaml.rs` | the effective configuration as a file and as `/configz` |
//! | `reload.rs` | what a change needs: nothing, a live update, a part's restart |
//! | `gates/` | feature gates |
//! | `duration.rs`, `quantity.rs`, `host_port.rs` | values as Go and Kubernetes write them |

pub mod decode;
mod defaults;
pub mod document;
pub mod duration;
mod effective;
pub mod gates;
pub(crate) mod host_port;
mod load;
mod node_checks;
mod problems;
pub mod quantity;
mod reload;
mod tree;
mod typed;
mod validate;
mod write;
mod yaml;

pub use crate::modes::Mode;
pub use decode::{DecodeError, Decoded, decode};
pub use load::{LoadError, load};
pub use node_checks::{NodeFacts, Verdict, check};
pub use problems::{Problem, ProblemKind, Problems, Step};
pub use reload::{Change, Effect, Part, Plan, reload_plan};
pub use typed::{
    ApiClient, Config, Conntrack, Defaulted, ExcludedRanges, Ipvs, LogFormat, Logging, Masquerade, Pacing,
    RateLimit, Servers, Source,
};
pub use validate::{LoadedConfig, Notice, validate};
pub use write::{to_configz, to_yaml};

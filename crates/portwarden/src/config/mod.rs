//! The configuration: what was written, what the program runs on, and the one way between them.
//!
//! ```text
//! bytes ──decode──> Values ─┐
//!                           ├─resolve──> Values ──validate──> Config ──> file, /configz
//! arguments ──parse─> Flags ┘                                  └──reload_plan──> what a changed file means
//! ```
//!
//! | file | what |
//! |---|---|
//! | `options/` | every option in one table: flag, field, default, rules, reload |
//! | `tree.rs`, `decode.rs` | bytes to the values of options, with remarks on unknown and repeated fields |
//! | `resolve.rs` | whether file or flag wins, what is filled in, what depends on the mode |
//! | `validate.rs` | the rules that involve several options, and what the operator should know |
//! | `typed.rs` | [`Config`]: what the program runs on |
//! | `load.rs` | the whole way, with the file read by the caller |
//! | `problems.rs` | all that is wrong, each with its field |
//! | `node_checks.rs` | what is wrong only on this node: addresses of the wrong family |
//! | `document.rs`, `yaml.rs` | the effective configuration as a file and as `/configz` |
//! | `reload.rs` | what a change needs: nothing, a live update, a part's restart |
//! | `gates/` | feature gates |
//! | `duration.rs`, `quantity.rs`, `host_port.rs` | values as Go and Kubernetes write them |

pub mod decode;
mod document;
pub mod duration;
pub mod gates;
pub(crate) mod host_port;
mod load;
mod node_checks;
pub mod options;
mod problems;
pub mod quantity;
mod reload;
mod resolve;
mod tree;
mod typed;
mod validate;
mod yaml;

pub use crate::modes::Mode;
pub use decode::{DecodeError, Decoded, decode};
pub use document::{to_configz, to_yaml};
pub use load::{LoadError, load, load_changed, read_file};
pub use node_checks::{NodeFacts, Verdict, check};
pub use problems::{Problem, Problems};
pub use reload::{Change, Effect, Part, Plan, reload_plan};
pub use typed::{
    ApiClient, Config, Conntrack, Defaulted, ExcludedRanges, Ipvs, LogFormat, Logging, Masquerade, Notrack,
    Pacing, RateLimit, Servers, Source, Userspace,
};
pub use validate::{LoadedConfig, Notice, validate};

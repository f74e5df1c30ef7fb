//! The ipvs dataplane: kernel virtual servers on a dummy device, with ipsets and a few static iptables rules around them.
//!
//! [`plan`] translates one Service, [`wanted`] adds the Services up and knows beside each object whether the kernel has it, [`rules`] renders
//! the static rules. [`Ipvs`] brings the kernel to that state and drains real servers that leave. Nothing here runs a program but those of
//! iptables.

mod addresses;
mod cleanup;
mod dataplane;
mod drain;
mod error;
mod kernel;
mod names;
mod options;
mod ownership;
pub mod plan;
mod read_back;
mod rules;
mod settings;
mod slots;
mod static_rules;
mod virtual_servers;
pub mod wanted;

pub use cleanup::{CHAINS, Leftovers, empty_chains, has_chains, remove_chains, remove_jumps, remove_sets};
pub use dataplane::Ipvs;
pub use error::Error;
pub use names::{DEVICE, SetId};
pub use options::Options;
pub use read_back::{FoundServer, find_servers};
pub use rules::{Chain, JUMPS, Jump, RuleInput, SourceDrop, render};
pub use settings::{Sysctl, apply_sysctls, check_kernel, load_module, set_timeouts, wanted_sysctls};

//! The host: its name, addresses, IP families and sysctls.

mod addresses;
mod families;
mod instance;
mod privileges;
mod process;
mod sysctl;

pub use addresses::{HostAddressError, HostAddresses};
pub use families::{FamilySupport, has_ipv6};
pub use instance::{Instance, OtherInstance};
pub use privileges::{PrivilegeError, check_privileges};
pub use process::{NodeNameError, node_name, raise_descriptor_limit, set_oom_score};
pub use sysctl::{Kernel, SysctlError};

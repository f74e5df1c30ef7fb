//! TCP node ports on 127.0.0.1 and ::1 in nftables mode, served in user space: the kernel cannot translate packets to these addresses.
//!
//! Only with kube-proxy's feature gate `KubeProxyNFTablesLocalhostNodePorts`, and only where `nodePortAddresses` names loopback
//! addresses. Other protocols are refused by rules of the dataplane.
//!
//! | file | what |
//! |---|---|
//! | `proxy.rs` | opens and closes listeners after syncs |
//! | `listener.rs` | takes in the connections of one port and passes bytes on |
//! | `choice.rs` | which endpoint the next connection goes to |

mod choice;
mod listener;
mod proxy;
#[cfg(test)]
mod tests;

pub use proxy::{LoopbackContext, LoopbackProxy};

//! What this process may do.

use std::fs;
use std::path::Path;

/// The number of `CAP_NET_ADMIN` in the kernel's sets of capabilities.
const NET_ADMIN: u32 = 12;

/// The process may not change the node's rules.
#[derive(Debug, thiserror::Error)]
#[error(
    "this process may not change the node's network rules: it lacks CAP_NET_ADMIN. Run it as root (`sudo portwarden ...`), as a service with \
     AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW, or in a container with securityContext.privileged: true"
)]
pub struct PrivilegeError;

/// Whether this process may change network rules. `proc` is the path of `/proc`; if that cannot be read, later steps find out.
pub fn check_privileges(proc: &Path) -> Result<(), PrivilegeError> {
    match effective_capabilities(proc) {
        Some(capabilities) if capabilities & (1 << NET_ADMIN) == 0 => Err(PrivilegeError),
        Some(_) | None => Ok(()),
    }
}

fn effective_capabilities(proc: &Path) -> Option<u64> {
    let status = fs::read_to_string(proc.join("self/status")).ok()?;
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_decides() {
        let proc = tempfile::tempdir().expect("a folder");
        assert!(check_privileges(proc.path()).is_ok(), "unknown");
        fs::create_dir(proc.path().join("self")).expect("a folder");
        let status = |set: &str| {
            fs::write(proc.path().join("self/status"), format!("Name:\tx\nCapEff:\t{set}\n"))
                .expect("writes");
        };
        status("0000000000000000");
        assert!(check_privileges(proc.path()).is_err());
        status("0000000000001000");
        assert!(check_privileges(proc.path()).is_ok());
        status("000001ffffffffff");
        assert!(check_privileges(proc.path()).is_ok());
    }
}

//! Which IP families this host can serve.

use std::fs;
use std::path::Path;

use portwarden_model::{Family, PerFamily};

/// Whether the kernel has IPv6 and it is not disabled. `root` is the path of `/proc`.
pub fn has_ipv6(root: &Path) -> bool {
    let disabled = fs::read_to_string(root.join("sys/net/ipv6/conf/all/disable_ipv6"));
    root.join("net/if_inet6").exists() && disabled.map_or(true, |text| text.trim() != "1")
}

/// Which families can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilySupport(pub PerFamily<bool>);

impl FamilySupport {
    /// The families to serve, IPv4 first.
    pub fn families(&self) -> Vec<Family> {
        Family::BOTH.into_iter().filter(|family| self.0[*family]).collect()
    }

    /// Whether both can be served.
    pub fn is_dual_stack(&self) -> bool {
        self.0.v4 && self.0.v6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_needs_its_files_and_must_not_be_switched_off() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(!has_ipv6(root.path()));
        fs::create_dir_all(root.path().join("net")).expect("a folder");
        fs::write(root.path().join("net/if_inet6"), "").expect("a file");
        assert!(has_ipv6(root.path()));
        let conf = root.path().join("sys/net/ipv6/conf/all");
        fs::create_dir_all(&conf).expect("a folder");
        fs::write(conf.join("disable_ipv6"), "1\n").expect("a file");
        assert!(!has_ipv6(root.path()));
        fs::write(conf.join("disable_ipv6"), "0\n").expect("a file");
        assert!(has_ipv6(root.path()));
    }
}

//! The name of the node, and limits of this process: OOM score and descriptors.

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Why the name of the Node is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    /// The system call failed.
    #[error("cannot read this host's name; set --hostname-override to the name of the Node")]
    Hostname(#[source] io::Error),
    /// The name is empty.
    #[error("this host has no name; set --hostname-override to the name of the Node")]
    Empty,
}

/// The name of the Node: the given one or that of the host, trimmed and in lower case.
pub fn node_name(given: Option<&str>) -> Result<String, NodeNameError> {
    let name = match given {
        Some(given) => given.to_owned(),
        None => {
            let name = nix::unistd::gethostname().map_err(|errno| NodeNameError::Hostname(errno.into()))?;
            name.to_string_lossy().into_owned()
        }
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() { Err(NodeNameError::Empty) } else { Ok(name) }
}

/// Raises the soft limit of open descriptors to the hard one.
pub fn raise_descriptor_limit() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
}

/// Sets how likely the kernel is to kill this process when memory runs out. `root` is the path of `/proc`.
pub fn set_oom_score(root: &Path, score: i32) -> io::Result<()> {
    fs::write(root.join("self/oom_score_adj"), score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_and_lower_case() {
        assert_eq!(node_name(Some("  Node-A ")).expect("a name"), "node-a");
        assert!(matches!(node_name(Some("  ")), Err(NodeNameError::Empty)));
        let own = node_name(None).expect("this host has a name");
        assert_eq!(own, own.trim().to_lowercase());
    }

    #[test]
    fn the_score_is_written() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("self")).expect("a folder");
        set_oom_score(root.path(), -999).expect("writes");
        assert_eq!(fs::read_to_string(root.path().join("self/oom_score_adj")).expect("reads"), "-999");
    }
}

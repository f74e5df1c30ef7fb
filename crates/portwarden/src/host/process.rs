//! This process and the name of the node it runs on.

use std::fs;
use std::io;
use std::path::Path;

/// Why the Node's name is not known.
#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    /// The kernel did not tell.
    #[error("cannot read this host's name; give the Node's name with --hostname-override")]
    Hostname(#[source] io::Error),
    /// It is empty.
    #[error("this host has no name; give the Node's name with --hostname-override")]
    Empty,
}

/// The Node's name: as given, or this host's, without blanks around it and in lower case.
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

/// Tells the kernel how willingly to end this process when memory runs out. `root` is where `/proc` is.
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

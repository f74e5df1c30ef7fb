//! What this build is.

use crate::metrics::BuildInfo;

/// Portwarden's own version.
pub const OWN: &str = env!("CARGO_PKG_VERSION");

/// What `kubernetes_build_info` shows.
pub fn build_info(reported: &str) -> BuildInfo {
    BuildInfo {
        git_version: reported.to_owned(),
        git_commit: option_env!("PORTWARDEN_COMMIT").unwrap_or_default().to_owned(),
    }
}

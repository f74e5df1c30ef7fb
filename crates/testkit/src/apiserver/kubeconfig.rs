//! The file with which clients find the server.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::BASE64;

/// Writes `NAME.kubeconfig` into a folder.
pub(super) fn write(folder: &Path, url: &str, authority: &str, name: &str, user: &str) -> Result<PathBuf> {
    let authority = BASE64.encode(authority.as_bytes());
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: '{url}', certificate-authority-data: {authority}}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: {name}}}}}]\n\
         users: [{{name: {name}, user: {{{user}}}}}]\n"
    );
    let file = folder.join(format!("{name}.kubeconfig"));
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

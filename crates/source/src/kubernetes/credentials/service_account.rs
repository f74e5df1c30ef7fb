//! The service account of the pod that this process runs in.

use super::{Access, AccessError, Environment, server_address, trust_file};

/// Reads the server from the environment, and its certificate authority and the token from the service account.
pub(super) fn from_pod(environment: &Environment) -> Result<Access, AccessError> {
    let (Some(host), Some(port)) = (&environment.service_host, &environment.service_port) else {
        let missing = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set";
        return Err(AccessError::NotInCluster(missing.to_owned()));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut config = kube::Config::new(server_address(&format!("https://{host}:{port}"), true)?);
    let token_file = environment.service_account.join("token");
    if let Err(error) = std::fs::metadata(&token_file) {
        return Err(AccessError::NotInCluster(format!("{}: {error}", token_file.display())));
    }
    let authority = environment.service_account.join("ca.crt");
    let trust = if authority.exists() {
        trust_file(&mut config, &authority)?
    } else {
        tracing::warn!(file = %authority.display(), "The service account has no certificate authority; using the system's");
        "the system's certificate authorities".to_owned()
    };
    let identity = format!("the service account token in {}", token_file.display());
    Ok(Access { config, token_file: Some(token_file), proxy: None, identity, trust })
}

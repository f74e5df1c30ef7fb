//! A kubeconfig file: server, certificate authority, proxy and credentials.

use std::path::{Path, PathBuf};

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::{AuthInfo, Cluster, Kubeconfig};

use super::{Access, AccessError, certificates, exec_plugin, server_address, trust_file};

/// Reads the cluster and the user of the current context; `master` replaces the server.
pub(super) fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<Access, AccessError> {
    let problem = |problem: String| AccessError::KubeconfigContent { path: path.to_owned(), problem };
    let refused = |source| AccessError::Kubeconfig { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(|error| {
        problem(format!(
            "cannot be read: {error}; check --kubeconfig, or clientConnection.kubeconfig in the configuration"
        ))
    })?;
    let text = text_of(bytes).map_err(|what| problem(what.to_owned()))?;
    let kubeconfig = Kubeconfig::from_yaml(&text).map_err(refused)?;
    let (mut cluster, user_name, mut user) = current(&kubeconfig).map_err(problem)?;
    resolve_paths(&mut cluster, &mut user, path);
    let uses_tls = cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some();
    let server = match master {
        Some(master) => master,
        None => cluster
            .server
            .as_deref()
            .filter(|server| !server.is_empty())
            .ok_or_else(|| problem("names no server".to_owned()))?,
    };
    let mut config = kube::Config::new(server_address(server, uses_tls)?);
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.tls_server_name = cluster.tls_server_name.clone().filter(|name| !name.is_empty());
    let trust = trust_cluster(&mut config, &cluster, path)?;
    let proxy = cluster.proxy_url.as_deref().filter(|url| !url.is_empty());
    let proxy = proxy.map(|url| explicit_proxy(url, &config.cluster_url)).transpose()?;
    if let Some(exec) = &mut user.exec {
        exec_plugin::add_cluster(exec, &cluster).map_err(refused)?;
    }
    let identity = identity(&user, &user_name, path);
    let token_file = user.token_file.take().filter(|file| !file.is_empty()).map(PathBuf::from);
    if token_file.is_some() {
        // The file takes precedence, as in client-go: the inline token is a copy from an earlier time.
        user.token = None;
    }
    config.auth_info = user;
    Ok(Access { config, token_file, proxy, identity, trust })
}

/// The text of a file: UTF-8, or UTF-16 with a byte order mark, as Windows writes it. `Kubeconfig::read_from` does the same, but panics on
/// UTF-16 with an odd number of bytes.
fn text_of(bytes: Vec<u8>) -> Result<String, &'static str> {
    let utf16 = |rest: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, rest) = rest.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("is UTF-16 and ends in the middle of a character; copy it again");
        }
        let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
        String::from_utf16(&units).map_err(|_| "is not valid UTF-16")
    };
    match bytes.as_slice() {
        [0xFF, 0xFE, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xFE, 0xFF, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xEF, 0xBB, 0xBF, rest @ ..] => String::from_utf8(rest.to_vec()).map_err(|_| "is not valid UTF-8"),
        _ => String::from_utf8(bytes).map_err(|_| "is not valid UTF-8"),
    }
}

/// Files are relative to the folder of the kubeconfig; so is a plugin, unless it is a bare name, which is looked up in `PATH`.
fn resolve_paths(cluster: &mut Cluster, user: &mut AuthInfo, kubeconfig: &Path) {
    let Some(folder) = kubeconfig.parent() else { return };
    let plugin = user.exec.as_mut().and_then(|exec| exec.command.as_mut());
    let files = [
        cluster.certificate_authority.as_mut(),
        user.client_certificate.as_mut(),
        user.client_key.as_mut(),
        user.token_file.as_mut(),
        plugin.filter(|command| command.contains('/')),
    ];
    for file in files.into_iter().flatten().filter(|file| !file.is_empty()) {
        if let Some(absolute) = folder.join(file.as_str()).to_str() {
            *file = absolute.to_owned();
        }
    }
}

/// The cluster and user of the current context. A user that does not exist has no credentials.
fn current(kubeconfig: &Kubeconfig) -> Result<(Cluster, String, AuthInfo), String> {
    let name = kubeconfig.current_context.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or("has no current-context")?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == name);
    let context = context.and_then(|named| named.context.as_ref());
    let context = context.ok_or_else(|| format!("has no context {name:?}, which is its current-context"))?;
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster.clone());
    let cluster = cluster
        .ok_or_else(|| format!("has no cluster {:?}, which context {name:?} names", context.cluster))?;
    let user_name = context.user.clone().unwrap_or_default();
    let user = kubeconfig.auth_infos.iter().find(|user| user.name == user_name);
    let user = user.and_then(|named| named.auth_info.clone()).unwrap_or_default();
    Ok((cluster, user_name, user))
}

/// Describes the credentials for log messages.
fn identity(user: &AuthInfo, name: &str, path: &Path) -> String {
    let of_user = format!("of user {name:?} in {}", path.display());
    let certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    match user {
        AuthInfo { token_file: Some(file), .. } => format!("the token in {file}"),
        AuthInfo { token: Some(_), .. } => format!("the token {of_user}"),
        AuthInfo { exec: Some(exec), .. } => {
            format!("{} {of_user}", exec_plugin::describe(exec))
        }
        AuthInfo { auth_provider: Some(provider), .. } => {
            format!("credentials from the auth provider {:?} {of_user}", provider.name)
        }
        AuthInfo { username: Some(_), .. } => format!("the password {of_user}"),
        _ if certificate => format!("the client certificate {of_user}"),
        _ => "no credentials".to_owned(),
    }
}

fn trust_cluster(config: &mut kube::Config, cluster: &Cluster, path: &Path) -> Result<String, AccessError> {
    if config.accept_invalid_certs {
        return Ok("any certificate, as insecure-skip-tls-verify says".to_owned());
    }
    if let Some(data) = cluster.certificate_authority_data.as_deref().filter(|data| !data.is_empty()) {
        let place = path.display().to_string();
        let pem = data_encoding::BASE64.decode(data.trim().as_bytes());
        let pem =
            pem.map_err(|error| AccessError::Authority { place: place.clone(), problem: error.to_string() })?;
        config.root_cert = Some(certificates(&pem, &place)?);
        return Ok(format!("the certificate authority in {place}"));
    }
    match cluster.certificate_authority.as_deref().filter(|file| !file.is_empty()) {
        Some(file) => trust_file(config, Path::new(file)),
        None => Ok("the system's certificate authorities".to_owned()),
    }
}

fn explicit_proxy(url: &str, server: &Uri) -> Result<Intercept, AccessError> {
    let proxy = Matcher::builder().all(url.to_owned()).build().intercept(server);
    proxy.ok_or_else(|| AccessError::Address { text: url.to_owned(), what: "a proxy" })
}

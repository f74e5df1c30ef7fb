//! Where the API server is, whom to trust there, and who we are: from a kubeconfig, from a pod's service account, or from
//! nothing but an address.

use std::path::{Path, PathBuf};

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::proxy::Proxies;

/// Why there is no way to talk to an API server. Nothing of this goes away by itself.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be read.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// The kubeconfig refers to something that is not in it.
    #[error("the kubeconfig {path} {problem}")]
    KubeconfigContent {
        /// The file.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },
    /// No kubeconfig, no address, and no pod around us.
    #[error(
        "no kubeconfig and no --master is given, and this is not a pod with a service account ({0}); give --kubeconfig"
    )]
    NotInCluster(String),
    /// An address cannot be parsed.
    #[error("{text:?} is not a usable address of {what}")]
    Address {
        /// What was given.
        text: String,
        /// Whose address it should be.
        what: &'static str,
    },
    /// A certificate authority cannot be used.
    #[error("cannot use the certificate authority in {place}: {problem}")]
    Authority {
        /// Where it comes from.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// The process is ending.
    #[error("interrupted while reading credentials: {0}")]
    Interrupted(String),
    /// Credentials or TLS settings cannot be used.
    #[error("cannot use the credentials or TLS settings of {place}")]
    Credentials {
        /// Where they come from.
        place: String,
        /// What is wrong.
        source: Box<kube::Error>,
    },
}

/// What the process's surroundings say about a cluster.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) service_host: Option<String>,
    pub(crate) service_port: Option<String>,
    /// Where a pod's service account is mounted.
    pub(crate) service_account: PathBuf,
    pub(crate) proxies: Proxies,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn of_process() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Surroundings {
            service_host: variable("KUBERNETES_SERVICE_HOST"),
            service_port: variable("KUBERNETES_SERVICE_PORT"),
            service_account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
            proxies: Proxies::of_process(),
        }
    }
}

/// All that is needed to talk to an API server.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) config: kube::Config,
    /// Read by ourselves: on every refusal, and with blanks around the token.
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) proxy: Option<Intercept>,
    /// Who we say we are, for messages.
    pub(crate) identity: String,
    /// Whom we trust, for messages.
    pub(crate) trust: String,
}

impl Access {
    /// A kubeconfig comes first, `master` replaces its server; with neither, a pod's service account is used.
    pub(crate) fn load(
        kubeconfig: Option<&Path>,
        master: Option<&str>,
        surroundings: &Surroundings,
    ) -> Result<Access, AccessError> {
        let mut access = match (kubeconfig, master) {
            (Some(path), _) => from_kubeconfig(path, master)?,
            (None, Some(master)) => from_master(master)?,
            (None, None) => from_pod(surroundings)?,
        };
        if access.proxy.is_none() {
            access.proxy = surroundings.proxies.towards(&access.config.cluster_url);
        }
        Ok(access)
    }
}

fn from_master(master: &str) -> Result<Access, AccessError> {
    Ok(Access {
        config: kube::Config::new(server_address(master, false)?),
        token_file: None,
        proxy: None,
        identity: "no credentials".to_owned(),
        trust: "the system's certificate authorities".to_owned(),
    })
}

fn from_pod(surroundings: &Surroundings) -> Result<Access, AccessError> {
    let (Some(host), Some(port)) = (&surroundings.service_host, &surroundings.service_port) else {
        let missing = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set";
        return Err(AccessError::NotInCluster(missing.to_owned()));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut config = kube::Config::new(server_address(&format!("https://{host}:{port}"), true)?);
    let token_file = surroundings.service_account.join("token");
    if let Err(error) = std::fs::metadata(&token_file) {
        return Err(AccessError::NotInCluster(format!("{}: {error}", token_file.display())));
    }
    let authority = surroundings.service_account.join("ca.crt");
    let trust = if authority.exists() {
        trust_file(&mut config, &authority)?
    } else {
        tracing::warn!(file = %authority.display(), "no certificate authority in the service account, the system's are used");
        "the system's certificate authorities".to_owned()
    };
    let identity = format!("the service account token in {}", token_file.display());
    Ok(Access { config, token_file: Some(token_file), proxy: None, identity, trust })
}

fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<Access, AccessError> {
    let problem = |problem: String| AccessError::KubeconfigContent { path: path.to_owned(), problem };
    let kubeconfig = Kubeconfig::read_from(path)
        .map_err(|source| AccessError::Kubeconfig { path: path.to_owned(), source })?;
    let (cluster, user_name, mut user) = current(&kubeconfig).map_err(problem)?;
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
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        let info = (&cluster).try_into();
        exec.cluster =
            Some(info.map_err(|source| AccessError::Kubeconfig { path: path.to_owned(), source })?);
    }
    let identity = identity(&user, &user_name, path);
    let token_file = user.token_file.take().filter(|file| !file.is_empty()).map(PathBuf::from);
    if token_file.is_some() {
        // The file counts, as it does for every other client; the inline token is what it was at some time.
        user.token = None;
    }
    config.auth_info = user;
    Ok(Access { config, token_file, proxy, identity, trust })
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

fn identity(user: &AuthInfo, name: &str, path: &Path) -> String {
    let of_user = format!("of user {name:?} in {}", path.display());
    let certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    match user {
        AuthInfo { token_file: Some(file), .. } => format!("the token in {file}"),
        AuthInfo { token: Some(_), .. } => format!("the token {of_user}"),
        AuthInfo { exec: Some(exec), .. } => {
            format!("credentials from the plugin {:?} {of_user}", exec.command.as_deref().unwrap_or_default())
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

/// Trusts the authorities in a file, and follows it when it is replaced.
fn trust_file(config: &mut kube::Config, file: &Path) -> Result<String, AccessError> {
    let place = file.display().to_string();
    let pem = std::fs::read(file)
        .map_err(|error| AccessError::Authority { place: place.clone(), problem: error.to_string() })?;
    config.root_cert = Some(certificates(&pem, &place)?);
    config.root_cert_file = Some(file.to_owned());
    Ok(format!("the certificate authority in {place}"))
}

fn certificates(pem: &[u8], place: &str) -> Result<Vec<Vec<u8>>, AccessError> {
    let problem = |problem: String| AccessError::Authority { place: place.to_owned(), problem };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| problem(error.to_string()))?;
    if found.is_empty() {
        return Err(problem("there is no certificate in it".to_owned()));
    }
    Ok(found.into_iter().map(|certificate| certificate.to_vec()).collect())
}

/// Reads a server's address; one without a scheme gets `https` where TLS is configured, as other clients do.
fn server_address(text: &str, uses_tls: bool) -> Result<Uri, AccessError> {
    let scheme = if uses_tls { "https" } else { "http" };
    let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let uri = full.parse::<Uri>().ok();
    let usable = |uri: &Uri| uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https"));
    uri.filter(usable).ok_or_else(|| AccessError::Address { text: text.to_owned(), what: "an API server" })
}

fn explicit_proxy(url: &str, server: &Uri) -> Result<Intercept, AccessError> {
    let proxy = Matcher::builder().all(url.to_owned()).build().intercept(server);
    proxy.ok_or_else(|| AccessError::Address { text: url.to_owned(), what: "a proxy" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn surroundings(account: &Path) -> Surroundings {
        Surroundings {
            service_host: Some("fd00::1".into()),
            service_port: Some("6443".into()),
            service_account: account.to_owned(),
            proxies: Proxies {
                https: "http://proxy:3128".to_owned(),
                no: "inside,10.0.0.0/8".to_owned(),
                ..Proxies::default()
            },
        }
    }

    fn authority() -> String {
        let key = rcgen::KeyPair::generate().expect("a key");
        rcgen::CertificateParams::default().self_signed(&key).expect("a certificate").pem()
    }

    /// Loads a kubeconfig with these entries for cluster and user.
    fn load(cluster: &str, user: &str, master: Option<&str>) -> Result<Access, AccessError> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.crt"), authority()).expect("a file");
        fs::write(folder.path().join("empty.crt"), "").expect("a file");
        let path = folder.path().join("config");
        let text = format!(
            "current-context: here\nclusters: [{{name: c, cluster: {{{cluster}}}}}]\n\
             contexts: [{{name: here, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        fs::write(&path, text).expect("a file");
        Access::load(Some(&path), master, &surroundings(folder.path()))
    }

    fn error(result: Result<Access, AccessError>) -> String {
        super::super::error::chain(&result.expect_err("it is bad"))
    }

    #[test]
    fn a_pod_finds_its_api_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = surroundings(folder.path());
        let text = error(Access::load(None, None, &account));
        assert!(text.contains("token: No such file") && text.contains("give --kubeconfig"), "{text}");
        fs::write(folder.path().join("token"), "t").expect("a file");
        fs::write(folder.path().join("ca.crt"), authority()).expect("a file");
        let access = Access::load(None, None, &account).expect("all is there");
        assert_eq!(access.config.cluster_url, "https://[fd00::1]:6443");
        assert_eq!(access.token_file, Some(folder.path().join("token")));
        assert_eq!(
            access.config.root_cert_file,
            Some(folder.path().join("ca.crt")),
            "followed when it is rotated"
        );
        assert!(access.identity.starts_with("the service account token in "));
        let nowhere = Surroundings { service_host: None, ..account };
        assert!(error(Access::load(None, None, &nowhere)).contains("KUBERNETES_SERVICE_HOST"));
    }

    #[test]
    fn a_master_replaces_the_server_and_needs_no_kubeconfig() {
        let url = |cluster, master| {
            let access = load(cluster, "token: t", Some(master)).expect("it is good");
            access.config.cluster_url.to_string()
        };
        assert_eq!(url("server: 'https://a:1'", "https://b:2/prefix"), "https://b:2/prefix");
        assert_eq!(url("certificate-authority: ca.crt", "b:2"), "https://b:2/");
        assert_eq!(url("", "b:2"), "http://b:2/");
        let account = surroundings(Path::new("/nonexistent"));
        let access = Access::load(None, Some("http://127.0.0.1:8080"), &account).expect("it is good");
        assert_eq!(access.identity, "no credentials");
        assert!(error(Access::load(None, Some("ftp://x"), &account)).contains("not a usable address"));
    }

    #[test]
    fn a_token_file_counts_more_than_an_inline_token() {
        let access = load("server: 'https://a'", "tokenFile: t, token: old", None).expect("it is good");
        assert!(access.token_file.is_some_and(|file| file.is_absolute()), "relative to the kubeconfig");
        assert!(access.config.auth_info.token.is_none());
    }

    #[test]
    fn proxies_come_from_the_kubeconfig_or_the_environment() {
        let proxy = |cluster| {
            let access = load(cluster, "token: t", None).expect("it is good");
            access.proxy.map(|proxy| proxy.uri().to_string())
        };
        assert_eq!(proxy("server: 'https://a'").as_deref(), Some("http://proxy:3128/"));
        assert_eq!(proxy("server: 'https://10.1.2.3'"), None, "the server itself is excepted");
        assert_eq!(proxy("server: 'https://api.inside'"), None);
        let own = proxy("server: 'https://10.1.2.3', proxy-url: 'socks5://other:1080'");
        assert_eq!(own.as_deref(), Some("socks5://other:1080/"));
    }

    #[test]
    fn mistakes_in_a_kubeconfig_are_named_with_the_file() {
        assert!(error(load("", "token: t", None)).ends_with("/config names no server"));
        assert!(
            error(load("server: 'https://a', certificate-authority-data: '*'", "", None))
                .contains("/config: ")
        );
        let empty = error(load("server: 'https://a', certificate-authority: empty.crt", "", None));
        assert!(empty.contains("empty.crt: there is no certificate in it"), "{empty}");
        let missing = error(load("server: 'https://a', certificate-authority: none.crt", "", None));
        assert!(missing.contains("none.crt: No such file"), "{missing}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        let of_text = |text: &str| {
            fs::write(&path, text).expect("a file");
            error(Access::load(Some(&path), None, &surroundings(folder.path())))
        };
        assert!(of_text("").ends_with("/config has no current-context"));
        assert!(
            of_text("current-context: x").ends_with("has no context \"x\", which is its current-context")
        );
        let no_cluster = "current-context: x\ncontexts: [{name: x, context: {cluster: y}}]";
        assert!(of_text(no_cluster).ends_with("has no cluster \"y\", which context \"x\" names"));
        assert!(of_text("[").contains("/config: "));
        fs::remove_file(&path).expect("it is there");
        assert!(
            error(Access::load(Some(&path), None, &surroundings(folder.path()))).contains("No such file")
        );
    }
}

//! How to reach the API server: its address, the certificate authorities to trust, and our credentials.
//!
//! | file | what |
//! |---|---|
//! | `kubeconfig.rs` | `--kubeconfig` |
//! | `exec_plugin.rs` | credential plugins of a kubeconfig |
//! | `service_account.rs` | a pod without kubeconfig |
//! | `token_file.rs` | a token in a file, read again when it is rotated |

mod exec_plugin;
mod kubeconfig;
mod service_account;
mod token_file;

use std::path::{Path, PathBuf};

use http::Uri;
use hyper_util::client::proxy::matcher::Intercept;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

pub use token_file::TokenError;
pub(crate) use token_file::TokenFile;

use super::proxy_environment::ProxyEnvironment;

/// Why no client for the API server can be built. None of these errors is temporary.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be read.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The kubeconfig's path.
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// The kubeconfig refers to something that is not in it.
    #[error("the kubeconfig {path} {problem}")]
    KubeconfigContent {
        /// The kubeconfig's path.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },
    /// Neither a kubeconfig nor an address, and no service account.
    #[error(
        "there is no --kubeconfig and no --master, and this is not a pod with a service account ({0}); set --kubeconfig"
    )]
    NotInCluster(String),
    /// An address cannot be parsed.
    #[error("{text:?} is not a usable address of {what}")]
    Address {
        /// The address as written.
        text: String,
        /// The kind of server that it should be the address of.
        what: &'static str,
    },
    /// A certificate authority cannot be used.
    #[error("cannot use the certificate authority in {place}: {problem}")]
    Authority {
        /// The file that names it.
        place: String,
        /// What is wrong with it.
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

/// The environment of the process: variables and mounted files.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) service_host: Option<String>,
    pub(crate) service_port: Option<String>,
    /// Where a pod's service account is mounted.
    pub(crate) service_account: PathBuf,
    pub(crate) proxies: ProxyEnvironment,
}

impl Environment {
    pub(crate) fn of_process() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Environment {
            service_host: variable("KUBERNETES_SERVICE_HOST"),
            service_port: variable("KUBERNETES_SERVICE_PORT"),
            service_account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
            proxies: ProxyEnvironment::of_process(),
        }
    }
}

/// Everything that a client of the API server needs.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) config: kube::Config,
    /// Read by [`TokenFile`] instead of kube: also after a refusal, and without white space around the token.
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) proxy: Option<Intercept>,
    /// Our credentials, for messages.
    pub(crate) identity: String,
    /// The certificate authorities, for messages.
    pub(crate) trust: String,
}

impl Access {
    /// Uses the kubeconfig, with `master` as its server if given; without both, the service account of the pod.
    pub(crate) fn load(
        kubeconfig: Option<&Path>,
        master: Option<&str>,
        environment: &Environment,
    ) -> Result<Access, AccessError> {
        let mut access = match (kubeconfig, master) {
            (Some(path), _) => kubeconfig::from_kubeconfig(path, master)?,
            (None, Some(master)) => from_master(master)?,
            (None, None) => service_account::from_pod(environment)?,
        };
        if access.proxy.is_none() {
            access.proxy = environment.proxies.towards(&access.config.cluster_url);
        }
        Ok(access)
    }
}

/// Reads a kubeconfig as a client would, and connects to nothing. Returns whose credentials it has.
pub fn check_kubeconfig(path: &Path) -> Result<String, AccessError> {
    kubeconfig::from_kubeconfig(path, None).map(|access| access.identity)
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

/// Trusts the certificate authorities in a file, and reads the file again when it is replaced.
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
        return Err(problem("it contains no certificate".to_owned()));
    }
    Ok(found.into_iter().map(|certificate| certificate.to_vec()).collect())
}

/// Parses an address. Without a scheme it is `https` if TLS is configured, as in client-go.
fn server_address(text: &str, uses_tls: bool) -> Result<Uri, AccessError> {
    let scheme = if uses_tls { "https" } else { "http" };
    let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let uri = full.parse::<Uri>().ok();
    let usable = |uri: &Uri| uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https"));
    uri.filter(usable).ok_or_else(|| AccessError::Address { text: text.to_owned(), what: "an API server" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn environment(account: &Path) -> Environment {
        Environment {
            service_host: Some("fd00::1".into()),
            service_port: Some("6443".into()),
            service_account: account.to_owned(),
            proxies: ProxyEnvironment {
                https: "http://proxy:3128".to_owned(),
                no: "inside,10.0.0.0/8".to_owned(),
                ..ProxyEnvironment::default()
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
        Access::load(Some(&path), master, &environment(folder.path()))
    }

    fn error(result: Result<Access, AccessError>) -> String {
        super::super::error::chain(&result.expect_err("it is bad"))
    }

    #[test]
    fn a_pod_finds_its_api_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = environment(folder.path());
        let text = error(Access::load(None, None, &account));
        assert!(text.contains("token: No such file") && text.contains("set --kubeconfig"), "{text}");
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
        let nowhere = Environment { service_host: None, ..account };
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
        let account = environment(Path::new("/nonexistent"));
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
        assert_eq!(proxy("server: 'https://10.1.2.3'"), None, "NO_PROXY lists it");
        assert_eq!(proxy("server: 'https://api.inside'"), None);
        let own = proxy("server: 'https://10.1.2.3', proxy-url: 'socks5://other:1080'");
        assert_eq!(own.as_deref(), Some("socks5://other:1080/"));
    }

    #[test]
    fn a_kubeconfig_may_be_utf_16_and_refer_to_files_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.crt"), authority()).expect("a file");
        let path = folder.path().join("config");
        let text = "current-context: here\nclusters: [{name: c, cluster: {server: 'https://a', certificate-authority: ca.crt}}]\n\
                    contexts: [{name: here, context: {cluster: c, user: u}}]\n\
                    users: [{name: u, user: {client-certificate: sub/my.crt, client-key: /etc/my.key, exec: \
                    {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}}]\n";
        let units = || text.encode_utf16();
        let little = [0xFF, 0xFE].into_iter().chain(units().flat_map(u16::to_le_bytes)).collect();
        let big = [0xFE, 0xFF].into_iter().chain(units().flat_map(u16::to_be_bytes)).collect();
        let marked = b"\xEF\xBB\xBF".iter().copied().chain(text.bytes()).collect();
        for bytes in [little, big, marked, Vec::from(text)] {
            fs::write(&path, bytes).expect("a file");
            let access = Access::load(Some(&path), None, &environment(folder.path())).expect("it is good");
            let here = |name: &str| Some(folder.path().join(name).display().to_string());
            let user = access.config.auth_info;
            assert_eq!(access.config.root_cert_file, Some(folder.path().join("ca.crt")));
            assert_eq!(user.client_certificate, here("sub/my.crt"));
            assert_eq!(user.client_key.as_deref(), Some("/etc/my.key"));
            assert_eq!(user.exec.and_then(|exec| exec.command), here("./plugin"));
        }
    }

    #[test]
    fn mistakes_in_a_kubeconfig_are_named_with_the_file() {
        assert!(error(load("", "token: t", None)).ends_with("/config names no server"));
        assert!(
            error(load("server: 'https://a', certificate-authority-data: '*'", "", None))
                .contains("/config: ")
        );
        let empty = error(load("server: 'https://a', certificate-authority: empty.crt", "", None));
        assert!(empty.contains("empty.crt: it contains no certificate"), "{empty}");
        let missing = error(load("server: 'https://a', certificate-authority: none.crt", "", None));
        assert!(missing.contains("none.crt: No such file"), "{missing}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        let of_text = |text: &str| {
            fs::write(&path, text).expect("a file");
            error(Access::load(Some(&path), None, &environment(folder.path())))
        };
        assert!(of_text("").ends_with("/config has no current-context"));
        fs::write(&path, [0xFE, 0xFF, 0x00, b'a', 0x00]).expect("a file");
        let cut_off = error(Access::load(Some(&path), None, &environment(folder.path())));
        assert!(
            cut_off.ends_with("is UTF-16 and ends in the middle of a character; copy it again"),
            "{cut_off}"
        );
        fs::write(&path, b"current-context: \xC3").expect("a file");
        let latin = error(Access::load(Some(&path), None, &environment(folder.path())));
        assert!(latin.ends_with("/config is not valid UTF-8"), "{latin}");
        assert!(
            of_text("current-context: x").ends_with("has no context \"x\", which is its current-context")
        );
        let no_cluster = "current-context: x\ncontexts: [{name: x, context: {cluster: y}}]";
        assert!(of_text(no_cluster).ends_with("has no cluster \"y\", which context \"x\" names"));
        assert!(of_text("[").contains("/config: "));
        fs::remove_file(&path).expect("it is there");
        assert!(error(Access::load(Some(&path), None, &environment(folder.path()))).contains("No such file"));
    }
}

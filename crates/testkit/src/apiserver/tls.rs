//! Certificates for one server.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{DEFAULT_VERSIONS, ServerConfig};

use super::shared::lock;

/// How the server proves who it is.
#[derive(Clone)]
pub(super) struct Tls {
    /// The authority that clients are to trust, as PEM.
    pub(super) authority: String,
    pub(super) trusted: TlsAcceptor,
    /// The same with a certificate of an unknown authority.
    pub(super) untrusted: TlsAcceptor,
}

impl Tls {
    /// The same for all servers of a process: keys take their time.
    pub(super) fn of_process() -> Result<Tls> {
        static MADE: Mutex<Option<Tls>> = Mutex::new(None);
        let mut made = lock(&MADE);
        match &*made {
            Some(tls) => Ok(tls.clone()),
            None => Ok(made.insert(Tls::new()?).clone()),
        }
    }

    fn new() -> Result<Tls> {
        let (authority, trusted) = acceptor("portwarden-test")?;
        let (_, untrusted) = acceptor("unknown-authority")?;
        Ok(Tls { authority, trusted, untrusted })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// An authority of this name, and a server with a certificate of it.
fn acceptor(name: &str) -> Result<(String, TlsAcceptor)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().context("cannot make a key")?;
    let authority = params.self_signed(&key).context("cannot make a certificate authority")?.pem();
    let issuer = Issuer::new(params, key);

    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![
        SanType::IpAddress([127, 0, 0, 1].into()),
        SanType::DnsName("localhost".try_into().context("a host name")?),
    ];
    let key = KeyPair::generate().context("cannot make a key")?;
    let certificate = params.signed_by(&key, &issuer).context("cannot make a certificate")?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(DEFAULT_VERSIONS)
        .context("TLS versions")?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .context("cannot use the certificate")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((authority, TlsAcceptor::from(Arc::new(config))))
}

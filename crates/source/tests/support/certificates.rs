//! A certificate authority for one test.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};

/// A certificate and its key, both PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// Signs certificates.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate for a server at 127.0.0.1.
    pub fn server(&self) -> Identity {
        self.sign(|params| {
            params.subject_alt_names = vec![
                SanType::IpAddress([127, 0, 0, 1].into()),
                SanType::DnsName("localhost".try_into().expect("a name")),
            ];
        })
    }

    /// A certificate for a server of another name.
    pub fn server_named(&self, name: &str) -> Identity {
        self.sign(|params| {
            params.subject_alt_names = vec![SanType::DnsName(name.try_into().expect("a name"))];
        })
    }

    /// A certificate for a user of this name and group.
    pub fn user(&self, name: &str, group: &str) -> Identity {
        self.sign(|params| {
            params.distinguished_name.push(DnType::CommonName, name);
            params.distinguished_name.push(DnType::OrganizationName, group);
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        })
    }

    pub fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::default();
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

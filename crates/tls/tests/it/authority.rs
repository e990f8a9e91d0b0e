//! A private authority and the certificates that it signs, in a temporary directory. Other crates' tests include this
//! file too.

use std::path::{Path, PathBuf};

use lockkeeper_tls::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use tempfile::TempDir;

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("authority.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The paths of a certificate, which need not be there.
    pub(crate) fn files(&self, name: &str) -> TlsFiles {
        let file = |ending| self.directory.path().join(format!("{name}.{ending}"));
        TlsFiles { certificate: file("pem"), key: file("key") }
    }

    /// Writes a certificate for localhost and 127.0.0.1, usable for both ends and changed by `adjust`, and its key.
    pub(crate) fn issue(&self, name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> TlsFiles {
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        adjust(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = self.files(name);
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// A member's certificate.
    pub(crate) fn node(&self, cluster: &str, node: u64) -> TlsFiles {
        self.issue(&format!("{cluster}-{node}"), |params| {
            add_uri(params, &format!("lockkeeper://{cluster}/node/{node}"))
        })
    }

    pub(crate) fn server(&self, name: &str) -> TlsFiles {
        self.issue(name, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth])
    }

    pub(crate) fn client(&self, name: &str) -> TlsFiles {
        self.issue(name, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth])
    }
}

pub(crate) fn add_uri(params: &mut CertificateParams, uri: &str) {
    params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
}

pub(crate) fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2001, 1, 1);
}

pub(crate) fn not_yet_valid(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(3000, 1, 1);
    params.not_after = date_time_ymd(3001, 1, 1);
}

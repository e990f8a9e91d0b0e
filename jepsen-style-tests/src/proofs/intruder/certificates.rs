//! The certificates of the secured cluster, of its clients, and those that an intruder might have.
//!
//! The good ones, and those of another authority, are made by `lockkeeper certs`. That never makes one which is not
//! valid now, so these are signed here, with the key of the cluster's own authority.

use std::path::PathBuf;
use std::time::SystemTime;

use lockkeeper_tls::{ClientConfig, client_config};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use reqwest::ClientBuilder;

use crate::http::client_builder;
use crate::proofs::prelude::*;
use crate::proofs::tls_cluster::{CLUSTER, environment, identity_files, make_certificates};

const DAY: Duration = Duration::from_secs(24 * 3_600);

named! {
    /// Who shows which certificate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum ClientIdentity {
        /// No certificate at all.
        None = "no certificate",
        /// A good one of a client to whom nothing was granted.
        Mallory = "the certificate of a client without rights",
        /// A good one of a client that may read.
        Reader = "the certificate of a client that may read",
        /// That of member 2.
        Member = "the certificate of a member",
        /// A client's, by another authority, with the name of the administrator.
        Stranger = "a client's certificate by another authority",
        /// Member 2's, by another authority.
        StrangeMember = "a member's certificate by another authority",
        /// Expired; the administrator's name, and member 2's as well.
        Expired = "an expired certificate",
        /// Not valid yet; the same names.
        NotYet = "a certificate that is not valid yet",
    }
}

impl ClientIdentity {
    /// Those with which no listener lets anybody in.
    pub(super) const BAD: [Self; 4] = [Self::Stranger, Self::StrangeMember, Self::Expired, Self::NotYet];

    fn stem(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Mallory => Some("client-mallory"),
            Self::Reader => Some("client-reader"),
            Self::Member => Some("node2"),
            Self::Stranger => Some("stranger/client-admin"),
            Self::StrangeMember => Some("stranger/node2"),
            Self::Expired => Some("expired"),
            Self::NotYet => Some("not-yet"),
        }
    }
}

/// The directory of all of them. Node N finds `nodeN.pem` and `nodeN.key` there.
pub(super) struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    /// Makes all of them.
    pub(super) async fn make(binary: &Path, directory: &Path) -> Result<Self, Failed> {
        let stranger: &Path = &directory.join("stranger");
        std::fs::create_dir_all(directory)?;
        let commands: [(&Path, &[&str]); 9] = [
            (directory, &["init", "--cluster", CLUSTER]),
            (directory, &["node", "--id", "1", "--host", "127.0.0.1"]),
            (directory, &["node", "--id", "2", "--host", "127.0.0.1"]),
            (directory, &["node", "--id", "3", "--host", "127.0.0.1"]),
            (directory, &["client", "--name", "mallory"]),
            (directory, &["client", "--name", "reader"]),
            (stranger, &["init", "--cluster", CLUSTER]),
            (stranger, &["node", "--id", "2", "--host", "127.0.0.1"]),
            (stranger, &["client", "--name", "admin"]),
        ];
        make_certificates(binary, &commands).await?;
        let certificates = Self { directory: directory.to_path_buf() };
        let now = SystemTime::now();
        certificates.sign("expired", now - 2 * DAY, now - DAY)?;
        certificates.sign("not-yet", now + DAY, now + 2 * DAY)?;
        Ok(certificates)
    }

    /// A certificate of the cluster's authority for a time that is not now.
    fn sign(&self, stem: &str, from: SystemTime, until: SystemTime) -> Result<(), Failed> {
        let authority = std::fs::read_to_string(self.authority())?;
        let authority_key = std::fs::read_to_string(self.directory.join("authority.key"))?;
        let made = || -> Result<(String, String), rcgen::Error> {
            let issuer = Issuer::from_ca_cert_pem(&authority, KeyPair::from_pem(&authority_key)?)?;
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "admin");
            params.subject_alt_names = vec![SanType::URI(format!("lockkeeper://{CLUSTER}/node/2").try_into()?)];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            params.not_before = from.into();
            params.not_after = until.into();
            Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
        };
        let (certificate, key) = made().or_cannot_run(format!("cannot sign the certificate {stem}"))?;
        std::fs::write(self.directory.join(format!("{stem}.pem")), certificate)?;
        std::fs::write(self.directory.join(format!("{stem}.key")), key)?;
        Ok(())
    }

    fn authority(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// What the nodes' configuration has of TLS. A client may come without a certificate, so that everything behind the
    /// handshake is tried as well. ZooKeeper's may not.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        environment(&self.authority().display().to_string(), "optional")
    }

    /// What a client with this identity uses. It always trusts the cluster's authority.
    pub(super) fn config(&self, identity: ClientIdentity) -> Result<ClientConfig, Failed> {
        let files = identity.stem().map(|stem| identity_files(&self.directory, stem));
        client_config(Some(&self.authority()), files.as_ref())
            .or_cannot_run(format!("{} cannot be used", identity.name()))
    }

    /// As [`config`](Self::config), for several connections.
    pub(super) fn shared_config(&self, identity: ClientIdentity) -> Result<Arc<ClientConfig>, Failed> {
        self.config(identity).map(Arc::new)
    }

    /// An HTTP client with this identity.
    pub(super) fn builder(&self, identity: ClientIdentity) -> Result<ClientBuilder, Failed> {
        Ok(client_builder().use_preconfigured_tls(self.config(identity)?))
    }
}

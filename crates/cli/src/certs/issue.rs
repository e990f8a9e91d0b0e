//! Certificates and keys as PEM texts. Keys are P-256. An authority signs certificates of nodes and clients and no
//! further authorities.

use std::time::{Duration, SystemTime};

use lockkeeper_tls::PeerName;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};
use x509_parser::pem::parse_x509_pem;

use super::{CertsError, ClientName, ClusterName, Host};

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Certificates are valid from so long ago, for machines whose clocks run behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3_600);

/// A certificate with its private key, in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) valid_until: SystemTime,
}

/// Makes the authority of a cluster.
pub(crate) fn new_authority(cluster: &ClusterName, days: u32, now: SystemTime) -> Result<Issued, CertsError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let valid_until = now + DAY * days;
    let mut params = params(now, valid_until);
    // Authorities of one cluster differ in name, so that people can tell them apart while two are trusted.
    let id = params.key_identifier(&key);
    let id: String = id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("Lockkeeper authority {id}"));
    params.distinguished_name.push(DnType::OrganizationName, cluster.as_str());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?.pem();
    Ok(Issued { certificate, key: key.serialize_pem(), valid_until })
}

/// An authority that [`new_authority`] made.
pub(crate) struct Authority {
    pub(crate) cluster: ClusterName,
    issuer: Issuer<'static, KeyPair>,
    valid_until: SystemTime,
}

impl Authority {
    /// Reads the authority. `now` decides whether it has expired.
    pub(crate) fn from_pem(certificate: &str, key: &str, now: SystemTime) -> Result<Self, CertsError> {
        let bad = |why: &str| CertsError::Authority(why.to_owned());
        let (_, pem) = parse_x509_pem(certificate.as_bytes()).map_err(|_| bad("its certificate is not a PEM text"))?;
        let parsed = pem.parse_x509().map_err(|_| bad("its certificate is malformed"))?;
        if !parsed.is_ca() {
            return Err(bad("its certificate is not an authority's"));
        }
        let organization = parsed.subject().iter_organization().next().and_then(|name| name.as_str().ok());
        let not_ours = || bad("it was not made by `lockkeeper certs init`: it names no cluster");
        let cluster = ClusterName::new(organization.ok_or_else(not_ours)?).map_err(|_| not_ours())?;
        // The parser's own text may repeat what it has read of the key.
        let key = KeyPair::from_pem(key).map_err(|_| bad("its private key is not a PKCS#8 key in PEM"))?;
        if key.subject_public_key_info() != parsed.tbs_certificate.subject_pki.raw {
            return Err(bad("its private key does not belong to its certificate"));
        }
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let valid_until = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        if valid_until <= now {
            return Err(bad(&format!("it has expired, at {}", humantime::format_rfc3339_seconds(valid_until))));
        }
        Ok(Self { cluster, issuer: Issuer::from_ca_cert_pem(certificate, key)?, valid_until })
    }

    /// Makes the certificate of a node: towards clients and peers a server, towards peers also a client.
    pub(crate) fn node(&self, id: u32, hosts: &[Host], days: u32, now: SystemTime) -> Result<Issued, CertsError> {
        let mut names = vec![uri(&PeerName { cluster: self.cluster.to_string(), node: id.into() }.to_string())?];
        for host in hosts {
            names.push(host.to_san()?);
        }
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&format!("node {id}"), names, usages, days, now)
    }

    /// Makes the certificate of a client.
    pub(crate) fn client(&self, name: &ClientName, days: u32, now: SystemTime) -> Result<Issued, CertsError> {
        let names = vec![uri(&format!("lockkeeper://{}/client/{}", self.cluster, name.as_str()))?];
        self.issue(name.as_str(), names, vec![ExtendedKeyUsagePurpose::ClientAuth], days, now)
    }

    fn issue(
        &self,
        common_name: &str,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        days: u32,
        now: SystemTime,
    ) -> Result<Issued, CertsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let valid_until = (now + DAY * days).min(self.valid_until);
        let mut params = params(now, valid_until);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.distinguished_name.push(DnType::OrganizationName, self.cluster.as_str());
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem(), valid_until })
    }
}

fn params(now: SystemTime, valid_until: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = valid_until.into();
    params
}

fn uri(text: &str) -> Result<SanType, CertsError> {
    Ok(SanType::URI(text.try_into()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{CertificateError, RootCertStore};
    use x509_parser::extensions::{GeneralName, ParsedExtension};
    use x509_parser::prelude::X509Certificate;

    use super::*;

    fn made() -> (Issued, Authority) {
        let cluster = ClusterName::new("orders").unwrap();
        let issued = new_authority(&cluster, 3_650, SystemTime::now()).unwrap();
        let authority = Authority::from_pem(&issued.certificate, &issued.key, SystemTime::now()).unwrap();
        (issued, authority)
    }

    fn hosts(texts: &[&str]) -> Vec<Host> {
        texts.iter().map(|text| Host::parse(text).unwrap()).collect()
    }

    fn der(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    fn roots(authority: &Issued) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(der(&authority.certificate)).unwrap();
        Arc::new(roots)
    }

    /// What a client that trusts `authority` says about a server's certificate.
    fn as_server(authority: &Issued, certificate: &str, host: &str, now: SystemTime) -> Result<(), rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
        let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap());
        let name = ServerName::try_from(host.to_owned()).unwrap();
        verifier.verify_server_cert(&der(certificate), &[], &name, &[], now).map(|_| ())
    }

    /// What a server that trusts `authority` says about a client's certificate.
    fn as_client(authority: &Issued, certificate: &str) -> Result<(), rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots(authority), provider);
        verifier.build().unwrap().verify_client_cert(&der(certificate), &[], UnixTime::now()).map(|_| ())
    }

    fn uris(certificate: &X509Certificate<'_>) -> Vec<String> {
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        let uri = |name: &GeneralName<'_>| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        };
        names.value.general_names.iter().filter_map(uri).collect()
    }

    #[test]
    fn a_node_is_a_server_of_its_hosts_and_a_client() {
        let (root, authority) = made();
        let node = authority.node(2, &hosts(&["10.0.0.1", "::1", "lock-2.example"]), 365, SystemTime::now()).unwrap();
        for host in ["10.0.0.1", "::1", "lock-2.example"] {
            as_server(&root, &node.certificate, host, SystemTime::now()).unwrap();
        }
        let other = as_server(&root, &node.certificate, "10.0.0.2", SystemTime::now()).unwrap_err();
        assert!(matches!(
            other,
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            )
        ));
        as_client(&root, &node.certificate).unwrap();
        let (_, pem) = parse_x509_pem(node.certificate.as_bytes()).unwrap();
        let parsed = pem.parse_x509().unwrap();
        assert_eq!(uris(&parsed), ["lockkeeper://orders/node/2"]);
        assert!(!parsed.is_ca());
    }

    #[test]
    fn a_client_is_no_server() {
        let (root, authority) = made();
        let client = authority.client(&ClientName::new("billing").unwrap(), 365, SystemTime::now()).unwrap();
        as_client(&root, &client.certificate).unwrap();
        assert!(as_server(&root, &client.certificate, "billing", SystemTime::now()).is_err());
        let (_, pem) = parse_x509_pem(client.certificate.as_bytes()).unwrap();
        let parsed = pem.parse_x509().unwrap();
        assert_eq!(uris(&parsed), ["lockkeeper://orders/client/billing"]);
        assert_eq!(parsed.subject().iter_common_name().next().unwrap().as_str().unwrap(), "billing");
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
    }

    #[test]
    fn an_authority_signs_no_further_authority_and_only_its_own_are_trusted() {
        let (root, authority) = made();
        let (stranger, _) = made();
        let (_, pem) = parse_x509_pem(root.certificate.as_bytes()).unwrap();
        let parsed = pem.parse_x509().unwrap();
        let constraint = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) => Some((constraints.ca, constraints.path_len_constraint)),
            _ => None,
        });
        assert_eq!(constraint, Some((true, Some(0))));
        let node = authority.node(1, &hosts(&["127.0.0.1"]), 365, SystemTime::now()).unwrap();
        assert!(as_server(&stranger, &node.certificate, "127.0.0.1", SystemTime::now()).is_err());
        assert!(as_client(&stranger, &node.certificate).is_err());
        assert!(Authority::from_pem(&node.certificate, &node.key, SystemTime::now()).is_err(), "a node is none");
        assert!(Authority::from_pem(&root.certificate, &stranger.key, SystemTime::now()).is_err());
    }

    #[test]
    fn certificates_expire_and_never_after_their_authority() {
        let now = SystemTime::now();
        let issued = new_authority(&ClusterName::new("orders").unwrap(), 10, now).unwrap();
        let authority = Authority::from_pem(&issued.certificate, &issued.key, now).unwrap();
        let short = authority.node(1, &hosts(&["127.0.0.1"]), 1, now).unwrap();
        let long = authority.node(1, &hosts(&["127.0.0.1"]), 365, now).unwrap();
        let ok = |certificate: &str, at| as_server(&issued, certificate, "127.0.0.1", at).is_ok();
        assert!(ok(&short.certificate, now) && ok(&short.certificate, now - CLOCK_SKEW / 2));
        assert!(!ok(&short.certificate, now + DAY * 2), "expired");
        assert!(!ok(&short.certificate, now - CLOCK_SKEW * 2), "not valid yet");
        assert!(ok(&long.certificate, now + DAY * 9) && !ok(&long.certificate, now + DAY * 11));
        let expired = Authority::from_pem(&issued.certificate, &issued.key, now + DAY * 11);
        assert!(matches!(expired, Err(CertsError::Authority(why)) if why.contains("expired")));
    }
}

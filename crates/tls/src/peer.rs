//! Both ends of a member of the cluster. The authority signs certificates for every member and perhaps for clients, so
//! its signature is not enough: a node connects only to the node that it means, by the name in the certificate. Host
//! names and addresses play no part, because members may be reached through any.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, SignatureScheme};

use crate::certificate::{PeerName, peer_identity};
use crate::error::TlsError;
use crate::server::ServerTls;
use crate::{ClientCertificates, TlsFiles, provider};

/// The certificates of a member.
#[derive(Clone, Debug)]
pub struct PeerTls {
    listener: Arc<ServerTls>,
    own: PeerName,
}

impl PeerTls {
    /// Reads the files of the member `own`.
    ///
    /// # Errors
    /// A file cannot be used, or the certificate does not name this member.
    pub fn open(files: &TlsFiles, authority: &Path, own: PeerName) -> Result<PeerTls, TlsError> {
        let listener = ServerTls::open_as(files, Some(authority), ClientCertificates::Required, Some(own.clone()))?;
        Ok(PeerTls { listener: Arc::new(listener), own })
    }

    /// The listener's end. Its certificates are those of both ends: reloading it is enough.
    pub fn listener(&self) -> &Arc<ServerTls> {
        &self.listener
    }

    /// The settings for connections to one peer. They follow each reload.
    ///
    /// # Errors
    /// rustls refuses the settings.
    pub fn client_config(&self, node: u64) -> Result<ClientConfig, TlsError> {
        self.config_for(Some(node))
    }

    /// The settings for connections to a member of this cluster, whoever it is.
    ///
    /// # Errors
    /// rustls refuses the settings.
    pub fn client_config_for_any(&self) -> Result<ClientConfig, TlsError> {
        self.config_for(None)
    }

    fn config_for(&self, node: Option<u64>) -> Result<ClientConfig, TlsError> {
        let expected = ExpectedPeer { cluster: self.own.cluster.clone(), node };
        let algorithms = provider().signature_verification_algorithms;
        let verifier = PeerVerifier { certificates: self.listener.clone(), expected, algorithms };
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| TlsError::Settings(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(OwnCertificate(self.listener.clone())));
        // A resumed session would not have its certificate checked again.
        config.resumption = Resumption::disabled();
        // The name in it would be a host name, which says nothing here.
        config.enable_sni = false;
        Ok(config)
    }
}

/// Presents the certificate in use.
#[derive(Debug)]
struct OwnCertificate(Arc<ServerTls>);

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current().identity.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Whom a certificate must name: one member, or any of the cluster.
#[derive(Debug)]
struct ExpectedPeer {
    cluster: String,
    node: Option<u64>,
}

impl ExpectedPeer {
    fn is(&self, found: &PeerName) -> bool {
        found.cluster == self.cluster && self.node.is_none_or(|node| found.node == node)
    }
}

impl fmt::Display for ExpectedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => PeerName { cluster: self.cluster.clone(), node }.fmt(f),
            None => write!(f, "a node of cluster {:?}", self.cluster),
        }
    }
}

/// Accepts the certificate of the expected peer: signed by the authority in use, valid now, made for servers, and with
/// its name.
#[derive(Debug)]
struct PeerVerifier {
    certificates: Arc<ServerTls>,
    expected: ExpectedPeer,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let current = self.certificates.current();
        let authority = current.authority.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, authority, intermediates, now, self.algorithms.all)?;
        let found = peer_identity(end_entity).map_err(other)?;
        if !self.expected.is(&found) {
            return Err(other(TlsError::NoNode(format!("names {found}, but the peer must be {}", self.expected))));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn other(error: TlsError) -> Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

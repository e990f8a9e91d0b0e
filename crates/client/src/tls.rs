//! TLS towards the cluster: which authority a client trusts, which certificate it shows, and what a failure means.
//!
//! A certificate failure does not heal while a caller waits: it needs another file, on this side or on the node's. So a
//! call ends with [`Error::Tls`](crate::Error::Tls) as soon as every endpoint has failed that way in one round, and is
//! not repeated until its patience is over. Where another endpoint is merely unreachable, the call goes on, since that
//! one may serve it.
//!
//! It must never print a private key, and never fall back to a connection without TLS.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_tls::{TlsError, TlsFiles, causes, client_config};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::endpoints::Endpoint;

/// What a client trusts, and its own certificate if it has one. The files are read once: a client that is to use new
/// files must be created anew.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    authority: PathBuf,
    certificate: Option<PathBuf>,
}

/// The paths only: the configuration holds the private key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authority", &self.authority)
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Trusts nodes whose certificate is issued by an authority of the PEM file `authority`. Identifies this client
    /// with `identity`, where nodes ask for a certificate.
    ///
    /// # Errors
    /// A file cannot be read or is not what it should be, or the key does not belong to the certificate.
    pub fn from_files(authority: &Path, identity: Option<&TlsFiles>) -> Result<Self, TlsError> {
        let config = client_config(Some(authority), identity)?;
        Ok(Self {
            config: Arc::new(config),
            authority: authority.to_owned(),
            certificate: identity.map(|files| files.certificate.clone()),
        })
    }

    /// The configuration, for a client that makes its own connections to the same nodes.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Makes a connection secure. The error says what failed, in the words of [`failure`] where TLS itself failed.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        tcp: TcpStream,
    ) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let host = endpoint.host();
        let name = ServerName::try_from(host).map_err(|e| HandshakeError::Tls(e.to_string()))?;
        let connected = TlsConnector::from(self.config.clone()).connect(name, tcp).await;
        connected.map_err(|error| match failure(&error) {
            Some(why) => HandshakeError::Tls(why),
            None => HandshakeError::Broken(error.to_string()),
        })
    }
}

/// Why a connection could not be made secure.
pub(crate) enum HandshakeError {
    /// The two sides do not accept each other.
    Tls(String),
    /// The connection broke before that was known.
    Broken(String),
}

/// Why TLS failed, if that is the cause of the error.
pub(crate) fn failure(error: &(dyn Error + 'static)) -> Option<String> {
    cause(error).map(describe)
}

/// Why the node rejected this client, if it did. In TLS 1.3 this comes after the client's side of the handshake, when a
/// request may already have been sent. The node reads no request before its handshake has succeeded, so the request was
/// not carried out.
pub(crate) fn rejection(error: &(dyn Error + 'static)) -> Option<String> {
    match cause(error)? {
        alert @ rustls::Error::AlertReceived(description) if is_about_the_client(*description) => Some(describe(alert)),
        _ => None,
    }
}

/// Alerts that a node sends during the handshake only, about the certificate of the client.
fn is_about_the_client(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            // Of the handshake: the certificate's signature is not that of the authority that it names.
            | AlertDescription::DecryptError
    )
}

/// The TLS error in a chain of errors.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// The cause with what to do about it.
fn describe(error: &rustls::Error) -> String {
    let remedy = match error {
        rustls::Error::InvalidCertificate(why) => about_the_node(why),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired | AlertDescription::NoCertificate) => {
            "the node requires a client certificate, and this client has none"
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "the node rejects this client's certificate, which has expired"
        }
        rustls::Error::AlertReceived(alert) if is_about_the_client(*alert) => {
            "the node rejects this client's certificate, which none of the authorities that it trusts has issued for \
             a client"
        }
        rustls::Error::InvalidMessage(_) => "the endpoint does not speak TLS; a listener without TLS is an http:// URL",
        rustls::Error::PeerIncompatible(_) | rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the node and this client have no version or cipher of TLS in common"
        }
        _ => "TLS failed",
    };
    format!("{remedy} ({error})")
}

fn about_the_node(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the node's certificate has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the node's certificate is not valid yet; compare the clocks"
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the node's certificate is issued by none of the certificate authorities that this client trusts"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the node's certificate does not name the host of this endpoint"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the node's certificate is not a server's"
        }
        CertificateError::Revoked => "the node's certificate is revoked",
        _ => "the node's certificate is invalid",
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn wrapped(error: rustls::Error) -> io::Error {
        // As hyper's connector wraps what tokio-rustls wrapped.
        io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    #[test]
    fn a_failure_is_found_in_a_chain_and_named() {
        let why = |error| failure(&wrapped(error)).unwrap();
        let expired = why(rustls::Error::InvalidCertificate(CertificateError::Expired));
        assert!(expired.starts_with("the node's certificate has expired"), "{expired}");
        let stranger = why(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer));
        assert!(stranger.contains("certificate authorities") && stranger.contains("UnknownIssuer"), "{stranger}");
        let none = why(rustls::Error::AlertReceived(AlertDescription::CertificateRequired));
        assert!(none.contains("requires a client certificate"), "{none}");
        let plain = why(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType));
        assert!(plain.contains("http://"), "{plain}");
        assert_eq!(failure(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }

    #[test]
    fn only_an_alert_about_the_client_says_that_a_sent_request_was_not_read() {
        let rejected = |error| rejection(&wrapped(error)).is_some();
        assert!(rejected(rustls::Error::AlertReceived(AlertDescription::UnknownCA)));
        assert!(rejected(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)));
        assert!(!rejected(rustls::Error::AlertReceived(AlertDescription::InternalError)));
        assert!(!rejected(rustls::Error::DecryptError));
    }
}

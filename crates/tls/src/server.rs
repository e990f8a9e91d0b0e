//! A listener's end. Its certificate, key and authority can be replaced while it runs: handshakes that begin afterwards
//! use the new ones, and connections go on. The authority does not depend on the certificate: an authority that was
//! withdrawn must not stay trusted because the certificate has expired.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificate::{PeerName, Validity, peer_identity, validity};
use crate::error::TlsError;
use crate::files::{FileVersion, read_authority, read_identity};
use crate::{ClientCertificates, TlsFiles, provider};

/// Longest time for the other end to read why it was turned away.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes that are read of its requests meanwhile.
const ALERT_READS_BYTES: u64 = 4 * 1024 * 1024;

/// See the module's text.
pub struct ServerTls {
    source: Source,
    current: RwLock<Arc<Current>>,
    /// The files that `current` was read from.
    versions: Mutex<Vec<FileVersion>>,
}

/// Where certificates come from, and what they must be.
struct Source {
    files: TlsFiles,
    authority: Option<PathBuf>,
    client_certificates: ClientCertificates,
    /// The node that the certificate must name, if it is to be a node's.
    own_name: Option<PeerName>,
}

/// What new handshakes use.
pub(crate) struct Current {
    server: Arc<ServerConfig>,
    pub(crate) identity: Arc<CertifiedKey>,
    pub(crate) authority: Authorities,
    validity: Validity,
}

/// Those that may have signed certificates of the other end, if any are configured.
type Authorities = Option<Arc<RootCertStore>>;

impl ServerTls {
    /// Reads the files. A certificate that has expired or is not valid yet is taken: see
    /// [`check_validity`](Self::check_validity).
    ///
    /// # Errors
    /// A file cannot be used, or client certificates are asked for without an authority to check them by.
    pub fn open(
        files: &TlsFiles,
        authority: Option<&Path>,
        client_certificates: ClientCertificates,
    ) -> Result<ServerTls, TlsError> {
        Self::open_as(files, authority, client_certificates, None)
    }

    /// As [`open`](Self::open); the certificate must name this node.
    pub(crate) fn open_as(
        files: &TlsFiles,
        authority: Option<&Path>,
        client_certificates: ClientCertificates,
        own_name: Option<PeerName>,
    ) -> Result<ServerTls, TlsError> {
        let authority = authority.map(Path::to_path_buf);
        let source = Source { files: files.clone(), authority, client_certificates, own_name };
        let versions = source.versions();
        let current = source.current(source.read_identity()?, source.read_authority()?)?;
        Ok(ServerTls { source, current: RwLock::new(Arc::new(current)), versions: Mutex::new(versions) })
    }

    /// Performs the handshake on a new connection. Bound its time: the other end may send nothing. An end that is
    /// turned away has up to a second to read the alert that says why.
    ///
    /// # Errors
    /// The connection broke, or the other end did not speak TLS or was turned away.
    pub async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let server = self.current().server.clone();
        match TlsAcceptor::from(server).accept(stream).into_fallible().await {
            Ok(stream) => Ok(stream),
            Err((error, stream)) => {
                close_after_alert(stream).await;
                Err(error)
            }
        }
    }

    /// Reads the files again, for handshakes that begin from now on. The certificate with its key, and the authority,
    /// are replaced independently of each other. Blocks.
    ///
    /// # Errors
    /// A file cannot be used, or the certificate is not valid now. What was read before from the files that the error
    /// names stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        // Before the files are read: a change in between is found later, and not missed.
        let versions = self.source.versions();
        let former = self.current();
        let identity = self.source.read_identity().and_then(|read| {
            self.source.check_validity(read.1)?;
            Ok(read)
        });
        let (identity, bad_certificate) = or_former(identity, || (former.identity.clone(), former.validity));
        let (authority, bad_authority) = or_former(self.source.read_authority(), || former.authority.clone());
        let current = self.source.current(identity, authority)?;
        *self.current.write() = Arc::new(current);
        match (bad_certificate, bad_authority) {
            (None, None) => {
                *self.versions.lock() = versions;
                Ok(())
            }
            (Some(error), None) | (None, Some(error)) => Err(error),
            (Some(certificate), Some(authority)) => {
                Err(TlsError::CertificateAndAuthority { certificate: certificate.into(), authority: authority.into() })
            }
        }
    }

    /// Whether a file is another one than that in use, or one that could not be used. Blocks.
    pub fn has_changed(&self) -> bool {
        self.source.versions() != *self.versions.lock()
    }

    /// When the certificate in use expires, in seconds since 1970.
    pub fn expires_unix_s(&self) -> i64 {
        self.current().validity.until_unix_s
    }

    /// Checks that the certificate in use is valid now, by this machine's clock.
    ///
    /// # Errors
    /// It has expired, or is not valid yet.
    pub fn check_validity(&self) -> Result<(), TlsError> {
        self.source.check_validity(self.current().validity)
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        self.current.read().clone()
    }
}

/// Closes a connection whose handshake has failed; rustls has written the alert. With TLS 1.3 a client has finished its
/// handshake before its certificate is checked, and sends requests. Closing a connection while requests arrive resets
/// it, and the client would report the reset, which may mean anything, instead of the alert.
async fn close_after_alert(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let closing = async {
        stream.flush().await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(ALERT_READS_BYTES), &mut tokio::io::sink()).await
    };
    // The other end is gone, or does not close.
    let _ = timeout(ALERT_TIMEOUT, closing).await;
}

/// What was read, or what is in use and why it was not replaced.
fn or_former<T>(read: Result<T, TlsError>, former: impl FnOnce() -> T) -> (T, Option<TlsError>) {
    match read {
        Ok(read) => (read, None),
        Err(error) => (former(), Some(error)),
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.source.files).finish_non_exhaustive()
    }
}

impl Source {
    fn versions(&self) -> Vec<FileVersion> {
        let files = [Some(&self.files.certificate), Some(&self.files.key), self.authority.as_ref()];
        files.into_iter().flatten().map(|file| FileVersion::of(file)).collect()
    }

    fn read_authority(&self) -> Result<Authorities, TlsError> {
        self.authority.as_deref().map(read_authority).transpose()
    }

    fn read_identity(&self) -> Result<(Arc<CertifiedKey>, Validity), TlsError> {
        let identity = read_identity(&self.files)?;
        let malformed =
            || TlsError::Malformed { file: self.files.certificate.clone(), cause: "has no certificate".into() };
        let own = identity.cert.first().ok_or_else(malformed)?;
        let validity = validity(own).ok_or_else(malformed)?;
        if let Some(name) = &self.own_name {
            self.check_name(name, peer_identity(own))?;
        }
        Ok((identity, validity))
    }

    fn current(
        &self,
        (identity, validity): (Arc<CertifiedKey>, Validity),
        authority: Authorities,
    ) -> Result<Current, TlsError> {
        let server = Arc::new(self.server_config(&identity, authority.as_ref())?);
        Ok(Current { server, identity, authority, validity })
    }

    fn check_name(&self, own: &PeerName, found: Result<PeerName, TlsError>) -> Result<(), TlsError> {
        let cause = match found {
            Ok(found) if found == *own => return Ok(()),
            Ok(found) => format!("names {found}, but this node is {own}"),
            Err(TlsError::NoNode(cause)) => format!("{cause}; this node is {own}"),
            Err(other) => return Err(other),
        };
        Err(TlsError::WrongNode { file: self.files.certificate.clone(), cause })
    }

    fn server_config(
        &self,
        identity: &Arc<CertifiedKey>,
        authority: Option<&Arc<RootCertStore>>,
    ) -> Result<ServerConfig, TlsError> {
        let settings = |error: &dyn fmt::Display| TlsError::Settings(error.to_string());
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| settings(&error))?;
        let resolver = Arc::new(SingleCertAndKey::from(identity.clone()));
        if self.client_certificates == ClientCertificates::None {
            return Ok(config.with_no_client_auth().with_cert_resolver(resolver));
        }
        let authority = authority.ok_or(TlsError::NoAuthority)?.clone();
        let verifier = WebPkiClientVerifier::builder_with_provider(authority, provider());
        let verifier = match self.client_certificates {
            ClientCertificates::Optional => verifier.allow_unauthenticated(),
            _ => verifier,
        };
        let verifier = verifier.build().map_err(|error| settings(&error))?;
        let mut config = config.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
        // A resumed session would not have its certificate checked again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn check_validity(&self, Validity { from_unix_s, until_unix_s }: Validity) -> Result<(), TlsError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let cause = if now > until_unix_s {
            format!("has expired, {until_unix_s} s after the beginning of 1970")
        } else if now < from_unix_s {
            format!("is not valid before {from_unix_s} s after the beginning of 1970; check the clock of this machine")
        } else {
            return Ok(());
        };
        Err(TlsError::NotValidNow { file: self.files.certificate.clone(), cause })
    }
}

//! Errors of certificates and keys. Each names the file and the cause; none shows what a file contains.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use rustls::{AlertDescription, CertificateError};

/// Largest file of certificates or of a key.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Why a certificate, a key or an authority cannot be used. One line each.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is too large to be one.
    #[error("{} has more than {MAX_FILE_BYTES} bytes, which no certificate or key has", .file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// The file is not what it should be.
    #[error("{}: {cause}", .file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// Certificate and key do not belong together.
    #[error(
        "the private key {} does not belong to the certificate {}; replace both files together",
        .key.display(), .certificate.display()
    )]
    KeyMismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The certificate has expired, or is not valid yet.
    #[error("the certificate {}: {cause}", .file.display())]
    NotValidNow {
        /// The file.
        file: PathBuf,
        /// Since or until when, by this machine's clock.
        cause: String,
    },
    /// A node's own certificate names another node.
    #[error("the certificate {}: {cause}", .file.display())]
    WrongNode {
        /// The file.
        file: PathBuf,
        /// The name that it has, and the one that it must have.
        cause: String,
    },
    /// Neither the certificate nor the authority can be used.
    #[error("{certificate}; {authority}")]
    CertificateAndAuthority {
        /// What is wrong with the certificate or its key.
        certificate: Box<TlsError>,
        /// What is wrong with the authority.
        authority: Box<TlsError>,
    },
    /// Certificates of the other end cannot be checked.
    #[error("no authority is configured, and the certificate of the other end cannot be checked without one")]
    NoAuthority,
    /// A certificate, which was received or read, names no node.
    #[error("the certificate {0}")]
    NoNode(String),
    /// rustls refuses the settings.
    #[error("TLS settings: {0}")]
    Settings(String),
}

/// The reason if it was TLS itself that failed, and not the connection below it.
pub fn tls_failure(error: &(dyn Error + 'static)) -> Option<String> {
    let failure = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>())?;
    Some(match failure {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!("certificate of another authority: {failure}")
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA) => {
            format!("the other end does not trust the authority of this one's certificate: {failure}")
        }
        _ => failure.to_string(),
    })
}

/// An error and its causes, the outermost first. The source of an I/O error is the source of the error in it, which
/// would skip that error.
pub fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| {
        let error = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &'e (dyn Error + 'static)),
            None => error.source(),
        }
    })
}

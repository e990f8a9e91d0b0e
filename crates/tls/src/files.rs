//! Reading certificates, keys and authorities from files of bounded size, and noticing that a file has changed.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use crate::certificate::{is_authority, validity};
use crate::error::{MAX_FILE_BYTES, TlsError};
use crate::{TlsFiles, provider};

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|open| open.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|source| TlsError::Unreadable { file: file.to_path_buf(), source })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(TlsError::TooLarge { file: file.to_path_buf() });
    }
    Ok(bytes)
}

fn malformed(file: &Path, cause: impl Into<String>) -> TlsError {
    TlsError::Malformed { file: file.to_path_buf(), cause: cause.into() }
}

/// The parser's own text may repeat a line of the file, which may be one of a private key.
fn describe(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "is cut off: a line -----END …----- is missing",
        pem::Error::IllegalSectionStart { .. } => "has a malformed line -----BEGIN …-----",
        pem::Error::Base64Decode(_) => "has a section that is not base64",
        _ => "is not in PEM format",
    }
}

/// The certificates of a file, in its order; at least one.
fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(&read(file)?).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| malformed(file, describe(&error)))?;
    if certificates.is_empty() {
        return Err(malformed(file, "has no section -----BEGIN CERTIFICATE-----"));
    }
    Ok(certificates)
}

/// When the first certificate of a file to expire does so, in seconds since 1970. It checks nothing else.
///
/// # Errors
/// The file cannot be read, or has no certificate that can be parsed.
pub fn first_expiry_unix_s(file: &Path) -> Result<i64, TlsError> {
    let expiries = read_certificates(file)?.iter().map(|certificate| Some(validity(certificate)?.until_unix_s)).min();
    expiries.flatten().ok_or_else(|| malformed(file, "has a certificate that cannot be parsed"))
}

/// The certificate with its key, which belong together.
pub(crate) fn read_identity(files: &TlsFiles) -> Result<Arc<CertifiedKey>, TlsError> {
    let certificates = read_certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|error| {
        let cause = match &error {
            pem::Error::NoItemsFound => "has no private key without a password in PEM format",
            error => describe(error),
        };
        malformed(&files.key, cause)
    })?;
    match CertifiedKey::from_der(certificates, key, &provider()) {
        Ok(identity) => Ok(Arc::new(identity)),
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(TlsError::KeyMismatch { certificate: files.certificate.clone(), key: files.key.clone() })
        }
        Err(rustls::Error::InvalidCertificate(cause)) => Err(malformed(&files.certificate, cause.to_string())),
        Err(_) => Err(malformed(&files.key, "has a private key that is neither RSA, ECDSA nor Ed25519")),
    }
}

/// The authorities of a file: certificates signed by any of them are accepted.
pub(crate) fn read_authority(file: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(file)? {
        // The holder of any certificate in here could sign others.
        if !is_authority(&certificate) {
            return Err(malformed(file, "has a certificate that is not one of an authority (basic constraint CA)"));
        }
        authorities.add(certificate).map_err(|error| malformed(file, error.to_string()))?;
    }
    Ok(Arc::new(authorities))
}

/// What tells a file from its successor; `None` if there is no file. Symbolic links are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion(Option<(Option<SystemTime>, u64, u64)>);

impl FileVersion {
    pub(crate) fn of(file: &Path) -> Self {
        Self(fs::metadata(file).ok().map(|data| (data.modified().ok(), data.len(), inode(&data))))
    }
}

#[cfg(unix)]
fn inode(data: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(data)
}

#[cfg(not(unix))]
fn inode(_: &fs::Metadata) -> u64 {
    0
}

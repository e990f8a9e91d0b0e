//! A client's end.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::sign::SingleCertAndKey;
use rustls::version::{TLS12, TLS13};

use crate::error::TlsError;
use crate::files::{read_authority, read_identity};
use crate::{TlsFiles, provider};

/// The settings of a client that accepts servers with certificates of `authority`, and presents `identity` to a server
/// that asks for a certificate.
///
/// # Errors
/// No authority is given, or a file cannot be used.
pub fn client_config(authority: Option<&Path>, identity: Option<&TlsFiles>) -> Result<ClientConfig, TlsError> {
    let authority = read_authority(authority.ok_or(TlsError::NoAuthority)?)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| TlsError::Settings(error.to_string()))?
        .with_root_certificates(authority);
    Ok(match identity {
        Some(files) => config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(read_identity(files)?))),
        None => config.with_no_client_auth(),
    })
}

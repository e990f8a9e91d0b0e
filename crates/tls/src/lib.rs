//! TLS for listeners, clients and peers: rustls with ring, version 1.2 or later.
//!
//! [`ServerTls`] is a listener's end and replaces its certificates while it runs; [`client_config`] is a client's end;
//! [`PeerTls`] is both ends of a member, which knows its peers by the names in their certificates instead of by host
//! names.
//!
//! This crate must never trust the authorities of the operating system, accept a certificate without an authority, or
//! show anything of a private key in a log line, an error or a `Debug` output.

mod certificate;
mod client;
mod client_name;
mod error;
mod files;
mod peer;
mod server;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use serde::{Deserialize, Serialize};

pub use certificate::{MAX_NAME_BYTES, PeerName, is_name, peer_identity};
pub use client::client_config;
pub use client_name::{ClientNameRule, NameSource, NoClientName};
pub use error::{MAX_FILE_BYTES, TlsError, causes, tls_failure};
pub use files::first_expiry_unix_s;
pub use peer::PeerTls;
pub use rustls::ClientConfig;
pub use rustls::pki_types::CertificateDer;
pub use server::ServerTls;
pub use tokio_rustls::server::TlsStream;

/// The files of one identity, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    /// The private key: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
}

/// What a listener asks of the clients' certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientCertificates {
    /// It asks for none.
    #[default]
    None,
    /// A client may have none; one that it has must be good.
    Optional,
    /// A client without a good one is turned away.
    Required,
}

/// ring, passed explicitly: the process may have installed another provider, or none.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

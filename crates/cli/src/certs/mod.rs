//! A private certificate authority for clusters without a public key infrastructure: names, certificates and keys.
//! `commands/certs.rs` reads and writes the files.
//!
//! It must never touch a file or the network, and never print a private key.

mod issue;
mod names;

pub(crate) use issue::{Authority, Issued, new_authority};
pub(crate) use names::{ClientName, ClusterName, Host, hosts};

/// Why no certificate was made.
#[derive(Debug)]
pub(crate) enum CertsError {
    /// An argument breaks a rule.
    Name(String),
    /// The authority cannot issue this certificate.
    Authority(String),
    /// The certificate cannot be made.
    Failed(String),
}

impl From<rcgen::Error> for CertsError {
    fn from(error: rcgen::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

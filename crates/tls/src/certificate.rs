//! What is read from a certificate beside what rustls checks: the node that it names, its validity, whether it is an
//! authority's.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::X509Certificate;

use crate::error::TlsError;

pub(crate) const SCHEME: &str = "lockkeeper://";

/// Longest name of a cluster or a client.
pub const MAX_NAME_BYTES: usize = 64;

/// Whether the text can name a cluster or a client: 1 to [`MAX_NAME_BYTES`] of `a-z`, `A-Z`, `0-9`, `-`, `_`, `.`.
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// The name of a member in its certificate: the URI `lockkeeper://<cluster>/node/<id>` among the subject's alternative
/// names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerName {
    /// Name of the cluster.
    pub cluster: String,
    /// Node id.
    pub node: u64,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/node/{}", self.cluster, self.node)
    }
}

impl FromStr for PeerName {
    type Err = TlsError;

    /// Exactly the form that `Display` writes: no other text means the same node.
    fn from_str(uri: &str) -> Result<Self, TlsError> {
        let parsed = || {
            let (cluster, node) = uri.strip_prefix(SCHEME)?.split_once("/node/")?;
            let node = node.parse().ok().filter(|node| is_name(cluster) && (1..=u64::from(u32::MAX)).contains(node))?;
            Some(Self { cluster: cluster.to_owned(), node }).filter(|name| name.to_string() == uri)
        };
        parsed().ok_or_else(|| TlsError::NoNode(format!("has the name {uri:?}, which is not {SCHEME}CLUSTER/node/ID")))
    }
}

/// The node that a certificate names. It checks nothing else of the certificate.
///
/// # Errors
/// It is malformed, or has no such name or several.
pub fn peer_identity(certificate: &[u8]) -> Result<PeerName, TlsError> {
    let certificate = parse(certificate).ok_or_else(|| TlsError::NoNode("is malformed".into()))?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| TlsError::NoNode("has malformed alternative names".into()))?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let mut nodes = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with(SCHEME) => Some(*uri),
        _ => None,
    });
    match (nodes.next(), nodes.next()) {
        (Some(only), None) => only.parse(),
        (None, _) => Err(TlsError::NoNode(format!("names no node: it has no URI {SCHEME}CLUSTER/node/ID"))),
        (Some(_), Some(_)) => Err(TlsError::NoNode("names more than one node".into())),
    }
}

/// When a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from_unix_s: i64,
    pub(crate) until_unix_s: i64,
}

/// `None` if it is malformed.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    Some(Validity { from_unix_s: validity.not_before.timestamp(), until_unix_s: validity.not_after.timestamp() })
}

/// Whether it may sign others.
pub(crate) fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    parse(certificate).is_some_and(|certificate| certificate.is_ca())
}

pub(crate) fn parse(certificate: &[u8]) -> Option<X509Certificate<'_>> {
    match parse_x509_certificate(certificate) {
        Ok(([], parsed)) => Some(parsed),
        _ => None,
    }
}

//! The rule by which a client's certificate names the client.

use std::fmt;

use serde::{Deserialize, Serialize};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

use crate::certificate::{SCHEME, parse};

/// Which names in a client's certificate count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameSource {
    /// The common names of its subject.
    #[default]
    CommonName,
    /// The URIs among its subject's alternative names.
    Uri,
    /// The DNS names among them.
    Dns,
    /// The e-mail addresses among them.
    Email,
}

impl fmt::Display for NameSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CommonName => "common name",
            Self::Uri => "URI",
            Self::Dns => "DNS name",
            Self::Email => "e-mail address",
        })
    }
}

/// How a client's certificate names the client: by the only name of this kind with this prefix, without the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientNameRule {
    /// The kind of names that count.
    pub from: NameSource,
    /// What they begin with; empty for all of them.
    pub prefix: String,
}

/// A certificate names no client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoClientName {
    /// It cannot be read.
    #[error("it is malformed")]
    Malformed,
    /// It is a member's.
    #[error("it is the certificate of a node: it has a URI {SCHEME}CLUSTER/node/ID")]
    Node,
    /// No name counts.
    #[error("it has no {0}")]
    None(ClientNameRule),
    /// One name must count, not several.
    #[error("it has more than one {0}")]
    Several(ClientNameRule),
}

impl fmt::Display for ClientNameRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.as_str() {
            "" => write!(f, "{}", self.from),
            prefix => write!(f, "{} that begins with {prefix:?}", self.from),
        }
    }
}

impl ClientNameRule {
    /// The name of the client. It checks nothing else of the certificate.
    ///
    /// # Errors
    /// The certificate is a node's, or has no such name or several.
    pub fn name_in(&self, certificate: &[u8]) -> Result<String, NoClientName> {
        let certificate = parse(certificate).ok_or(NoClientName::Malformed)?;
        let alternative = certificate.subject_alternative_name().map_err(|_| NoClientName::Malformed)?;
        let alternative = alternative.map_or(&[][..], |names| &names.value.general_names);
        if alternative.iter().any(names_node) {
            return Err(NoClientName::Node);
        }
        let names = match self.from {
            NameSource::CommonName => common_names(&certificate)?,
            source => alternative.iter().filter_map(|name| source.of(name)).collect(),
        };
        let mut counting = names.into_iter().filter_map(|name| name.strip_prefix(&self.prefix));
        match (counting.next(), counting.next()) {
            (Some(only), None) => Ok(only.to_owned()),
            (None, _) => Err(NoClientName::None(self.clone())),
            (Some(_), Some(_)) => Err(NoClientName::Several(self.clone())),
        }
    }
}

impl NameSource {
    /// The alternative name, if it is of this kind.
    fn of<'a>(self, name: &GeneralName<'a>) -> Option<&'a str> {
        match (self, name) {
            (Self::Uri, GeneralName::URI(name))
            | (Self::Dns, GeneralName::DNSName(name))
            | (Self::Email, GeneralName::RFC822Name(name)) => Some(name),
            _ => None,
        }
    }
}

fn common_names<'a>(certificate: &'a X509Certificate<'_>) -> Result<Vec<&'a str>, NoClientName> {
    let names = certificate.subject().iter_common_name();
    names.map(|name| name.as_str().map_err(|_| NoClientName::Malformed)).collect()
}

/// Whether it is meant as the name of a member, of whichever cluster.
fn names_node(name: &GeneralName<'_>) -> bool {
    let GeneralName::URI(uri) = name else { return false };
    uri.strip_prefix(SCHEME)
        .and_then(|rest| rest.split_once('/'))
        .is_some_and(|(_, path)| path.strip_prefix("node").is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

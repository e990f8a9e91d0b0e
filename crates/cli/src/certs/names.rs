//! What certificates name: clusters, clients and hosts, each checked once.

use std::fmt;
use std::net::IpAddr;

use lockkeeper_tls::{MAX_NAME_BYTES, is_name};
use rcgen::SanType;

use super::CertsError;

/// More hosts than this for one node are a mistake.
const MAX_HOSTS: usize = 64;
/// Longest host name and longest part of it between dots (RFC 1035).
const MAX_HOST: usize = 253;
const MAX_LABEL: usize = 63;

/// The name of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterName(String);

impl ClusterName {
    /// By the rule of `cluster.id`.
    pub(crate) fn new(text: &str) -> Result<Self, CertsError> {
        checked("--cluster", text).map(Self)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientName(String);

impl ClientName {
    pub(crate) fn new(text: &str) -> Result<Self, CertsError> {
        checked("--name", text).map(Self)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

fn checked(option: &str, text: &str) -> Result<String, CertsError> {
    if !is_name(text) {
        let rule = format!("must be 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ .");
        return Err(CertsError::Name(format!("{option} {text:?}: {rule}")));
    }
    Ok(text.to_owned())
}

/// A host under which clients reach a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Address(IpAddr),
    Name(String),
}

impl Host {
    pub(crate) fn parse(text: &str) -> Result<Self, CertsError> {
        let bad = |why: &str| Err(CertsError::Name(format!("--host {text:?}: {why}")));
        let unbracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = unbracketed.parse::<IpAddr>() {
            if address.is_unspecified() {
                return bad("no client reaches a node under this address; give its own addresses and names");
            }
            return Ok(Self::Address(address));
        }
        if text.contains([':', '/']) {
            return bad("must be a host name or an IP address, without scheme and port");
        }
        if !is_host_name(text) {
            return bad(
                "must be an IP address or a host name of letters, digits, '-' and '_' between dots, without wildcards",
            );
        }
        Ok(Self::Name(text.to_ascii_lowercase()))
    }

    pub(crate) fn to_san(&self) -> Result<SanType, CertsError> {
        Ok(match self {
            Self::Address(address) => SanType::IpAddress(*address),
            Self::Name(name) => SanType::DnsName(name.as_str().try_into()?),
        })
    }
}

fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or(text);
    // A last part of digits is a mistyped address.
    text.len() <= MAX_HOST && text.split('.').all(is_label) && !last.bytes().all(|b| b.is_ascii_digit())
}

/// The hosts of a node, each once.
pub(crate) fn hosts(texts: &[String]) -> Result<Vec<Host>, CertsError> {
    let mut hosts = Vec::new();
    for text in texts {
        let host = Host::parse(text)?;
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    match hosts.len() {
        0 => Err(CertsError::Name("--host: name at least one host".into())),
        1..=MAX_HOSTS => Ok(hosts),
        many => Err(CertsError::Name(format!("--host: {many} hosts given; at most {MAX_HOSTS} are supported"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clusters_and_clients() {
        for good in ["a", "orders-1.eu_west", &"x".repeat(64)] {
            assert!(ClusterName::new(good).is_ok() && ClientName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "ä", "a\n", &"x".repeat(65)] {
            let CertsError::Name(why) = ClientName::new(bad).unwrap_err() else { panic!("{bad}") };
            assert!(why.starts_with("--name") && why.contains("must be 1 to 64"), "{why}");
            assert!(ClusterName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        assert_eq!(Host::parse("[::1]").unwrap(), Host::Address("::1".parse().unwrap()));
        assert_eq!(Host::parse("10.0.0.1").unwrap(), Host::Address("10.0.0.1".parse().unwrap()));
        assert_eq!(Host::parse("Lock-1.Example").unwrap(), Host::Name("lock-1.example".into()));
        let long = format!("{}.example", "x".repeat(64));
        for bad in
            ["", "0.0.0.0", "::", "10.0.0", "10.0.0.256", "a:7001", "http://a", "*.a", "a..b", "-a", "a.", "ä", &long]
        {
            assert!(matches!(Host::parse(bad), Err(CertsError::Name(why)) if why.starts_with("--host")), "{bad}");
        }
        let texts = |texts: &[&str]| hosts(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(texts(&["a", "A", "b"]).unwrap().len(), 2);
        assert!(texts(&[]).is_err());
    }
}

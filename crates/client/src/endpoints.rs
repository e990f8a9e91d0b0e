//! The endpoints of the cluster, and which one to ask first.
//!
//! Endpoints form a ring. All calls of a client go to the same endpoint until it fails, then to the next one: so a
//! caller reads its own writes without waiting for another replica. [`PreferredNode`] says which endpoint that is.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;

/// More endpoints than this are a mistake.
const MAX_ENDPOINTS: usize = 64;

/// The port of an endpoint that is only a host.
const DEFAULT_PORT: u16 = 7001;

/// The address of one node's client interface, such as `https://10.0.0.1:7001`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint(String);

/// The text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// No endpoint is given.
    #[error("no endpoint given; name at least one, such as http://127.0.0.1:7001")]
    None,
    /// Too many endpoints are given.
    #[error("{0} endpoints given; at most {MAX_ENDPOINTS} are supported")]
    TooMany(usize),
    /// The endpoint is an `https` URL, and the client has no certificate authority to trust.
    #[error("{0} needs TLS, and no certificate authority is given to verify the node's certificate with")]
    NoAuthority(String),
    /// The endpoint cannot be used.
    #[error("'{text}' is not an endpoint ({why}); write it as http://HOST:PORT or https://HOST:PORT")]
    Bad {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Endpoint {
    /// Parses `http://host:port`, `https://host:port`, or `host:port` and `host`, which are `http`. Without a port, a
    /// URL has the one of its scheme, and a host has port 7001.
    ///
    /// # Errors
    /// Another scheme, no host, or a path behind the port.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        Self::parse_with_default(text, Scheme::Http)
    }

    /// The same, with the scheme of an endpoint that names none.
    pub(crate) fn parse_with_default(text: &str, default: Scheme) -> Result<Self, EndpointError> {
        let bad = |why: &str| EndpointError::Bad { text: text.to_owned(), why: why.to_owned() };
        let trimmed = text.trim();
        let has_scheme = trimmed.contains("://");
        let with_scheme = if has_scheme { trimmed.to_owned() } else { format!("{}://{trimmed}", default.name()) };
        let mut url = reqwest::Url::parse(&with_scheme).map_err(|e| bad(&e.to_string()))?;
        // A URL has the port of its scheme, as for a proxy; what a URL leaves out may still be in the text.
        if !has_scheme && !trimmed.rsplit(']').next().is_some_and(|rest| rest.contains(':')) {
            url.set_port(Some(DEFAULT_PORT)).map_err(|()| bad("it has no host"))?;
        }
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("only http and https are supported"));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(bad("it has no host"));
        }
        if !url.path().trim_matches('/').is_empty()
            || url.query().is_some()
            || url.fragment().is_some()
            || !url.username().is_empty()
        {
            return Err(bad("it has more than host and port"));
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }

    /// Whether connections to it use TLS.
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// Host and port, for a connection.
    pub(crate) fn authority(&self) -> String {
        let (_, authority) = self.split();
        // An IPv6 address is in brackets; a colon after them begins the port. URLs omit the default port.
        let has_port = authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let default_port = if self.is_tls() { 443 } else { 80 };
        if has_port { authority.to_owned() } else { format!("{authority}:{default_port}") }
    }

    /// The host without brackets, as certificates name it.
    pub(crate) fn host(&self) -> String {
        let authority = self.authority();
        let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']').to_owned()
    }

    fn split(&self) -> (&str, &str) {
        self.0.split_once("://").unwrap_or(("http", &self.0))
    }

    /// The URL without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The scheme of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The node at which a session has its stream, as long as that node serves. Calls over HTTP go to the endpoint that
/// served last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferredNode {
    /// The leader: a call makes no detour by another node. A stream learns of a new leader with its next keepalive and
    /// moves after a random part of a third of the session's timeout, at most once in 30 s, so that not all clients
    /// meet the new leader at once. An endpoint is the leader's if it is the client address that the cluster has for
    /// the leader (`lockkeeper status` shows it); a client that has no such endpoint stays where it is.
    #[default]
    Leader,
    /// The node that opens the stream first when all are asked at the same time.
    Nearest,
    /// The first of the endpoints at the beginning, and the next one each time that a node fails.
    First,
    /// A random endpoint at the beginning, and the next one each time that a node fails: clients spread their streams
    /// over all nodes, and so the work of connections and watches.
    Spread,
}

/// The ring.
#[derive(Debug)]
pub(crate) struct Endpoints {
    ring: Vec<Endpoint>,
    preferred: AtomicUsize,
}

impl Endpoints {
    /// `default` is the scheme of endpoints that name none. It is [`Scheme::Https`] where TLS is configured; without
    /// that an `https` endpoint is refused.
    pub(crate) fn new(
        texts: impl IntoIterator<Item = impl AsRef<str>>,
        default: Scheme,
    ) -> Result<Self, EndpointError> {
        let mut ring = Vec::new();
        for text in texts {
            let endpoint = Endpoint::parse_with_default(text.as_ref(), default)?;
            if endpoint.is_tls() && default == Scheme::Http {
                return Err(EndpointError::NoAuthority(endpoint.to_string()));
            }
            if !ring.contains(&endpoint) {
                ring.push(endpoint);
            }
        }
        match ring.len() {
            0 => Err(EndpointError::None),
            1..=MAX_ENDPOINTS => Ok(Self { ring, preferred: AtomicUsize::new(0) }),
            many => Err(EndpointError::TooMany(many)),
        }
    }

    pub(crate) fn all(&self) -> &[Endpoint] {
        &self.ring
    }

    /// The index of the endpoint to ask first.
    pub(crate) fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed) % self.ring.len()
    }

    pub(crate) fn at(&self, index: usize) -> &Endpoint {
        &self.ring[index % self.ring.len()]
    }

    /// The index of the endpoint at that address, whichever scheme it has: members' addresses name none.
    pub(crate) fn position(&self, address: &str) -> Option<usize> {
        let authority = Endpoint::parse(address).ok()?.authority();
        self.ring.iter().position(|known| known.authority() == authority)
    }

    /// The endpoint at index `failed` could not serve: prefer the next one, unless another caller has already moved on.
    pub(crate) fn move_on_from(&self, failed: usize) {
        let next = (failed + 1) % self.ring.len();
        let _ = self.preferred.compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Prefers the endpoint at `index`: it has served where the preferred one did not, or is to be the first.
    pub(crate) fn prefer(&self, index: usize) {
        self.preferred.store(index % self.ring.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_are_taken() {
        assert_eq!(Endpoint::parse("http://127.0.0.1:7001/").unwrap().as_str(), "http://127.0.0.1:7001");
        assert_eq!(Endpoint::parse(" node-1:7001 ").unwrap().as_str(), "http://node-1:7001");
        assert_eq!(Endpoint::parse("[::1]:7001").unwrap().as_str(), "http://[::1]:7001");
        for (text, authority) in [
            ("a:7002", "a:7002"),
            ("a", "a:7001"),
            ("a:80", "a:80"),
            ("http://a", "a:80"),
            ("[::1]:7002", "[::1]:7002"),
            ("[::1]", "[::1]:7001"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().authority(), authority);
        }
        for bad in ["", "https://", "https://a:1/v1", "http://a:1/v1", "http://a:b", "ftp://a", "http://u@a:1"] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_endpoint_that_names_no_scheme_takes_the_default_one() {
        let secure = |text| Endpoint::parse_with_default(text, Scheme::Https).unwrap();
        assert_eq!(secure("node-1:7001").as_str(), "https://node-1:7001");
        assert_eq!(secure("http://node-1:7001").as_str(), "http://node-1:7001");
        assert!(secure("a").is_tls() && !secure("http://a").is_tls());
        for (text, authority, host) in [
            ("a:7001", "a:7001", "a"),
            ("a", "a:7001", "a"),
            ("a:443", "a:443", "a"),
            ("https://a", "a:443", "a"),
            ("[::1]:7001", "[::1]:7001", "::1"),
            ("10.0.0.1:7001", "10.0.0.1:7001", "10.0.0.1"),
        ] {
            assert_eq!((secure(text).authority(), secure(text).host()), (authority.into(), host.into()));
        }
    }

    #[test]
    fn https_is_refused_without_tls_and_members_addresses_match_either_scheme() {
        let refused = Endpoints::new(["https://a:1"], Scheme::Http).unwrap_err();
        assert_eq!(refused, EndpointError::NoAuthority("https://a:1".into()));
        let ring = Endpoints::new(["a:1", "http://b:1"], Scheme::Https).unwrap();
        assert_eq!((ring.position("a:1"), ring.position("b:1")), (Some(0), Some(1)));
        assert_eq!((ring.position("http://a:1"), ring.position("a:2")), (Some(0), None));
    }

    #[test]
    fn the_ring_turns_once_per_failure() {
        let ring = Endpoints::new(["a:1", "b:1", "c:1", "a:1"], Scheme::Http).unwrap();
        assert_eq!(ring.all().len(), 3);
        assert_eq!(ring.preferred(), 0);
        ring.move_on_from(0);
        ring.move_on_from(0);
        assert_eq!(ring.preferred(), 1, "a second report of the same failure changes nothing");
        ring.move_on_from(1);
        ring.move_on_from(2);
        assert_eq!(ring.preferred(), 0);
        ring.prefer(2);
        assert_eq!(ring.at(ring.preferred()).as_str(), "http://c:1");
        assert_eq!((ring.position("b:1"), ring.position("d:1"), ring.position("://")), (Some(1), None, None));
        assert_eq!(Endpoints::new(Vec::<String>::new(), Scheme::Http).unwrap_err(), EndpointError::None);
    }
}

//! Checks of a request's `Host` and `Origin`, before any other.
//!
//! `Host`: exactly one (RFC 9112, section 3.2), because two of them can smuggle a request past a proxy.
//!
//! `Origin`: a browser adds it to requests of a web page. A foreign page must not make changes from inside the user's
//! network. A page whose name was pointed at this address (DNS rebinding) has an `Origin` that equals its `Host`. So
//! equality counts only for an address, for localhost, and for the names that the configuration gives to members.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Version, header};
use lockkeeper_api::Code;
use lockkeeper_config::is_plain;
use lockkeeper_service::failure::Failure;

/// Most bytes of a foreign origin that an error repeats.
const SHOWN_BYTES: usize = 200;

/// The origins that may make changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// As browsers write them, in lower case.
    allowed: BTreeSet<String>,
    /// Names that this cluster's members have for clients, in lower case.
    own_names: BTreeSet<String>,
}

impl Origins {
    /// `allowed` are whole origins; `clients` the addresses at which clients reach members.
    pub(crate) fn new<'c>(allowed: &[String], clients: impl IntoIterator<Item = &'c String>) -> Self {
        let own_names = clients.into_iter().filter_map(|address| address.parse::<Authority>().ok());
        Self {
            allowed: allowed.iter().map(|origin| origin.to_ascii_lowercase()).collect(),
            own_names: own_names.map(|address| address.host().to_ascii_lowercase()).collect(),
        }
    }

    /// Refuses requests of foreign pages, except reads.
    ///
    /// # Errors
    /// Names the origin and the key of the configuration.
    pub(crate) fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Failure> {
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        if reads && !headers.contains_key(header::UPGRADE) {
            return Ok(());
        }
        let host = headers.get(header::HOST).and_then(authority);
        match headers.get_all(header::ORIGIN).iter().find(|origin| !self.allows(origin, host.as_ref())) {
            None => Ok(()),
            Some(foreign) => {
                let shown = String::from_utf8_lossy(&foreign.as_bytes()[..foreign.len().min(SHOWN_BYTES)]).into_owned();
                Err(Failure::new(
                    Code::Forbidden,
                    format!(
                        "a web page of the origin {shown:?} sent this, and such requests must not change anything; \
                         allow the origin in listen.allowed_origins, or send the request without the header Origin, \
                         as programs do"
                    ),
                ))
            }
        }
    }

    fn allows(&self, origin: &HeaderValue, host: Option<&Authority>) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let origin = origin.to_ascii_lowercase();
        if self.allowed.contains(&origin) {
            return true;
        }
        let Some((scheme, rest)) = origin.split_once("://") else { return false };
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        let (Ok(origin), Some(host)) = (rest.parse::<Authority>(), host) else { return false };
        let port = |authority: &Authority| authority.port_u16().unwrap_or(default_port);
        let same = origin.host().eq_ignore_ascii_case(host.host()) && port(&origin) == port(host);
        same && self.is_own(origin.host())
    }

    fn is_own(&self, name: &str) -> bool {
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || address.parse::<IpAddr>().is_ok() || self.own_names.contains(name)
    }
}

/// Refuses a request without exactly one valid `Host`.
///
/// # Errors
/// Says what is wrong with its `Host`.
pub(crate) fn check_host(version: Version, headers: &HeaderMap) -> Result<(), Failure> {
    check_host_count(version, headers)?;
    match headers.get(header::HOST) {
        Some(host) if authority(host).is_none() => {
            Err(Failure::bad_request("header Host is not host:port; send the address that you ask"))
        }
        _ => Ok(()),
    }
}

/// Refuses a request without exactly one `Host`, valid or not.
///
/// # Errors
/// Says what is wrong with its `Host`.
pub(crate) fn check_host_count(version: Version, headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get_all(header::HOST).iter().count() {
        0 if version >= Version::HTTP_11 => Err(Failure::bad_request("header Host is missing; HTTP/1.1 needs one")),
        0 | 1 => Ok(()),
        _ => Err(Failure::bad_request("header Host is there more than once; send one")),
    }
}

/// A port may be left out behind its colon (RFC 3986, section 3.2.3).
fn authority(value: &HeaderValue) -> Option<Authority> {
    let value = value.to_str().ok()?;
    value.strip_suffix(':').unwrap_or(value).parse().ok().filter(is_plain)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn headers(fields: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn one_host_and_no_other() {
        let check = |version, hosts: &[&'static str]| {
            let fields: Vec<_> = hosts.iter().map(|host| (header::HOST, *host)).collect();
            check_host(version, &headers(&fields)).is_ok()
        };
        for host in ["a", "a:1", "a:", "127.0.0.1:7001", "[::1]:7001", "[::1]:", "lock.example"] {
            assert!(check(Version::HTTP_11, &[host]), "{host}");
        }
        for hosts in
            [&[][..], &["a", "a"], &["a", "b"], &[""], &["a/b"], &["u@a"], &["a:b"], &["a::"], &[":"], &["a b"]]
        {
            assert!(!check(Version::HTTP_11, hosts), "{hosts:?}");
        }
        assert!(check(Version::HTTP_10, &[]));
        let sly = headers(&[(header::HOST, "a_b/c d")]);
        assert!(check_host_count(Version::HTTP_11, &sly).is_ok() && check_host(Version::HTTP_11, &sly).is_err());
        assert!(!check(Version::HTTP_10, &["a", "a"]));
    }

    #[test]
    fn foreign_pages_change_nothing() {
        let clients = ["lk1.example:7001".to_owned()];
        let origins = Origins::new(&["https://console.example".to_owned()], &clients);
        let check = |method: Method, host, origin| {
            origins.check(&method, &headers(&[(header::HOST, host), (header::ORIGIN, origin)])).is_ok()
        };
        for (host, origin) in [
            ("127.0.0.1:7001", "http://127.0.0.1:7001"),
            ("[::1]:7001", "http://[::1]:7001"),
            ("localhost:80", "http://LOCALHOST"),
            ("lk1.example:7001", "http://lk1.example:7001"),
            ("127.0.0.1:7001", "https://console.example"),
        ] {
            assert!(check(Method::POST, host, origin), "{origin} at {host}");
        }
        for (host, origin) in [
            ("127.0.0.1:7001", "http://evil.example"),
            ("127.0.0.1:7001", "http://127.0.0.1:8080"),
            ("127.0.0.1:7001", "null"),
            ("127.0.0.1:7001", ""),
            // A name that was made to lead here.
            ("evil.example:7001", "http://evil.example:7001"),
            ("127.0.0.1:7001", "file://"),
            ("127.0.0.1:7001", "https://console.example.evil.example"),
        ] {
            for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
                assert!(!check(method, host, origin), "{origin} at {host}");
            }
            assert!(check(Method::GET, host, origin), "the browser does not show the page what it reads");
        }
        let upgrade = [(header::HOST, "a:1"), (header::ORIGIN, "http://evil.example"), (header::UPGRADE, "websocket")];
        assert!(origins.check(&Method::GET, &headers(&upgrade)).is_err(), "a stream changes things");
        assert!(origins.check(&Method::POST, &headers(&[(header::HOST, "a:1")])).is_ok(), "programs send no origin");
    }
}

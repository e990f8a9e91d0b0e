//! Section `[otlp]`: where traces are sent.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue, Uri};
use serde::{Deserialize, Serialize};

use super::error::refuse;
use super::{Config, ConfigError};

/// See the module's text.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpSection {
    /// The URL of the collector, such as `http://127.0.0.1:4318`. Spans are sent to `/v1/traces` below it.
    pub endpoint: String,
    /// The authorities that may have issued the certificate of an `https` URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// Headers of the requests to the collector, such as a credential.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The part of the requests that begin a trace here, from 0 to 1. A request whose caller sends `traceparent` is
    /// recorded if the caller records it, whatever this says; see `follow_callers`.
    #[serde(default = "sample_ratio")]
    pub sample_ratio: f64,
    /// Whether a caller that sends `traceparent` decides whether its request is recorded. If not, `sample_ratio` counts
    /// for every request, and each recorded one begins a trace.
    #[serde(default = "follow_callers")]
    pub follow_callers: bool,
    /// The attribute `service.name` of the spans.
    #[serde(default = "service_name")]
    pub service_name: String,
}

/// Without the values of the headers, which may be credentials.
impl fmt::Debug for OtlpSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpSection")
            .field("endpoint", &self.endpoint)
            .field("authority", &self.authority)
            .field("headers", &self.headers.keys())
            .field("sample_ratio", &self.sample_ratio)
            .field("follow_callers", &self.follow_callers)
            .field("service_name", &self.service_name)
            .finish()
    }
}

fn sample_ratio() -> f64 {
    0.01
}

fn follow_callers() -> bool {
    true
}

fn service_name() -> String {
    "lockkeeper".into()
}

/// The path of traces, by the specification of OTLP.
const TRACES_PATH: &str = "/v1/traces";
/// Longest URL, name or header, in bytes.
const MAX_TEXT_BYTES: usize = 1_024;
/// Most headers.
const MAX_HEADERS: usize = 16;

impl OtlpSection {
    /// The defaults, for a collector.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            authority: None,
            headers: BTreeMap::new(),
            sample_ratio: sample_ratio(),
            follow_callers: follow_callers(),
            service_name: service_name(),
        }
    }

    /// The URL to which spans are sent.
    pub fn traces_url(&self) -> String {
        let base = self.endpoint.trim_end_matches('/');
        if base.ends_with(TRACES_PATH) { base.to_owned() } else { format!("{base}{TRACES_PATH}") }
    }

    /// Checks the rules of the section.
    ///
    /// # Errors
    /// Names the key, its value and the rule.
    pub fn check(&self) -> Result<(), ConfigError> {
        let parsed = Some(&self.endpoint).filter(|url| url.len() <= MAX_TEXT_BYTES).and_then(|url| url.parse().ok());
        let is_https = match parsed.as_ref().map(|uri: &Uri| (uri.scheme_str(), uri.authority(), uri.query())) {
            Some((Some("https"), Some(host), None)) if !host.as_str().contains('@') => true,
            Some((Some("http"), Some(host), None)) if !host.as_str().contains('@') => false,
            _ => {
                let rule = "must be the http or https URL of a collector, such as http://127.0.0.1:4318, without a \
                            password or query";
                // Not shown: it may have a password.
                return Err(refuse("otlp.endpoint", "this URL", rule));
            }
        };
        match (&self.authority, is_https) {
            (None, true) => {
                let rule = "needs otlp.authority, the authorities of the collector's certificate: those of the \
                            operating system are not trusted";
                return Err(refuse("otlp.endpoint", "an https URL", rule));
            }
            (Some(authority), false) => {
                let rule = "has no effect without an https URL in otlp.endpoint; remove it";
                return Err(refuse("otlp.authority", authority.display(), rule));
            }
            _ => {}
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(refuse("otlp.sample_ratio", self.sample_ratio, "must be from 0 to 1"));
        }
        if self.service_name.is_empty() || self.service_name.len() > MAX_TEXT_BYTES {
            let rule = format!("must have 1 to {MAX_TEXT_BYTES} bytes");
            return Err(refuse("otlp.service_name", format!("{:?}", self.service_name), rule));
        }
        self.check_headers()
    }

    fn check_headers(&self) -> Result<(), ConfigError> {
        if self.headers.len() > MAX_HEADERS {
            let rule = format!("has more than {MAX_HEADERS} headers; remove some");
            return Err(refuse("otlp.headers", "this table", rule));
        }
        for (name, value) in &self.headers {
            let is_good = name.len() + value.len() <= MAX_TEXT_BYTES
                && name.parse::<HeaderName>().is_ok()
                && value.parse::<HeaderValue>().is_ok();
            if !is_good {
                let rule = format!("must be a header of HTTP with at most {MAX_TEXT_BYTES} bytes");
                return Err(refuse(format!("otlp.headers.{name}"), "its value", rule));
            }
        }
        Ok(())
    }
}

impl Config {
    /// Checks the section.
    pub(super) fn check_otlp(&self) -> Result<(), ConfigError> {
        self.otlp.as_ref().map_or(Ok(()), OtlpSection::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::checked;

    const GOOD: &str = "[otlp]\nendpoint = \"http://127.0.0.1:4318\"\n";

    #[test]
    fn a_collector_is_taken() {
        for text in [
            GOOD,
            "[otlp]\nendpoint = \"http://collector.example:4318/\"\nsample_ratio = 1\n",
            "[otlp]\nendpoint = \"https://collector/otlp\"\nauthority = \"ca.pem\"\nsample_ratio = 0.5\n",
            &format!(
                "{GOOD}follow_callers = false\nservice_name = \"locks\"\n[otlp.headers]\nauthorization = \"Bearer x\"\n"
            ),
        ] {
            checked(text, Config::check_otlp).unwrap();
        }
        checked("", Config::check_otlp).unwrap();
    }

    #[test]
    fn each_error_names_key_and_remedy() {
        for (text, parts) in [
            ("[otlp]\nendpoint = \"127.0.0.1:4318\"\n".to_owned(), &["otlp.endpoint", "URL"][..]),
            ("[otlp]\nendpoint = \"http://u:pass9@host\"\n".into(), &["otlp.endpoint", "password"]),
            ("[otlp]\nendpoint = \"http://u:pass9@ho st\"\n".into(), &["otlp.endpoint", "password"]),
            ("[otlp]\nendpoint = \"http://host?key=pass9\"\n".into(), &["otlp.endpoint", "query"]),
            ("[otlp]\nendpoint = \"https://host\"\n".into(), &["otlp.endpoint", "otlp.authority"]),
            (format!("{GOOD}authority = \"ca.pem\"\n"), &["otlp.authority", "remove it"]),
            (format!("{GOOD}sample_ratio = 1.5\n"), &["otlp.sample_ratio = 1.5", "from 0 to 1"]),
            (format!("{GOOD}sample_ratio = nan\n"), &["otlp.sample_ratio", "from 0 to 1"]),
            (format!("{GOOD}service_name = \"\"\n"), &["otlp.service_name"]),
            (format!("{GOOD}[otlp.headers]\n\"a b\" = \"c\"\n"), &["otlp.headers.a b", "header of HTTP"]),
            (format!("{GOOD}protocol = \"grpc\"\n"), &["otlp", "protocol"]),
            ("[otlp]\n".into(), &["otlp", "endpoint"]),
        ] {
            let error = checked(&text, Config::check_otlp).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
            assert!(!error.contains("pass9"), "a password is shown: {error}");
        }
    }

    #[test]
    fn the_path_is_added_once() {
        for (endpoint, url) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("http://c/otlp", "http://c/otlp/v1/traces"),
            ("http://c/v1/traces", "http://c/v1/traces"),
        ] {
            assert_eq!(OtlpSection::new(endpoint).traces_url(), url);
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let mut section = OtlpSection::new("http://c");
        section.headers.insert("authorization".into(), "Bearer hidden".into());
        let shown = format!("{section:?}");
        assert!(shown.contains("authorization") && !shown.contains("hidden"), "{shown}");
    }
}

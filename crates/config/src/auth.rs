//! Section `[auth]`: credentials that others issue.

use std::path::PathBuf;

use http::Uri;
use lockkeeper_core::access;
use serde::{Deserialize, Serialize};

use super::check::within;
use super::error::refuse;
use super::{Config, ConfigError};

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// JWTs of an OIDC issuer. Without the section they are no credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtSection>,
}

/// Section `[auth.jwt]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSection {
    /// The issuer, as the claim `iss` has it.
    pub issuer: String,
    /// The audience that the claim `aud` must have: the name of this cluster at the issuer.
    pub audience: String,
    /// The file of the issuer's keys (a JWK set).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_file: Option<PathBuf>,
    /// The URL of the issuer's keys: `https`, or `http` on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// The authorities that may have issued the certificate of an `https` URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// How often keys are fetched from the URL, in seconds.
    #[serde(default = "refresh_s")]
    pub refresh_s: u64,
    /// The claim with the name of the principal.
    #[serde(default = "principal_claim")]
    pub principal_claim: String,
    /// What stands before that name in the principal. It begins with `jwt:`, so that the issuer names no principal of
    /// certificates.
    #[serde(default = "principal_prefix")]
    pub principal_prefix: String,
    /// How far the issuer's clock may be off, in seconds.
    #[serde(default = "leeway_s")]
    pub leeway_s: u64,
}

fn refresh_s() -> u64 {
    300
}

fn principal_claim() -> String {
    "sub".into()
}

fn principal_prefix() -> String {
    "jwt:".into()
}

fn leeway_s() -> u64 {
    60
}

/// Longest issuer, audience, claim or URL, in bytes.
const MAX_TEXT_BYTES: usize = 1_024;
/// Longest prefix of a principal, in bytes.
const MAX_PREFIX_BYTES: usize = 64;

impl Config {
    /// Checks the section.
    pub(super) fn check_auth(&self) -> Result<(), ConfigError> {
        let Some(jwt) = &self.auth.jwt else { return Ok(()) };
        let texts = [("issuer", &jwt.issuer), ("audience", &jwt.audience), ("principal_claim", &jwt.principal_claim)];
        for (key, text) in texts {
            if text.is_empty() || text.len() > MAX_TEXT_BYTES {
                let rule = format!("must have 1 to {MAX_TEXT_BYTES} bytes");
                return Err(refuse(format!("auth.jwt.{key}"), format!("{text:?}"), rule));
            }
        }
        let prefix = &jwt.principal_prefix;
        if !access::is_name(prefix) || prefix.len() > MAX_PREFIX_BYTES || !prefix.starts_with("jwt:") {
            let rule = format!(
                "must be at most {MAX_PREFIX_BYTES} letters, digits and . _ - @ / : = +, and begin with jwt:, which no \
                 certificate proves, so that no JWT proves a principal of others"
            );
            return Err(refuse("auth.jwt.principal_prefix", format!("{prefix:?}"), rule));
        }
        within("auth.jwt.leeway_s", jwt.leeway_s, 0, 600)?;
        within("auth.jwt.refresh_s", jwt.refresh_s, 10, 86_400)?;
        check_source(jwt)
    }
}

fn check_source(jwt: &JwtSection) -> Result<(), ConfigError> {
    let url = match (&jwt.jwks_file, &jwt.jwks_url) {
        (Some(file), None) if !file.as_os_str().is_empty() => None,
        (None, Some(url)) => Some(url),
        _ => {
            let rule = "needs jwks_file or jwks_url, one of them, with the keys of the issuer";
            return Err(refuse("auth.jwt", "this section", rule));
        }
    };
    let is_https = match url {
        Some(url) => is_https(url)?,
        None => false,
    };
    match (&jwt.authority, is_https) {
        (None, true) => {
            let rule = "needs auth.jwt.authority, the authorities of the issuer's certificate: those of the operating \
                        system are not trusted";
            Err(refuse("auth.jwt.jwks_url", "an https URL", rule))
        }
        (Some(authority), false) => {
            let rule = "has no effect without an https URL in auth.jwt.jwks_url; remove it";
            Err(refuse("auth.jwt.authority", authority.display(), rule))
        }
        _ => Ok(()),
    }
}

/// Whether the URL is one of TLS; without TLS it must be on this machine.
fn is_https(url: &str) -> Result<bool, ConfigError> {
    let parsed = Some(url).filter(|url| url.len() <= MAX_TEXT_BYTES).and_then(|url| url.parse::<Uri>().ok());
    let scheme_and_host = parsed.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.host()?)));
    match scheme_and_host {
        Some(("https", _)) => Ok(true),
        Some(("http", "127.0.0.1" | "[::1]" | "localhost")) => Ok(false),
        _ => {
            let rule = "must be an https URL, or an http URL of this machine: whoever changes the keys on their way \
                        can be anybody";
            Err(refuse("auth.jwt.jwks_url", format!("{url:?}"), rule))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::checked;

    const GOOD: &str = "[auth.jwt]\nissuer = \"https://i\"\naudience = \"a\"\n";

    #[test]
    fn what_names_the_keys_of_an_issuer_is_taken() {
        for keys in [
            "jwks_file = \"keys.json\"",
            "jwks_url = \"https://i/keys\"\nauthority = \"ca.pem\"",
            "jwks_url = \"http://127.0.0.1:8080/keys\"",
            "jwks_url = \"http://[::1]/keys\"\nprincipal_prefix = \"jwt:oidc/\"\nprincipal_claim = \"email\"",
        ] {
            checked(&format!("{GOOD}{keys}\n"), Config::check_auth).unwrap();
        }
        checked("", Config::check_auth).unwrap();
    }

    #[test]
    fn each_error_names_key_and_remedy() {
        let file = "jwks_file = \"keys.json\"";
        for (keys, parts) in [
            ("", &["auth.jwt", "jwks_file or jwks_url"][..]),
            ("jwks_file = \"\"", &["jwks_file or jwks_url"]),
            (&format!("{file}\njwks_url = \"https://i\""), &["one of them"]),
            ("jwks_url = \"https://i\"", &["needs auth.jwt.authority"]),
            ("jwks_url = \"http://issuer.example/keys\"", &["auth.jwt.jwks_url", "https URL"]),
            ("jwks_url = \"http://127.0.0.1.example/keys\"", &["auth.jwt.jwks_url", "https URL"]),
            ("jwks_url = \"file:///keys\"", &["auth.jwt.jwks_url", "https URL"]),
            (&format!("{file}\nauthority = \"ca.pem\""), &["auth.jwt.authority", "remove it"]),
            (&format!("{file}\nleeway_s = 601"), &["auth.jwt.leeway_s = 601", "from 0 to 600"]),
            (&format!("{file}\nrefresh_s = 1"), &["auth.jwt.refresh_s = 1", "from 10"]),
            (&format!("{file}\nprincipal_claim = \"\""), &["auth.jwt.principal_claim"]),
            (&format!("{file}\nprincipal_prefix = \"\""), &["auth.jwt.principal_prefix", "certificate"]),
            (&format!("{file}\nprincipal_prefix = \"a\""), &["auth.jwt.principal_prefix", "begin with jwt:"]),
            (&format!("{file}\nprincipal_prefix = \"digest:\""), &["auth.jwt.principal_prefix"]),
            (&format!("{file}\nsecret = \"s\""), &["auth.jwt", "secret"]),
        ] {
            let error = checked(&format!("{GOOD}{keys}\n"), Config::check_auth).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        }
        let without_audience =
            checked(&format!("[auth.jwt]\nissuer = \"i\"\n{file}\n"), Config::check_auth).unwrap_err();
        assert!(without_audience.contains("audience"), "{without_audience}");
    }
}

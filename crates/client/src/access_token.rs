//! The token that proves who a client is, where access control is enforced.
//!
//! It must never be printed: neither `Debug` nor an error shows it.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::HeaderValue;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

const SCHEME: &str = "Bearer ";
const PREFIX: &str = "lk_";
const SECRET_BYTES: usize = 32;
/// The secret's bytes in base64url without padding.
const SECRET_CHARS: usize = 43;
/// Largest JWT that a node takes.
const MAX_JWT_BYTES: usize = 8 * 1024;

/// A bearer token: `lk_` and 43 characters of base64url, which `lockkeeper auth token create` makes, or a JWT of an
/// issuer that the nodes' configuration names. Whoever has it is its principal: keep it out of command lines and logs,
/// and use it over TLS. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken(HeaderValue);

/// The text or the file has no token.
#[derive(Debug, Error)]
pub enum AccessTokenError {
    /// The text is not a token.
    #[error("not an access token; a token is written lk_ and 43 letters, digits, '-' or '_', or is a JWT")]
    Malformed,
    /// The file holds something else than a token.
    #[error("{} holds no access token; a token is written lk_ and 43 letters, digits, '-' or '_', or is a JWT", .file.display())]
    NotInFile {
        /// The file.
        file: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read the token file {}: {why}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        why: std::io::Error,
    },
}

impl AccessToken {
    /// Draws a new token. It counts once the cluster knows its [`hash`](Self::hash): store it before you ask for that,
    /// so that it is not lost with an answer.
    pub fn draw() -> Self {
        let mut secret = [0; SECRET_BYTES];
        rand::fill(&mut secret);
        let text = format!("{SCHEME}{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
        Self::of_header(HeaderValue::from_str(&text).expect("base64url is valid in a header"))
    }

    /// The SHA-256 of the token, as [`AccessChange`](lockkeeper_api::access::AccessChange) takes it: the cluster stores
    /// this, and it does not tell the token.
    pub fn hash(&self) -> String {
        Sha256::digest(self.expose()).iter().fold(String::with_capacity(64), |mut hash, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hash, "{byte:02x}");
            hash
        })
    }

    /// The token itself, for the file of its owner. Keep it out of logs and command lines.
    pub fn expose(&self) -> &str {
        self.0.to_str().ok().and_then(|header| header.strip_prefix(SCHEME)).unwrap_or_default()
    }

    fn of_header(mut header: HeaderValue) -> Self {
        header.set_sensitive(true);
        Self(header)
    }

    /// Reads the token of a file, which holds nothing else but white space. The file is read once: a client that is to
    /// use another token must be created anew.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold a token.
    pub fn from_file(file: &Path) -> Result<Self, AccessTokenError> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(why) => return Err(AccessTokenError::Unreadable { file: file.to_owned(), why }),
        };
        text.parse().map_err(|_| AccessTokenError::NotInFile { file: file.to_owned() })
    }

    /// The value of the `Authorization` header, marked as sensitive, for a program that makes requests of its own.
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl FromStr for AccessToken {
    type Err = AccessTokenError;

    /// White space around the token does not count.
    fn from_str(text: &str) -> Result<Self, AccessTokenError> {
        let token = text.trim();
        let is_own = token.strip_prefix(PREFIX).is_some_and(|it| it.len() == SECRET_CHARS && is_base64url(it));
        if !is_own && !is_jwt(token) {
            return Err(AccessTokenError::Malformed);
        }
        let header = HeaderValue::from_str(&format!("{SCHEME}{token}")).map_err(|_| AccessTokenError::Malformed)?;
        Ok(Self::of_header(header))
    }
}

fn is_base64url(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Whether it has the form of a JWT. The node checks the rest.
fn is_jwt(token: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && is_base64url(part);
    token.len() <= MAX_JWT_BYTES && token.split('.').count() == 3 && token.split('.').all(is_part)
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "lk_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN-_0";

    #[test]
    fn a_token_is_sent_and_not_shown() {
        let token: AccessToken = format!(" {TOKEN}\n").parse().unwrap();
        assert_eq!(token.header().to_str().unwrap(), format!("Bearer {TOKEN}"));
        assert!(token.header().is_sensitive());
        assert!(!format!("{token:?} {:?}", token.header()).contains("abcdef"));
    }

    #[test]
    fn a_drawn_token_is_one_of_its_own_and_is_known_by_its_hash() {
        let (one, other) = (AccessToken::draw(), AccessToken::draw());
        assert_ne!(one.expose(), other.expose());
        assert!(one.header().is_sensitive());
        assert_eq!(one.expose().parse::<AccessToken>().unwrap(), one);
        assert_ne!(one.hash(), other.hash());
        let known: AccessToken = TOKEN.parse().unwrap();
        // printf TOKEN | sha256sum
        assert_eq!(known.hash(), "7fa82d4a4bc31787f52345b3be25a36d1eafb56e944c59b2116f6e7cb66ad6dc");
    }

    #[test]
    fn a_jwt_is_a_token_too() {
        let token: AccessToken = " eyJhbGciOiJF.eyJzdWIiOiJh._-09\n".parse().unwrap();
        assert_eq!(token.header().to_str().unwrap(), "Bearer eyJhbGciOiJF.eyJzdWIiOiJh._-09");
        assert!(token.header().is_sensitive() && !format!("{token:?}").contains("eyJ"));
        let long = format!("a.b.{}", "c".repeat(MAX_JWT_BYTES));
        for bad in ["a.b", "a..c", "a.b.", "a.b.c.d", "a.b.c=", "a b.c.d", &long] {
            bad.parse::<AccessToken>().unwrap_err();
        }
    }

    #[test]
    fn other_texts_are_refused_without_showing_them() {
        let (long, short) = (format!("{TOKEN}x"), &TOKEN[..TOKEN.len() - 1]);
        for bad in ["", "lk_", "34", &long, short, &TOKEN.replace('-', "+"), &TOKEN.replace("lk_", "xx_")] {
            let error = bad.parse::<AccessToken>().unwrap_err();
            assert!(!error.to_string().contains("abcdef"), "{error}");
        }
    }

    #[test]
    fn errors_of_files_name_the_file() {
        let missing = AccessToken::from_file(Path::new("/no/such/token")).unwrap_err();
        assert!(matches!(missing, AccessTokenError::Unreadable { .. }), "{missing}");
        assert!(missing.to_string().contains("/no/such/token"), "{missing}");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
        assert_eq!(AccessToken::from_file(&file).unwrap(), TOKEN.parse().unwrap());
        std::fs::write(&file, format!("{TOKEN} {TOKEN}")).unwrap();
        let error = AccessToken::from_file(&file).unwrap_err().to_string();
        assert!(error.contains("token holds no access token") && !error.contains("abcdef"), "{error}");
    }
}

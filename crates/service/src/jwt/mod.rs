//! JWTs of an OIDC issuer as credentials (section `[auth.jwt]`).
//!
//! jsonwebtoken reads the keys and verifies the signatures, by ring. The rules on claims are here: jsonwebtoken reads
//! the clock itself, takes a list of issuers, and does not tell an unknown algorithm from a malformed header.
//!
//! No text of a token may get into a log line or an answer.

mod error;
mod keys;
mod ring_provider;
mod source;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use self::error::JwtError;
use self::keys::KeySet;
use self::source::KeySource;
use self::verify::{Verified, verify};
use lockkeeper_config::{Config, ConfigError, JwtSection};

/// Longest time until a stream that was opened with a JWT is looked at for its end.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// See the module's text.
pub struct Jwt {
    rules: JwtSection,
    keys: RwLock<Arc<KeySet>>,
    source: KeySource,
    /// A JWT names a key that is not there.
    unknown_key: Notify,
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt").field("issuer", &self.rules.issuer).finish_non_exhaustive()
    }
}

impl Jwt {
    /// Reads what the configuration names; `None` if it has no such section. Keys of a URL are not fetched yet.
    ///
    /// # Errors
    /// The file of the keys, or that of the authority, cannot be used.
    pub fn open(config: &Config) -> Result<Option<Arc<Self>>, ConfigError> {
        let Some(rules) = config.auth.jwt.clone() else { return Ok(None) };
        let (source, keys) = KeySource::open(&rules)?;
        Ok(Some(Arc::new(Self { rules, keys: RwLock::new(Arc::new(keys)), source, unknown_key: Notify::new() })))
    }

    /// The principal that a JWT proves, and until when.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn prove(&self, token: &str) -> Result<(String, Instant), JwtError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let keys = self.keys.read().clone();
        let Verified { principal, until_unix_s } =
            verify(token, &keys, &self.rules, now.as_secs()).inspect_err(|error| {
                if *error == JwtError::UnknownKey {
                    self.unknown_key.notify_one();
                }
            })?;
        let left = Duration::from_secs(until_unix_s).saturating_sub(now).min(LONGEST);
        Ok((principal, Instant::now() + left))
    }
}

//! The fingerprint of a structured value: SHA-256 over its canonical JSON.
//!
//! The same value must give the same fingerprint in every process, whatever the order of its fields and the type of its
//! maps; different values must give different ones. So the canonical form must never depend on iteration order, and a
//! value that JSON cannot tell from another (NaN, a repeated key) is an error, not a guess.

mod canonical;
mod number;

use std::fmt;
use std::ops::Deref;

use serde::Serialize;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Identifies the operation behind a [`Gate`](super::Gate) by its arguments: `sha256:` and the hash of their canonical
/// JSON.
///
/// The canonical JSON is that of RFC 8785 (keys in order, no spaces, one form of each number), with one difference:
/// integers beyond 2⁵³ are written in full instead of being rounded. So
///
/// - the order of fields and keys, and the type of a map, make no difference: a struct, a `BTreeMap` and a `HashMap`
///   with the same entries have the same fingerprint;
/// - a number is its value: `1`, `1_u64` and `1.0` are the same;
/// - a sequence has its order. The order of a `HashSet` is another one in each process: sort it first;
/// - `None` and `()` are `null`, as in JSON. A field that is left out is not `null`.
///
/// Put everything into the value that makes the operation what it is, and nothing that differs between two requests for
/// it, such as a time or the caller. A fingerprint outlives programs: a field that a new version of yours adds changes
/// it, unless it is skipped while it has its default.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use lockkeeper_client::recipes::Fingerprint;
///
/// #[derive(serde::Serialize)]
/// struct Payment {
///     to: String,
///     cents: u64,
/// }
///
/// let payment = Fingerprint::of(&Payment { to: "Ann".into(), cents: 1_000 })?;
/// let same = Fingerprint::of(&serde_json::json!({ "cents": 1_000, "to": "Ann" }))?;
/// let other = Fingerprint::of(&BTreeMap::from([("to", "Ann")]))?;
/// assert!(payment == same && payment != other);
/// // session.gate("payments/42").begin(&payment).await?
/// # Ok::<(), lockkeeper_client::recipes::FingerprintError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The fingerprint of a value.
    ///
    /// # Errors
    /// The value has no canonical JSON; see [`FingerprintError`].
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, FingerprintError> {
        let text = value.serialize(canonical::Canonical)?;
        let digits: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(format!("sha256:{digits}")))
    }

    /// The fingerprint as text of 71 bytes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Fingerprint {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Fingerprint {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a value has no fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FingerprintError {
    /// JSON has no NaN and no infinities.
    #[error("{0} has no fingerprint: leave it out, or write what it means as text")]
    NotFinite(String),
    /// A map has a key twice, or a flattened field has the name of another.
    #[error("the key {0:?} occurs twice in a map")]
    RepeatedKey(String),
    /// The key of a map is no text, number, truth value or unit variant.
    #[error("the key of a map is {0}, which JSON cannot have as a key")]
    BadKey(&'static str),
    /// The value holds JSON as text, of which one value has many forms.
    #[error("a value holds JSON as text ({0}): parse it into a serde_json::Value first")]
    RawJson(&'static str),
    /// The value's own `Serialize` failed.
    #[error("the value cannot be serialized: {0}")]
    Failed(String),
}

impl serde::ser::Error for FingerprintError {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Failed(why.to_string())
    }
}

#[cfg(test)]
mod tests;

//! Idempotency gates: names, what is known of one, and the record that its node carries.
//!
//! A gate is a node at `/gates/<key>`, there while its operation is under way or its result is kept. Whether a deadline has passed
//! is decided by the replicated clock alone; the reaper only tidies up.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{FencingToken, SessionId};
use crate::path::{NodePath, PathError};

/// The directory under which gates live.
pub const GATES_ROOT: &str = "/gates";

/// The name of a gate, such as `payments/42`: a valid path without its leading slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Arc<str>", into = "Arc<str>")]
pub struct GateKey(Arc<str>);

impl GateKey {
    /// Checks `key` and takes it.
    ///
    /// # Errors
    /// Says which rule of [`NodePath`] the gate's node would break.
    pub fn parse(key: &str) -> Result<Self, PathError> {
        Self::try_from(Arc::from(key))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The gate's node in the tree.
    pub fn path(&self) -> NodePath {
        // The key was checked as part of this very path.
        NodePath::parse(&format!("{GATES_ROOT}/{}", self.0)).unwrap_or_else(|_| NodePath::root())
    }
}

impl TryFrom<Arc<str>> for GateKey {
    type Error = PathError;

    fn try_from(key: Arc<str>) -> Result<Self, PathError> {
        if key.is_empty() {
            return Err(PathError::EmptyPart);
        }
        NodePath::parse(&format!("{GATES_ROOT}/{key}"))?;
        Ok(Self(key))
    }
}

impl From<GateKey> for Arc<str> {
    fn from(key: GateKey) -> Self {
        key.0
    }
}

impl fmt::Display for GateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for GateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// How a gate stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateStanding {
    /// The caller is to do the work. Only in the answer to [`Op::GateBegin`](crate::Op::GateBegin).
    Proceed {
        /// Goes with the finishing or failing; a fencing token for what the work touches.
        token: FencingToken,
        /// From when on another may begin it.
        until_ms: u64,
    },
    /// Somebody does the work.
    InProgress {
        /// With this token.
        token: FencingToken,
        /// Whose session it is, if it has one.
        session: Option<SessionId>,
        /// Who it is, for people.
        label: Arc<str>,
        /// Since when.
        since_ms: u64,
        /// From when on another may begin it.
        until_ms: u64,
    },
    /// The work is done.
    Done {
        /// Under this token.
        token: FencingToken,
        /// What was stored.
        #[serde(with = "crate::blob")]
        result: Arc<[u8]>,
        /// When it was done.
        since_ms: u64,
        /// Until when the result is kept.
        until_ms: u64,
    },
}

/// The format of records that is written.
const RECORD_VERSION: u8 = 1;

/// What the node of a gate carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GateRecord {
    pub(crate) fingerprint: Arc<str>,
    pub(crate) label: Arc<str>,
    /// When the work was begun, or done.
    pub(crate) since_ms: u64,
    /// Until when it is pending, or the result kept.
    pub(crate) until_ms: u64,
    /// Once it is done: under which token, and with what result.
    pub(crate) done: Option<(FencingToken, Arc<[u8]>)>,
}

impl GateRecord {
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        // Writing these types into memory does not fail; were it to, what is written would be no record to any reader.
        postcard::to_extend(self, vec![RECORD_VERSION]).unwrap_or_default().into()
    }

    /// Reads what [`encode`](Self::encode) wrote; none for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&RECORD_VERSION, body) = bytes.split_first()? else { return None };
        let (record, rest) = postcard::take_from_bytes(body).ok()?;
        rest.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_paths() {
        let key = GateKey::parse("payments/42").unwrap();
        assert_eq!(key.path().as_str(), "/gates/payments/42");
        for bad in ["", "/", "a/", "/a", "a/../b", &"x".repeat(256), &"x/".repeat(600)] {
            assert!(GateKey::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn records_come_back_and_nothing_else_is_one() {
        let pending = GateRecord { fingerprint: "f".into(), label: "l".into(), since_ms: 1, until_ms: 300, done: None };
        let done = GateRecord { done: Some((FencingToken(7), Arc::from(*b"result"))), ..pending.clone() };
        for record in [pending, done] {
            let bytes = record.encode();
            assert_eq!(GateRecord::decode(&bytes), Some(record));
            for cut in 0..bytes.len() {
                assert_eq!(GateRecord::decode(&bytes[..cut]), None);
            }
            assert_eq!(GateRecord::decode(&[&bytes[..], b"x"].concat()), None);
        }
        assert_eq!(GateRecord::decode(b"hello"), None);
    }

    /// Nodes outlive programs: whoever changes these bytes changes the version.
    #[test]
    fn the_bytes_of_a_record_stay_what_they_are() {
        let token = FencingToken(7);
        let done = Some((token, Arc::from(*b"ok")));
        let record = GateRecord { fingerprint: "f".into(), label: "l".into(), since_ms: 1, until_ms: 2, done };
        assert_eq!(*record.encode(), *b"\x01\x01f\x01l\x01\x02\x01\x07\x02ok");
    }
}

//! Idempotency gates: names, states, and the record in a gate's node.
//!
//! A gate is a node at `/gates/<key>`. It exists while the operation is under way or its result is kept. The
//! replicated clock alone decides whether a deadline has passed; the reaper only tidies up.

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
    /// Validates `key`.
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
        NodePath::of_name(GATES_ROOT, &key)?;
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

/// The end of a result that is kept until its gate is reset.
pub const FOREVER_MS: u64 = u64::MAX;

/// The state of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateStanding {
    /// The caller must do the work. Only in the answer to [`GateOp::Begin`](crate::GateOp::Begin).
    Proceed {
        /// Must be sent with the finish or fail; also a fencing token for the resources that the work touches.
        token: FencingToken,
        /// From when on another may begin it.
        until_ms: u64,
    },
    /// The work is under way.
    InProgress {
        /// With this token.
        token: FencingToken,
        /// The worker's session, if it has one.
        session: Option<SessionId>,
        /// The worker's description, for operators.
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
        /// The stored result.
        #[serde(with = "crate::blob")]
        result: Arc<[u8]>,
        /// When it was done.
        since_ms: u64,
        /// Until when the result is kept; [`FOREVER_MS`] until the gate is reset.
        until_ms: u64,
    },
}

/// One gate in a list: its result is left out, because it may be large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateSummary {
    /// The gate.
    pub key: GateKey,
    /// The token of the run that is under way, or whose result is kept.
    pub token: FencingToken,
    /// The worker's session, while the work is under way and if it has one.
    pub session: Option<SessionId>,
    /// The worker's description, for operators.
    pub label: Arc<str>,
    /// When the work was begun, or done.
    pub since_ms: u64,
    /// When the pending operation, or the kept result, runs out; [`FOREVER_MS`] for a result that is kept until the
    /// gate is reset.
    pub until_ms: u64,
    /// The length of the kept result; `None` while the work is under way.
    pub result_bytes: Option<usize>,
}

/// A page of a list of gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatePage {
    /// In the order of their keys.
    pub gates: Vec<GateSummary>,
    /// The key after which the next page starts, if there may be more. A page may be empty and have one.
    pub next: Option<GateKey>,
}

/// The record format that this program writes.
const RECORD_VERSION: u8 = 1;

/// The record in a gate's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GateRecord {
    pub(crate) fingerprint: Arc<str>,
    pub(crate) label: Arc<str>,
    /// When the work was begun, or done.
    pub(crate) since_ms: u64,
    /// When the pending operation, or the kept result, runs out; or [`FOREVER_MS`].
    pub(crate) until_ms: u64,
    /// Once it is done: the token and the result.
    pub(crate) done: Option<(FencingToken, Arc<[u8]>)>,
}

impl GateRecord {
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        // Encoding these types into memory cannot fail. If it did, no reader would accept the bytes as a record.
        postcard::to_extend(self, vec![RECORD_VERSION]).unwrap_or_default().into()
    }

    /// Decodes what [`encode`](Self::encode) wrote; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&RECORD_VERSION, body) = bytes.split_first()? else { return None };
        let (record, rest) = postcard::take_from_bytes(body).ok()?;
        rest.is_empty().then_some(record)
    }
}

/// The fields of a [`GateRecord`] without copies of its texts and its result, for lists.
#[derive(Debug, Deserialize)]
pub(crate) struct BorrowedRecord<'a> {
    #[allow(dead_code, reason = "a field of the record: the fields after it are read by their order")]
    fingerprint: &'a str,
    pub(crate) label: &'a str,
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
    #[serde(borrow)]
    pub(crate) done: Option<(FencingToken, &'a [u8])>,
}

impl<'a> BorrowedRecord<'a> {
    /// Decodes what [`GateRecord::encode`] wrote; `None` for anything else.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&RECORD_VERSION, body) = bytes.split_first()? else { return None };
        let (record, rest) = postcard::take_from_bytes(body).ok()?;
        rest.is_empty().then_some(record)
    }
}

/// Whether a node with this data is a gate whose operation is under way, even if its time is over.
pub(crate) fn is_pending(path: &NodePath, data: &[u8]) -> bool {
    path.as_str().strip_prefix(GATES_ROOT).is_some_and(|key| key.starts_with('/'))
        && BorrowedRecord::decode(data).is_some_and(|record| record.done.is_none())
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
            let borrowed = BorrowedRecord::decode(&bytes).unwrap();
            let done = record.done.as_ref().map(|(token, result)| (*token, &result[..]));
            assert_eq!(
                (borrowed.fingerprint, borrowed.label, borrowed.since_ms, borrowed.until_ms, borrowed.done),
                (&*record.fingerprint, &*record.label, record.since_ms, record.until_ms, done)
            );
            assert_eq!(GateRecord::decode(&bytes), Some(record));
            for cut in 0..bytes.len() {
                assert_eq!(GateRecord::decode(&bytes[..cut]), None);
                assert!(BorrowedRecord::decode(&bytes[..cut]).is_none());
            }
            assert_eq!(GateRecord::decode(&[&bytes[..], b"x"].concat()), None);
            assert!(BorrowedRecord::decode(&[&bytes[..], b"x"].concat()).is_none());
        }
        assert_eq!(GateRecord::decode(b"hello"), None);
    }

    /// Nodes outlive programs: to change these bytes, change the version.
    #[test]
    fn the_bytes_of_a_record_stay_what_they_are() {
        let token = FencingToken(7);
        let done = Some((token, Arc::from(*b"ok")));
        let record = GateRecord { fingerprint: "f".into(), label: "l".into(), since_ms: 1, until_ms: 2, done };
        assert_eq!(*record.encode(), *b"\x01\x01f\x01l\x01\x02\x01\x07\x02ok");
    }
}

//! A session and its memory of replies, which makes a retried request harmless (promise P9).

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::size;
use crate::acl::Identity;
use crate::command::Op;
use crate::ids::{RequestId, Zxid};
use crate::limits::{MAX_REMEMBERED_BYTES, MAX_REMEMBERED_REPLIES};
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

/// A live session.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// The timeout: how long it lives without a sign of life.
    pub timeout_ms: u32,
    /// Its description, for operators.
    pub label: Arc<str>,
    /// SHA-256 of its secret.
    pub secret_hash: [u8; 32],
    /// When it opened, by the replicated clock.
    pub opened_ms: u64,
    /// The zxid of its last command that changed something, its opening included. Changes that others make to its
    /// nodes do not count.
    pub acted: Zxid,
    /// Its attachment: the zxid of its opening, or of its last move to another connection.
    pub attachment: Zxid,
    /// The credential of the principal that it belongs to; `None` for nobody's.
    pub identity: Option<Identity>,
    /// The namespace that its principal owned when it opened: it counts there for as long as it lives.
    pub namespace: Option<Arc<str>>,
    pub(crate) ephemerals: OrdSet<NodePath>,
    pub(crate) memory: Memory,
}

impl Session {
    /// Its ephemeral nodes, in order of their paths.
    pub fn ephemerals(&self) -> impl ExactSizeIterator<Item = &NodePath> {
        self.ephemerals.iter()
    }

    /// How many replies it remembers for retries.
    pub fn remembered_count(&self) -> usize {
        self.memory.answers.len()
    }
}

/// A request id with its operation and answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// Whether this was a lock request. It can also be found by its node, and a client makes many of them: these
    /// answers must not push out the others.
    pub(crate) of_lock: bool,
    /// Orders the answers of one kind by age.
    pub(crate) age: u64,
    /// The fingerprint of the operation.
    pub(crate) fingerprint: [u8; 32],
    /// The zxid of the answer: it is true there, and may not be true later.
    pub(crate) zxid: Zxid,
    /// The answer.
    pub(crate) answer: Answer,
}

type Answer = Result<Reply, Refusal>;

/// The remembered replies of a session: lock requests and others apart; of each kind the oldest is dropped first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    pub(crate) answers: OrdMap<RequestId, Arc<Remembered>>,
    pub(crate) by_age: OrdMap<(bool, u64), RequestId>,
    /// How many of them answer lock requests.
    pub(crate) of_locks: usize,
    /// The memory of other replies, and of replies to lock requests.
    bytes: [u64; 2],
}

impl Memory {
    /// Forgets the replies that the client has received.
    pub(crate) fn forget(&mut self, acknowledged: &[RequestId]) {
        for id in acknowledged {
            if let Some(gone) = self.answers.remove(id) {
                self.by_age.remove(&(gone.of_lock, gone.age));
                self.of_locks -= usize::from(gone.of_lock);
                self.bytes[usize::from(gone.of_lock)] -= size::of_remembered(&gone);
            }
        }
    }

    /// The number of remembered replies of a kind.
    pub(crate) fn count(&self, of_lock: bool) -> usize {
        if of_lock { self.of_locks } else { self.answers.len() - self.of_locks }
    }

    /// The memory of the remembered replies of a kind.
    pub(crate) fn bytes_of(&self, of_lock: bool) -> u64 {
        self.bytes[usize::from(of_lock)]
    }

    /// The memory of all remembered replies.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Whether the oldest of a kind must be dropped. The last one stays: its client may still ask for it.
    fn is_too_much(&self, of_lock: bool) -> bool {
        let count = self.count(of_lock);
        count > MAX_REMEMBERED_REPLIES || (count > 1 && self.bytes_of(of_lock) > MAX_REMEMBERED_BYTES)
    }

    fn of_kind(&self, of_lock: bool) -> impl DoubleEndedIterator<Item = (&(bool, u64), &RequestId)> {
        self.by_age.range((of_lock, 0)..=(of_lock, u64::MAX))
    }

    /// Remembers a new answer, and forgets the oldest when that makes too many.
    pub(crate) fn remember(&mut self, id: RequestId, of_lock: bool, fingerprint: [u8; 32], zxid: Zxid, answer: Answer) {
        // Ages only need to be in order: one more than the youngest will do, and a snapshot needs no counter.
        let age = self.of_kind(of_lock).next_back().map_or(0, |((_, age), _)| age + 1);
        self.restore(id, Remembered { of_lock, age, fingerprint, zxid, answer });
        while self.is_too_much(of_lock) {
            let Some(oldest) = self.of_kind(of_lock).next().map(|(_, id)| *id) else { break };
            self.forget(&[oldest]);
        }
    }

    /// Restores an entry.
    pub(crate) fn restore(&mut self, id: RequestId, entry: Remembered) {
        self.forget(&[id]);
        self.by_age.insert((entry.of_lock, entry.age), id);
        self.of_locks += usize::from(entry.of_lock);
        self.bytes[usize::from(entry.of_lock)] += size::of_remembered(&entry);
        self.answers.insert(id, Arc::new(entry));
    }
}

/// The fingerprint of an operation: SHA-256 of its encoding in the log, which is the same for equal operations.
pub(crate) fn fingerprint(op: &Op) -> [u8; 32] {
    // Encoding these types into memory cannot fail. If it did, the bytes written until then would be hashed, so
    // different operations would still differ.
    let mut hasher = HashWriter(Sha256::new());
    let _ = postcard::to_io(op, &mut hasher);
    hasher.0.finalize().into()
}

struct HashWriter(Sha256);

impl std::io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

//! A session and its memory of replies, which makes a retried request harmless (promise P9).

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::size;
use crate::command::Op;
use crate::ids::{RequestId, Zxid};
use crate::limits::{MAX_REMEMBERED_BYTES, MAX_REMEMBERED_REPLIES};
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

/// A live session.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// How long it lives without a sign of life.
    pub timeout_ms: u32,
    /// Who it is, for people.
    pub label: Arc<str>,
    /// SHA-256 of its secret.
    pub secret_hash: [u8; 32],
    /// When it opened, by the replicated clock.
    pub opened_ms: u64,
    /// Its last command that changed anything, its opening included. What others do to its nodes does not count.
    pub acted: Zxid,
    /// What ties it to the connection that uses it: the zxid of its opening, or of the last time it was moved.
    pub attachment: Zxid,
    pub(crate) ephemerals: OrdSet<NodePath>,
    pub(crate) memory: Memory,
}

impl Session {
    /// The nodes that go when it goes, in order of their paths.
    pub fn ephemerals(&self) -> impl ExactSizeIterator<Item = &NodePath> {
        self.ephemerals.iter()
    }

    /// How many replies it remembers for retries.
    pub fn remembered_count(&self) -> usize {
        self.memory.answers.len()
    }
}

/// What was asked under a request id, and what was answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// Whether a lock was asked for. Such a request is found by its node as well, and lock after lock is asked for: these answers
    /// must not push out the others.
    pub(crate) of_lock: bool,
    /// Orders those of its kind by age.
    pub(crate) age: u64,
    /// Of the op that was asked for.
    pub(crate) fingerprint: [u8; 32],
    /// When it was told, in the replicated order: the answer is true there, and may be untrue later.
    pub(crate) zxid: Zxid,
    /// What it was told.
    pub(crate) answer: Answer,
}

type Answer = Result<Reply, Refusal>;

/// The replies of a session's recent requests, those for locks apart from the others; of either kind the oldest go first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    pub(crate) answers: OrdMap<RequestId, Arc<Remembered>>,
    pub(crate) by_age: OrdMap<(bool, u64), RequestId>,
    /// How many of them are for locks.
    pub(crate) of_locks: usize,
    /// What the others, and those for locks, take in memory.
    bytes: [u64; 2],
}

impl Memory {
    /// Forgets what the client says it has.
    pub(crate) fn forget(&mut self, acknowledged: &[RequestId]) {
        for id in acknowledged {
            if let Some(gone) = self.answers.remove(id) {
                self.by_age.remove(&(gone.of_lock, gone.age));
                self.of_locks -= usize::from(gone.of_lock);
                self.bytes[usize::from(gone.of_lock)] -= size::of_remembered(&gone);
            }
        }
    }

    /// How many answers to requests for locks, or to others, are remembered.
    pub(crate) fn count(&self, of_lock: bool) -> usize {
        if of_lock { self.of_locks } else { self.answers.len() - self.of_locks }
    }

    /// What answers to requests for locks, or others, take in memory.
    pub(crate) fn bytes_of(&self, of_lock: bool) -> u64 {
        self.bytes[usize::from(of_lock)]
    }

    /// What all of them take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Whether the oldest of a kind has to go; the last one is what its client may still ask for.
    fn is_too_much(&self, of_lock: bool) -> bool {
        let count = self.count(of_lock);
        count > MAX_REMEMBERED_REPLIES || (count > 1 && self.bytes_of(of_lock) > MAX_REMEMBERED_BYTES)
    }

    fn of_kind(&self, of_lock: bool) -> impl DoubleEndedIterator<Item = (&(bool, u64), &RequestId)> {
        self.by_age.range((of_lock, 0)..=(of_lock, u64::MAX))
    }

    /// Remembers a new answer, and forgets the oldest when that makes too many.
    pub(crate) fn remember(
        &mut self,
        id: RequestId,
        of_lock: bool,
        fingerprint: [u8; 32],
        (zxid, answer): (Zxid, Answer),
    ) {
        // Ages only have to be in order: one past the youngest will do, and a snapshot needs no counter.
        let age = self.of_kind(of_lock).next_back().map_or(0, |((_, age), _)| age + 1);
        self.restore(id, Remembered { of_lock, age, fingerprint, zxid, answer });
        while self.is_too_much(of_lock) {
            let Some(oldest) = self.of_kind(of_lock).next().map(|(_, id)| *id) else { break };
            self.forget(&[oldest]);
        }
    }

    /// Puts an entry in as it was.
    pub(crate) fn restore(&mut self, id: RequestId, entry: Remembered) {
        self.forget(&[id]);
        self.by_age.insert((entry.of_lock, entry.age), id);
        self.of_locks += usize::from(entry.of_lock);
        self.bytes[usize::from(entry.of_lock)] += size::of_remembered(&entry);
        self.answers.insert(id, Arc::new(entry));
    }
}

/// Tells payloads apart: SHA-256 of the op as the log encodes it, which is one and the same for equal ops.
pub(crate) fn fingerprint(op: &Op) -> [u8; 32] {
    // Encoding into memory does not fail for these types; were it to, no two such payloads would be taken for equal replies
    // of different ops, since the bytes written up to then are hashed all the same.
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

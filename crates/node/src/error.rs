//! Why a request was not executed. The variants say what the caller may conclude.

use lockkeeper_consensus::JoinError;
use lockkeeper_core::{Refusal, Zxid};
use thiserror::Error;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The replicated state refused it; every replica would. Nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The secret is not this session's. Nothing changed.
    #[error("the secret does not belong to this session")]
    WrongSecret,
    /// There was no leader for as long as a request waits. Nothing changed, and nothing will.
    #[error("the cluster has no leader at the moment; nothing was changed: try again in {retry_after_ms} ms")]
    NoLeader {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// A bound was reached. Nothing changed.
    #[error("this node is overloaded ({bound}); nothing was changed: try again in {retry_after_ms} ms")]
    Overloaded {
        /// Which bound.
        bound: Bound,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The request may have been executed, or may yet be. A retry with the same request id is safe.
    #[error("the outcome is not known: {0}")]
    UnknownOutcome(String),
    /// The history from which to resume is no longer kept.
    #[error("events before {oldest} are no longer kept: read again, and watch from there")]
    Compacted {
        /// The first zxid from which a watch can resume.
        oldest: Zxid,
    },
    /// This node is going down. Nothing changed; another node can be asked.
    #[error("this node is shutting down: ask another")]
    ShuttingDown,
    /// This node cannot go on. If the request was a mutation its outcome is not known.
    #[error("this node has failed: {0}")]
    Fatal(String),
}

/// The bound that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Bound {
    /// Changes, or their bytes, that wait to be replicated.
    #[error("too many changes wait to be replicated")]
    QueuedChanges,
    /// The same, from the caller's address.
    #[error("too many changes from this address wait to be replicated")]
    OwnQueuedChanges,
    /// Sessions of the cluster.
    #[error("too many sessions")]
    Sessions,
    /// Watches at this node.
    #[error("too many watches")]
    Watches,
    /// Lock requests in progress at this node.
    #[error("too many lock requests")]
    LockRequests,
    /// Keepalives that are not acknowledged yet.
    #[error("too many unconfirmed keepalives")]
    Keepalives,
    /// Calls that wait for a round of the leader.
    #[error("too many reads")]
    Reads,
    /// Calls that wait for a state of their own.
    #[error("too many checksums are asked for")]
    Copies,
}

/// When to try again after finding no leader: about as long as an election takes.
pub(crate) const RETRY_NO_LEADER_MS: u64 = 500;
/// When to try again after finding a queue full.
pub(crate) const RETRY_OVERLOADED_MS: u64 = 100;

impl NodeError {
    pub(crate) fn no_leader() -> Self {
        Self::NoLeader { retry_after_ms: RETRY_NO_LEADER_MS }
    }

    pub(crate) fn overloaded(bound: Bound) -> Self {
        Self::Overloaded { bound, retry_after_ms: RETRY_OVERLOADED_MS }
    }
}

impl From<JoinError> for NodeError {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Full => Self::overloaded(Bound::Reads),
            JoinError::Stopped => Self::ShuttingDown,
        }
    }
}

//! The network as consensus uses it: one bounded request and its answer, to a peer named by its node id.
//!
//! Handed in from outside: [`crate::FramedTransport`] in production, an in-memory one in tests and simulation. An
//! implementation must never retry, queue without bound, or report [`TransportError::Refused`] or
//! [`TransportError::Unreachable`] for a request that may have reached the peer: the outcome of a write is judged by
//! that difference.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// The code with which a node that is going down rejects a probe, a transfer of leadership, or any call.
pub(crate) const CODE_GOING_DOWN: &str = "going_down";

/// What a peer call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerKind {
    /// Log entries.
    Append,
    /// An append without entries, on another connection.
    Heartbeat,
    /// A vote request.
    Vote,
    /// Asks whether a vote would be granted.
    PreVote,
    /// One piece of a snapshot.
    Snapshot,
    /// The leader hands over.
    TransferLeader,
    /// A follower asks the leader for a read index.
    ReadIndex,
    /// Held open by the leader as long as it leads: if it breaks, the leader's process is probably gone.
    LivenessCheck,
    /// A command for the leader: a proposal or a change of the membership.
    Propose,
    /// A message of the layer above; consensus does not read it.
    Service,
    /// A node's claim of its data directory and starts; see `admission/claim.rs`.
    Admission,
    /// Asks for the members; a node that joins knows nothing but addresses of some.
    Members,
}

impl PeerKind {
    /// Every kind, in the order of declaration, which is their number in a frame.
    pub const ALL: [PeerKind; 12] = [
        PeerKind::Append,
        PeerKind::Heartbeat,
        PeerKind::Vote,
        PeerKind::PreVote,
        PeerKind::Snapshot,
        PeerKind::TransferLeader,
        PeerKind::ReadIndex,
        PeerKind::LivenessCheck,
        PeerKind::Propose,
        PeerKind::Service,
        PeerKind::Admission,
        PeerKind::Members,
    ];

    /// The name, as in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            PeerKind::Append => "append",
            PeerKind::Heartbeat => "heartbeat",
            PeerKind::Vote => "vote",
            PeerKind::PreVote => "pre-vote",
            PeerKind::Snapshot => "snapshot",
            PeerKind::TransferLeader => "transfer-leader",
            PeerKind::ReadIndex => "read-index",
            PeerKind::LivenessCheck => "lifeline",
            PeerKind::Propose => "propose",
            PeerKind::Service => "service",
            PeerKind::Admission => "admission",
            PeerKind::Members => "members",
        }
    }

    pub(crate) const MAX_BODY_BYTES: usize = 40 * 1024 * 1024;
    pub(crate) const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

    /// Largest body that a peer may send for this kind; a longer one is refused.
    pub fn max_body_bytes(self) -> usize {
        match self {
            PeerKind::Append | PeerKind::Propose | PeerKind::Service => PeerKind::MAX_BODY_BYTES,
            PeerKind::Snapshot => 2 * 1024 * 1024,
            _ => 64 * 1024,
        }
    }

    /// Largest answer that a peer may give; the transport refuses a longer one.
    pub fn max_answer_bytes(self) -> usize {
        match self {
            PeerKind::Service => PeerKind::MAX_ANSWER_BYTES,
            _ => 64 * 1024,
        }
    }
}

impl fmt::Display for PeerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a peer call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The connection was refused: no process listens there, nothing was sent.
    #[error("connection refused")]
    Refused,
    /// The connection stood and broke: the process has probably gone; it may have acted on the request before.
    #[error("connection lost")]
    Reset,
    /// The connection failed for another reason; nothing was sent.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// No answer in time; the peer may act on the request.
    #[error("timed out")]
    TimedOut,
    /// An answer came that no peer sends; the peer may have acted on the request.
    #[error("unexpected answer: {0}")]
    Garbled(String),
    /// The peer rejected the request, and did not act on it.
    #[error("rejected by the peer ({code}): {detail}")]
    Rejected {
        /// Stable code of the reason.
        code: String,
        /// The reason for people.
        detail: String,
    },
}

impl TransportError {
    /// True when the peer has certainly not acted on the request and will not.
    pub fn surely_not_acted_on(&self) -> bool {
        match self {
            TransportError::Refused | TransportError::Unreachable(_) | TransportError::Rejected { .. } => true,
            TransportError::Reset | TransportError::TimedOut | TransportError::Garbled(_) => false,
        }
    }

    /// True when the peer's process seems to be gone rather than slow or cut off.
    pub fn process_gone(&self) -> bool {
        matches!(self, TransportError::Refused | TransportError::Reset)
    }
}

/// Calls to peers.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends `body` to node `to` and returns its answer, within `deadline`.
    async fn call(&self, to: u64, kind: PeerKind, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError>;

    /// As [`call`](Self::call), to a member of this cluster of which only the address is known, whoever it is.
    async fn call_address(
        &self,
        address: &str,
        kind: PeerKind,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, TransportError> {
        let _ = (kind, body, deadline);
        Err(TransportError::Unreachable(format!("this network has no peer at {address}")))
    }

    /// A call of this kind to `node` got no answer, and its connection may be stuck: later calls use a new one. Calls
    /// under way keep theirs. A connection that is still being made is kept.
    fn reconnect(&self, node: u64, kind: PeerKind) {
        let _ = (node, kind);
    }

    /// The membership has `node` at `address`.
    fn learn(&self, node: u64, address: &str) {
        let _ = (node, address);
    }

    /// `node` has been removed from the membership.
    fn forget(&self, node: u64) {
        let _ = node;
    }
}

//! What consensus drives: the replicated state machine, and the service for messages of the layer above.

use std::io::{self, Read, Write};

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_store::LogPosition;

/// A committed proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its place in the log.
    pub position: LogPosition,
    /// Wall clock of the leader, in ms, when it proposed.
    pub clock_ms: u64,
    /// What was proposed.
    pub payload: Bytes,
}

/// The replicated state machine. Nothing here may block for long: the log waits behind it.
pub trait Machine: Send + Sync + 'static {
    /// Applies committed entries: in log order, each exactly once per life of the process. Synchronous and quick.
    fn apply(&self, entries: &[Committed]);

    /// The applied position moved over an entry that carries nothing for the machine (blank, membership).
    fn applied_nothing_but(&self, position: LogPosition) {
        let _ = position;
    }

    /// A cheap copy of the state now; the closure encodes it later on another thread.
    fn snapshot(&self) -> SnapshotEncoder;

    /// Replaces the state by a snapshot that covers the log up to `position`: at start, and when one is installed. Blocking is fine
    /// here. An error stops the node.
    fn restore(&self, position: LogPosition, from: &mut dyn Read) -> Result<(), String>;
}

/// Encodes a copy of the state; see [`Machine::snapshot`].
pub type SnapshotEncoder = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// The layer above, answering its own messages between nodes ([`crate::PeerKind::Service`]).
#[async_trait]
pub trait PeerService: Send + Sync + 'static {
    /// Answers a message of node `from`.
    async fn serve(&self, from: u64, body: Bytes) -> Result<Bytes, ServiceError>;
}

/// The service says no; the caller sees it as [`crate::TransportError::Rejected`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({code})")]
pub struct ServiceError {
    /// Stable code of the reason.
    pub code: String,
    /// The reason for people.
    pub detail: String,
}

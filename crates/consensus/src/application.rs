//! The layer above, as consensus sees it: the replicated state machine, the service that answers peers' messages, and
//! the replicated clock. Consensus drives the first two and carries the clock's readings between nodes; it decides
//! nothing from them.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_store::LogPosition;
use serde::{Deserialize, Serialize};

/// Called once, with one line of text, when consensus cannot go on. The process must then end.
pub type FatalHook = Arc<dyn Fn(String) + Send + Sync>;

/// A committed proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its place in the log.
    pub position: LogPosition,
    /// The replicated clock, in ms, as the leader had it when it proposed.
    pub clock_ms: u64,
    /// What was proposed.
    pub payload: Bytes,
}

/// The replicated state machine. Nothing here may block for long: applying the log waits for it.
pub trait StateMachine: Send + Sync + 'static {
    /// Applies committed entries: in log order, each exactly once per life of the process. Synchronous and quick.
    fn apply(&self, entries: &[Committed]);

    /// The applied position moved over an entry that carries nothing for the machine (blank, membership).
    fn apply_empty(&self, position: LogPosition) {
        let _ = position;
    }

    /// The highest start number of a node's data directory that the replicated state names.
    fn start_seen(&self, node: u64) -> Option<u64> {
        let _ = node;
        None
    }

    /// About how large a snapshot of the state would be now. It decides when the next one is taken, and nothing else.
    fn snapshot_bytes(&self) -> u64 {
        u64::MAX
    }

    /// A cheap copy of the state now; the closure encodes it later on another thread.
    fn snapshot(&self) -> SnapshotEncoder;

    /// Checks that [`apply`](Self::apply) will be able to read the payload, before it goes into the log: at the leader
    /// for a proposal of `proposer`, at a follower (without a proposer) for an entry of the leader. A committed entry
    /// that cannot be read would end every node, at every start.
    fn check(&self, proposer: Option<u64>, payload: &[u8]) -> Result<(), String>;

    /// The feature level to which the payload raises that of the cluster. The leader appends it only when every member
    /// announces that level.
    fn raises_level_to(&self, payload: &[u8]) -> Option<u32> {
        let _ = payload;
        None
    }

    /// Whether the payload needs a higher feature level than this replica has applied. Its node has applied that level,
    /// so it is committed: the leader does not take the payload yet, and will once it has applied as much.
    fn is_ahead(&self, payload: &[u8]) -> bool {
        let _ = payload;
        false
    }

    /// An entry with this payload and of this time is being written to this node's disk. The guard is dropped once it
    /// is durable, or has failed. For traces.
    fn writing(&self, clock_ms: u64, payload: &[u8]) -> Option<StepGuard> {
        let _ = (clock_ms, payload);
        None
    }

    /// This node, which leads, replicates an entry with this payload. The guard is dropped once it is committed and
    /// applied here, or has failed. For traces.
    fn replicating(&self, payload: &[u8]) -> Option<StepGuard> {
        let _ = payload;
        None
    }

    /// Whether somebody at this node observes what is applied, and is notified of it: the leader then sends commits to
    /// this node at once, else with the next entries or a few ms late. Called with each answer to an append.
    fn is_observed(&self) -> bool {
        true
    }

    /// Reads a snapshot that covers the log up to `position`, at start and when one has been received, without changing
    /// anything. Calling the result replaces the state. This may block.
    fn restore(self: Arc<Self>, position: LogPosition, from: &mut dyn Read) -> Result<Restored, String>;
}

/// Dropped when a step of an entry's way is over; see [`StateMachine::writing`].
pub type StepGuard = Box<dyn Send>;

/// A snapshot that has been read; calling it replaces the state. See [`StateMachine::restore`].
pub type Restored = Box<dyn FnOnce() + Send>;

/// Encodes a copy of the state; see [`StateMachine::snapshot`].
pub type SnapshotEncoder = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// The layer above, answering its own messages between nodes ([`crate::PeerKind::Service`]).
#[async_trait]
pub trait PeerService: Send + Sync + 'static {
    /// Answers a message of node `from`.
    async fn serve(&self, from: u64, body: Bytes) -> Result<Bytes, ServiceError>;
}

/// The service's refusal; the caller sees it as [`crate::TransportError::Rejected`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({code})")]
pub struct ServiceError {
    /// Stable code of the reason.
    pub code: String,
    /// The reason for people.
    pub detail: String,
}

/// The latest time that any clock may show, in ms: some time after the year 10000. A peer's message with a later time
/// is refused.
pub const MAX_CLOCK_MS: u64 = 1 << 48;

/// A node's clocks, as it reports them to its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// Its wall clock, in ms since 1970.
    pub wall_ms: u64,
    /// Its reading of the replicated clock, if a leader has reported it since its process began.
    pub clock_ms: Option<u64>,
}

/// Keeps the replicated clock of one node. Called often, from several tasks; nothing here may wait.
pub trait Timekeeper: Send + Sync + 'static {
    /// On the leader: the clock's reading, the time of an entry. At most [`MAX_CLOCK_MS`].
    fn lead(&self) -> u64;

    /// On the leader: the reading that it sends with each append; 0 while it does not know yet.
    fn reading_to_send(&self) -> u64;

    /// On a follower: the leader that it follows sent this reading, so long ago.
    fn follow(&self, leader_ms: u64, ago: Duration);

    /// On a follower: its report to the leader.
    fn report(&self) -> ClockReport;

    /// On the leader: a follower's report.
    fn reported(&self, node: u64, report: ClockReport);

    /// The voters, from now on.
    fn set_voters(&self, voters: BTreeSet<u64>);
}

//! The handle that the rest of the program holds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{LogPosition, Opened, SnapshotStore, Store};
use tokio::sync::watch;

use crate::config::Config;
use crate::error::{BarrierError, ChangeError, ProposeError, ServeError, StartError};
use crate::machine::{Machine, PeerService};
use crate::status::{ConsensusStatus, Leadership, Members, ReadIndex};
use crate::transport::{PeerKind, Transport, TransportError};

/// Reads the wall clock, in ms.
pub type ClockMs = Arc<dyn Fn() -> u64 + Send + Sync>;
/// Told once, in one line, when consensus cannot go on; the process must end.
pub type FatalHook = Arc<dyn Fn(String) + Send + Sync>;

/// What consensus is made of.
pub struct Parts {
    /// Settings.
    pub config: Config,
    /// Log and vote.
    pub store: Store,
    /// What opening the store found.
    pub opened: Opened,
    /// Snapshot files.
    pub snapshots: SnapshotStore,
    /// The state machine; empty when handed over, consensus restores it.
    pub machine: Arc<dyn Machine>,
    /// The layer above, for messages between nodes.
    pub service: Arc<dyn PeerService>,
    /// Calls to peers.
    pub transport: Arc<dyn Transport>,
    /// Wall clock in ms, for the stamps of proposals.
    pub clock_ms: ClockMs,
    /// Told when the process must end.
    pub fatal: FatalHook,
}

/// Handle of consensus; cheap to clone.
#[derive(Clone)]
pub struct Consensus {
    inner: Arc<Inner>,
}

struct Inner {
    leadership: watch::Receiver<Leadership>,
    members: watch::Receiver<Members>,
    applied: watch::Receiver<u64>,
    transport: Arc<dyn Transport>,
}

impl Consensus {
    /// Restores the state machine, starts the protocol, and at the first start of a cluster forms it.
    pub async fn start(parts: Parts) -> Result<Consensus, StartError> {
        let _ = parts;
        Err(StartError::Raft("not there yet".into()))
    }

    /// Puts `payload` into the log, on any node. Returns once it is committed and applied at the leader; the caller sees its own
    /// replica apply it through [`Machine::apply`].
    pub async fn propose(&self, payload: Bytes) -> Result<LogPosition, ProposeError> {
        let _ = payload;
        Err(ProposeError::NoLeader)
    }

    /// Makes a read on this replica linearizable: gets a read index from the leader, by a quorum round begun after this call, and waits
    /// until it is applied here. Concurrent calls share a round.
    pub async fn read_barrier(&self) -> Result<ReadIndex, BarrierError> {
        Err(BarrierError::NoLeader)
    }

    /// On the leader: a quorum round begun after this call has confirmed that this node still leads in the term given back, and
    /// everything committed before is applied here. Concurrent calls share a round.
    pub async fn confirm_leadership(&self) -> Result<u64, BarrierError> {
        Err(BarrierError::NoLeader)
    }

    /// Who leads, as it changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// The members, as they change.
    pub fn members(&self) -> watch::Receiver<Members> {
        self.inner.members.clone()
    }

    /// Index of the last entry applied here, as it moves.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.inner.applied.clone()
    }

    /// The state of things.
    pub fn status(&self) -> ConsensusStatus {
        ConsensusStatus::default()
    }

    /// Adds a node that receives the log but does not vote; on any node. Changes are made one after another.
    pub async fn add_learner(&self, node: u64, address: &str) -> Result<Members, ChangeError> {
        let _ = (node, address);
        Err(ChangeError::NoLeader)
    }

    /// Makes a learner a voter; on any node.
    pub async fn promote(&self, node: u64) -> Result<Members, ChangeError> {
        let _ = node;
        Err(ChangeError::NoLeader)
    }

    /// Removes a voter or learner; on any node.
    pub async fn remove(&self, node: u64) -> Result<Members, ChangeError> {
        let _ = node;
        Err(ChangeError::NoLeader)
    }

    /// Hands leadership to `to`, or to the most up-to-date voter; on any node. Gives the new leader.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        let _ = to;
        Err(ChangeError::NoLeader)
    }

    /// Sends a message of the layer above to the [`PeerService`] of node `to`.
    pub async fn call_service(&self, to: u64, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        self.inner.transport.call(to, PeerKind::Service, body, deadline).await
    }

    /// Answers a peer's call, which has passed the [`crate::PeerGate`].
    pub async fn serve(&self, from: u64, kind: PeerKind, body: Bytes) -> Result<Bytes, ServeError> {
        let _ = (from, kind, body);
        Err(ServeError::new("not_ready", "not there yet"))
    }

    /// Hands leadership over if this node leads (within `transfer_timeout_ms`), then stops. Does not close the store.
    pub async fn shutdown(&self) {}
}

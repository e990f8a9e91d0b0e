//! What the parts of consensus share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::SnapshotStore;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::consensus::ClockMs;
use crate::error::BarrierError;
use crate::incoming::Incoming;
use crate::machine::PeerService;
use crate::peers::Peers;
use crate::rounds::Rounds;
use crate::status::{Leadership, Members};
use crate::types::Raft;

/// How long the answers of a leader whose term is over may still be on the way.
const LAST_ANSWERS: Duration = Duration::from_millis(100);

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) raft: Raft,
    pub(crate) peers: Peers,
    pub(crate) service: Arc<dyn PeerService>,
    pub(crate) clock_ms: ClockMs,
    pub(crate) snapshots: SnapshotStore,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) members: watch::Receiver<Members>,
    pub(crate) applied: watch::Receiver<u64>,
    /// Rounds that this node runs as the leader.
    pub(crate) leader_rounds: Rounds,
    /// Rounds for reads of this node, wherever the leader is.
    pub(crate) read_rounds: Rounds,
    /// The snapshot being received.
    pub(crate) incoming: Mutex<Option<Incoming>>,
    /// Held during a change of the membership.
    pub(crate) change: Mutex<()>,
    /// New work is refused.
    pub(crate) closing: AtomicBool,
    /// Tasks end.
    pub(crate) stop: CancellationToken,
}

impl Inner {
    pub(crate) fn leads(&self) -> Leadership {
        *self.leadership.borrow()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn propose_timeout(&self) -> Duration {
        Duration::from_millis(self.config.propose_timeout_ms)
    }

    /// Ends soon after a term later than `term` has begun: a leader of the old one need not be waited for any longer. Not at once, since
    /// its last answers may be on the way.
    pub(crate) async fn term_over(&self, term: u64) {
        let mut leadership = self.leadership.clone();
        let over = leadership.wait_for(|now| now.term > term);
        if over.await.is_ok() {
            tokio::time::sleep(LAST_ANSWERS).await;
        }
    }

    /// Waits until `index` is applied here.
    pub(crate) async fn wait_applied(&self, index: u64) -> Result<(), BarrierError> {
        let mut applied = self.applied.clone();
        let reached = applied.wait_for(|applied| *applied >= index);
        match tokio::time::timeout(self.propose_timeout(), reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(BarrierError::ShuttingDown),
            Err(_) => Err(BarrierError::TimedOut(format!("this replica has not applied index {index} yet"))),
        }
    }
}

/// An empty body.
pub(crate) fn nothing() -> Bytes {
    Bytes::new()
}

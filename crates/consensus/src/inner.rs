//! What the parts of consensus share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_store::SnapshotStorage;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ForwardReason, ForwardToLeader};
use openraft::vote::RaftLeaderId;
use tokio::sync::{Mutex, RwLock, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::application::Timekeeper;
use crate::application::{PeerService, StateMachine};
use crate::blocking::Blocking;
use crate::config::Config;
use crate::error::BarrierError;
use crate::log::log_store::LogStore;
use crate::peer::peers::Peers;
use crate::peer::peers::RefusalLog;
use crate::peer::validation::Validator;
use crate::raft_types::{Raft, TypeConfig};
use crate::read_index::ReadRounds;
use crate::snapshot_receive::IncomingSnapshot;
use crate::status::{ConsensusStatus, Leadership, Members};
use crate::status_publisher;

/// Between attempts while a leader waits for the first word of its majority.
const LEASE_PAUSE: Duration = Duration::from_millis(1);
/// How long the answers of a leader whose term is over may still be on the way.
const LAST_ANSWERS: Duration = Duration::from_millis(100);

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) raft: Raft,
    pub(crate) peers: Peers,
    pub(crate) machine: Arc<dyn StateMachine>,
    pub(crate) service: Arc<dyn PeerService>,
    pub(crate) refusals: RefusalLog,
    pub(crate) time: Arc<dyn Timekeeper>,
    pub(crate) log: LogStore,
    pub(crate) snapshots: Arc<dyn SnapshotStorage>,
    pub(crate) blocking: Arc<dyn Blocking>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) members: watch::Receiver<Members>,
    pub(crate) applied: watch::Receiver<u64>,
    /// Rounds that this node runs as the leader.
    pub(crate) leader_rounds: ReadRounds,
    /// Rounds for reads of this node, wherever the leader is.
    pub(crate) read_rounds: ReadRounds,
    /// The snapshot being received.
    pub(crate) incoming: Mutex<Option<IncomingSnapshot>>,
    /// Held during a change of the membership.
    pub(crate) change: Mutex<()>,
    /// No leadership is taken over any more.
    pub(crate) going_down: AtomicBool,
    /// New work is refused.
    pub(crate) closing: AtomicBool,
    /// Held by each Raft message of a peer while it is acted on; a stop waits for them, because openraft logs an error for a message that
    /// comes after it.
    pub(crate) serving: RwLock<()>,
    /// Tasks end.
    pub(crate) stop: CancellationToken,
}

impl Inner {
    pub(crate) fn leads(&self) -> Leadership {
        *self.leadership.borrow()
    }

    /// What this node knows, to judge a peer's message by.
    pub(crate) fn validator(&self) -> Validator {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let term = metrics.vote.leader_id().term();
        Validator { node: self.config.node, term, fresh: term == 0 && metrics.last_log_index.is_none() }
    }

    pub(crate) fn is_going_down(&self) -> bool {
        self.going_down.load(Ordering::Acquire)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> ConsensusStatus {
        let lease = Duration::from_millis(self.config.election_timeout_max_ms);
        let mut status = status_publisher::status_of(self.config.node, &self.raft, lease);
        status.not_admitted_because = self.peers.guard.not_admitted_because();
        status.turned_away = self.peers.guard.turned_away();
        for peer in status.turned_away.keys() {
            if let Some(follower) = status.followers.get_mut(peer) {
                follower.synced = false;
            }
        }
        status
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

    /// A leader without a fresh word from its majority takes no writes. One just elected is about to get it: that is worth a moment.
    /// True, after a short pause, when the write that openraft refused before appending anything should be tried again.
    pub(crate) async fn majority_may_answer_yet(
        &self,
        refused: &ForwardToLeader<TypeConfig>,
        term: u64,
        since: Instant,
    ) -> bool {
        let leads = self.leads();
        let patience = Duration::from_millis(self.config.election_timeout_max_ms);
        let worth_it = refused.reason == ForwardReason::LeaseExpired
            && leads.leading
            && leads.term == term
            && !self.is_closing()
            && since.elapsed() < patience;
        if worth_it {
            tokio::time::sleep(LEASE_PAUSE).await;
        }
        worth_it
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

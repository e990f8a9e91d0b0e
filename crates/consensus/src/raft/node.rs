//! This node's Raft as the parts of consensus use it: who leads, what is applied here, and whether the node is
//! stopping. It starts their tasks, too, so that a stop can wait for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::errors::{ForwardReason, ForwardToLeader};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::error::BarrierError;
use crate::raft::state_machine::Raft;
use crate::raft::types::TypeConfig;
use crate::status::{Leadership, Members};

/// Between attempts while a leader waits for the first answers of its majority.
const LEASE_PAUSE: Duration = Duration::from_millis(1);
/// How long the answers of a leader whose term is over may still be on the way.
const LAST_ANSWERS: Duration = Duration::from_millis(100);

/// Long-lived tasks, and what ends them.
#[derive(Clone, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    /// Cancelled when the tasks have to end.
    pub(crate) stop: CancellationToken,
}

impl Tasks {
    /// Starts a task that is dropped, wherever it stands, when the tasks have to end.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(task))
    }

    /// Starts a task that ends by itself once `stop` is cancelled.
    pub(crate) fn spawn_until_stopped(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task);
    }

    /// Ends the tasks, and waits until they have ended.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// What keeps this node from its work, in words for people; empty while nothing does.
#[derive(Clone, Default)]
pub(crate) struct Obstacle(Arc<Mutex<Option<String>>>);

impl Obstacle {
    pub(crate) fn set(&self, why: Option<String>) {
        *self.0.lock() = why;
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }
}

/// See the module's text.
pub(crate) struct RaftNode {
    pub(crate) config: Config,
    pub(crate) raft: Raft,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) members: watch::Receiver<Members>,
    pub(crate) applied: watch::Receiver<u64>,
    pub(crate) tasks: Tasks,
    /// See [`ConsensusStatus::not_formed_because`](crate::ConsensusStatus).
    pub(crate) not_formed: Obstacle,
    /// See [`ConsensusStatus::no_majority_because`](crate::ConsensusStatus).
    pub(crate) no_majority: Obstacle,
    /// No leadership is taken over any more.
    going_down: AtomicBool,
    /// New work is refused.
    closing: AtomicBool,
}

impl RaftNode {
    pub(crate) fn new(
        config: Config,
        raft: Raft,
        leadership: watch::Receiver<Leadership>,
        members: watch::Receiver<Members>,
        applied: watch::Receiver<u64>,
        tasks: Tasks,
    ) -> Arc<RaftNode> {
        let (going_down, closing) = (AtomicBool::new(false), AtomicBool::new(false));
        let (not_formed, no_majority) = Default::default();
        Arc::new(RaftNode {
            config,
            raft,
            leadership,
            members,
            applied,
            tasks,
            not_formed,
            no_majority,
            going_down,
            closing,
        })
    }

    pub(crate) fn leads(&self) -> Leadership {
        *self.leadership.borrow()
    }

    pub(crate) fn is_going_down(&self) -> bool {
        self.going_down.load(Ordering::Acquire)
    }

    /// From now on this node takes no leadership over. False where that was so already.
    pub(crate) fn begin_going_down(&self) -> bool {
        !self.going_down.swap(true, Ordering::AcqRel)
    }

    /// From now on new work is refused.
    pub(crate) fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn propose_timeout(&self) -> Duration {
        Duration::from_millis(self.config.propose_timeout_ms)
    }

    /// Completes soon after a term later than `term` has begun: there is no point in waiting for the old leader any
    /// longer. Not at once, since its last answers may be on the way.
    pub(crate) async fn term_over(&self, term: u64) {
        let mut leadership = self.leadership.clone();
        let over = leadership.wait_for(|now| now.term > term);
        if over.await.is_ok() {
            tokio::time::sleep(LAST_ANSWERS).await;
        }
    }

    /// openraft refuses a write before it appends anything if the leader has no recent answer of its majority. A leader
    /// just elected is about to get one. True, after a short pause, when the write should be tried again.
    pub(crate) async fn majority_may_answer_yet(
        &self,
        refused: &ForwardToLeader<TypeConfig>,
        term: u64,
        since: Instant,
    ) -> bool {
        let leads = self.leads();
        let longest = Duration::from_millis(self.config.election_timeout_max_ms);
        let worth_it = refused.reason == ForwardReason::LeaseExpired
            && leads.leading
            && leads.term == term
            && !self.is_closing()
            && since.elapsed() < longest;
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

//! The leader's tasks besides replicating: it acknowledges keepalives, expires silent sessions (`expiry`), and reaps
//! nodes whose time has run out (`ARCHITECTURE.md`, Sessions).
//!
//! It must never acknowledge a keepalive on its own word, nor one of a session whose expiry it has proposed in this
//! term (promise P5).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{BarrierError, Coalescer, Leadership, PeerService, ServiceError};
use lockkeeper_core::limits::MAX_BULK;
use lockkeeper_core::{Command, SessionId};
use lockkeeper_mutants::mutant;
use tokio::sync::watch;

use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::log::proposer::Proposer;
use crate::observers::records::LeaderRecord;
use crate::observers::records::liveness::Ages;
use crate::observers::records::tracker::Liveness;
use crate::replica::Replica;
use crate::replication::Replication;
use crate::sessions::liveness_replication::LivenessReplication;
use crate::sessions::messages::{KeepaliveAnswer, KeepaliveGroup, MAX_GROUP, SessionMessage, Verdict};
use crate::time::clock::next_tick;

/// Longest time that a sign of life takes from the node that heard it to the leader, beside waiting for a tick.
const ON_THE_WAY_MS: u64 = 150;

/// See the module's text.
pub(crate) struct LeaderTasks {
    pub(super) replica: Arc<Replica>,
    confirmations: Coalescer<Result<u64, BarrierError>>,
    copies: Coalescer<Result<u64, BarrierError>>,
    pub(super) liveness: Arc<LivenessReplication>,
    pub(super) grace_ms: u64,
    pub(super) leadership: watch::Receiver<Leadership>,
}

impl LeaderTasks {
    pub(crate) fn new(
        config: &NodeConfig,
        incarnation: u64,
        replica: Arc<Replica>,
        replication: Arc<dyn Replication>,
    ) -> Arc<Self> {
        let liveness = LivenessReplication::new(config, incarnation, replica.clone(), replication.clone());
        let leadership = replication.leadership();
        let (confirmations, confirm) = Coalescer::new(config.max_waiting_calls, move || {
            let replication = replication.clone();
            async move { replication.confirm_leadership().await }
        });
        replica.tasks.spawn_vital("confirmation of leadership", confirm);
        let to_copy = liveness.clone();
        let (copies, copy) = Coalescer::new(config.max_waiting_calls, move || {
            let liveness = to_copy.clone();
            async move { liveness.replicate().await }
        });
        replica.tasks.spawn_vital("replication of liveness", copy);
        let grace_ms = config.session_tick_ms + ON_THE_WAY_MS;
        Arc::new(Self { replica, confirmations, copies, liveness, grace_ms, leadership })
    }

    /// Starts the tasks. They do nothing while another node leads.
    pub(crate) fn start(self: &Arc<Self>, config: &NodeConfig, proposer: Proposer) {
        let tick = Duration::from_millis(config.session_tick_ms);
        let (tasks, to) = (self.clone(), proposer.clone());
        let expiry = async move { tasks.run_expiry(tick, &to).await };
        let every = Duration::from_millis(config.reap_every_ms);
        let tasks = self.clone();
        let completing = async move { tasks.run_table_sync(tick).await };
        self.replica.tasks.spawn_vital("synchronisation of the liveness tables", completing);
        let tasks = self.clone();
        let reaping = async move { tasks.run_reaper(every, &proposer).await };
        self.replica.tasks.spawn_vital("expiry of sessions", expiry);
        self.replica.tasks.spawn_vital("reaper", reaping);
    }

    /// The term in which a quorum has just confirmed this leader.
    pub(super) async fn confirm(&self) -> Result<u64, NodeError> {
        self.confirmations.try_join().await?.map_err(|_| NodeError::no_leader())
    }

    /// Notes signs of life. Returns what is certain about these sessions once a quorum has confirmed this leader and a
    /// quorum has the signs in its tables.
    pub(crate) async fn acknowledge(&self, group: &KeepaliveGroup) -> Result<KeepaliveAnswer, NodeError> {
        let term = self.note(&group.ages).ok_or_else(NodeError::no_leader)?;
        if !mutant!(KeepaliveWithoutQuorum) {
            let (confirmed, copied) = tokio::join!(self.confirm(), self.copies.try_join());
            if confirmed? != term || copied?.map_err(|_| NodeError::no_leader())? != term {
                return Err(NodeError::no_leader());
            }
        }
        let state = self.replica.state();
        self.replica.sessions.with(|records| {
            let leader = records.leader_of(term).ok_or_else(NodeError::no_leader)?;
            let verdict = |session: &SessionId| match leader.tracker.liveness(*session) {
                Liveness::Alive(timeout_ms) => Verdict::Alive(timeout_ms),
                Liveness::Expiring => Verdict::Expiring,
                Liveness::Unknown => Verdict::Gone,
            };
            let verdicts = group.ages.iter().map(|(session, _)| verdict(session)).collect();
            Ok(KeepaliveAnswer { zxid: state.zxid(), verdicts })
        })
    }

    /// Notes when each session was last heard of, counted from now. Returns the term of the record.
    fn note(&self, ages: &Ages) -> Option<u64> {
        let now_ms = self.replica.now_ms();
        self.replica.sessions.with(|records| {
            let leader = records.leader.as_mut()?;
            for (session, age_ms) in ages {
                let age_ms = if mutant!(CountSignsFromArrival) { 0 } else { u64::from(*age_ms) };
                // The time on the way is not counted, so this is never before the sign was given.
                let alive_ms = now_ms.saturating_sub(age_ms);
                leader.tracker.note_alive(*session, alive_ms);
                leader.note_unreplicated(*session, alive_ms);
            }
            Some(leader.term)
        })
    }

    /// Gives every voter the whole table, while this node leads and there are sessions.
    async fn run_table_sync(&self, tick: Duration) {
        let clock = self.replica.clock.clone();
        let mut leadership = self.leadership.clone();
        loop {
            if leadership.wait_for(|now| now.leading).await.is_err() {
                return;
            }
            clock.sleep_until(next_tick(clock.now(), tick)).await;
            let has_sessions = |leader: &LeaderRecord| leader.tracker.len() > 0;
            let term = self.replica.sessions.with(|records| {
                records.leader.as_ref().filter(|leader| has_sessions(leader)).map(|leader| leader.term)
            });
            let Some(term) = term.filter(|term| self.leads_in(*term)) else { continue };
            self.liveness.sync_tables(term, || async { self.confirm().await.is_ok_and(|now| now == term) }).await;
        }
    }

    pub(super) fn leads_in(&self, term: u64) -> bool {
        let leadership = self.leadership.borrow();
        leadership.leading && leadership.term == term || mutant!(ExpireByDeposedLeader)
    }

    /// Reaps at intervals, and at once when a lock delay is over, because a request may wait for its end.
    async fn run_reaper(&self, every: Duration, proposer: &Proposer) {
        let clock = self.replica.clock.clone();
        let mut delay_end_ms = self.replica.delay_end_ms();
        let mut leadership = self.leadership.clone();
        let mut round = clock.now() + every;
        let mut not_before = Duration::ZERO;
        loop {
            let leading = leadership.borrow_and_update().leading;
            let delay_end_ms_now = *delay_end_ms.borrow_and_update();
            let delay_end = delay_end_ms_now.filter(|_| leading).map(|end_ms| self.reached_by(end_ms));
            let due = delay_end.map_or(round, |end| end.max(not_before).min(round));
            tokio::select! {
                () = clock.sleep_until(due) => {}
                Ok(()) = delay_end_ms.changed() => continue,
                Ok(()) = leadership.changed() => continue,
            }
            // A node that was not yet due by the clock of the log entry is tried again, but only after a pause.
            not_before = clock.now() + REAP_PAUSE;
            let may_be_more = leading && self.reap(proposer).await;
            round = if may_be_more { not_before } else { clock.now() + every };
        }
    }

    /// When the replicated clock reaches this time, by the monotonic clock.
    fn reached_by(&self, at_ms: u64) -> Duration {
        self.replica.clock.now() + Duration::from_millis(at_ms.saturating_sub(self.replica.time.shows()))
    }

    /// Reaps as many nodes as one command may; true if that many were due.
    async fn reap(&self, proposer: &Proposer) -> bool {
        let paths = {
            let state = self.replica.state();
            state.reapable(self.replica.time.shows().max(state.clock_ms()), MAX_BULK)
        };
        // Nothing is written when nothing is due.
        let count = paths.len();
        count > 0 && proposer.propose(Command::Reap { paths }).await.is_ok() && count == MAX_BULK
    }
}

/// The least time between two rounds of the reaper.
const REAP_PAUSE: Duration = Duration::from_millis(10);

/// Answers other nodes. Consensus needs it to start, before the tasks exist; it serves once they are set.
#[derive(Default)]
pub(crate) struct PeerServiceSlot(pub(crate) OnceLock<Arc<LeaderTasks>>);

#[async_trait]
impl PeerService for PeerServiceSlot {
    async fn serve(&self, from: u64, body: Bytes) -> Result<Bytes, ServiceError> {
        let refuse = |code: &str, detail: String| ServiceError { code: code.into(), detail };
        let tasks = self.0.get().ok_or_else(|| refuse("not_ready", "this node is still starting".into()))?;
        // Checked before it is decoded: a session and its age take fifteen bytes at most.
        if body.len() > 15 * MAX_GROUP + 1024 {
            return Err(refuse("bad_message", format!("a message has at most {MAX_GROUP} sessions")));
        }
        let message: SessionMessage =
            postcard::from_bytes(&body).map_err(|error| refuse("bad_message", error.to_string()))?;
        message.check().map_err(|why| refuse("bad_message", why))?;
        let answer = match message {
            SessionMessage::Keepalives(group) => {
                let answer =
                    tasks.acknowledge(&group).await.map_err(|error| refuse("not_leading", error.to_string()))?;
                postcard::to_stdvec(&answer)
            }
            SessionMessage::Table(call) => postcard::to_stdvec(&tasks.liveness.answer_to(from, call)),
        };
        answer.map(Bytes::from).map_err(|error| refuse("internal", error.to_string()))
    }
}

#[cfg(test)]
#[path = "leader_tasks_tests.rs"]
mod tests;

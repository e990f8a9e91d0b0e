//! What the leader does besides replicating: hears keepalives, expires silent sessions, reaps what has had its time
//! (`ARCHITECTURE.md`, Sessions).
//!
//! A leader acts only after a quorum has confirmed it in its term and everything of earlier terms is applied here; its
//! record of sessions starts with what `liveness_replication` has collected, or else with every timer in full. It must
//! never acknowledge a keepalive on its own word, nor one of a session that it has named in this term (promise P5).
//! What it proposes carries its term, so that it has no effect in another.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{BarrierError, Coalescer, Leadership, PeerService, ServiceError};
use lockkeeper_core::limits::{MAX_BULK, MAX_EXPIRED_EPHEMERALS};
use lockkeeper_core::{Command, Outcome, Reply, SessionId, Term, Zxid};
use lockkeeper_mutants::mutant;
use tokio::sync::watch;

use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::log::inflight::Done;
use crate::log::proposer::Proposer;
use crate::replica::Replica;
use crate::replication::Replication;
use crate::sessions::keepalive::{KeepaliveAnswer, KeepaliveGroup, MAX_GROUP, SessionMessage, Verdict};
use crate::sessions::liveness::Ages;
use crate::sessions::liveness_replication::LivenessReplication;
use crate::sessions::records::LeaderRecord;
use crate::sessions::tracker::{Liveness, SessionTracker};

/// See the module's text.
pub(crate) struct LeaderTasks {
    replica: Arc<Replica>,
    confirmations: Coalescer<Result<u64, BarrierError>>,
    copies: Coalescer<Result<u64, BarrierError>>,
    pub(crate) liveness: Arc<LivenessReplication>,
    grace_ms: u64,
    leadership: watch::Receiver<Leadership>,
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

    /// Starts the tasks of a leader; they rest while another node leads.
    pub(crate) fn start(self: &Arc<Self>, config: &NodeConfig, proposer: Proposer) {
        let tick = Duration::from_millis(config.session_tick_ms);
        let (tasks, to) = (self.clone(), proposer.clone());
        let expiry = async move { tasks.run_expiry(tick, &to).await };
        let every = Duration::from_millis(config.reap_every_ms);
        let tasks = self.clone();
        let completing = async move { tasks.run_table_sync(tick).await };
        self.replica.tasks.spawn_vital("completing of the others' tables", completing);
        let tasks = self.clone();
        let reaping = async move { tasks.run_reaper(every, &proposer).await };
        self.replica.tasks.spawn_vital("expiry of sessions", expiry);
        self.replica.tasks.spawn_vital("reaper", reaping);
    }

    async fn confirm(&self) -> Result<u64, NodeError> {
        self.confirmations.try_join().await?.map_err(|_| NodeError::no_leader())
    }

    /// Notes signs of life, and says what is certain of these sessions once a quorum has confirmed this leader, and a quorum has
    /// the signs in its tables.
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

    /// Notes when these were heard of, counted from now. Gives the term of the record.
    fn note(&self, ages: &Ages) -> Option<u64> {
        let now_ms = self.replica.now_ms();
        self.replica.sessions.with(|records| {
            let leader = records.leader.as_mut()?;
            for (session, age_ms) in ages {
                let age_ms = if mutant!(CountSignsFromArrival) { 0 } else { u64::from(*age_ms) };
                // A travelling sign only becomes younger: this is never before it was given.
                let heard_ms = now_ms.saturating_sub(age_ms);
                leader.tracker.heard(*session, heard_ms);
                leader.note_unreplicated(*session, heard_ms);
            }
            Some(leader.term)
        })
    }

    /// Sees to it that every voter has the whole table, as long as this node leads and there are sessions.
    async fn run_table_sync(&self, tick: Duration) {
        let clock = self.replica.clock.clone();
        loop {
            clock.sleep_until(clock.now() + tick).await;
            let has_sessions = |leader: &LeaderRecord| leader.tracker.len() > 0;
            let term = self.replica.sessions.with(|records| {
                records.leader.as_ref().filter(|leader| has_sessions(leader)).map(|leader| leader.term)
            });
            let Some(term) = term.filter(|term| self.leads_in(*term)) else { continue };
            self.liveness.sync_tables(term, || async { self.confirm().await.is_ok_and(|now| now == term) }).await;
        }
    }

    async fn run_expiry(&self, tick: Duration, proposer: &Proposer) {
        let clock = self.replica.clock.clone();
        let mut leadership = self.leadership.clone();
        loop {
            let due = clock.now() + tick;
            tokio::select! {
                () = clock.sleep_until(due) => {}
                // A new leader takes up its record at once: until then nobody's keepalive is acknowledged.
                Ok(()) = leadership.changed() => {}
            }
            let late = clock.now().saturating_sub(due);
            let Some(term) = self.start_term().await else { continue };
            if late > LATE {
                tracing::warn!(
                    late_ms = late.as_millis() as u64,
                    "this leader was not running for a while: expiry is put off"
                );
                self.postpone_expiry(late);
            }
            while self.expire_some(term, proposer).await {}
        }
    }

    /// The term in which this node leads, once it may act. A new term starts a new record.
    pub(crate) async fn start_term(&self) -> Option<u64> {
        let leadership = *self.leadership.borrow();
        let recorded = self.recorded_term();
        if !leadership.leading {
            if !mutant!(ExpireByDeposedLeader) {
                return None;
            }
            return recorded;
        }
        if recorded == Some(leadership.term) {
            return Some(leadership.term);
        }
        if self.confirm().await.ok()? != leadership.term {
            return None;
        }
        let collected = self.liveness.collect(leadership.term).await;
        // Under the lock of the state, so that no session opens or ends unseen between the count and the record.
        let state = self.replica.state();
        let now_ms = self.replica.now_ms();
        let term = leadership.term;
        let sessions = self.replica.sessions.with(|records| {
            let liveness = &mut records.liveness;
            let began = |session| collected.whole.then(|| liveness.get(session)).flatten().unwrap_or(now_ms);
            let sessions = state.sessions().map(|(id, session)| (id, session.timeout_ms, began(id)));
            let mut tracker = SessionTracker::restart(sessions, self.grace_ms);
            tracker.all_heard().into_iter().for_each(|(session, heard_ms)| liveness.note(session, heard_ms));
            liveness.lead(&collected.voters);
            if collected.some_silent {
                tracker.stalled(SILENT_GRACE_MS, now_ms);
            } else if collected.some_gone {
                tracker.stalled(MISSING_GRACE_MS, now_ms);
            }
            let sessions = tracker.len();
            records.leader = Some(LeaderRecord { term, tracker, unreplicated: BTreeMap::new() });
            sessions
        });
        match collected.whole {
            true => tracing::info!(term, sessions, "leading: each session's timer begins at its last sign of life"),
            false => tracing::info!(term, sessions, "leading: every session's timer starts anew"),
        }
        Some(term)
    }

    fn recorded_term(&self) -> Option<u64> {
        self.replica.sessions.with(|records| records.leader.as_ref().map(|leader| leader.term))
    }

    fn postpone_expiry(&self, late: Duration) {
        let now_ms = self.replica.now_ms();
        self.replica.sessions.with(|records| {
            if let Some(leader) = &mut records.leader {
                leader.tracker.stalled(crate::time::clock::whole_ms(late), now_ms);
            }
        });
    }

    /// Expires one bounded batch of the silent. True if there may be more that can be expired now.
    async fn expire_some(&self, term: u64, proposer: &Proposer) -> bool {
        if !self.leads_in(term) {
            return false;
        }
        let Some((silent, seen)) = self.take_silent(term).filter(|(silent, _)| !silent.is_empty()) else {
            return false;
        };
        let command = Command::ExpireSessions { term: Term(term), seen, sessions: silent.clone() };
        let done = proposer.propose(command).await;
        let spared = self.replica.sessions.with(|records| {
            let Some(leader) = records.leader_of(term) else { return 0 };
            let spared = match &done {
                // Decided, and so is every earlier proposal of this node. Those that are still there had asked for something
                // meanwhile, and were heard of when that was applied.
                Ok(Done { outcome: Outcome { reply: Ok(Reply::SessionsExpired(_)), .. } }) => {
                    leader.tracker.spared(&silent, self.replica.now_ms())
                }
                _ => 0,
            };
            // Those that are gone are not handed out again; those whose expiry came to nothing are.
            leader.tracker.propose_again(silent);
            spared
        });
        if let Err(error) = &done {
            tracing::debug!(%error, "an expiry was not decided: it is proposed again");
        }
        done.is_ok() && spared == 0
    }

    /// Names the silent, and says how far the log was applied then: whoever asked for something by then has been heard.
    fn take_silent(&self, term: u64) -> Option<(Vec<SessionId>, Zxid)> {
        let state = self.replica.state();
        let now_ms = self.replica.now_ms();
        let owned = |session| state.session(session).map_or(0, |session| session.ephemerals().len());
        let silent = self.replica.sessions.with(|records| {
            let leader = records.leader_of(term)?;
            let mut silent = leader.tracker.take_silent(now_ms, MAX_BULK);
            let later = silent.split_off(one_entry(&silent, owned));
            leader.tracker.propose_again(later);
            Some(silent)
        })?;
        Some((silent, state.zxid()))
    }

    fn leads_in(&self, term: u64) -> bool {
        let leadership = self.leadership.borrow();
        leadership.leading && leadership.term == term || mutant!(ExpireByDeposedLeader)
    }

    /// Reaps now and then, and at once when a lock delay is over: somebody waits for that.
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
            round = clock.now() + every;
            // What was due a moment too early by the clock of the log entry is tried again, but not in a frenzy.
            not_before = clock.now() + REAP_PAUSE;
            if leading {
                self.reap(proposer).await;
            }
        }
    }

    /// When the replicated clock will have reached this, if time goes on as it does.
    fn reached_by(&self, at_ms: u64) -> Duration {
        self.replica.clock.now() + Duration::from_millis(at_ms.saturating_sub(self.replica.time.shows()))
    }

    async fn reap(&self, proposer: &Proposer) {
        let paths = {
            let state = self.replica.state();
            state.reapable(self.replica.time.shows().max(state.clock_ms()), MAX_BULK)
        };
        // Nothing is written when nothing is due.
        if !paths.is_empty() {
            drop(proposer.propose(Command::Reap { paths }).await);
        }
    }
}

/// How many of these go in one entry: the first, and others as long as they do not own more than one entry removes.
fn one_entry(silent: &[SessionId], owned: impl Fn(SessionId) -> usize) -> usize {
    let sums = silent.iter().scan(0_usize, |sum, session| {
        *sum += owned(*session);
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= MAX_EXPIRED_EPHEMERALS).count().max(1).min(silent.len())
}

/// The least time between two rounds of the reaper.
const REAP_PAUSE: Duration = Duration::from_millis(10);
/// Longest time that a sign of life takes from the node that heard it to the leader, beside the tick for which it waits at most.
const ON_THE_WAY_MS: u64 = 150;
/// A new leader expires nobody for so long where a member's process is gone: its clients turn to others.
const MISSING_GRACE_MS: u64 = 300;
/// The same where a member does not answer and may run: the sessions that it heard of lately must not pay for its being slow.
const SILENT_GRACE_MS: u64 = 2_000;
/// A tick that comes later than this means that this process was not running.
const LATE: Duration = Duration::from_secs(1);

/// Answers other nodes. Made before consensus, which needs it to start; serves once the tasks are there.
#[derive(Default)]
pub(crate) struct PeerServiceSlot(pub(crate) OnceLock<Arc<LeaderTasks>>);

#[async_trait]
impl PeerService for PeerServiceSlot {
    async fn serve(&self, from: u64, body: Bytes) -> Result<Bytes, ServiceError> {
        let refuse = |code: &str, detail: String| ServiceError { code: code.into(), detail };
        let tasks = self.0.get().ok_or_else(|| refuse("not_ready", "this node is still starting".into()))?;
        // Checked before it is read: a session and its age take fifteen bytes at most.
        if body.len() > 15 * MAX_GROUP + 1024 {
            return Err(refuse("bad_message", format!("a message has at most {MAX_GROUP} sessions")));
        }
        let message: SessionMessage =
            postcard::from_bytes(&body).map_err(|error| refuse("bad_message", error.to_string()))?;
        message.check().map_err(|why| refuse("bad_message", why))?;
        let answer = match message {
            SessionMessage::Keepalives(group) => {
                let heard =
                    tasks.acknowledge(&group).await.map_err(|error| refuse("not_leading", error.to_string()))?;
                postcard::to_stdvec(&heard)
            }
            SessionMessage::Table(call) => postcard::to_stdvec(&tasks.liveness.answer_to(from, call)),
        };
        answer.map(Bytes::from).map_err(|error| refuse("internal", error.to_string()))
    }
}

#[cfg(test)]
#[path = "leader_tasks_tests.rs"]
mod tests;

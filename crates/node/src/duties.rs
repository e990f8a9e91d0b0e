//! What the leader does besides replicating: hears keepalives, expires silent sessions, reaps what has had its time (DESIGN section 6).
//!
//! A leader acts only after a quorum has confirmed it in its term and everything of earlier terms is applied here; its record of
//! sessions starts with every timer in full. It must never acknowledge a keepalive on its own word, nor one of a session that it has
//! named in this term (promise P5). What it proposes carries its term, so that it has no effect in another.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{BarrierError, Leadership, PeerService, ServiceError};
use lockkeeper_core::limits::MAX_BULK;
use lockkeeper_core::{Command, Outcome, Reply, SessionId, Term, Zxid};
use lockkeeper_planted::{Bug, planted};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::flight::Done;
use crate::keepalive::{Group, GroupAnswer, MAX_GROUP, Verdict};
use crate::proposer::Proposer;
use crate::replica::{Leading, Replica};
use crate::replication::Replication;
use crate::rounds::Rounds;
use crate::tracker::{SessionTracker, Standing};

/// See the module's text.
pub(crate) struct Duties {
    replica: Arc<Replica>,
    confirmations: Rounds<Result<u64, BarrierError>>,
    leadership: watch::Receiver<Leadership>,
}

impl Duties {
    pub(crate) fn new(config: &NodeConfig, replica: Arc<Replica>, replication: Arc<dyn Replication>) -> Arc<Self> {
        let leadership = replication.leadership();
        let confirmations = Rounds::new("confirmation of leadership", &replica, config.max_waiting_calls, move || {
            let replication = replication.clone();
            async move { replication.confirm_leadership().await }
        });
        Arc::new(Self { replica, confirmations, leadership })
    }

    /// Starts the tasks of a leader; they rest while another node leads.
    pub(crate) fn start(self: &Arc<Self>, config: &NodeConfig, proposer: Proposer, stop: CancellationToken) {
        let tick = Duration::from_millis(config.session_tick_ms);
        let (duties, to) = (self.clone(), proposer.clone());
        let expiry = async move { duties.expire_for_ever(tick, &to).await };
        let every = Duration::from_millis(config.reap_every_ms);
        let duties = self.clone();
        let reaping = async move { duties.reap_for_ever(every, &proposer).await };
        let stop_reaping = stop.clone();
        self.replica.start_vital("expiry of sessions", stop, expiry);
        self.replica.start_vital("reaper", stop_reaping, reaping);
    }

    async fn confirm(&self) -> Result<u64, NodeError> {
        self.confirmations.join().await?.map_err(|_| NodeError::no_leader())
    }

    /// Notes signs of life, and says what is certain of these sessions once a quorum has confirmed this leader.
    pub(crate) async fn hear(&self, group: &Group) -> Result<GroupAnswer, NodeError> {
        let term = self.note(&group.sessions).ok_or_else(NodeError::no_leader)?;
        if !planted(Bug::KeepaliveWithoutQuorum) && self.confirm().await? != term {
            return Err(NodeError::no_leader());
        }
        let state = self.replica.state.read();
        let leading = self.replica.leading.lock();
        let leading = leading.as_ref().filter(|leading| leading.term == term).ok_or_else(NodeError::no_leader)?;
        let verdict = |session: &SessionId| match leading.tracker.standing(*session) {
            Standing::Alive(timeout_ms) => Verdict::Alive(timeout_ms),
            Standing::Expiring => Verdict::Expiring,
            Standing::Unknown => Verdict::Gone,
        };
        Ok(GroupAnswer { zxid: state.zxid(), verdicts: group.sessions.iter().map(verdict).collect() })
    }

    /// Notes that these were heard of now. Gives the term of the record.
    fn note(&self, sessions: &[SessionId]) -> Option<u64> {
        let now_ms = self.replica.now_ms();
        let mut leading = self.replica.leading.lock();
        let leading = leading.as_mut()?;
        for session in sessions {
            leading.tracker.heard(*session, now_ms);
        }
        Some(leading.term)
    }

    async fn expire_for_ever(&self, tick: Duration, proposer: &Proposer) {
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
            let Some(term) = self.take_up().await else { continue };
            if late > LATE {
                tracing::warn!(
                    late_ms = late.as_millis() as u64,
                    "this leader was not running for a while: expiry is put off"
                );
                self.put_off(late);
            }
            while self.expire_some(term, proposer).await {}
        }
    }

    /// The term in which this node leads, once it may act. A new term starts a new record.
    async fn take_up(&self) -> Option<u64> {
        let leadership = *self.leadership.borrow();
        if !leadership.leading {
            if !planted(Bug::ExpireByDeposedLeader) {
                return None;
            }
            return self.replica.leading.lock().as_ref().map(|leading| leading.term);
        }
        if self.replica.leading.lock().as_ref().is_some_and(|leading| leading.term == leadership.term) {
            return Some(leadership.term);
        }
        if self.confirm().await.ok()? != leadership.term {
            return None;
        }
        // Under the lock of the state, so that no session opens or ends unseen between the count and the record.
        let state = self.replica.state.read();
        let sessions = state.sessions().map(|(id, session)| (id, session.timeout_ms));
        let tracker = SessionTracker::restart(sessions, self.replica.now_ms());
        tracing::info!(term = leadership.term, sessions = tracker.len(), "leading: every session's timer starts anew");
        *self.replica.leading.lock() = Some(Leading { term: leadership.term, tracker });
        Some(leadership.term)
    }

    fn put_off(&self, late: Duration) {
        let now_ms = self.replica.now_ms();
        if let Some(leading) = &mut *self.replica.leading.lock() {
            leading.tracker.stalled(crate::clock::whole_ms(late), now_ms);
        }
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
        let mut spared = 0;
        if let Some(leading) = self.replica.leading.lock().as_mut().filter(|leading| leading.term == term) {
            if let Ok(Done { outcome: Outcome { reply: Ok(Reply::SessionsExpired(_)), .. } }) = &done {
                // Decided, and so is every earlier proposal of this node. Those that are still there had asked for something
                // meanwhile, and were heard of when that was applied.
                spared = leading.tracker.spared(&silent, self.replica.now_ms());
            }
            // Those that are gone are not handed out again; those whose expiry came to nothing are.
            leading.tracker.propose_again(silent);
        }
        if let Err(error) = &done {
            tracing::debug!(%error, "an expiry was not decided: it is proposed again");
        }
        done.is_ok() && spared == 0
    }

    /// Names the silent, and says how far the log was applied then: whoever asked for something by then has been heard.
    fn take_silent(&self, term: u64) -> Option<(Vec<SessionId>, Zxid)> {
        let state = self.replica.state.read();
        let now_ms = self.replica.now_ms();
        let mut leading = self.replica.leading.lock();
        let leading = leading.as_mut().filter(|leading| leading.term == term)?;
        Some((leading.tracker.take_silent(now_ms, MAX_BULK), state.zxid()))
    }

    fn leads_in(&self, term: u64) -> bool {
        let leadership = self.leadership.borrow();
        leadership.leading && leadership.term == term || planted(Bug::ExpireByDeposedLeader)
    }

    /// Reaps now and then, and at once when a lock delay is over: somebody waits for that.
    async fn reap_for_ever(&self, every: Duration, proposer: &Proposer) {
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
            let state = self.replica.state.read();
            state.reapable(self.replica.time.shows().max(state.clock_ms()), MAX_BULK)
        };
        // Nothing is written when nothing is due.
        if !paths.is_empty() {
            drop(proposer.propose(Command::Reap { paths }).await);
        }
    }
}

/// The least time between two rounds of the reaper.
const REAP_PAUSE: Duration = Duration::from_millis(10);
/// A tick that comes later than this means that this process was not running.
const LATE: Duration = Duration::from_secs(1);

/// Answers other nodes. Made before consensus, which needs it to start; serves once the duties are there.
#[derive(Default)]
pub(crate) struct Door(pub(crate) OnceLock<Arc<Duties>>);

#[async_trait]
impl PeerService for Door {
    async fn serve(&self, _from: u64, body: Bytes) -> Result<Bytes, ServiceError> {
        let refuse = |code: &str, detail: String| ServiceError { code: code.into(), detail };
        let duties = self.0.get().ok_or_else(|| refuse("not_ready", "this node is still starting".into()))?;
        // Checked before it is read: a session takes ten bytes at most.
        if body.len() > 10 * MAX_GROUP + 16 {
            return Err(refuse("bad_message", format!("a group has at most {MAX_GROUP} sessions")));
        }
        let group: Group = postcard::from_bytes(&body).map_err(|error| refuse("bad_message", error.to_string()))?;
        if group.sessions.len() > MAX_GROUP {
            return Err(refuse("bad_message", format!("a group has at most {MAX_GROUP} sessions")));
        }
        let answer = duties.hear(&group).await.map_err(|error| refuse("not_leading", error.to_string()))?;
        postcard::to_stdvec(&answer).map(Bytes::from).map_err(|error| refuse("internal", error.to_string()))
    }
}

#[cfg(test)]
#[path = "duties_tests.rs"]
mod tests;

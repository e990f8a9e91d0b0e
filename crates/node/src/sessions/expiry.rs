//! The expiry of silent sessions, which the leader proposes (`ARCHITECTURE.md`, Sessions).
//!
//! A leader acts only after a quorum has confirmed it in its term and everything of earlier terms is applied here; its
//! record of sessions starts with what `liveness_replication` has collected, or else with every timer in full. What it
//! proposes carries its term, so that it has no effect in another.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::limits::{MAX_BULK, MAX_EXPIRED_EPHEMERALS};
use lockkeeper_core::{Command, Outcome, Reply, SessionId, Term, Zxid};
use lockkeeper_mutants::{invariant, mutant};

use crate::log::proposer::Proposer;
use crate::observers::records::LeaderRecord;
use crate::observers::records::tracker::SessionTracker;
use crate::replica::inflight::Done;
use crate::sessions::leader_tasks::LeaderTasks;
use crate::time::clock::next_tick;

/// For how long a new leader expires nobody if a member's process is gone: its clients turn to other nodes.
const MISSING_GRACE_MS: u64 = 300;
/// The same if a member does not answer but may run: sessions that it heard of lately must not end because it is slow.
const SILENT_GRACE_MS: u64 = 2_000;
/// If a tick comes later than this, this process was not running.
const LATE: Duration = Duration::from_secs(1);

impl LeaderTasks {
    pub(super) async fn run_expiry(&self, tick: Duration, proposer: &Proposer) {
        let clock = self.replica.clock.clone();
        let mut leadership = self.leadership.clone();
        let mut checked = None;
        loop {
            let leads = leadership.borrow().leading || mutant!(ExpireByDeposedLeader);
            let due = next_tick(clock.now(), tick);
            tokio::select! {
                () = clock.sleep_until(due), if leads => {}
                // A new leader starts its record at once: until then it acknowledges no keepalive.
                Ok(()) = leadership.changed() => {}
                else => return,
            }
            // A follower waits for no tick, so none of its ticks comes late.
            let late = if leads { clock.now().saturating_sub(due) } else { Duration::ZERO };
            let Some(term) = self.start_term().await else { continue };
            if late > LATE {
                tracing::warn!(
                    late_ms = late.as_millis() as u64,
                    "this leader was not running for a while: expiry is put off"
                );
                self.postpone_expiry(late);
            }
            while self.expire_some(term, proposer).await {}
            self.end_unauthorised(term, proposer, &mut checked).await;
        }
    }

    /// The term in which this node leads, once it may act. In a new term, starts a new record.
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
        // Under the lock of the state, so that no session opens or ends unseen while the record is made.
        let state = self.replica.state();
        let now_ms = self.replica.now_ms();
        let term = leadership.term;
        let sessions = self.replica.sessions.with(|records| {
            let liveness = &mut records.liveness;
            let began = |session| collected.whole.then(|| liveness.get(session)).flatten().unwrap_or(now_ms);
            let sessions = state.sessions().map(|(id, session)| (id, session.timeout_ms, began(id)));
            let mut tracker = SessionTracker::restart(sessions, self.grace_ms);
            tracker.all_alive_ms().into_iter().for_each(|(session, alive_ms)| liveness.note(session, alive_ms));
            liveness.lead(&collected.voters);
            if collected.some_silent {
                tracker.stalled(SILENT_GRACE_MS, now_ms);
            } else if collected.some_gone {
                tracker.stalled(MISSING_GRACE_MS, now_ms);
            }
            let sessions = tracker.len();
            let is_later = records.leader.as_ref().is_none_or(|before| before.term < term);
            invariant!(is_later, "the record of a leader is of a later term than the one before");
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

    /// Proposes the expiry of one bounded group of silent sessions. True if more may be expired now.
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
                // Decided, and so is every earlier proposal of this node. A session that still exists proposed
                // something meanwhile, and was noted as alive when that was applied.
                Ok(Done { outcome: Outcome { reply: Ok(Reply::SessionsExpired(_)), .. }, .. }) => {
                    leader.tracker.spared(&silent, self.replica.now_ms())
                }
                _ => 0,
            };
            // Sessions that have ended are not handed out again; those whose expiry failed are.
            leader.tracker.propose_again(silent);
            spared
        });
        if let Err(error) = &done {
            tracing::debug!(%error, "an expiry was not decided: it is proposed again");
        }
        done.is_ok() && spared == 0
    }

    /// Takes silent sessions, and the zxid that was applied then: every session that proposed something by then counts
    /// as heard. Sessions that were heard of since they were named, but whose expiry may have been proposed, come with
    /// zxid 0: that proposal expires none of them, and decides whether an earlier one did.
    pub(super) fn take_silent(&self, term: u64) -> Option<(Vec<SessionId>, Zxid)> {
        let state = self.replica.state();
        let now_ms = self.replica.now_ms();
        let owned = |session| state.session(session).map_or(0, |session| session.ephemerals().len());
        self.replica.sessions.with(|records| {
            let tracker = &mut records.leader_of(term)?.tracker;
            let named = tracker.take_silent(now_ms, MAX_BULK);
            let (mut silent, active): (Vec<_>, Vec<_>) =
                named.into_iter().partition(|session| tracker.is_silent(*session, now_ms));
            if silent.is_empty() {
                return Some((active, Zxid(0)));
            }
            let later = silent.split_off(one_entry(&silent, owned));
            tracker.propose_again(later);
            tracker.propose_again(active);
            Some((silent, state.zxid()))
        })
    }
}

/// How many of these go into one entry: the first, and others while together they own no more than one entry removes.
pub(super) fn one_entry(silent: &[SessionId], owned: impl Fn(SessionId) -> usize) -> usize {
    let sums = silent.iter().scan(0_usize, |sum, session| {
        *sum += owned(*session);
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= MAX_EXPIRED_EPHEMERALS).count().max(1).min(silent.len())
}

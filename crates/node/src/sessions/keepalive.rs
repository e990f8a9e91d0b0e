//! Sends keepalives to the leader in groups: one is in flight while the next fills (`ARCHITECTURE.md`, Sessions). The
//! delegated keepalives of this node go with them, each with its age. Keepalives are not urgent, so a group gathers for
//! a while: what it costs the leader hardly depends on its size.
//!
//! This node must never acknowledge a keepalive by itself: the leader does, after a quorum round that began after the
//! keepalive arrived. During a change of leader, keepalives wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_consensus::Leadership;
use lockkeeper_core::{SessionId, Zxid};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use crate::backoff::Backoff;
use crate::config::NodeConfig;
use crate::error::{Bound, NodeError};
use crate::observers::records::Records;
use crate::observers::records::liveness::age_ms;
use crate::replica::Replica;
use crate::replication::Replication;
use crate::sessions::leader_tasks::LeaderTasks;
use crate::sessions::messages::{KeepaliveAnswer, KeepaliveGroup, MAX_GROUP, SessionMessage, Verdict};
use crate::time::clock::next_tick;

/// The outcome of one keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepaliveOutcome {
    Alive {
        timeout_ms: u32,
        zxid: Zxid,
    },
    /// As of this zxid.
    Gone {
        zxid: Zxid,
    },
}

struct PendingKeepalive {
    session: SessionId,
    reply: oneshot::Sender<KeepaliveOutcome>,
}

/// The keepalives that wait for the next group, and when it is to be sent, by the clock.
#[derive(Default)]
struct NextGroup {
    pending: Vec<PendingKeepalive>,
    send_by: Duration,
}

/// The keepalives of this node.
#[derive(Default)]
pub(crate) struct Keepalives {
    next: Mutex<NextGroup>,
    arrived: Notify,
    max_waiting: usize,
}

impl Keepalives {
    /// Starts the task that sends the groups.
    pub(crate) fn start(
        config: &NodeConfig,
        replica: Arc<Replica>,
        replication: Arc<dyn Replication>,
        leader_tasks: Arc<LeaderTasks>,
    ) -> Arc<Self> {
        let this = Arc::new(Self { max_waiting: config.max_waiting_calls, ..Self::default() });
        let sender = KeepaliveSender {
            keepalives: this.clone(),
            leadership: replication.leadership(),
            tick: Duration::from_millis(config.session_tick_ms),
            group_timeout: Duration::from_millis(config.keepalive_group_timeout_ms),
            replica: replica.clone(),
            replication,
            leader_tasks,
            due: BTreeSet::new(),
        };
        replica.tasks.spawn_vital("sender of keepalives", sender.run());
        this
    }

    /// Puts a keepalive into the next group, which is sent by then, a time of the clock.
    pub(crate) fn request(
        &self,
        session: SessionId,
        send_by: Duration,
    ) -> Result<oneshot::Receiver<KeepaliveOutcome>, NodeError> {
        let (reply, outcome) = oneshot::channel();
        let mut next = self.next.lock();
        if next.pending.len() >= self.max_waiting {
            return Err(NodeError::overloaded(Bound::Keepalives));
        }
        let is_sooner = next.pending.is_empty() || send_by < next.send_by;
        next.pending.push(PendingKeepalive { session, reply });
        if is_sooner {
            next.send_by = send_by;
            drop(next);
            self.arrived.notify_one();
        }
        Ok(outcome)
    }

    /// Sends the next group now.
    pub(crate) fn send_now(&self) {
        self.next.lock().send_by = Duration::ZERO;
        self.arrived.notify_one();
    }

    /// When the next group is to be sent; `None` while it is empty.
    fn send_by(&self) -> Option<Duration> {
        let next = self.next.lock();
        (!next.pending.is_empty()).then_some(next.send_by)
    }
}

/// The task.
struct KeepaliveSender {
    keepalives: Arc<Keepalives>,
    replica: Arc<Replica>,
    replication: Arc<dyn Replication>,
    leadership: watch::Receiver<Leadership>,
    leader_tasks: Arc<LeaderTasks>,
    tick: Duration,
    group_timeout: Duration,
    /// Sessions whose sign of life is due and has not reached the leader yet.
    due: BTreeSet<SessionId>,
}

impl KeepaliveSender {
    async fn run(mut self) {
        let mut backoff = Backoff::endless(self.replica.clock.clone(), self.leadership.clone());
        let mut tick_at = next_tick(self.replica.clock.now(), self.tick);
        loop {
            let now = self.replica.clock.now();
            if now >= tick_at {
                tick_at = next_tick(now, self.tick);
                let room = MAX_GROUP.saturating_sub(self.due.len());
                let now_ms = self.replica.now_ms();
                self.due.extend(self.replica.sessions.with(|records| records.delegated.take_due(now_ms, room)));
                self.forget_the_ended();
            }
            let send_by = self.keepalives.send_by();
            if self.due.is_empty() && send_by.is_none_or(|at| at > now) {
                tokio::select! {
                    () = self.keepalives.arrived.notified() => {}
                    () = self.replica.clock.sleep_until(send_by.unwrap_or(tick_at).min(tick_at)) => {}
                }
                continue;
            }
            let pending = self.take_pending();
            if pending.is_empty() && self.due.is_empty() {
                continue;
            }
            match self.deliver(pending).await {
                Delivery::Done => backoff.reset(),
                Delivery::Failed => drop(backoff.wait().await),
                // Ask again when the expiry may have been applied, not at once.
                Delivery::Undecided => self.replica.clock.sleep_until(self.replica.clock.now() + EXPIRY_PAUSE).await,
            }
        }
    }

    /// An acknowledgement can arrive just after the end of its session was applied here; such leftovers are removed
    /// once there are many.
    fn forget_the_ended(&self) {
        let state = self.replica.state();
        let many = 2 * state.session_count() + 1_000;
        let is_there = |session| state.session(session).is_some();
        self.replica.sessions.with(|Records { delegated, liveness, .. }| {
            if delegated.known() > many {
                delegated.keep_only(is_there);
            }
            if liveness.len() > many {
                liveness.keep_only(is_there);
            }
        });
    }

    /// When each session of the next group was last heard of: now, if its caller waits here. Sessions that have ended
    /// are left out.
    fn next_group(&self, pending: &[PendingKeepalive], now_ms: u64) -> BTreeMap<SessionId, u64> {
        let mut alive_at: BTreeMap<SessionId, u64> = self.replica.sessions.with(|Records { delegated, .. }| {
            self.due.iter().filter_map(|session| Some((*session, delegated.alive_ms(*session, now_ms)?))).collect()
        });
        alive_at.extend(pending.iter().map(|keepalive| (keepalive.session, now_ms)));
        alive_at
    }

    fn take_pending(&self) -> Vec<PendingKeepalive> {
        let pending = &mut self.keepalives.next.lock().pending;
        pending.retain(|keepalive| !keepalive.reply.is_closed());
        let count = pending.len().min(MAX_GROUP);
        pending.drain(..count).collect()
    }

    /// They are sent again at once.
    fn put_back(&self, mut pending: Vec<PendingKeepalive>) {
        let mut next = self.keepalives.next.lock();
        pending.append(&mut next.pending);
        *next = NextGroup { pending, send_by: Duration::ZERO };
    }

    async fn deliver(&mut self, pending: Vec<PendingKeepalive>) -> Delivery {
        let sent_ms = self.replica.now_ms();
        let alive_at = self.next_group(&pending, sent_ms);
        let group = KeepaliveGroup {
            ages: alive_at.iter().map(|(session, at_ms)| (*session, age_ms(*at_ms, sent_ms))).collect(),
        };
        let Some(answer) = self.send(&group).await.filter(|answer| answer.verdicts.len() == group.ages.len()) else {
            self.put_back(pending);
            return Delivery::Failed;
        };
        self.due.clear();
        self.replica.sessions.with(|Records { delegated, .. }| {
            for ((session, alive_ms), verdict) in alive_at.iter().zip(&answer.verdicts) {
                if let Verdict::Alive(_) = verdict {
                    delegated.acknowledged(*session, *alive_ms);
                }
            }
        });
        let mut undecided = Vec::new();
        for keepalive in pending {
            let Ok(at) = group.ages.binary_search_by_key(&keepalive.session, |(session, _)| *session) else { continue };
            let outcome = match answer.verdicts[at] {
                Verdict::Alive(timeout_ms) => KeepaliveOutcome::Alive { timeout_ms, zxid: answer.zxid },
                Verdict::Gone => KeepaliveOutcome::Gone { zxid: answer.zxid },
                Verdict::Expiring => {
                    undecided.push(keepalive);
                    continue;
                }
            };
            // The caller may have gone.
            let _ = keepalive.reply.send(outcome);
        }
        if undecided.is_empty() {
            return Delivery::Done;
        }
        self.put_back(undecided);
        Delivery::Undecided
    }

    /// Sends the group to the leader, which may be this node. `None` if that failed.
    async fn send(&mut self, group: &KeepaliveGroup) -> Option<KeepaliveAnswer> {
        let leadership = *self.leadership.borrow_and_update();
        if leadership.leading {
            return self.leader_tasks.acknowledge(group).await.ok();
        }
        let leader = leadership.leader?;
        let body = Bytes::from(postcard::to_stdvec(&SessionMessage::Keepalives(group.clone())).ok()?);
        let call = self.replication.call_service(leader, body, self.group_timeout);
        let answer = tokio::select! {
            answer = call => answer,
            // That leader's answer may never come; the next one gets the group.
            Ok(()) = self.leadership.changed() => return None,
        };
        match answer {
            Ok(bytes) => postcard::from_bytes(&bytes).ok(),
            Err(error) => {
                tracing::debug!(%error, leader, "a group of keepalives failed: it is sent again");
                None
            }
        }
    }
}

enum Delivery {
    Done,
    Failed,
    Undecided,
}

/// About how long an expiry takes to be applied.
const EXPIRY_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
#[path = "keepalive_tests.rs"]
mod tests;

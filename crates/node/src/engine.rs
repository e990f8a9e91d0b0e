//! The parts of a node, put together over any [`Replication`].

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::{
    AccessOp, Actor, Batch, ClusterUid, Command, LockName, NodeId, Op, Origin, Outcome, Principals, Refusal, Reply,
    Rules, SessionId, State, Zxid,
};
use parking_lot::Mutex;
use rand::RngCore;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::NodeConfig;
use crate::error::{Bound, NodeError};
use crate::feature_level;
use crate::leader_limit::shortened;
use crate::log::proposer::Proposer;
use crate::log::read_barrier::ReadBarrier;
use crate::observers::watches::{WatchRefused, WatchSpec, WatchStream};
use crate::rates::Rates;
use crate::replica::Replica;
use crate::replica::inflight::Done;
use crate::replication::Replication;
use crate::request::{At, Caller, Consistency};
use crate::sessions::keepalive::Keepalives;
use crate::sessions::keepalive_guard::KeepaliveGuard;
use crate::sessions::leader_tasks::{LeaderTasks, PeerServiceSlot};
use crate::sessions::session_events::SessionEvents;
use crate::token_uses::TokenUses;

/// The pause between attempts to have the state name this start.
const ANNOUNCE_AGAIN: Duration = Duration::from_millis(500);

/// The source of session secrets.
pub(crate) type Random = Mutex<Box<dyn RngCore + Send>>;

/// See the module's text.
pub(crate) struct Engine {
    pub(crate) config: NodeConfig,
    pub(crate) replica: Arc<Replica>,
    pub(crate) replication: Arc<dyn Replication>,
    pub(crate) proposer: Proposer,
    pub(crate) barrier: ReadBarrier,
    /// When this replica was last known to be up to date.
    caught_up_ms: Arc<AtomicU64>,
    pub(crate) keepalives: Arc<Keepalives>,
    pub(crate) random: Random,
    pub(crate) token_uses: Arc<TokenUses>,
    pub(crate) rates: Rates,
    /// One for each lock request in progress, its cancellation included.
    pub(crate) lock_permits: Arc<Semaphore>,
    /// Work of several commands, which a shutdown waits for: lock requests, and what callers began with
    /// [`Node::delay_shutdown`](crate::Node::delay_shutdown).
    pub(crate) unfinished: TaskTracker,
    /// No new requests are taken.
    pub(crate) closing: CancellationToken,
}

impl Engine {
    /// Starts all tasks that run beside the callers.
    pub(crate) fn start(
        config: NodeConfig,
        incarnation: u64,
        replica: Arc<Replica>,
        replication: Arc<dyn Replication>,
        slot: &PeerServiceSlot,
        mut random: Box<dyn RngCore + Send>,
    ) -> Arc<Self> {
        let proposer = Proposer::start(&config, incarnation, replica.clone(), replication.clone());
        let leader_tasks = LeaderTasks::new(&config, incarnation, replica.clone(), replication.clone());
        leader_tasks.start(&config, proposer.clone());
        let _ = slot.0.set(leader_tasks.clone());
        let keepalives = Keepalives::start(&config, replica.clone(), replication.clone(), leader_tasks);
        let uid = ClusterUid(NonZeroU64::MIN | random.next_u64());
        feature_level::start(replica.clone(), replication.clone(), proposer.clone(), uid);
        start_bookmarks(&config, replica.clone());
        start_clock_watch(replica.clone());
        let origin = Origin { node: NodeId(config.consensus.node), incarnation, sequence: 0 };
        start_announcement(origin, config.rules, replica.clone(), replication.clone());
        let barrier = ReadBarrier::new(&config, replica.clone(), replication.clone());
        let caught_up_ms = Arc::new(AtomicU64::new(NEVER));
        start_readiness(barrier.clone(), replica.clone(), caught_up_ms.clone());
        Arc::new(Self {
            token_uses: TokenUses::start(replica.clone(), proposer.clone()),
            rates: Rates::default(),
            lock_permits: Arc::new(Semaphore::new(config.max_lock_requests)),
            config,
            replica,
            replication,
            proposer,
            barrier,
            caught_up_ms,
            keepalives,
            random: Mutex::new(random),
            unfinished: TaskTracker::new(),
            closing: CancellationToken::new(),
        })
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        shortened(Duration::from_millis(self.config.request_timeout_ms))
    }

    pub(crate) fn refuse_when_closing(&self) -> Result<(), NodeError> {
        if self.closing.is_cancelled() { Err(NodeError::ShuttingDown) } else { Ok(()) }
    }

    /// Executes an operation on behalf of a caller.
    pub(crate) async fn execute(&self, caller: Caller, op: Op) -> Result<At<Reply>, NodeError> {
        self.refuse_when_closing()?;
        let (credential, trace) = (caller.credential, caller.trace);
        let actor = caller.into_actor();
        // All in one look; what does not pass is looked at more closely below.
        let look = |state: &State| {
            (state.authorise(&actor, &op).is_ok(), state.may_be_full_for(&actor, &self.config.rules, &op))
        };
        let (_keepalive, (is_allowed, may_be_full)) = match &credential {
            Some(credential) => {
                let (timeout_ms, looked) = self.authorise_and(credential, look).await?;
                (Some(self.delegate_keepalive(credential.session, timeout_ms)), looked)
            }
            None => (None, look(&self.replica.state())),
        };
        self.refuse_above_level(&op).await?;
        if !is_allowed {
            self.refuse_without_right(&actor, &op).await?;
        }
        if may_be_full {
            self.refuse_when_full(&actor, &op).await?;
        }
        let op = self.count_in_pieces(&actor, op).await?;
        let done = self.proposer.propose_traced(Command::Do { actor, op }, trace).await?;
        reply_of(done)
    }

    /// Before the first limits of a large namespace, has what it uses counted in pieces, so that no other command waits
    /// for a long count: each of these commands counts a piece on every replica, and sets no limit that needs it.
    async fn count_in_pieces(&self, actor: &Actor, op: Op) -> Result<Op, NodeError> {
        let Op::Access(AccessOp::PutNamespace { name, owner, limits, mut version }) = op else { return Ok(op) };
        // A repetition of the request must be the same command, and each piece raises the version.
        if actor.request.is_some() && version.is_some() {
            return Ok(AccessOp::PutNamespace { name, owner, limits, version }.into());
        }
        while limits.need_counts() && self.replica.state_now().has_much_to_count(&name) {
            let (name, owner, limits) = (name.clone(), owner.clone(), limits.without_counts());
            let op = AccessOp::PutNamespace { name, owner, limits, version }.into();
            let actor = Actor { request: None, ..actor.clone() };
            let done = reply_of(self.proposer.propose(Command::Do { actor, op }).await?)?;
            version = version.map(|_| done.zxid);
        }
        Ok(AccessOp::PutNamespace { name, owner, limits, version }.into())
    }

    /// Refuses early what the state would refuse, so that it takes no room in the log. The state decides again when it
    /// applies the command.
    pub(crate) async fn refuse_early(&self, check: impl Fn(&Self) -> Result<(), Refusal>) -> Result<(), NodeError> {
        if check(self).is_ok() {
            return Ok(());
        }
        // The right may be new, or there may be room again, and this replica behind.
        self.barrier.pass().await?;
        Ok(check(self)?)
    }

    /// Refuses an operation that the cluster's feature level does not have. A replica that is behind must not refuse a
    /// repeated request of which an earlier attempt took effect.
    pub(crate) async fn refuse_above_level(&self, op: &Op) -> Result<(), NodeError> {
        let needed = op.level();
        self.refuse_early(|engine| engine.replica.check_level(needed)).await
    }

    /// Refuses an operation for want of a right.
    async fn refuse_without_right(&self, actor: &Actor, op: &Op) -> Result<(), NodeError> {
        self.refuse_early(|engine| engine.replica.state().authorise(actor, op)).await
    }

    /// Refuses an operation for which there is no room.
    pub(crate) async fn refuse_when_full(&self, actor: &Actor, op: &Op) -> Result<(), NodeError> {
        self.refuse_early(|engine| engine.full_for(actor, op).map_or(Ok(()), Err)).await
    }

    /// The same before a session is opened for a request for these locks.
    pub(crate) async fn refuse_request_when_full(&self, who: &Principals, locks: &[LockName]) -> Result<(), NodeError> {
        self.refuse_early(|engine| engine.replica.state().check_room_for_request(who, locks)).await
    }

    /// Tries the operation on a copy of the state, outside of its lock.
    pub(crate) fn full_for(&self, actor: &Actor, op: &Op) -> Option<Refusal> {
        if !self.replica.state().may_be_full_for(actor, &self.config.rules, op) {
            return None;
        }
        self.replica.state_now().full_for(actor, &self.config.rules, op)
    }

    /// Waits, where access control is enforced, until this replica is sure not to decide by rights that were taken away
    /// long ago. A replica that keeps up does not wait.
    pub(crate) async fn rights_are_current(&self) -> Result<(), NodeError> {
        let is_behind = self.caught_up_ago_ms().is_none_or(|ago_ms| ago_ms > LONGEST_OLD_RIGHTS_MS);
        if is_behind && self.replica.state().access().is_enabled() {
            self.barrier.pass().await?;
        }
        Ok(())
    }

    /// Keeps the session alive from here while the guard lives.
    pub(crate) fn delegate_keepalive(&self, session: SessionId, timeout_ms: u32) -> KeepaliveGuard {
        KeepaliveGuard::begin(&self.replica, session, timeout_ms)
    }

    /// Reads the state.
    pub(crate) async fn read<T>(
        &self,
        consistency: Consistency,
        read: impl FnOnce(&State) -> T,
    ) -> Result<At<T>, NodeError> {
        if consistency == Consistency::Linearizable {
            self.refuse_when_closing()?;
            self.barrier.pass().await?;
        } else {
            self.rights_are_current().await?;
        }
        let state = self.replica.state();
        Ok(At { value: read(&state), zxid: state.zxid() })
    }

    /// Begins a watch at the state as it is.
    pub(crate) fn watch(&self, spec: WatchSpec) -> Result<WatchStream, NodeError> {
        self.refuse_when_closing()?;
        let state = self.replica.state();
        self.replica.watches.add(spec, state.zxid()).map_err(|refused| match refused {
            WatchRefused::Compacted(oldest) => NodeError::Compacted { oldest },
            WatchRefused::TooMany => NodeError::overloaded(Bound::Watches),
        })
    }

    /// Subscribes on behalf of a session, once this replica has every change that was acknowledged before.
    pub(crate) async fn session_events(&self, session: SessionId) -> Result<At<SessionEvents>, NodeError> {
        self.refuse_when_closing()?;
        self.barrier.pass().await?;
        let state = self.replica.state();
        if state.session(session).is_none() {
            return Err(Refusal::SessionExpired(session).into());
        }
        Ok(At { value: SessionEvents::subscribe(&self.replica, &state, session), zxid: state.zxid() })
    }

    /// Waits until this replica has applied `zxid`.
    pub(crate) async fn reach(&self, zxid: Zxid) -> Result<(), NodeError> {
        let mut reached = self.replica.zxid();
        let deadline = self.replica.clock.now() + self.request_timeout();
        tokio::select! {
            biased;
            result = reached.wait_for(|now| *now >= zxid) => result.map(|_| ()).map_err(|_| NodeError::ShuttingDown),
            () = self.replica.clock.sleep_until(deadline) => Err(NodeError::no_leader()),
        }
    }

    /// A copy of the first state with at least this zxid, for which it waits so long, or else of the present one.
    pub(crate) async fn state_from(&self, zxid: Zxid, limit: Duration) -> Result<State, NodeError> {
        let copy = {
            // Under the state's lock, so that no entry comes between the look and the request.
            let state = self.replica.state();
            if state.zxid() >= zxid {
                return Ok(state.clone());
            }
            self.replica.copies.request(zxid).ok_or(NodeError::overloaded(Bound::Copies))?
        };
        let deadline = self.replica.clock.now() + limit;
        let copied = tokio::select! {
            biased;
            copied = copy => copied.ok(),
            () = self.replica.clock.sleep_until(deadline) => None,
        };
        Ok(copied.unwrap_or_else(|| self.replica.state_now()))
    }

    /// How long ago this replica was last known to be up to date with a leader; `None` if never since it started.
    pub(crate) fn caught_up_ago_ms(&self) -> Option<u64> {
        let at_ms = self.caught_up_ms.load(Ordering::Relaxed);
        (at_ms != NEVER).then(|| self.replica.now_ms().saturating_sub(at_ms))
    }

    /// Waits until no work is unfinished and no command in flight, within a bound.
    pub(crate) async fn drain(&self) {
        let clock = &self.replica.clock;
        let deadline = clock.now() + Duration::from_millis(self.config.shutdown_timeout_ms);
        while !(self.unfinished.is_empty() && self.proposer.is_idle()) && clock.now() < deadline {
            clock.sleep_until(clock.now() + DRAIN_PAUSE).await;
        }
    }

    /// Ends the tasks and the streams. Callers that still wait for an outcome learn that it is unknown.
    pub(crate) async fn end(&self) {
        self.closing.cancel();
        self.replica.tasks.stop();
        self.replica.watches.close();
        self.replica.tasks.join().await;
        drop(self.replica.inflight.take_from(0));
    }
}

/// How old the rights may be by which a read decides that need not be current otherwise. A replica that keeps up asks
/// once a second.
const LONGEST_OLD_RIGHTS_MS: u64 = 1_300;
/// How often a shutdown checks whether all commands are answered.
const DRAIN_PAUSE: Duration = Duration::from_millis(5);

/// The reply, or the refusal as an error.
pub(crate) fn reply_of(done: Done) -> Result<At<Reply>, NodeError> {
    let Outcome { zxid, reply, .. } = done.outcome;
    Ok(At { value: reply?, zxid })
}

/// A reply of the wrong kind, which is a defect of this program.
pub(crate) fn unexpected(reply: &Reply) -> NodeError {
    NodeError::Fatal(format!("the state gave an answer of the wrong kind: {reply:?}"))
}

/// The replica has not been up to date since it started.
const NEVER: u64 = u64::MAX;
/// How often a replica that is up to date checks that it still is.
const LOOK_EVERY: Duration = Duration::from_millis(1_000);
/// How often a replica that is not up to date checks whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Checks whether this replica is up to date. A cut-off replica cannot tell from its own log that it is behind: only a
/// round to the leader and back shows it.
fn start_readiness(barrier: ReadBarrier, replica: Arc<Replica>, caught_up_ms: Arc<AtomicU64>) {
    let vital = replica.clone();
    let looking = async move {
        loop {
            // As of when the round began, since a round may take long.
            let began_ms = replica.now_ms();
            let up_to_date = barrier.try_once().await;
            if up_to_date {
                caught_up_ms.store(began_ms, Ordering::Relaxed);
            }
            let pause = if up_to_date { LOOK_EVERY } else { LOOK_AGAIN };
            replica.clock.sleep_until(replica.clock.now() + pause).await;
        }
    };
    vital.tasks.spawn_vital("look at its own freshness", looking);
}

/// How often the wall clock is compared with the replicated clock.
const COMPARE_EVERY: Duration = Duration::from_secs(5);

fn start_clock_watch(replica: Arc<Replica>) {
    let vital = replica.clone();
    let comparing = async move {
        loop {
            replica.clock.sleep_until(replica.clock.now() + COMPARE_EVERY).await;
            replica.time.look_at_skew();
        }
    };
    vital.tasks.spawn_vital("comparison of clocks", comparing);
}

/// Has the replicated state name this start, so that a replica that was away, or is new, knows it too.
fn start_announcement(origin: Origin, rules: Rules, replica: Arc<Replica>, replication: Arc<dyn Replication>) {
    let vital = replica.clone();
    let mut leadership = replication.leadership();
    let announcing = async move {
        let batch = Batch { origin, follows: 0, clock_ms: 0, rules, commands: Vec::new(), trace: None };
        let payload = Bytes::from(batch.encode());
        let named = || Replica::start_named(&replica.state(), origin.node).is_some_and(|it| it >= origin.incarnation);
        while !named() {
            if leadership.wait_for(|now| now.leader.is_some()).await.is_err() {
                return;
            }
            // Whatever the outcome: if the state does not name it after a while, it is proposed again.
            let _ = replication.propose(payload.clone()).await;
            replica.clock.sleep_until(replica.clock.now() + ANNOUNCE_AGAIN).await;
        }
    };
    vital.tasks.spawn_vital("announcement of its start", announcing);
}

fn start_bookmarks(config: &NodeConfig, replica: Arc<Replica>) {
    let every = Duration::from_millis(config.bookmark_every_ms);
    let vital = replica.clone();
    let publishing = async move {
        loop {
            replica.clock.sleep_until(replica.clock.now() + every).await;
            let state = replica.state();
            replica.watches.bookmark(state.zxid());
        }
    };
    vital.tasks.spawn_vital("publication of bookmarks", publishing);
}

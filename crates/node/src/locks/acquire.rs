//! The lock service (`ARCHITECTURE.md`, Locks): one log entry for a request, one watch for a waiter, and no grant lost.
//!
//! A request for several locks waits for one of them at a time: it stands in every queue, so it loses no place
//! meanwhile.
//!
//! How a new request stands comes with the answer of the entry that made it (`Done::request`): it was looked at, and
//! registered as a waiter, under the lock under which the entry was applied. The state is looked at again only after a
//! wait, after a claim, and for a request that is traced.
//!
//! A caller is told that it holds when the state of this replica says so. That needs no read barrier: the request came
//! to hold at one entry of the log, during the call. Only if the cluster may have expired the session since is the
//! state read again after a barrier. A request whose caller has gone is cancelled, whether it waits or holds by then.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::lock::parse_request;
use lockkeeper_core::{
    Actor, Command, FencingToken, IfHolding, LockMode, LockName, LockOp, NodePath, Op, Principals, Refusal, Reply,
    SessionId, Standing, State, TraceContext,
};
use lockkeeper_mutants::mutant;
use tokio::sync::oneshot;

use crate::engine::{Engine, reply_of, unexpected};
use crate::error::{Bound, NodeError};
use crate::locks::cancellation::{RequestGuard, Undecided, after_entry};
use crate::locks::entry_delay::{MIN_WAIT_TO_DELAY, entry_delay};
use crate::locks::wait_span::{RequestsAhead, WaitSpan};
use crate::replica::request_status::{Holding, RequestStatus};
use crate::request::{Acquire, Acquired, At, Caller, ForceReleased, Grant, HolderInfo};
use crate::sessions::presence::PresenceGuard;

/// Most holders that a refusal names.
const MAX_HOLDERS_NAMED: usize = 32;
/// Most requests ahead that it counts.
const MAX_AHEAD_COUNTED: usize = 1_000;

/// A request that is about to enter the queues of its locks.
struct Entry {
    session: SessionId,
    /// The session's timeout, which never changes.
    timeout_ms: u32,
    actor: Actor,
    op: Op,
    trace: Option<TraceContext>,
    /// Whether there may be no room for it.
    may_be_full: bool,
    /// How long it waits for another command.
    delay: Option<Duration>,
}

/// A request that stands in the queues of one or more locks.
#[derive(Debug)]
struct QueuedRequest {
    locks: Vec<LockName>,
    session: SessionId,
    timeout_ms: u32,
    paths: Vec<NodePath>,
    token: FencingToken,
    /// Whether its caller has chosen its id, and so can repeat it at another node.
    is_repeatable: bool,
    /// When it was made: a sign of life of its session.
    requested_ms: u64,
    trace: Option<TraceContext>,
}

impl Engine {
    /// Asks for a lock and waits for it. Dropping the future cancels the request, and `on_cancelled` is dropped once
    /// that is done.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        caller: Caller,
        wanted: Acquire,
        on_cancelled: Option<oneshot::Sender<Undecided>>,
    ) -> Result<At<Acquired>, NodeError> {
        self.refuse_when_closing()?;
        let credential = caller.credential.ok_or(Refusal::SessionRequired)?;
        let (presence, trace) = (caller.presence.clone(), caller.trace);
        let (actor, op) = (caller.into_actor(), Op::from(operation(&wanted)?));
        let wait = wanted.wait.min(Duration::from_millis(self.config.max_wait_ms));
        // All in one look; an operation for which there may be no room is looked at more closely later.
        let look = |state: &State| {
            let delay = (wait >= MIN_WAIT_TO_DELAY).then(|| entry_delay(&actor, &op, || state)).flatten();
            (state.may_be_full_for(&actor, &self.config.rules, &op), delay)
        };
        let (timeout_ms, (may_be_full, delay)) = self.authorise_and(&credential, look).await?;
        let kept = presence.keep(self.delegate_keepalive(credential.session, timeout_ms));
        let began = self.replica.clock.now();
        let permit =
            self.lock_permits.clone().try_acquire_owned().map_err(|_| NodeError::overloaded(Bound::LockRequests))?;
        let mut guard = RequestGuard::new(self, permit, credential.session, wanted.locks.clone(), on_cancelled);
        let entry = Entry { session: credential.session, timeout_ms, actor, op, trace, may_be_full, delay };
        let acquired = self.enter_and_wait(&mut guard, entry, &wanted, began + wait).await;
        if is_settled(&acquired, &wanted) {
            guard.disarm();
        }
        drop::<PresenceGuard>(kept);
        if let Ok(At { value: Acquired::Held(_), .. }) = &acquired {
            metrics::histogram!("lockkeeper_lock_wait_seconds")
                .record((self.replica.clock.now() - began).as_secs_f64());
        }
        acquired
    }

    async fn enter_and_wait(
        self: &Arc<Self>,
        guard: &mut RequestGuard,
        entry: Entry,
        wanted: &Acquire,
        until: Duration,
    ) -> Result<At<Acquired>, NodeError> {
        let Entry { session, timeout_ms, actor, op, trace, may_be_full, delay } = entry;
        let requested_ms = self.replica.now_ms();
        let (locks, is_repeatable) = (wanted.locks.clone(), actor.request.is_some());
        let queued = |paths, token| QueuedRequest {
            locks,
            session,
            timeout_ms,
            paths,
            token,
            is_repeatable,
            requested_ms,
            trace,
        };
        self.refuse_above_level(&op).await?;
        if may_be_full {
            self.refuse_when_full(&actor, &op).await?;
        }
        let mut done = guard.enter(Command::Do { actor, op }, trace, delay).await?;
        let (fresh, entered_as) = (done.fresh(), done.request.take());
        let entered = match reply_of(done) {
            // A repeated request, part of which is gone.
            Err(NodeError::Refused(Refusal::NotQueued { lock, token })) => {
                guard.withdraw_rest(token).await?;
                return Err(Refusal::NotQueued { lock, token }.into());
            }
            entered => entered?,
        };
        let (paths, token) = match entered.value {
            Reply::Queued { paths, token, .. } => (paths, token),
            Reply::Reentered { path, token, .. } => {
                return self.reentered(&queued(vec![path], token), fresh).await;
            }
            other => return Err(unexpected(&other)),
        };
        let queued = queued(paths, token);
        // Another node may be cancelling a request that was made before. Claiming it first decides between the two.
        if !fresh && !guard.claim(token).await? {
            if queued.locks.len() > 1 {
                guard.withdraw_rest(token).await?;
            }
            return self.gone(&queued);
        }
        self.wait_for(guard, &queued, until, entered_as).await
    }

    /// The session holds a lock once more, by the request that holds it. That is never cancelled: a caller that gets no
    /// answer asks again under the same request id, and then finds it counted.
    async fn reentered(self: &Arc<Self>, queued: &QueuedRequest, fresh: bool) -> Result<At<Acquired>, NodeError> {
        if !fresh {
            // The answer is from memory: the lock may have been released since.
            self.barrier.pass().await.map_err(after_entry)?;
        }
        match self.check(queued) {
            RequestStatus::Holds(at) => Ok(self.held(queued, &at)),
            RequestStatus::Gone | RequestStatus::Waits { .. } => self.gone(queued),
        }
    }

    async fn wait_for(
        self: &Arc<Self>,
        guard: &mut RequestGuard,
        queued: &QueuedRequest,
        until: Duration,
        entered_as: Option<RequestStatus>,
    ) -> Result<At<Acquired>, NodeError> {
        let mut span = WaitSpan::new(queued.trace, queued.token);
        let acquired = self.wait_in_queue(guard, queued, until, (entered_as, &mut span)).await;
        span.end(outcome_of(&acquired));
        acquired
    }

    async fn wait_in_queue(
        self: &Arc<Self>,
        guard: &mut RequestGuard,
        queued: &QueuedRequest,
        until: Duration,
        (mut known, span): (Option<RequestStatus>, &mut WaitSpan),
    ) -> Result<At<Acquired>, NodeError> {
        // The entry, or the claim, has just been applied here: so far this replica is not behind.
        let mut is_confirmed = true;
        loop {
            let status = known.take().unwrap_or_else(|| self.check_for_span(queued, span));
            let (missing, mut waiting) = match status {
                RequestStatus::Holds(at) if is_confirmed || self.has_time_left(queued) => {
                    return self.take(guard, queued, at).await;
                }
                RequestStatus::Holds(_) => {
                    // The session may have expired by an entry that this replica has not applied yet.
                    self.barrier.pass().await.map_err(after_entry)?;
                    is_confirmed = true;
                    continue;
                }
                RequestStatus::Gone => return self.gone(queued),
                RequestStatus::Waits { missing, waiter, .. } => (missing, waiter),
            };
            if mutant!(RegisterWaiterLate) {
                let clock = &self.replica.clock;
                waiting.register_late(clock.sleep_until(clock.now() + Duration::from_millis(1))).await;
            }
            is_confirmed = false;
            tokio::select! {
                biased;
                // Whatever the reason: check again.
                _ = &mut waiting.woken => {}
                () = self.replica.clock.sleep_until(until) => {
                    drop(waiting);
                    return self.give_up(guard, queued, missing).await;
                }
                () = self.closing.cancelled() => {
                    drop(waiting);
                    return self.leave_waiting(guard, queued, missing).await;
                }
            }
        }
    }

    /// How the request stands now.
    fn check(&self, queued: &QueuedRequest) -> RequestStatus {
        self.check_in(&self.replica.state(), queued)
    }

    fn check_in(&self, state: &State, queued: &QueuedRequest) -> RequestStatus {
        RequestStatus::of(state, &self.replica.waiters, &queued.paths, queued.token)
    }

    /// The same, with links to the requests ahead of one that is traced.
    fn check_for_span(&self, queued: &QueuedRequest, span: &mut WaitSpan) -> RequestStatus {
        let (status, ahead) = {
            let state = self.replica.state();
            let status = self.check_in(&state, queued);
            let ahead = match &status {
                RequestStatus::Waits { missing, blocker, .. } if queued.trace.is_some() => {
                    Some(RequestsAhead::of(&state, &queued.locks[*missing], blocker))
                }
                _ => None,
            };
            (status, ahead)
        };
        span.wait_behind(&self.replica.traces, ahead);
        status
    }

    /// Its turn has come. If another call claimed the request meanwhile, it may be cancelling it: claim it before the
    /// caller is told.
    async fn take(
        self: &Arc<Self>,
        guard: &mut RequestGuard,
        queued: &QueuedRequest,
        at: At<Holding>,
    ) -> Result<At<Acquired>, NodeError> {
        if !guard.covers(&at.value.versions) && !guard.claim(queued.token).await? {
            if queued.locks.len() > 1 {
                guard.withdraw_rest(queued.token).await?;
            }
            return self.gone(queued);
        }
        Ok(self.held(queued, &at))
    }

    fn held(&self, queued: &QueuedRequest, at: &At<Holding>) -> At<Acquired> {
        let (paths, token, holds) = (queued.paths.clone(), queued.token, at.value.holds);
        let (timeout_ms, remaining_ms) = (queued.timeout_ms, self.remaining_ms(queued, Some(queued.requested_ms)));
        let grant = Grant { paths, token, holds, timeout_ms, remaining_ms };
        At { value: Acquired::Held(grant), zxid: at.zxid }
    }

    /// Whether the cluster cannot have expired the session yet.
    fn has_time_left(&self, queued: &QueuedRequest) -> bool {
        self.remaining_ms(queued, None) > 0
    }

    /// What the session has left, counted from this time or the last sign of life that the leader acknowledged,
    /// whichever is later.
    fn remaining_ms(&self, queued: &QueuedRequest, since_ms: Option<u64>) -> u64 {
        let acknowledged_ms = self.replica.sessions.with(|records| records.delegated.acknowledged_ms(queued.session));
        let Some(alive_ms) = acknowledged_ms.max(since_ms) else { return 0 };
        alive_ms.saturating_add(queued.timeout_ms.into()).saturating_sub(self.replica.now_ms())
    }

    /// Why a request is gone: its session has ended, or only the request left the queue.
    fn gone(&self, queued: &QueuedRequest) -> Result<At<Acquired>, NodeError> {
        let state = self.replica.state();
        match state.session(queued.session) {
            None => Err(Refusal::SessionExpired(queued.session).into()),
            Some(_) => Ok(At { value: Acquired::Gone, zxid: state.zxid() }),
        }
    }

    /// The wait is over: leaves the queues, unless the request has come to hold in the last moment.
    async fn give_up(
        self: &Arc<Self>,
        guard: &mut RequestGuard,
        queued: &QueuedRequest,
        missing: usize,
    ) -> Result<At<Acquired>, NodeError> {
        if mutant!(BusyWithoutWithdrawal) {
            self.barrier.pass().await?;
            let zxid = self.replica.state().zxid();
            return Ok(At { value: self.busy(queued, missing), zxid });
        }
        let op = LockOp::Withdraw { locks: queued.locks.clone(), token: queued.token, if_holding: IfHolding::Keep };
        let command = Command::Do { actor: Actor::of(queued.session), op: op.into() };
        match reply_of(self.proposer.propose(command).await.map_err(after_entry)?) {
            // Where it is still held, that is by other calls: this one's part is gone all the same.
            Ok(At { value: Reply::Withdrawn | Reply::StillHeld { .. }, zxid }) => {
                Ok(At { value: self.busy(queued, missing), zxid })
            }
            Ok(At { value: Reply::HeldInstead, .. }) => match self.check(queued) {
                RequestStatus::Holds(at) => self.take(guard, queued, at).await,
                RequestStatus::Gone | RequestStatus::Waits { .. } => self.gone(queued),
            },
            Ok(other) => Err(unexpected(&other.value)),
            Err(NodeError::Refused(Refusal::NotQueued { .. })) => self.gone(queued),
            Err(error) => Err(error),
        }
    }

    /// This node shuts down. A request that its caller can repeat keeps its place for the call at another node.
    /// Any other one would be granted to nobody, and leaves the queues.
    async fn leave_waiting(
        self: &Arc<Self>,
        guard: &mut RequestGuard,
        queued: &QueuedRequest,
        missing: usize,
    ) -> Result<At<Acquired>, NodeError> {
        if queued.is_repeatable {
            guard.disarm();
            return Err(NodeError::UnknownOutcome(
                "this node is shutting down, and the request keeps its place".into(),
            ));
        }
        match self.give_up(guard, queued, missing).await? {
            At { value: Acquired::Busy { .. }, .. } => Err(NodeError::ShuttingDown),
            decided => Ok(decided),
        }
    }

    fn busy(&self, queued: &QueuedRequest, missing: usize) -> Acquired {
        busy_in(&self.replica.state(), &queued.locks[missing], &queued.paths[missing])
    }

    /// Takes a lock from its holder.
    pub(crate) async fn force_release(
        &self,
        lock: LockName,
        token: FencingToken,
        principals: Principals,
    ) -> Result<At<ForceReleased>, NodeError> {
        self.refuse_when_closing()?;
        let op = LockOp::ForceRelease { lock, token };
        let actor = Actor { principals, may_force: true, ..Actor::default() };
        let done = reply_of(self.proposer.propose(Command::Do { actor, op: op.into() }).await?)?;
        metrics::counter!("lockkeeper_forced_releases_total").increment(1);
        let Reply::ForceReleased { holder } = done.value else { return Err(unexpected(&done.value)) };
        Ok(At { value: ForceReleased { holder }, zxid: done.zxid })
    }
}

fn operation(wanted: &Acquire) -> Result<LockOp, NodeError> {
    let (delay_ms, uuid, label) = (wanted.delay_ms, wanted.uuid, Arc::from(wanted.label.as_str()));
    match (wanted.reentrant, &wanted.locks[..]) {
        (false, locks) => Ok(LockOp::Acquire { locks: locks.to_vec(), mode: wanted.mode, delay_ms, uuid, label }),
        (true, [lock]) if wanted.mode == LockMode::Exclusive => {
            Ok(LockOp::AcquireReentrant { lock: lock.clone(), delay_ms, uuid, label })
        }
        (true, _) => Err(Refusal::BadArguments("only one lock in mode exclusive can be re-entered".into()).into()),
    }
}

/// The outcome of a wait, as its span has it.
fn outcome_of(acquired: &Result<At<Acquired>, NodeError>) -> &'static str {
    match acquired {
        Ok(At { value: Acquired::Held(_), .. }) => "granted",
        Ok(At { value: Acquired::Busy { .. }, .. }) => "timed_out",
        Ok(At { value: Acquired::Gone, .. }) | Err(NodeError::Refused(_)) => "refused",
        Err(_) => "unknown",
    }
}

/// Whether there is nothing left to cancel.
fn is_settled(acquired: &Result<At<Acquired>, NodeError>, wanted: &Acquire) -> bool {
    match acquired {
        // One of several locks was released by force: the rest is still to be withdrawn.
        Ok(At { value: Acquired::Gone, .. }) => wanted.locks.len() == 1,
        // A node that shuts down says so before a request enters, or once it has left.
        Ok(_) | Err(NodeError::Refused(_) | NodeError::ShuttingDown) => true,
        Err(_) => false,
    }
}

/// The answer to a request that did not get the lock.
fn busy_in(state: &State, lock: &LockName, path: &NodePath) -> Acquired {
    let own = parse_request(path.name()).map_or(u64::MAX, |(sequence, _)| sequence);
    let lock = lock.clone();
    let Some(view) = state.lock(&lock) else {
        return Acquired::Busy { lock, holders: Vec::new(), ahead: 0, waiting_ahead: 0 };
    };
    let holders = view
        .requests()
        .take_while(|request| matches!(request.standing, Standing::Holds { .. }))
        .take(MAX_HOLDERS_NAMED);
    let holders = holders
        .map(|request| HolderInfo {
            session: request.session,
            token: request.token,
            label: state.label_or_session(&request.label, request.session),
            since_ms: request.since_ms,
            mode: request.mode,
            delayed_until_ms: request.delayed_until_ms,
        })
        .collect();
    let ahead = view.requests().take(MAX_AHEAD_COUNTED).take_while(|request| request.sequence < own).count();
    Acquired::Busy { lock, holders, ahead: ahead as u64, waiting_ahead: ahead.saturating_sub(view.holders()) as u64 }
}

//! Cancels lock requests whose callers have gone: the request leaves the queue, whether it waits or holds, but a lock
//! is never taken from a caller that is still there.
//!
//! The danger is the retry. A client loses its connection, asks again at another node under the same request id, and
//! is told that it holds; then the first node notices the broken connection and cancels. So the data versions of a
//! request's nodes mark its owner. A retry takes the request over with [`LockOp::Claim`], and [`LockOp::Abandon`]
//! removes only nodes with the versions that it names. The replicated order decides between the two; neither can undo
//! the other.
//!
//! The order of a client's attempts is unknown: a delayed claim may be applied after that of a later attempt. So a
//! claim of a request that holds already gives no right to cancel it, since another caller may have been told that it
//! holds; and no caller is told that it holds before it owns the request.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    Actor, Command, FencingToken, IfHolding, LockName, LockOp, Outcome, Refusal, Reply, SessionId, TraceContext,
};
use lockkeeper_mutants::mutant;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::backoff::Backoff;
use crate::engine::{Engine, unexpected};
use crate::error::NodeError;
use crate::log::proposer::Submission;
use crate::replica::inflight::{Completion, Done};

/// How far a request has come, as far as cancelling it is concerned.
#[derive(Debug, Default)]
enum Progress {
    /// Nothing to cancel.
    #[default]
    Disarmed,
    /// Proposed, and not known to be applied.
    Entering(Submission),
    /// In the queues, and not known to be owned by this call.
    Claiming(FencingToken, Submission),
    /// In the queues, and owned by this call while its nodes have these versions.
    Owned(FencingToken, Vec<i32>),
    /// Some of its nodes were deleted, so no call can hold by the rest, whichever owns it.
    Broken(FencingToken),
}

/// Sent to a caller that waits for the end of a cancellation, if this node goes down before it is decided.
#[derive(Debug)]
pub struct Undecided;

/// Guards one request. Dropped without [`disarm`](Self::disarm), it cancels the request.
pub(crate) struct RequestGuard {
    engine: Arc<Engine>,
    progress: Progress,
    permit: Option<(OwnedSemaphorePermit, TaskTrackerToken)>,
    locks: Vec<LockName>,
    session: SessionId,
    /// Dropped once there is nothing left to cancel.
    on_cancelled: Option<oneshot::Sender<Undecided>>,
}

impl RequestGuard {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        permit: OwnedSemaphorePermit,
        session: SessionId,
        locks: Vec<LockName>,
        on_cancelled: Option<oneshot::Sender<Undecided>>,
    ) -> Self {
        Self {
            engine: engine.clone(),
            progress: Progress::Disarmed,
            permit: Some((permit, engine.unfinished.token())),
            locks,
            session,
            on_cancelled,
        }
    }

    /// Enters the queues, at the latest after this delay.
    pub(crate) async fn enter(
        &mut self,
        command: Command,
        trace: Option<TraceContext>,
        delay: Option<Duration>,
    ) -> Result<Done, NodeError> {
        self.progress = Progress::Entering(self.engine.proposer.submit_entry(command, trace, delay)?);
        let done = self.outcome().await?;
        self.progress = match queued_under(&done.outcome) {
            Some(token) if done.fresh() => Progress::Owned(token, new_versions(&self.locks)),
            // `claim` decides which call owns it.
            _ => Progress::Disarmed,
        };
        Ok(done)
    }

    /// Takes over a request that an earlier attempt made. False if it is gone, or part of it.
    pub(crate) async fn claim(&mut self, token: FencingToken) -> Result<bool, NodeError> {
        let command = claim_command(self.session, &self.locks, token);
        self.progress = Progress::Claiming(token, self.engine.proposer.submit(command).map_err(after_entry)?);
        let done = self.outcome().await.map_err(after_entry)?;
        self.progress = Progress::Disarmed;
        match done.outcome.reply {
            Ok(Reply::Claimed { versions }) => {
                // If it holds, another caller may have been told so.
                if !holds(&self.engine, &self.locks, token) {
                    self.progress = Progress::Owned(token, versions);
                }
                Ok(true)
            }
            Err(Refusal::NotQueued { .. }) => Ok(false),
            Err(refusal) => Err(refusal.into()),
            Ok(other) => Err(unexpected(&other)),
        }
    }

    /// Whether this call still owns the request if its nodes have these versions, so that no later claimant can cancel
    /// it.
    pub(crate) fn covers(&self, versions: &[i32]) -> bool {
        match &self.progress {
            Progress::Owned(_, own) => own == versions,
            // It held when it was claimed.
            Progress::Disarmed => true,
            Progress::Entering(_) | Progress::Claiming(..) | Progress::Broken(_) => false,
        }
    }

    /// Withdraws the rest of a request of which part is gone. The call that owned it may be gone too, and the rest
    /// would come to hold for as long as the session lives.
    pub(crate) async fn withdraw_rest(&mut self, token: FencingToken) -> Result<(), NodeError> {
        self.progress = Progress::Broken(token);
        let withdraw = withdraw_command(self.session, &self.locks, token);
        let done = self.engine.proposer.propose(withdraw).await.map_err(after_entry)?;
        self.disarm();
        match done.outcome.reply {
            // A refusal means that nothing is left: no part, or no session. What is still held, other calls hold.
            Ok(Reply::Withdrawn | Reply::Released | Reply::StillHeld { .. }) | Err(_) => Ok(()),
            Ok(other) => Err(unexpected(&other)),
        }
    }

    /// The outcome of the latest proposal. If it is unknown, the request remains to be cancelled.
    async fn outcome(&mut self) -> Completion {
        match &mut self.progress {
            Progress::Entering(submission) | Progress::Claiming(_, submission) => {
                self.engine.proposer.await_outcome(submission).await
            }
            Progress::Disarmed | Progress::Owned(..) | Progress::Broken(_) => {
                Err(NodeError::UnknownOutcome("nothing was handed over".into()))
            }
        }
    }

    /// There is nothing to cancel: the caller has the lock, or has left the queue, or keeps its place on purpose.
    pub(crate) fn disarm(&mut self) {
        self.progress = Progress::Disarmed;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let progress = std::mem::take(&mut self.progress);
        if matches!(progress, Progress::Disarmed) || mutant!(IgnoreHangUp) {
            return;
        }
        // It may be delayed, and then never enters.
        if matches!(&progress, Progress::Entering(submission) if submission.withdraw()) {
            return;
        }
        let on_cancelled = self.on_cancelled.take();
        let undecided = move || on_cancelled.map_or(Ok(()), |on_cancelled| on_cancelled.send(Undecided));
        let runtime = Handle::try_current().ok().filter(|_| !self.engine.replica.tasks.are_stopping());
        let Some(runtime) = runtime else {
            // The receiver may be gone.
            let _ = undecided();
            return;
        };
        let (engine, session, permit) = (self.engine.clone(), self.session, self.permit.take());
        let locks = std::mem::take(&mut self.locks);
        let tasks = engine.replica.tasks.clone();
        tasks.clone().spawn_on(&runtime, async move {
            if tasks.until_stopped(cancel(&engine, progress, session, locks)).await.is_none() {
                let _ = undecided();
            }
            // Cancellations count towards the bound on requests, and a shutdown waits for them.
            drop(permit);
        });
    }
}

/// Once a request stands in the queue, an error no longer means that nothing changed.
pub(crate) fn after_entry(error: NodeError) -> NodeError {
    match error {
        NodeError::NoLeader { .. } | NodeError::Overloaded { .. } | NodeError::ShuttingDown => {
            NodeError::UnknownOutcome("the request stands in the queue and is cancelled as soon as possible".into())
        }
        other => other,
    }
}

/// Removes a request from the queues, unless another call owns it by now.
async fn cancel(engine: &Engine, progress: Progress, session: SessionId, locks: Vec<LockName>) {
    let (token, versions) = match progress {
        Progress::Disarmed => return,
        Progress::Broken(token) => {
            propose_until_decided(engine, || withdraw_command(session, &locks, token)).await;
            return;
        }
        Progress::Owned(token, versions) => (token, versions),
        Progress::Entering(mut submission) => match submission.outcome().await {
            Ok(done) if done.fresh() => match queued_under(&done.outcome) {
                Some(token) => (token, new_versions(&locks)),
                None => return,
            },
            // An earlier attempt made it and owns it, or a later one that claimed it.
            _ => return,
        },
        Progress::Claiming(token, mut submission) => match submission.outcome().await {
            Ok(Done { outcome: Outcome { reply: Ok(Reply::Claimed { versions }), .. }, .. })
                if !holds(engine, &locks, token) =>
            {
                (token, versions)
            }
            Ok(_) => return,
            Err(_) => match propose_until_decided(engine, || claim_command(session, &locks, token)).await {
                Some(Reply::Claimed { versions }) if !holds(engine, &locks, token) => (token, versions),
                _ => return,
            },
        },
    };
    let abandon = || {
        let op = LockOp::Abandon { locks: locks.clone(), token, versions: versions.clone() };
        Command::Do { actor: Actor::default(), op: op.into() }
    };
    if propose_until_decided(engine, abandon).await.is_some() {
        metrics::counter!("lockkeeper_lock_requests_abandoned_total").increment(1);
    }
}

/// Proposes an idempotent command until it is decided. `None` if it was refused.
async fn propose_until_decided(engine: &Engine, command: impl Fn() -> Command) -> Option<Reply> {
    let mut backoff = Backoff::endless(engine.replica.clock.clone(), engine.replication.leadership());
    loop {
        match engine.proposer.propose(command()).await {
            Ok(done) => return done.outcome.reply.ok(),
            Err(NodeError::ShuttingDown | NodeError::Fatal(_) | NodeError::Refused(_)) => return None,
            Err(_) => drop(backoff.wait().await),
        }
    }
}

fn claim_command(session: SessionId, locks: &[LockName], token: FencingToken) -> Command {
    let op = LockOp::Claim { locks: locks.to_vec(), token };
    Command::Do { actor: Actor::of(session), op: op.into() }
}

fn withdraw_command(session: SessionId, locks: &[LockName], token: FencingToken) -> Command {
    let op = LockOp::Withdraw { locks: locks.to_vec(), token, if_holding: IfHolding::Release };
    Command::Do { actor: Actor::of(session), op: op.into() }
}

/// Whether the request holds each of its locks, as far as this replica knows.
fn holds(engine: &Engine, locks: &[LockName], token: FencingToken) -> bool {
    let state = engine.replica.state();
    locks.iter().all(|lock| state.verify(lock, token))
}

/// The versions of new nodes.
fn new_versions(locks: &[LockName]) -> Vec<i32> {
    vec![0; locks.len()]
}

fn queued_under(outcome: &Outcome) -> Option<FencingToken> {
    match &outcome.reply {
        Ok(Reply::Queued { token, .. }) => Some(*token),
        _ => None,
    }
}

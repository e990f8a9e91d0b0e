//! Requests for locks whose callers have gone: taken out of the queue, waiting or holding, without ever taking a lock from a caller who
//! is still there.
//!
//! The danger is the retry. A client loses its connection, asks again at another node under the same request id, and is told that it
//! holds; then the first node notices the broken connection and withdraws. So a request's nodes carry a mark of who looks after them:
//! their data versions. A retry makes the request its own with [`Op::Claim`], and [`Op::Abandon`] removes only what has the versions
//! that it knows. The replicated order decides between the two; neither can undo the other.
//!
//! Nobody knows in which order a client's tries were made: a claim that was held up for long may come after that of a later try. So a
//! claim of what holds already gives no right to take it back, since somebody may have been told of it; and nobody is told that they
//! hold before the request is theirs as it stands.

use std::sync::Arc;

use lockkeeper_core::{Actor, Command, FencingToken, IfHolding, LockName, Op, Outcome, Refusal, Reply, SessionId};
use lockkeeper_mutants::mutant;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::backoff::Backoff;
use crate::engine::Engine;
use crate::error::NodeError;
use crate::log::inflight::{Completion, Done};
use crate::log::proposer::Submission;
use crate::sessions::lifecycle::unexpected;

/// How far a request has come, as far as taking it back is concerned.
#[derive(Debug, Default)]
enum Progress {
    /// Nothing to take back.
    #[default]
    Disarmed,
    /// Handed over, and not known to be applied.
    Entering(Submission),
    /// In the queues, not yet known to be this one's.
    Claiming(FencingToken, Submission),
    /// In the queues and this one's, as long as its nodes have these versions.
    Owned(FencingToken, Vec<i32>),
    /// Part of it has gone, so nobody can hold by the rest, whoever looks after it.
    Broken(FencingToken),
}

/// Said to whoever waits for a request to be taken back, if this node goes down before that is decided.
#[derive(Debug)]
pub struct Undecided;

/// Looks after one request. Dropped unsettled, it takes the request back.
pub(crate) struct RequestGuard {
    engine: Arc<Engine>,
    progress: Progress,
    permit: Option<OwnedSemaphorePermit>,
    locks: Vec<LockName>,
    session: SessionId,
    /// Dropped once there is nothing left to take back.
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
            permit: Some(permit),
            locks,
            session,
            on_cancelled,
        }
    }

    /// Enters the queues.
    pub(crate) async fn enter(&mut self, command: Command) -> Result<Done, NodeError> {
        self.progress = Progress::Entering(self.engine.proposer.submit(command)?);
        let done = self.outcome().await?;
        self.progress = match queued_under(&done.outcome) {
            Some(token) if done.fresh() => Progress::Owned(token, new_versions(&self.locks)),
            // Whose it is will be decided by `claim`.
            _ => Progress::Disarmed,
        };
        Ok(done)
    }

    /// Makes a request that was made before this one's to look after. False if it is no more, or only in part.
    pub(crate) async fn claim(&mut self, token: FencingToken) -> Result<bool, NodeError> {
        let command = claim_command(self.session, &self.locks, token);
        self.progress = Progress::Claiming(token, self.engine.proposer.submit(command)?);
        let done = self.outcome().await?;
        self.progress = Progress::Disarmed;
        match done.outcome.reply {
            Ok(Reply::Claimed { versions }) => {
                // Somebody may have been told.
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

    /// Whether the request is this one's still, when its nodes have these versions: nobody who claimed it later can take it back.
    pub(crate) fn covers(&self, versions: &[i32]) -> bool {
        match &self.progress {
            Progress::Owned(_, own) => own == versions,
            // It held when it was made this one's.
            Progress::Disarmed => true,
            Progress::Entering(_) | Progress::Claiming(..) | Progress::Broken(_) => false,
        }
    }

    /// Takes out of the queues what is left of a request of which part has gone. Nobody else would: whoever looked after it may be gone
    /// too, and the rest would come to hold, and do so for as long as the session lives.
    pub(crate) async fn withdraw_rest(&mut self, token: FencingToken) -> Result<(), NodeError> {
        self.progress = Progress::Broken(token);
        let done = self.engine.proposer.propose(withdraw_command(self.session, &self.locks, token)).await?;
        self.disarm();
        match done.outcome.reply {
            // Refused, there is nothing left: no part, or no session.
            Ok(Reply::Withdrawn | Reply::Released) | Err(_) => Ok(()),
            Ok(other) => Err(unexpected(&other)),
        }
    }

    /// What became of what was handed over last. If that is not known, it stays to be taken back.
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

    /// There is nothing to take back: the caller has the lock, or has left the queue, or keeps its place on purpose.
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
        let on_cancelled = self.on_cancelled.take();
        let undecided = move || on_cancelled.map_or(Ok(()), |on_cancelled| on_cancelled.send(Undecided));
        let runtime = Handle::try_current().ok().filter(|_| !self.engine.replica.tasks.are_stopping());
        let Some(runtime) = runtime else {
            // Nobody may be listening.
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
            // As many withdrawals under way as requests are allowed, and no more.
            drop(permit);
        });
    }
}

/// Takes a request out of the queues, unless somebody else looks after it by now.
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
            // Made before, by another: that one looks after it, and so does whoever asks again.
            _ => return,
        },
        Progress::Claiming(token, mut submission) => match submission.outcome().await {
            Ok(Done { outcome: Outcome { reply: Ok(Reply::Claimed { versions }), .. } })
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
        let op = Op::Abandon { locks: locks.clone(), token, versions: versions.clone() };
        Command::Do { actor: Actor::default(), op }
    };
    if propose_until_decided(engine, abandon).await.is_some() {
        metrics::counter!("lockkeeper_lock_requests_abandoned_total").increment(1);
    }
}

/// Proposes a command that may be applied more than once without harm, until it has been decided. None if it was refused.
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
    let op = Op::Claim { locks: locks.to_vec(), token };
    Command::Do { actor: Actor::of(session), op }
}

fn withdraw_command(session: SessionId, locks: &[LockName], token: FencingToken) -> Command {
    let op = Op::Withdraw { locks: locks.to_vec(), token, if_holding: IfHolding::Release };
    Command::Do { actor: Actor::of(session), op }
}

/// Whether the request holds each of its locks, as far as this replica knows.
fn holds(engine: &Engine, locks: &[LockName], token: FencingToken) -> bool {
    let state = engine.replica.state();
    locks.iter().all(|lock| state.verify(lock, token))
}

/// What nodes have that were just made.
fn new_versions(locks: &[LockName]) -> Vec<i32> {
    vec![0; locks.len()]
}

fn queued_under(outcome: &Outcome) -> Option<FencingToken> {
    match &outcome.reply {
        Ok(Reply::Queued { token, .. }) => Some(*token),
        _ => None,
    }
}

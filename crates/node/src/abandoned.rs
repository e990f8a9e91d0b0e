//! Requests for locks whose callers have gone: taken out of the queue, waiting or holding, without ever taking a lock from a caller who
//! is still there.
//!
//! The danger is the retry. A client loses its connection, asks again at another node under the same request id, and is told that it
//! holds; then the first node notices the broken connection and withdraws. So a request's node carries a mark of who looks after it: its
//! data version. A retry makes the request its own by setting the data, and a withdrawal deletes the node only at the version that it
//! knows. The replicated order decides between the two; neither can undo the other.

use std::sync::Arc;

use lockkeeper_core::{Command, NodePath, Op, Outcome, Refusal, Reply, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use crate::engine::Engine;
use crate::error::NodeError;
use crate::flight::{Completion, Done};
use crate::patience::Patience;
use crate::proposer::Submission;
use crate::sessions::unexpected;

/// How far a request has come, as far as taking it back is concerned.
#[derive(Debug, Default)]
enum Progress {
    /// Nothing to take back.
    #[default]
    Settled,
    /// Handed over, and not known to be applied.
    Entering(Submission),
    /// In the queue, not yet known to be this one's.
    MakingMine(NodePath, Submission),
    /// In the queue and this one's, as long as its node has this version.
    Mine(NodePath, i32),
}

/// Looks after one request. Dropped unsettled, it takes the request back.
pub(crate) struct Claim {
    engine: Arc<Engine>,
    progress: Progress,
    permit: Option<OwnedSemaphorePermit>,
    label: Arc<str>,
    session: Option<SessionId>,
}

impl Claim {
    pub(crate) fn new(engine: &Arc<Engine>, permit: OwnedSemaphorePermit, label: Arc<str>) -> Self {
        Self { engine: engine.clone(), progress: Progress::Settled, permit: Some(permit), label, session: None }
    }

    /// Enters the queue.
    pub(crate) async fn enter(&mut self, command: Command) -> Result<Done, NodeError> {
        if let Command::Do { session, .. } = &command {
            self.session = *session;
        }
        self.progress = Progress::Entering(self.engine.proposer.submit(command)?);
        let done = self.outcome().await?;
        self.progress = match queued_at(&done.outcome) {
            Some(path) if done.fresh => Progress::Mine(path, 0),
            // Whose it is will be decided by `make_mine`.
            _ => Progress::Settled,
        };
        Ok(done)
    }

    /// Makes a request that was made before this one's to look after. False if it is no more.
    pub(crate) async fn make_mine(&mut self, session: SessionId, path: &NodePath) -> Result<bool, NodeError> {
        let command = set_mark(Some(session), path, &self.label);
        self.progress = Progress::MakingMine(path.clone(), self.engine.proposer.submit(command)?);
        let done = self.outcome().await?;
        self.progress = Progress::Settled;
        match done.outcome.reply {
            Ok(Reply::DataSet(stat)) => {
                self.progress = Progress::Mine(path.clone(), stat.version);
                Ok(true)
            }
            Err(Refusal::NoNode(_)) => Ok(false),
            Err(refusal) => Err(refusal.into()),
            Ok(other) => Err(unexpected(&other)),
        }
    }

    /// What became of what was handed over last. If that is not known, it stays to be taken back.
    async fn outcome(&mut self) -> Completion {
        match &mut self.progress {
            Progress::Entering(submission) | Progress::MakingMine(_, submission) => {
                self.engine.proposer.await_outcome(submission).await
            }
            Progress::Settled | Progress::Mine(..) => Err(NodeError::UnknownOutcome("nothing was handed over".into())),
        }
    }

    /// There is nothing to take back: the caller has the lock, or has left the queue, or keeps its place on purpose.
    pub(crate) fn settle(&mut self) {
        self.progress = Progress::Settled;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let progress = std::mem::take(&mut self.progress);
        if matches!(progress, Progress::Settled) || self.engine.stop.is_cancelled() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (engine, label, session, permit) =
            (self.engine.clone(), self.label.clone(), self.session, self.permit.take());
        runtime.spawn(async move {
            let stop = engine.stop.clone();
            stop.run_until_cancelled(take_back(&engine, progress, session, label)).await;
            // As many withdrawals under way as requests are allowed, and no more.
            drop(permit);
        });
    }
}

/// Takes a request out of the queue, unless somebody else looks after it by now.
async fn take_back(engine: &Engine, progress: Progress, session: Option<SessionId>, label: Arc<str>) {
    let (path, version) = match progress {
        Progress::Settled => return,
        Progress::Mine(path, version) => (path, version),
        Progress::Entering(mut submission) => match submission.outcome().await {
            Ok(done) if done.fresh => match queued_at(&done.outcome) {
                Some(path) => (path, 0),
                None => return,
            },
            // Made before, by another: that one looks after it, and so does whoever asks again.
            _ => return,
        },
        Progress::MakingMine(path, mut submission) => match submission.outcome().await {
            Ok(Done { outcome: Outcome { reply: Ok(Reply::DataSet(stat)), .. }, .. }) => (path, stat.version),
            Ok(_) => return,
            Err(_) => match propose_until_decided(engine, || set_mark(session, &path, &label)).await {
                Some(Reply::DataSet(stat)) => (path, stat.version),
                _ => return,
            },
        },
    };
    let delete =
        || Command::Do { session: None, request: None, op: Op::Delete { path: path.clone(), version: Some(version) } };
    if let Some(Reply::Deleted) = propose_until_decided(engine, delete).await {
        metrics::counter!("lockkeeper_lock_requests_abandoned_total").increment(1);
    }
}

/// Proposes a command that may be applied more than once without harm, until it has been decided. None if it was refused.
async fn propose_until_decided(engine: &Engine, command: impl Fn() -> Command) -> Option<Reply> {
    let mut patience = Patience::endless(engine.replica.clock.clone(), engine.replication.leadership());
    loop {
        match engine.proposer.propose(command()).await {
            Ok(done) => return done.outcome.reply.ok(),
            Err(NodeError::ShuttingDown | NodeError::Fatal(_) | NodeError::Refused(_)) => return None,
            Err(_) => drop(patience.pause().await),
        }
    }
}

/// Sets the data of a request's node to what it is already, for the sake of its version.
fn set_mark(session: Option<SessionId>, path: &NodePath, label: &Arc<str>) -> Command {
    let op = Op::SetData { path: path.clone(), data: Arc::from(label.as_bytes()), version: None };
    Command::Do { session, request: None, op }
}

fn queued_at(outcome: &Outcome) -> Option<NodePath> {
    match &outcome.reply {
        Ok(Reply::Queued { path, .. }) => Some(path.clone()),
        _ => None,
    }
}

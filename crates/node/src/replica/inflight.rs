//! The batches of this node that are in flight, and the callers that wait for their outcomes.
//!
//! A command is in one of three stages and moves between them atomically, so "it was never sent" is a fact, not a
//! guess.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use lockkeeper_core::{Command, Origin, Outcome, TraceContext};
use lockkeeper_mutants::invariant;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::error::NodeError;
use crate::traces::{TraceSpan, Traces};

/// A command that has been decided.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
}

impl Done {
    pub(crate) fn from_log(outcome: Outcome) -> Self {
        Self { outcome }
    }

    /// False if the command changed nothing: refused, a mere check, or answered from memory because it had been
    /// executed before.
    pub(crate) fn fresh(&self) -> bool {
        self.outcome.changed
    }
}

pub(crate) type Completion = Result<Done, NodeError>;

const WAITING: u8 = 0;
const SENT: u8 = 1;
const WITHDRAWN: u8 = 2;

/// How far a command has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stage(Arc<AtomicU8>);

impl Stage {
    /// It is sent now. False if its caller has withdrawn it.
    pub(crate) fn send(&self) -> bool {
        self.0.compare_exchange(WAITING, SENT, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// It was not sent after all, which is certain.
    pub(crate) fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, WAITING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The caller withdraws it. True if it has not been sent and never will be.
    pub(crate) fn withdraw(&self) -> bool {
        self.0.compare_exchange(WAITING, WITHDRAWN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Where a command's outcome goes.
pub(crate) enum Answer {
    /// To a task that waits for it, or has ended.
    Awaited(oneshot::Sender<Completion>),
    /// To a function that is called in the order of the log, between the events of the commands before and after.
    /// Called under the state's lock: it must not wait.
    InOrder(Box<dyn FnOnce(Completion) + Send>),
}

impl Answer {
    pub(crate) fn send(self, completion: Completion) {
        match self {
            Self::Awaited(reply) => drop(reply.send(completion)),
            Self::InOrder(deliver) => deliver(completion),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Awaited(_) => "Awaited",
            Self::InOrder(_) => "InOrder",
        })
    }
}

/// A command, and where its outcome goes.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) command: Command,
    pub(crate) bytes: usize,
    /// About how many nodes it changes.
    pub(crate) nodes: usize,
    /// Until when, by the node's clock, it may wait for another command; `None` if it does not wait.
    pub(crate) may_wait_until: Option<Duration>,
    pub(crate) stage: Stage,
    pub(crate) answer: Answer,
    /// The span of the request that it is for, if it is recorded.
    pub(crate) trace: Option<TraceContext>,
    /// The proposal, in the trace of that request.
    pub(crate) proposal: Option<ProposalSpan>,
}

impl Pending {
    pub(crate) fn fail(mut self, error: NodeError) {
        ProposalSpan::end(&mut self.proposal, outcome_of(&error));
        self.answer.send(Err(error));
    }

    fn resolve(mut self, done: Done) {
        ProposalSpan::end(&mut self.proposal, "done");
        self.answer.send(Ok(done));
    }

    /// It was not sent after all, which is certain; its caller may withdraw it now.
    pub(crate) fn unsend(&mut self) {
        ProposalSpan::end(&mut self.proposal, GIVEN_UP);
        self.stage.unsend();
    }
}

/// The outcome of a proposal that is not in the log and never will be.
const GIVEN_UP: &str = "given_up";

/// How a proposal ends for a caller that gets this error.
fn outcome_of(error: &NodeError) -> &'static str {
    if matches!(error, NodeError::UnknownOutcome(_)) { "unknown" } else { GIVEN_UP }
}

/// The span `lockkeeper.propose`. It ends with its outcome, or without one where this node stops before.
pub(crate) struct ProposalSpan(Box<dyn TraceSpan>);

impl ProposalSpan {
    /// Begins it below the span of a request.
    pub(crate) fn begin(traces: &Traces, request: TraceContext, links: &[TraceContext]) -> Option<Self> {
        traces.begin("lockkeeper.propose", request, links).map(Self)
    }

    pub(crate) fn context(&self) -> TraceContext {
        self.0.context()
    }

    pub(crate) fn set(&mut self, key: &'static str, value: u64) {
        self.0.set(key, value.into());
    }

    fn end(span: &mut Option<Self>, outcome: &'static str) {
        if let Some(Self(mut span)) = span.take() {
            span.set("lockkeeper.outcome", outcome.into());
        }
    }
}

impl fmt::Debug for ProposalSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProposalSpan")
    }
}

struct InflightBatch {
    origin: Origin,
    pending: Vec<Pending>,
}

/// The batches on their way, in the order of their sequences.
#[derive(Default)]
pub(crate) struct Inflight {
    batches: Mutex<VecDeque<InflightBatch>>,
    progress: Arc<Notify>,
    /// A batch has to be sent again: it was committed before one that it follows, or that may have happened unseen.
    send_again: AtomicBool,
}

impl Inflight {
    /// A batch goes out, after those that are on their way.
    pub(crate) fn begin(&self, origin: Origin, pending: Vec<Pending>) {
        let mut batches = self.batches.lock();
        let is_next = batches.back().is_none_or(|last| last.origin.sequence < origin.sequence);
        invariant!(is_next, "batches go out in the order of their sequences");
        batches.push_back(InflightBatch { origin, pending });
    }

    /// Takes back the commands of this batch and of every later one, a list for each batch. Batches whose callers are
    /// being answered are not here any more.
    pub(crate) fn take_from(&self, sequence: u64) -> Vec<Vec<Pending>> {
        let mut batches = self.batches.lock();
        let first = batches.partition_point(|batch| batch.origin.sequence < sequence);
        batches.drain(first..).map(|batch| batch.pending).collect()
    }

    /// The sequence of the first batch that has not been applied here.
    pub(crate) fn first(&self) -> Option<u64> {
        self.batches.lock().front().map(|batch| batch.origin.sequence)
    }

    /// Returns when a batch has been applied here, or has to be sent again.
    pub(crate) async fn progress(&self) {
        self.progress.notified().await;
    }

    /// Whether a batch has to be sent again, for all that was known before this call.
    pub(crate) fn take_send_again(&self) -> bool {
        self.send_again.swap(false, Ordering::SeqCst)
    }

    /// The batch of this origin is in the log and was not applied, because it does not follow the last one.
    pub(crate) fn note_not_applied(&self, origin: Origin) {
        self.send_again_if(|batch| batch.origin == origin);
    }

    /// This replica skipped ahead by a snapshot. What is still in flight may have been in the log that it skipped.
    pub(crate) fn note_skipped(&self) {
        self.send_again_if(|_| true);
    }

    /// Has the batches sent again if one of them is meant.
    fn send_again_if(&self, is_one: impl Fn(&InflightBatch) -> bool) {
        if self.batches.lock().iter().any(is_one) {
            self.send_again.store(true, Ordering::SeqCst);
            self.progress.notify_one();
        }
    }

    /// The batch of this origin has been applied here: each caller gets its own outcome, one after the other.
    pub(crate) fn complete(&self, origin: Origin) -> Option<Completions> {
        let mut batches = self.batches.lock();
        let index = batches.iter().position(|batch| batch.origin == origin)?;
        let pending = batches.remove(index)?.pending.into_iter();
        Some(Completions { pending, progress: self.progress.clone() })
    }
}

/// A batch whose callers are being answered.
pub(crate) struct Completions {
    pending: std::vec::IntoIter<Pending>,
    progress: Arc<Notify>,
}

impl Completions {
    /// The trace of the next caller's request, if it is recorded.
    pub(crate) fn next_trace(&self) -> Option<TraceContext> {
        self.pending.as_slice().first()?.trace
    }

    /// Answers the next caller.
    pub(crate) fn resolve_next(&mut self, done: Done) {
        let one = self.pending.next();
        invariant!(one.is_some(), "a batch has no more outcomes than commands");
        if let Some(one) = one {
            one.resolve(done);
        }
    }

    /// All callers have been answered.
    pub(crate) fn finish(self) {
        invariant!(self.pending.len() == 0, "each command of a batch that was applied has an outcome");
        self.progress.notify_one();
    }
}

//! The batches of this node that are in flight, and the callers that wait for their outcomes.
//!
//! A command is in one of three stages and moves between them atomically, so "it was never sent" is a fact, not a
//! guess.
//!
//! Under the state's lock an answer is only made, and a lock request that waits is registered. The tasks that wait for
//! the answers are woken once the lock is free.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use lockkeeper_core::{Command, Origin, Outcome, Reply, State, TraceContext};
use lockkeeper_mutants::invariant;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::error::NodeError;
use crate::observers::waiters::Waiters;
use crate::replica::request_status::RequestStatus;
use crate::traces::{TraceSpan, Traces};

/// A command that has been decided.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    /// For [`Answer::Entry`]: how the new request stood once its batch was applied.
    pub(crate) request: Option<RequestStatus>,
}

impl Done {
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
    /// The same for a lock request that enters its queues. With the outcome goes how the request stands, so that its
    /// caller need not look; a caller whose request is traced looks, because its span names the requests ahead.
    Entry(oneshot::Sender<Completion>),
    /// To a function that is called in the order of the log, between the events of the commands before and after.
    /// Called under the state's lock: it must not wait.
    InOrder(Box<dyn FnOnce(Completion) + Send>),
}

impl Answer {
    /// A command was not decided.
    fn fail(self, error: NodeError) {
        match self {
            Self::Awaited(reply) | Self::Entry(reply) => drop(reply.send(Err(error))),
            Self::InOrder(deliver) => deliver(Err(error)),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Awaited(_) => "Awaited",
            Self::Entry(_) => "Entry",
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
        self.answer.fail(error);
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
        Some(Completions { pending, answers: Answers::default(), progress: self.progress.clone() })
    }
}

/// A batch whose callers are being answered.
pub(crate) struct Completions {
    pending: std::vec::IntoIter<Pending>,
    answers: Answers,
    progress: Arc<Notify>,
}

/// The answers of tasks that wait for them.
#[derive(Default)]
#[must_use]
pub(crate) struct Answers(Vec<(oneshot::Sender<Completion>, Done)>);

impl Answers {
    /// Wakes the tasks. The state's lock is free by now: what they are answered is true of a state whose events are all
    /// delivered.
    pub(crate) fn send(self) {
        // A task that has ended takes no answer, and cancels its request by what it kept of it.
        self.0.into_iter().for_each(|(to, done)| drop(to.send(Ok(done))));
    }

    pub(crate) fn append(&mut self, mut more: Self) {
        self.0.append(&mut more.0);
    }
}

impl Completions {
    /// The trace of the next caller's request, if it is recorded.
    pub(crate) fn next_trace(&self) -> Option<TraceContext> {
        self.pending.as_slice().first()?.trace
    }

    /// Makes the answer of the next caller. `state` is the one after the whole batch.
    pub(crate) fn resolve_next(&mut self, outcome: Outcome, state: &State, waiters: &Arc<Waiters>) {
        let one = self.pending.next();
        invariant!(one.is_some(), "a batch has no more outcomes than commands");
        let Some(mut one) = one else { return };
        ProposalSpan::end(&mut one.proposal, "done");
        match one.answer {
            Answer::InOrder(deliver) => deliver(Ok(Done { outcome, request: None })),
            Answer::Awaited(to) => self.answers.0.push((to, Done { outcome, request: None })),
            Answer::Entry(to) => {
                let request = if one.trace.is_none() { entered(&outcome, state, waiters) } else { None };
                self.answers.0.push((to, Done { outcome, request }));
            }
        }
    }

    /// The answers to be sent once the state's lock is free.
    pub(crate) fn finish(self) -> Answers {
        invariant!(self.pending.len() == 0, "each command of a batch that was applied has an outcome");
        self.progress.notify_one();
        self.answers
    }
}

/// How a request stands that this command has made. One that an earlier command made may belong to another call, which
/// its caller has to find out first.
fn entered(outcome: &Outcome, state: &State, waiters: &Arc<Waiters>) -> Option<RequestStatus> {
    match &outcome.reply {
        Ok(Reply::Queued { paths, token, .. }) if outcome.changed => {
            Some(RequestStatus::of(state, waiters, paths, *token))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{NodeId, SessionId, Zxid};

    use super::*;

    #[test]
    fn a_caller_is_woken_only_once_the_answers_are_sent() {
        let (inflight, (to, mut reply)) = (Inflight::default(), oneshot::channel());
        let pending = Pending {
            command: Command::CloseSession { session: SessionId(1) },
            bytes: 1,
            nodes: 1,
            may_wait_until: None,
            stage: Stage::default(),
            answer: Answer::Awaited(to),
            trace: None,
            proposal: None,
        };
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: 1 };
        inflight.begin(origin, vec![pending]);
        let mut completions = inflight.complete(origin).expect("it was begun");
        let outcome = Outcome { zxid: Zxid(7), reply: Ok(Reply::SessionClosed), changed: true, events: Vec::new() };
        completions.resolve_next(outcome, &State::new(), &Arc::default());
        let answers = completions.finish();
        assert!(reply.try_recv().is_err(), "events of the same batch may not be delivered yet");
        answers.send();
        assert_eq!(reply.try_recv().expect("sent").expect("done").outcome.zxid, Zxid(7));
    }
}

//! Sends this node's batches (`ARCHITECTURE.md`, The way of a write).
//!
//! All waiting commands go into one batch, large ones apart from small ones. A few batches may be in flight, one of
//! large commands among them; while they are, the next one fills. No timer delays a lone command; only a request that
//! enters the queue of a lock behind many others may wait for another command (`locks/entry_delay.rs`), and a large
//! command beside those of others pauses after the one before it ([`LargePace`]). A batch names the batch that it
//! follows, and the state applies it only right after that one. A batch whose outcome is unknown is sent again
//! unchanged, with all that follow it, until this replica has applied it: the state applies each origin once. The task
//! must never send a batch before the batches that it follows, nor give up a batch that may still be applied.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use lockkeeper_consensus::{Leadership, ProposeError};
use lockkeeper_core::{BatchRef, BatchTrace, MAX_TRACED_REQUESTS, NodeId, Origin, Refusal, Rules, State, TraceContext};
use lockkeeper_mutants::{invariant, mutant};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::log::large_pace::LargePace;
use crate::log::queue::{CommandQueue, is_large};
use crate::replica::Replica;
use crate::replica::inflight::{Pending, ProposalSpan};
use crate::replication::Replication;

/// An attempt that has no answer yet: the batch's sequence, and the answer to come.
type Attempt = BoxFuture<'static, (u64, Result<(), ProposeError>)>;

/// See the module's text.
pub(crate) struct BatchSender {
    queue: Arc<CommandQueue>,
    unanswered: Arc<AtomicUsize>,
    replica: Arc<Replica>,
    replication: Arc<dyn Replication>,
    leadership: watch::Receiver<Leadership>,
    /// The leadership under which the open batches were last sent.
    sent_under: Leadership,
    next: Origin,
    /// Batches that are not applied here, in order; their commands are in [`Replica::inflight`].
    open: VecDeque<OpenBatch>,
    /// Commands of batches that were given up, to be sent before others: a list for each batch.
    returned: VecDeque<Vec<Pending>>,
    /// The answers to come, of every attempt.
    answers: FuturesUnordered<Attempt>,
    large_pace: LargePace,
    max_open: usize,
    max_commands: usize,
    max_bytes: usize,
    /// The bounds from this node's configuration.
    rules: Rules,
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        self.queue.close();
    }
}

struct OpenBatch {
    sequence: u64,
    follows: u64,
    commands: usize,
    /// It has a large command.
    is_large: bool,
    payload: Bytes,
    /// Attempts without an answer.
    unanswered: u32,
    /// Attempts altogether.
    attempts: u32,
    /// An attempt ended, and its outcome is unknown.
    in_doubt: bool,
    /// Why a leader did not take it.
    refused: Option<ProposeError>,
}

impl OpenBatch {
    /// Whether it is certainly not in the log, and never will be unless it is sent again.
    fn never_taken(&self) -> bool {
        self.refused.is_some() && self.unanswered == 0 && !self.in_doubt
    }
}

/// What follows from an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// All goes well.
    GoOn,
    /// A batch has to be sent again, after a pause.
    Retry,
}

impl BatchSender {
    /// Takes commands from the queue; `unanswered` counts those whose callers have no answer.
    pub(crate) fn new(
        config: &NodeConfig,
        incarnation: u64,
        queue: Arc<CommandQueue>,
        unanswered: Arc<AtomicUsize>,
        replica: Arc<Replica>,
        replication: Arc<dyn Replication>,
    ) -> Self {
        Self {
            queue,
            unanswered,
            replica,
            leadership: replication.leadership(),
            sent_under: Leadership::default(),
            replication,
            next: Origin { node: NodeId(config.consensus.node), incarnation, sequence: 1 },
            open: VecDeque::new(),
            returned: VecDeque::new(),
            answers: FuturesUnordered::new(),
            large_pace: LargePace::default(),
            max_open: config.max_batches_in_flight,
            max_commands: config.max_batch_commands,
            max_bytes: config.max_batch_bytes,
            rules: config.rules,
        }
    }

    /// The task; it ends when the queue is closed.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::endless(self.replica.clock.clone(), self.leadership.clone());
        loop {
            if self.settle() {
                backoff.reset();
            }
            while self.has_room()
                && let Some(pending) = self.returned.pop_front()
            {
                self.send(pending);
            }
            let has_room = self.has_room();
            let pause_until = self.large_pace.waits_until(self.replica.clock.now());
            let large_may_go = pause_until.is_none() && self.open.iter().all(|batch| !batch.is_large);
            let next = tokio::select! {
                biased;
                () = self.replica.inflight.progress() => self.check_order(),
                Some((sequence, result)) = self.answers.next() => self.note(sequence, result),
                () = leader_changed(&mut self.leadership, self.sent_under), if !self.open.is_empty() => {
                    self.send_again();
                    Next::GoOn
                }
                () = self.replica.clock.sleep_until(pause_until.unwrap_or_default()),
                    if pause_until.is_some() => Next::GoOn,
                taken = self.queue.take(self.max_commands, self.max_bytes, large_may_go), if has_room => {
                    let Some(pending) = taken else { return };
                    self.send(pending);
                    Next::GoOn
                }
            };
            if next == Next::Retry {
                self.retry(&mut backoff).await;
            }
        }
    }

    /// Whether another batch may be sent. Not while one is sent again: its callers may still withdraw.
    fn has_room(&self) -> bool {
        self.open.len() < self.max_open && self.open.iter().all(|batch| batch.attempts == 1)
    }

    /// Forgets the batches that have been applied here; true if there are any.
    fn settle(&mut self) -> bool {
        let first = self.replica.inflight.first();
        let applied = self.open.iter().take_while(|batch| first.is_none_or(|first| batch.sequence < first)).count();
        if let Some(large) = self.open.iter().take(applied).find(|batch| batch.is_large) {
            let zxid = self.replica.state().zxid().0;
            self.large_pace.applied(self.replica.clock.now(), zxid, large.commands as u64);
        }
        let commands = self.open.drain(..applied).map(|batch| batch.commands).sum();
        let before = self.unanswered.fetch_sub(commands, Ordering::SeqCst);
        invariant!(before >= commands, "each command in flight counts as unanswered");
        applied > 0
    }

    fn check_order(&self) -> Next {
        if self.replica.inflight.take_send_again() { Next::Retry } else { Next::GoOn }
    }

    /// Sends a new batch, unless the callers of all its commands have withdrawn.
    fn send(&mut self, mut pending: Vec<Pending>) {
        let before = pending.len();
        pending.retain(|one| one.stage.send());
        self.unanswered.fetch_sub(before - pending.len(), Ordering::SeqCst);
        if pending.is_empty() {
            return;
        }
        let follows = match self.open.back() {
            Some(batch) => batch.sequence,
            None => {
                self.sent_under = *self.leadership.borrow_and_update();
                self.last_applied(&self.replica.state())
            }
        };
        self.next.sequence = self.next.sequence.max(follows + 1);
        let origin = self.take_origin();
        invariant!(follows < origin.sequence, "a batch follows one with a lower sequence");
        metrics::histogram!("lockkeeper_batches_in_flight").record(self.open.len() as f64);
        metrics::histogram!("lockkeeper_batch_commands").record(pending.len() as f64);
        let trace = self.begin_proposals(origin, &mut pending);
        let payload = encode(origin, follows, self.rules, &pending, trace);
        let (commands, is_large) = (pending.len(), pending.iter().any(is_large));
        self.replica.inflight.begin(origin, pending);
        if is_large {
            self.large_pace.sent(self.replica.clock.now());
        }
        let mut batch = OpenBatch {
            sequence: origin.sequence,
            follows,
            commands,
            is_large,
            payload,
            unanswered: 0,
            attempts: 0,
            in_doubt: false,
            refused: None,
        };
        attempt(&mut batch, &self.replication, &self.answers);
        self.open.push_back(batch);
        invariant!(self.open.len() <= self.max_open, "no more batches are in flight than the state remembers");
    }

    /// Begins a span for each request that is recorded. The first one stands for the batch: what the replicas do is
    /// below it. It links to the other requests, and their spans link to it.
    fn begin_proposals(&self, origin: Origin, pending: &mut [Pending]) -> Option<BatchTrace> {
        let recorded =
            pending.iter().enumerate().filter_map(|(index, one)| Some((u32::try_from(index).ok()?, one.trace?)));
        let requests: Vec<_> = recorded.take(MAX_TRACED_REQUESTS).collect();
        let others: Vec<_> = requests.iter().skip(1).map(|(_, request)| *request).collect();
        let mut batch = None;
        let commands = pending.len() as u64;
        for one in pending {
            let Some(request) = one.trace else { continue };
            let links = batch.as_ref().map_or(&others[..], std::slice::from_ref);
            let mut span = ProposalSpan::begin(&self.replica.traces, request, links)?;
            span.set("lockkeeper.batch.sequence", origin.sequence);
            span.set("lockkeeper.batch.commands", commands);
            batch = batch.or_else(|| Some(span.context()));
            one.proposal = Some(span);
        }
        Some(BatchTrace { span: batch.filter(TraceContext::is_valid)?, requests })
    }

    /// A sequence is never used for other contents, even if the first batch is certainly not in the log.
    fn take_origin(&mut self) -> Origin {
        let origin = self.next;
        self.next.sequence += 1;
        origin
    }

    /// The sequence of this node's last batch that was applied here.
    fn last_applied(&self, state: &State) -> u64 {
        let last = state.last_batch(self.next.node);
        last.filter(|last| last.incarnation == self.next.incarnation).map_or(0, |last| last.sequence)
    }

    /// Sends the open batches again, unchanged and in order.
    fn send_again(&mut self) {
        self.replica.inflight.take_send_again();
        self.sent_under = *self.leadership.borrow_and_update();
        self.open.iter_mut().for_each(|batch| attempt(batch, &self.replication, &self.answers));
    }

    /// Notes the answer to an attempt.
    fn note(&mut self, sequence: u64, result: Result<(), ProposeError>) -> Next {
        let Some(batch) = self.open.iter_mut().find(|batch| batch.sequence == sequence) else { return Next::GoOn };
        invariant!(batch.unanswered > 0, "an answer belongs to an attempt");
        batch.unanswered -= 1;
        match result {
            // Committed. This replica will apply it, or install a snapshot that covers it.
            Ok(()) => {
                batch.in_doubt = true;
                return Next::GoOn;
            }
            Err(ProposeError::Unknown(why)) => {
                tracing::debug!(%why, "the outcome of a batch is unknown: it is sent again");
                batch.in_doubt = true;
            }
            Err(error) => batch.refused = Some(error),
        }
        Next::Retry
    }

    /// Gives up the batches that will certainly never be applied, and sends the others again after a pause.
    async fn retry(&mut self, backoff: &mut Backoff) {
        self.give_up();
        self.fail_in_doubt(backoff).await;
        if self.open.is_empty() && self.returned.is_empty() {
            return;
        }
        let mut pause = std::pin::pin!(backoff.wait());
        loop {
            tokio::select! {
                biased;
                () = self.replica.inflight.progress() => {
                    self.settle();
                    if self.open.is_empty() && self.returned.is_empty() {
                        return;
                    }
                }
                _ = &mut pause => break,
                Some((sequence, result)) = self.answers.next() => {
                    self.note(sequence, result);
                }
            }
        }
        self.give_up();
        self.send_again();
    }

    /// Takes back the commands of the batches that cannot be applied any more: the first one that was certainly never
    /// taken and all later ones, or all if another batch has come in their place.
    fn give_up(&mut self) {
        self.settle();
        let (index, commands) = {
            // Under the lock, so that no batch is applied meanwhile.
            let state = self.replica.state();
            let Some(first) = self.replica.inflight.first() else { return };
            let Some(head) = self.open.iter().position(|batch| batch.sequence == first) else { return };
            let was_replaced = self.open[head].follows != self.last_applied(&state);
            let never_taken = || (head..self.open.len()).find(|index| self.open[*index].never_taken());
            let Some(index) = was_replaced.then_some(head).or_else(never_taken) else { return };
            (index, self.replica.inflight.take_from(self.open[index].sequence))
        };
        let refused = self.open[index].refused.take();
        self.open.truncate(index);
        let mut commands = VecDeque::from(commands);
        if let Some(error) = refused.filter(|error| *error != ProposeError::NoLeader)
            && let Some(pending) = commands.pop_front()
        {
            self.unanswered.fetch_sub(pending.len(), Ordering::SeqCst);
            fail_all(pending, &error);
        }
        commands.iter_mut().flatten().for_each(Pending::unsend);
        commands.append(&mut self.returned);
        if mutant!(SwapReturnedBatches) {
            commands.make_contiguous().reverse();
        }
        self.returned = commands;
    }

    /// Decides about the first batch if it may be in the log, and no leader takes it again.
    async fn fail_in_doubt(&mut self, backoff: &mut Backoff) {
        const WENT_DOWN: &str = "this node went down before it saw the request applied; it may yet be";
        match self.open.front().and_then(|batch| batch.refused.as_ref()) {
            Some(ProposeError::ShuttingDown) => self.fail_unknown(WENT_DOWN),
            Some(ProposeError::Fatal(why)) => self.fail_unknown(&why.clone()),
            // No leader with these bounds will ever take it, so only an earlier attempt can have succeeded.
            Some(ProposeError::TooLarge { .. } | ProposeError::Unreadable(_)) => self.fence(backoff, WENT_DOWN).await,
            Some(ProposeError::NoLeader | ProposeError::Unknown(_)) | None => {}
        }
    }

    /// Proposes an empty batch in the place of the first one. Once this replica is past it, either the first batch has
    /// been applied, or it never will be.
    async fn fence(&mut self, backoff: &mut Backoff, went_down: &str) {
        let Some(follows) = self.open.front().map(|batch| batch.follows) else { return };
        let origin = self.take_origin();
        let payload = encode(origin, follows, self.rules, &[], None);
        loop {
            match self.replication.propose(payload.clone()).await {
                // The barrier brings this replica up to what was committed before it.
                Ok(()) if self.replication.read_barrier().await.is_ok() => break,
                Err(ProposeError::ShuttingDown | ProposeError::Fatal(_)) => return self.fail_unknown(went_down),
                Ok(()) | Err(_) => drop(backoff.wait().await),
            }
        }
        self.give_up();
    }

    /// Answers all callers of the open batches that the outcome is unknown.
    fn fail_unknown(&mut self, why: &str) {
        self.settle();
        for one in self.replica.inflight.take_from(0).into_iter().flatten() {
            one.fail(NodeError::UnknownOutcome(why.into()));
        }
        self.settle();
    }
}

/// Sends a batch once.
fn attempt(batch: &mut OpenBatch, replication: &Arc<dyn Replication>, answers: &FuturesUnordered<Attempt>) {
    batch.attempts += 1;
    batch.unanswered += 1;
    let (sequence, payload, replication) = (batch.sequence, batch.payload.clone(), replication.clone());
    // It is awaited to its end even if the batch is applied before, so that its connection can be used again.
    answers.push(async move { (sequence, replication.propose(payload).await) }.boxed());
}

/// Returns when another leader is known than the one under which a batch was sent: the answer of that one may never
/// come.
async fn leader_changed(leadership: &mut watch::Receiver<Leadership>, sent_under: Leadership) {
    while sent_under.leader.is_none()
        || leadership.borrow().leader.is_none()
        || leadership.borrow().term == sent_under.term
    {
        if leadership.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

pub(crate) fn encode(
    origin: Origin,
    follows: u64,
    rules: Rules,
    pending: &[Pending],
    trace: Option<BatchTrace>,
) -> Bytes {
    let (commands, trace) = (pending.iter().map(|one| &one.command).collect(), trace.as_ref());
    // The leader stamps the entry; the stamp replaces this field when the entry is applied.
    Bytes::from(BatchRef { origin, follows, clock_ms: 0, rules, commands, trace }.encode())
}

fn fail_all(pending: Vec<Pending>, error: &ProposeError) {
    for one in pending {
        one.fail(match error {
            ProposeError::ShuttingDown => NodeError::ShuttingDown,
            ProposeError::TooLarge { .. } | ProposeError::Unreadable(_) => {
                Refusal::BadArguments(error.to_string().into()).into()
            }
            ProposeError::Fatal(why) => NodeError::Fatal(why.clone()),
            ProposeError::NoLeader => NodeError::no_leader(),
            ProposeError::Unknown(why) => NodeError::UnknownOutcome(why.clone()),
        });
    }
}

//! Appends to one peer, a few of them in flight, answered in the order in which they were sent.
//!
//! openraft 0.10.0-alpha.37 credits an answer with the sending time of the *last* append whose entries it covers
//! (`InflightAppendQueue::drain_acked`). That may be a later append without entries, a commit notice, which the peer
//! has not answered. The time confirms this node's leadership for reads, so an old answer would confirm a leader that
//! was deposed since. Two rules keep reads safe:
//!
//! - An answer is held back while a later append that it would credit is unanswered. If that one fails, so do both.
//! - The next append is taken from openraft only in a poll for answers, so that none is taken between an answer and its
//!   crediting.
//!
//! A commit notice that can wait ([`super::commit_notices`]) is not taken either: what is taken is sent at once.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use futures::future::BoxFuture;
use lockkeeper_mutants::mutant;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::errors::{RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult};

use crate::calls::commit_notices::FollowerNotices;
use crate::raft::types::{Entry, LogId, TypeConfig};

/// Most appends to one peer in flight. More of them make batches smaller, and a follower's disk takes them in turn.
const MAX_IN_FLIGHT: usize = 4;
/// Beyond this many bytes in flight no append is sent: a follower that catches up over a slow link gets one at a time.
const MAX_BYTES_IN_FLIGHT: usize = 256 * 1024;

/// The peer did not have the entry before, though this node sent it first. That entry may have come since, so a
/// conflict would be taken for the loss of an acknowledged entry.
const OVERTOOK: &str = "an append came before the one that it follows";

pub(crate) type AppendOutcome = Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>>;
pub(crate) type AppendItem = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// See the module's text. The items are the answers. The first failure that is told is the last item; it may be that of
/// a later append.
pub(crate) struct AppendPipeline<S, F> {
    send: F,
    /// The appends to send, until there are no more.
    input: Option<S>,
    in_flight: VecDeque<PipelinedAppend>,
    notices: FollowerNotices,
    /// The last index of the appends that were sent; `None` before the first.
    sent: Option<u64>,
}

struct PipelinedAppend {
    /// The entry before its entries, and the last of them.
    prev: Option<LogId>,
    last: Option<LogId>,
    /// The append with the entry `prev` was sent in this stream.
    follows_another: bool,
    bytes: usize,
    call: BoxFuture<'static, AppendOutcome>,
    outcome: Option<AppendItem>,
}

impl PipelinedAppend {
    fn poll(&mut self, context: &mut Context<'_>) {
        if self.outcome.is_none()
            && let Poll::Ready(outcome) = self.call.as_mut().poll(context)
        {
            self.outcome = Some(match outcome.map(|answer| answer.into_stream_result(self.prev, self.last)) {
                Ok(Err(StreamAppendError::Conflict(_))) if self.follows_another => {
                    Err(RPCError::Unreachable(Unreachable::from_string(OVERTOOK)))
                }
                outcome => outcome,
            });
        }
    }

    /// Whether openraft credits an answer that covers the log up to `matching` with the time of this append.
    fn is_credited(&self, matching: Option<LogId>) -> bool {
        matching >= self.last || matching > self.prev
    }
}

/// About how many bytes an entry takes on the way.
fn bytes_of(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(stamped) => stamped.payload.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

fn index_of(id: Option<&LogId>) -> u64 {
    id.map_or(0, LogId::index)
}

impl<S, F> AppendPipeline<S, F>
where
    F: FnMut(AppendEntriesRequest<TypeConfig>) -> BoxFuture<'static, AppendOutcome>,
{
    /// `send` begins an append; the appends of `input` are sent in their order.
    pub(crate) fn new(input: S, notices: FollowerNotices, send: F) -> Self {
        Self { send, input: Some(input), in_flight: VecDeque::new(), notices, sent: None }
    }

    fn send(&mut self, mut request: AppendEntriesRequest<TypeConfig>) {
        let prev = request.prev_log_id;
        let last = request.entries.last().map(RaftEntry::log_id).or(prev);
        let bytes = request.entries.iter().map(bytes_of).sum();
        if mutant!(PromiseUncommitted) {
            request.leader_commit = last;
        }
        self.notices.sent(index_of(request.leader_commit.as_ref()), !request.entries.is_empty());
        let call = (self.send)(request);
        let follows_another = self.sent.replace(index_of(last.as_ref())).is_some();
        self.in_flight.push_back(PipelinedAppend { prev, last, follows_another, bytes, call, outcome: None });
    }

    /// Whether an append is to be taken from openraft. The first of a stream never waits: it may find out what the peer
    /// has. Neither does one behind several in flight: the peer applies what is committed while it waits for entries
    /// and its disk, and the batches of busy clients grow meanwhile.
    fn takes_next(&mut self, context: &mut Context<'_>) -> bool {
        let Some(sent) = self.sent else { return self.input.is_some() };
        let may_wait = self.in_flight.len() <= 1;
        self.input.is_some() && self.has_room() && !(may_wait && self.notices.hold_next(sent, context))
    }

    fn has_room(&self) -> bool {
        let bytes: usize = self.in_flight.iter().map(|append| append.bytes).sum();
        self.in_flight.len() < MAX_IN_FLIGHT && bytes <= MAX_BYTES_IN_FLIGHT
    }

    /// The answer of the first append, once it may be credited; and whether it is the last.
    fn answer(&mut self) -> Poll<(AppendItem, bool)> {
        let Some(first) = self.in_flight.front() else { return Poll::Pending };
        let (matching, is_whole) = match &first.outcome {
            None => return Poll::Pending,
            Some(Ok(Ok(matching))) => (*matching, *matching == first.last),
            Some(_) => return self.take(0, true),
        };
        let is_credited = |later: &&PipelinedAppend| later.is_credited(matching) && !mutant!(CreditAppendEarly);
        let credited = self.in_flight.iter().skip(1).take_while(is_credited).count();
        for index in 1..=credited {
            match &self.in_flight[index].outcome {
                None => return Poll::Pending,
                Some(Ok(Ok(_))) => {}
                Some(_) => return self.take(index, true),
            }
        }
        self.take(0, !is_whole)
    }

    fn take(&mut self, index: usize, is_last: bool) -> Poll<(AppendItem, bool)> {
        match self.in_flight.remove(index).and_then(|append| append.outcome) {
            Some(item) => Poll::Ready((item, is_last)),
            None => Poll::Pending,
        }
    }
}

impl<S, F> Stream for AppendPipeline<S, F>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
    F: FnMut(AppendEntriesRequest<TypeConfig>) -> BoxFuture<'static, AppendOutcome> + Unpin,
{
    type Item = AppendItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<AppendItem>> {
        let this = &mut *self;
        while this.takes_next(context)
            && let Some(input) = &mut this.input
        {
            let committed = this.notices.committed();
            match Pin::new(input).poll_next(context) {
                Poll::Ready(Some(request)) => this.send(request),
                Poll::Ready(None) => this.input = None,
                Poll::Pending => {
                    this.notices.nothing_to_send(committed);
                    break;
                }
            }
        }
        this.in_flight.iter_mut().for_each(|append| append.poll(context));
        match this.answer() {
            Poll::Ready((item, is_last)) => {
                if is_last {
                    this.input = None;
                    this.in_flight.clear();
                }
                Poll::Ready(Some(item))
            }
            Poll::Pending if this.in_flight.is_empty() && this.input.is_none() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::{mpsc, oneshot};
    use futures::{FutureExt, StreamExt};
    use openraft::vote::{RaftLeaderId, RaftVote};

    use super::*;
    use crate::raft::types::{Stamped, Vote};

    fn vote(term: u64) -> Vote {
        Vote::from_leader_id(RaftLeaderId::new(term, 1), true)
    }

    fn id(index: u64) -> LogId {
        LogId::new(vote(1).leader_id().to_committed(), index)
    }

    /// Appends as openraft would send them, answers as a test wants them, and what openraft is told.
    struct Stage {
        input: mpsc::UnboundedSender<AppendEntriesRequest<TypeConfig>>,
        /// Of the appends that were begun, in their order.
        answers: mpsc::UnboundedReceiver<oneshot::Sender<AppendOutcome>>,
        answered: futures::stream::BoxStream<'static, AppendItem>,
    }

    fn stage() -> Stage {
        let (input, requests) = mpsc::unbounded();
        let (begun, answers) = mpsc::unbounded();
        let send = move |_| {
            let (answer, outcome) = oneshot::channel::<AppendOutcome>();
            begun.unbounded_send(answer).unwrap();
            outcome
                .map(|outcome| outcome.unwrap_or(Err(RPCError::Unreachable(Unreachable::from_string("lost")))))
                .boxed()
        };
        let notices = crate::calls::commit_notices::tests::nothing_is_committed();
        Stage { input, answers, answered: AppendPipeline::new(requests, notices, send).boxed() }
    }

    impl Stage {
        /// openraft sends the entries after `prev` up to `last`; with none it is a commit notice.
        fn append(&self, prev: u64, last: u64) {
            let entries = (prev + 1..=last).map(|index| Entry { log_id: id(index), payload: EntryPayload::Blank });
            self.append_all(prev, entries.collect());
        }

        fn append_all(&self, prev: u64, entries: Vec<Entry>) {
            let prev_log_id = Some(id(prev));
            let request = AppendEntriesRequest { vote: vote(1), prev_log_id, entries, leader_commit: None };
            self.input.unbounded_send(request).unwrap();
        }

        /// What openraft is told now, if anything.
        fn answered(&mut self) -> Option<AppendItem> {
            self.answered.next().now_or_never().flatten()
        }

        /// The next append that was begun.
        fn begun(&mut self) -> Option<oneshot::Sender<AppendOutcome>> {
            self.answers.next().now_or_never().flatten()
        }
    }

    fn matching(item: Option<AppendItem>) -> u64 {
        item.unwrap().unwrap().unwrap().unwrap().index()
    }

    #[test]
    fn a_few_appends_are_in_flight_and_answered_in_order() {
        let mut stage = stage();
        (1..=6).for_each(|index| stage.append(index - 1, index));
        assert!(stage.answered().is_none());
        let mut begun: Vec<_> = std::iter::from_fn(|| stage.begun()).collect();
        assert_eq!(begun.len(), MAX_IN_FLIGHT);
        let first = begun.remove(0);
        for answer in begun {
            answer.send(Ok(AppendEntriesResponse::Success)).unwrap();
        }
        assert!(stage.answered().is_none(), "the first is not answered");
        first.send(Ok(AppendEntriesResponse::Success)).unwrap();
        assert_eq!((1..=4).map(|_| matching(stage.answered())).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(stage.answered().is_none());
        assert_eq!(std::iter::from_fn(|| stage.begun()).count(), 2, "the others follow");
    }

    #[test]
    fn large_appends_go_one_at_a_time() {
        let mut stage = stage();
        let entry = |index| {
            let payload = vec![0; MAX_BYTES_IN_FLIGHT + 1].into();
            Entry { log_id: id(index), payload: EntryPayload::Normal(Stamped { clock_ms: 1, payload }) }
        };
        for index in 1..=2 {
            stage.append_all(index - 1, vec![entry(index)]);
        }
        assert!(stage.answered().is_none());
        let first = stage.begun().unwrap();
        assert!(stage.begun().is_none());
        first.send(Ok(AppendEntriesResponse::Success)).unwrap();
        assert_eq!(matching(stage.answered()), 1);
        assert!(stage.answered().is_none() && stage.begun().is_some());
    }

    /// The commit notice went out long after the entries: were the old answer credited with its time, it would confirm
    /// a leader that has been deposed since.
    #[test]
    fn an_answer_is_held_back_while_a_later_append_that_it_would_credit_is_unanswered() {
        for (later, expected) in [
            (Ok(AppendEntriesResponse::Success), Ok(())),
            (Ok(AppendEntriesResponse::HigherVote(vote(2))), Err(Some(vote(2)))),
            (Err(RPCError::Unreachable(Unreachable::from_string("cut off"))), Err(None)),
        ] {
            let mut stage = stage();
            stage.append(0, 5);
            stage.append(5, 5);
            assert!(stage.answered().is_none());
            let (entries, notice) = (stage.begun().unwrap(), stage.begun().unwrap());
            entries.send(Ok(AppendEntriesResponse::Success)).unwrap();
            assert!(stage.answered().is_none(), "the notice is not answered");
            stage.append(5, 6);
            assert!(stage.answered().is_none(), "with more in flight neither");
            notice.send(later).unwrap();
            let answered = stage.answered().map(|item| match item {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(StreamAppendError::HigherVote(vote))) => Err(Some(vote)),
                _ => Err(None),
            });
            assert_eq!(answered, Some(expected));
        }
    }

    #[cfg(mutants)]
    #[test]
    #[should_panic(expected = "the notice is not answered")]
    fn its_mutant_is_noticed() {
        lockkeeper_mutants::activate(Some(lockkeeper_mutants::Mutant::CreditAppendEarly));
        an_answer_is_held_back_while_a_later_append_that_it_would_credit_is_unanswered();
    }

    #[test]
    fn entries_after_those_that_were_answered_are_not_waited_for() {
        let mut stage = stage();
        stage.append(0, 5);
        stage.append(5, 6);
        assert!(stage.answered().is_none());
        stage.begun().unwrap().send(Ok(AppendEntriesResponse::Success)).unwrap();
        assert_eq!(matching(stage.answered()), 5);
        assert!(stage.answered().is_none());
    }

    #[test]
    fn an_append_taken_later_is_held_for_as_well() {
        let mut stage = stage();
        stage.append(0, 5);
        assert!(stage.answered().is_none());
        stage.begun().unwrap().send(Ok(AppendEntriesResponse::Success)).unwrap();
        stage.append(5, 5);
        assert!(stage.answered().is_none(), "the notice was taken in the poll that would have told the answer");
        stage.begun().unwrap().send(Ok(AppendEntriesResponse::Success)).unwrap();
        assert_eq!((matching(stage.answered()), matching(stage.answered())), (5, 5));
    }

    /// openraft takes a conflict at an acknowledged entry for lost data, and panics.
    #[test]
    fn an_append_that_overtook_the_one_before_it_is_no_conflict() {
        let mut stage = stage();
        stage.append(0, 5);
        stage.append(5, 6);
        assert!(stage.answered().is_none());
        let (first, second) = (stage.begun().unwrap(), stage.begun().unwrap());
        second.send(Ok(AppendEntriesResponse::Conflict)).unwrap();
        first.send(Ok(AppendEntriesResponse::Success)).unwrap();
        assert_eq!(matching(stage.answered()), 5);
        assert!(matches!(stage.answered(), Some(Err(RPCError::Unreachable(_)))));
        assert!(stage.answered.next().now_or_never().is_some_and(|end| end.is_none()), "the stream ends");
    }

    #[test]
    fn a_conflict_of_the_first_append_is_told() {
        let mut stage = stage();
        stage.append(4, 5);
        assert!(stage.answered().is_none());
        stage.begun().unwrap().send(Ok(AppendEntriesResponse::Conflict)).unwrap();
        assert!(matches!(stage.answered(), Some(Ok(Err(StreamAppendError::Conflict(at)))) if at == id(4)));
        assert!(stage.answered.next().now_or_never().is_some_and(|end| end.is_none()), "the stream ends");
    }
}

//! A stand-in for openraft's stream of appends: as there, an append is made when it is asked for.

use std::task::{Poll, Waker};

use futures::channel::{mpsc, oneshot};
use futures::stream::{BoxStream, poll_fn};
use futures::{Stream, StreamExt};
use openraft::EntryPayload;
use openraft::errors::{RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::vote::{RaftLeaderId, RaftVote};

use super::*;
use crate::calls::append_pipeline::{AppendItem, AppendOutcome, AppendPipeline};
use crate::raft::types::{Entry, LogId, TypeConfig, Vote};

const FOLLOWER: u64 = 2;

/// Notices of a node that commits nothing: none is held back.
pub(crate) fn nothing_is_committed() -> FollowerNotices {
    let (_, appended) = watch::channel(0);
    let pause = Arc::new(|| futures::future::pending().boxed());
    CommitNotices { committed: Arc::default(), appended, waits: CommitWaits::default(), pause }.to(FOLLOWER)
}

fn vote() -> Vote {
    Vote::from_leader_id(RaftLeaderId::new(1, 1), true)
}

fn id(index: u64) -> LogId {
    LogId::new(vote().leader_id().to_committed(), index)
}

/// What openraft knows, and what it has put into appends.
#[derive(Default)]
struct Leader {
    last: u64,
    committed: u64,
    sent: u64,
    said: u64,
    waker: Option<Waker>,
}

impl Leader {
    fn next(&mut self) -> Option<AppendEntriesRequest<TypeConfig>> {
        if self.last == self.sent && self.committed == self.said {
            return None;
        }
        let (prev, commit) = (self.sent, self.committed);
        (self.sent, self.said) = (self.last, commit);
        let entries = (prev + 1..=self.last).map(|index| Entry { log_id: id(index), payload: EntryPayload::Blank });
        let (prev_log_id, leader_commit) = (Some(id(prev)), Some(id(commit)));
        Some(AppendEntriesRequest { vote: vote(), prev_log_id, entries: entries.collect(), leader_commit })
    }
}

/// An append on its way.
struct Sent {
    prev: u64,
    last: u64,
    commit: u64,
    answer: oneshot::Sender<AppendOutcome>,
}

impl Sent {
    fn said(&self) -> (u64, u64, u64) {
        (self.prev, self.last, self.commit)
    }

    fn succeed(self) {
        self.answer.send(Ok(AppendEntriesResponse::Success)).unwrap();
    }
}

struct Stage {
    leader: Arc<Mutex<Leader>>,
    committed: Arc<AtomicU64>,
    appended: watch::Sender<u64>,
    waits: CommitWaits,
    /// The pauses that were begun; sending ends one.
    pauses: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    sent: mpsc::UnboundedReceiver<Sent>,
    /// Taken by [`Stage::said_next`].
    unanswered: Vec<Sent>,
    answered: BoxStream<'static, AppendItem>,
}

fn requests(leader: Arc<Mutex<Leader>>) -> impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin {
    poll_fn(move |context| {
        let mut leader = leader.lock();
        match leader.next() {
            Some(request) => Poll::Ready(Some(request)),
            None => {
                leader.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
}

/// The follower observes nothing, and has the entry 1, which is committed.
fn stage() -> Stage {
    let (leader, committed, waits) = <(Arc<Mutex<Leader>>, Arc<AtomicU64>, CommitWaits)>::default();
    let (appended, of_log) = watch::channel(0);
    let (begin, pauses) = mpsc::unbounded();
    let pause = move || {
        let (end, ended) = oneshot::channel();
        begin.unbounded_send(end).unwrap();
        ended.map(drop).boxed()
    };
    waits.set_observes(FOLLOWER, false);
    let notices =
        CommitNotices { committed: committed.clone(), appended: of_log, waits: waits.clone(), pause: Arc::new(pause) };
    let (on_its_way, sent) = mpsc::unbounded();
    let send = move |request: AppendEntriesRequest<TypeConfig>| {
        let (answer, outcome) = oneshot::channel::<AppendOutcome>();
        let prev = request.prev_log_id.unwrap().index();
        let last = request.entries.last().map_or(prev, |entry| entry.log_id.index());
        let commit = request.leader_commit.unwrap().index();
        on_its_way.unbounded_send(Sent { prev, last, commit, answer }).unwrap();
        outcome.map(|outcome| outcome.unwrap_or(Err(RPCError::Unreachable(Unreachable::from_string("lost"))))).boxed()
    };
    let pipeline = AppendPipeline::new(requests(leader.clone()), notices.to(FOLLOWER), send);
    let mut stage =
        Stage { leader, committed, appended, waits, pauses, sent, unanswered: Vec::new(), answered: pipeline.boxed() };
    stage.append(1);
    stage.commit(1);
    stage.next().unwrap().succeed();
    assert_eq!(stage.answered(), [1]);
    stage
}

impl Stage {
    fn append(&self, last: u64) {
        self.change(|leader| leader.last = last);
        self.appended.send_replace(last);
    }

    fn commit(&self, index: u64) {
        self.committed.store(index, Ordering::Release);
        self.change(|leader| leader.committed = index);
    }

    fn change(&self, change: impl FnOnce(&mut Leader)) {
        let mut leader = self.leader.lock();
        change(&mut leader);
        if let Some(waker) = leader.waker.take() {
            waker.wake();
        }
    }

    /// The answers that openraft gets now, by how much of the log they cover.
    fn answered(&mut self) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(item) = self.answered.next().now_or_never().flatten() {
            all.push(item.unwrap().unwrap().unwrap().index());
        }
        all
    }

    /// The next append that is sent now.
    fn next(&mut self) -> Option<Sent> {
        assert_eq!(self.answered(), [0; 0]);
        self.sent.next().now_or_never().flatten()
    }

    /// What the next append says that is sent now: where its entries begin and end, and what is committed.
    fn said_next(&mut self) -> Option<(u64, u64, u64)> {
        let sent = self.next()?;
        let said = sent.said();
        self.unanswered.push(sent);
        Some(said)
    }

    /// Ends the pause that was begun last.
    fn end_pause(&mut self) {
        let begun = std::iter::from_fn(|| self.pauses.next().now_or_never().flatten()).last();
        begun.unwrap().send(()).unwrap();
    }
}

#[test]
fn a_commit_rides_on_the_next_entries() {
    let mut stage = stage();
    stage.append(2);
    let entry = stage.next().unwrap();
    stage.commit(2);
    assert!(stage.next().is_none(), "nobody waits for it");
    entry.succeed();
    assert_eq!(stage.answered(), [2], "the answer is not held back for what was not sent");
    stage.append(3);
    assert_eq!(stage.said_next(), Some((2, 3, 2)));
    assert!(stage.next().is_none());
}

#[test]
fn with_no_entries_it_goes_when_the_time_is_over_and_once() {
    let mut stage = stage();
    stage.append(2);
    let entry = stage.next().unwrap();
    stage.commit(2);
    assert!(stage.next().is_none());
    stage.end_pause();
    let notice = stage.next().unwrap();
    assert_eq!(notice.said(), (2, 2, 2));
    assert!(stage.next().is_none());
    entry.succeed();
    assert!(stage.answered().is_empty(), "it would confirm the notice, which is unanswered");
    notice.succeed();
    assert_eq!(stage.answered(), [2, 2]);
}

/// The time counts from the first commit that is held back.
#[test]
fn a_later_commit_does_not_prolong_it() {
    let mut stage = stage();
    stage.append(3);
    assert_eq!(stage.said_next(), Some((1, 3, 1)));
    for index in 2..=3 {
        stage.commit(index);
        assert!(stage.next().is_none());
    }
    stage.end_pause();
    assert_eq!(stage.said_next(), Some((3, 3, 3)));
}

type Wait = fn(&CommitWaits) -> Option<ProposalGuard>;

const WAITS: [Wait; 3] = [
    |waits| Some(waits.begin_proposal(FOLLOWER)),
    |waits| {
        waits.await_index(FOLLOWER, 2);
        None
    },
    |waits| {
        waits.set_observes(FOLLOWER, true);
        None
    },
];

#[test]
fn it_goes_at_once_to_a_follower_with_somebody_who_waits() {
    for (number, wait) in WAITS.iter().enumerate() {
        let mut stage = stage();
        let _waiting = wait(&stage.waits);
        stage.append(2);
        assert_eq!(stage.said_next(), Some((1, 2, 1)), "{number}");
        stage.commit(2);
        assert_eq!(stage.said_next(), Some((2, 2, 2)), "{number}");
    }
    let mut stage = stage();
    drop(stage.waits.begin_proposal(FOLLOWER));
    stage.waits.await_index(FOLLOWER, 1);
    let _of_another = stage.waits.begin_proposal(FOLLOWER + 1);
    stage.append(2);
    assert_eq!(stage.said_next(), Some((1, 2, 1)));
    stage.commit(2);
    assert!(stage.next().is_none(), "nobody waits any more, or for this");
}

/// The stream's task is woken: by who begins to wait, and by new entries.
#[tokio::test]
async fn what_is_held_back_is_released_by_a_wait_or_by_entries() {
    for released_by in WAITS.map(Some).into_iter().chain([None]) {
        let mut stage = stage();
        stage.append(2);
        assert_eq!(stage.said_next(), Some((1, 2, 1)));
        stage.commit(2);
        // It runs by itself from here on.
        let mut answered = std::mem::replace(&mut stage.answered, futures::stream::pending().boxed());
        let running = tokio::spawn(async move { while answered.next().await.is_some() {} });
        // It has begun to wait for the end of the pause, and that does not come.
        let _pause = stage.pauses.next().await.unwrap();
        let _waiting = released_by.and_then(|wait| wait(&stage.waits));
        if released_by.is_none() {
            stage.append(3);
        }
        let last = if released_by.is_some() { 2 } else { 3 };
        assert_eq!(stage.sent.next().await.unwrap().said(), (2, last, 2));
        running.abort();
    }
}

/// With as many appends on the way as may, the next entries take the commit along, and no pause is begun.
#[test]
fn a_full_pipeline_holds_nothing_back() {
    let mut stage = stage();
    let mut on_the_way = Vec::new();
    for index in 2..=5 {
        stage.append(index);
        on_the_way.push(stage.next().unwrap());
    }
    stage.append(6);
    stage.commit(2);
    assert!(stage.next().is_none(), "there is no room");
    on_the_way.remove(0).succeed();
    assert_eq!(stage.answered(), [2]);
    assert_eq!(stage.said_next(), Some((5, 6, 2)));
    assert!(stage.pauses.next().now_or_never().flatten().is_none());
}

#[test]
fn behind_several_appends_it_is_not_held_back() {
    let mut stage = stage();
    for index in 2..=3 {
        stage.append(index);
        assert_eq!(stage.said_next(), Some((index - 1, index, 1)));
    }
    stage.commit(2);
    assert_eq!(stage.said_next(), Some((3, 3, 2)));
}

/// The follower has not said that nobody waits there.
#[test]
fn a_follower_that_says_nothing_is_told_at_once() {
    let waits = CommitWaits::default();
    assert!(waits.of(FOLLOWER).borrow().are_for_more_than(u64::MAX));
}

/// Entries that are not committed are replaced if this leader fails; a follower that has applied them stops.
#[test]
fn no_append_promises_an_entry_that_is_not_committed() {
    let mut stage = stage();
    stage.append(2);
    assert_eq!(stage.said_next(), Some((1, 2, 1)), "only 1 is committed");
    let _waiting = stage.waits.begin_proposal(FOLLOWER);
    stage.append(4);
    assert_eq!(stage.said_next(), Some((2, 4, 1)), "only 1 is committed");
    stage.commit(3);
    assert_eq!(stage.said_next(), Some((4, 4, 3)), "4 is not committed");
}

#[cfg(mutants)]
#[test]
#[should_panic(expected = "only 1 is committed")]
fn promise_uncommitted_is_noticed() {
    lockkeeper_mutants::activate(Some(lockkeeper_mutants::Mutant::PromiseUncommitted));
    no_append_promises_an_entry_that_is_not_committed();
}

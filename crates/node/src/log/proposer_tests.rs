//! The proposer against an order made by hand: fates that are open, leaders that are not there, queues that are full.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{
    BarrierError, Committed, Config, Leadership, LogPosition, Members, ProposeError, StateMachine, TransportError,
};
use lockkeeper_core::{AclEntry, Batch, BatchTrace, NodeId, NodeKind, NodePath, Origin, Reply, Rules, State, Term};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::*;
use crate::error::Bound;
use crate::log::batch_sender::encode;
use crate::time::clock::SystemClock;
use crate::traces::Traces;
use crate::traces::tests::{Recorder, trace};

/// The outcome of one attempt.
enum Script {
    /// It is in the log and is applied.
    Commits,
    /// It is in the log, but no answer comes.
    Vanishes,
    /// It is not in the log.
    Refused(ProposeError),
    /// No answer comes.
    Hangs,
    /// It is in the log after the next one.
    Overtaken,
}

struct Order {
    script: Mutex<VecDeque<Script>>,
    /// The outcomes after the script.
    after: fn() -> Script,
    attempts: Mutex<Vec<Batch>>,
    log: Mutex<Vec<Bytes>>,
    replica: Arc<Replica>,
    leadership: watch::Sender<Leadership>,
}

impl Order {
    fn apply_from(&self, index: usize) {
        let entries: Vec<Committed> = self.log.lock()[index..].iter().map(|payload| self.entry(payload)).collect();
        self.replica.apply(&entries);
    }

    fn entry(&self, payload: &Bytes) -> Committed {
        Committed { position: LogPosition { term: 1, index: 1 }, clock_ms: 1_000, payload: payload.clone() }
    }
}

#[async_trait]
impl Replication for Order {
    async fn propose(&self, payload: Bytes) -> Result<(), ProposeError> {
        self.attempts.lock().push(Batch::decode(&payload).expect("a batch"));
        let next = self.script.lock().pop_front().unwrap_or_else(self.after);
        match next {
            Script::Commits => {
                self.log.lock().push(payload.clone());
                self.replica.apply(&[self.entry(&payload)]);
                Ok(())
            }
            Script::Vanishes => {
                self.log.lock().push(payload);
                Err(ProposeError::Unknown("the connection broke".into()))
            }
            Script::Refused(error) => Err(error),
            Script::Overtaken => {
                while self.log.lock().is_empty() {
                    tokio::task::yield_now().await;
                }
                self.log.lock().push(payload.clone());
                self.replica.apply(&[self.entry(&payload)]);
                Ok(())
            }
            Script::Hangs => std::future::pending().await,
        }
    }

    async fn read_barrier(&self) -> Result<(), BarrierError> {
        Ok(())
    }

    async fn confirm_leadership(&self) -> Result<u64, BarrierError> {
        Err(BarrierError::NoLeader)
    }

    fn members(&self) -> watch::Receiver<Members> {
        watch::Sender::new(Members::default()).subscribe()
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    fn common_feature_level(&self) -> Option<u32> {
        None
    }

    async fn call_service(&self, _: u64, _: Bytes, _: Duration) -> Result<Bytes, TransportError> {
        Err(TransportError::Refused)
    }
}

fn stage(script: Vec<Script>, after: fn() -> Script, change: fn(&mut NodeConfig)) -> (Arc<Order>, Proposer) {
    traced_stage(script, after, change, Traces::default())
}

fn traced_stage(
    script: Vec<Script>,
    after: fn() -> Script,
    change: fn(&mut NodeConfig),
    traces: Traces,
) -> (Arc<Order>, Proposer) {
    let mut config = NodeConfig::new(Config::new("test", 1, [(1, "here".to_owned())].into()));
    change(&mut config);
    let fatal = Arc::new(|why| panic!("{why}"));
    let replica = Replica::traced(&config, 7, Arc::new(SystemClock::new()), fatal, traces);
    let leadership = watch::Sender::new(Leadership { term: 1, leader: Some(2), leading: false });
    let (script, log) = (Mutex::new(script.into()), Mutex::default());
    let order = Arc::new(Order { script, after, attempts: Mutex::default(), log, replica, leadership });
    let proposer = Proposer::start(&config, 7, order.replica.clone(), order.clone());
    (order, proposer)
}

fn make(sequential: bool) -> Command {
    let path = NodePath::parse("/x").expect("valid");
    let op = NodeOp::Create {
        path,
        data: [].into(),
        kind: NodeKind::Persistent,
        sequential: sequential.into(),
        acl: vec![AclEntry::open()],
    };
    Command::Do { actor: Actor::default(), op: op.into() }
}

fn nodes(order: &Order) -> usize {
    order.replica.state().node_count() - 1
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_batch_whose_fate_is_open_is_sent_again_and_counts_once() {
    let (order, proposer) = stage(vec![Script::Vanishes, Script::Vanishes], || Script::Commits, |_| {});
    let done = proposer.propose(make(true)).await.expect("a pause, not an error");
    assert!(done.fresh() && matches!(done.outcome.reply, Ok(Reply::Created { .. })));
    order.apply_from(0);
    assert_eq!(nodes(&order), 1, "in the log three times");
    let attempts = order.attempts.lock();
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|batch| *batch == attempts[0]), "the very same batch");
    assert_eq!(attempts[0].origin, Origin { node: NodeId(1), incarnation: 7, sequence: 1 });
}

#[tokio::test]
async fn what_was_never_sent_is_reported_as_never_sent() {
    let (order, proposer) =
        stage(vec![], || Script::Refused(ProposeError::NoLeader), |config| config.request_timeout_ms = 50);
    assert_eq!(proposer.propose(make(true)).await.err(), Some(NodeError::no_leader()));
    until(|| proposer.is_idle()).await;
    let attempts = order.attempts.lock().len();
    order.leadership.send_modify(|leadership| leadership.term = 2);
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(order.attempts.lock().len(), attempts, "and it is not sent later either");
}

#[tokio::test]
async fn a_caller_that_gives_up_on_a_sent_batch_learns_that_nobody_knows() {
    let (order, proposer) = stage(
        vec![Script::Refused(ProposeError::NoLeader), Script::Vanishes],
        || Script::Hangs,
        |config| config.request_timeout_ms = 100,
    );
    assert!(matches!(proposer.propose(make(true)).await, Err(NodeError::UnknownOutcome(_))));
    assert!(!proposer.is_idle(), "it goes on");
    // It had succeeded; the next batch has a sequence of its own.
    order.script.lock().push_back(Script::Commits);
    order.apply_from(0);
    let next = proposer.propose(make(true)).await.expect("the way is free");
    assert!(matches!(next.outcome.reply, Ok(Reply::Created { .. })));
    assert_eq!(nodes(&order), 2);
}

#[tokio::test]
async fn another_leader_is_tried_at_once_when_the_first_does_not_answer() {
    let (order, proposer) = stage(vec![Script::Hangs], || Script::Commits, |_| {});
    let mut submission = proposer.submit(make(false)).expect("taken");
    until(|| order.attempts.lock().len() == 1).await;
    order.leadership.send_modify(|leadership| *leadership = Leadership { term: 2, leader: Some(3), leading: false });
    assert!(submission.outcome().await.is_ok());
    assert!(matches!(submission.outcome().await, Err(NodeError::UnknownOutcome(_))), "it is reported once");
}

#[tokio::test]
async fn a_snapshot_past_the_own_batch_brings_the_replies() {
    let (order, proposer) = stage(vec![Script::Vanishes], || Script::Hangs, |_| {});
    let mut submission = proposer.submit(make(true)).expect("taken");
    until(|| order.log.lock().len() == 1).await;
    let mut elsewhere = State::new();
    elsewhere.apply(Term(1), &Batch::decode(&order.log.lock()[0]).expect("a batch"));
    let mut snapshot = Vec::new();
    elsewhere.write_snapshot(&mut snapshot).expect("written");
    let position = LogPosition { term: 1, index: 9 };
    order.replica.clone().restore(position, &mut &snapshot[..]).expect("read")();
    let done = submission.outcome().await.expect("its own reply");
    assert!(matches!(done.outcome.reply, Ok(Reply::Created { .. })));
    assert!(done.fresh(), "it was this very command that made the node");
}

#[tokio::test]
async fn queues_are_bounded_and_size_is_checked() {
    let (_, proposer) = stage(
        vec![],
        || Script::Hangs,
        |config| {
            config.max_queued_commands = 2;
            config.max_batches_in_flight = 1;
            config.max_command_bytes = 1_000;
        },
    );
    let taken: Vec<_> = std::iter::from_fn(|| proposer.submit(make(true)).ok()).take(100).collect();
    assert!(taken.len() <= 3, "{}", taken.len());
    assert_eq!(proposer.submit(make(true)).err(), Some(NodeError::overloaded(Bound::QueuedChanges)));
    let big = NodeOp::SetData { path: NodePath::root(), data: vec![0; 2_000].into(), version: None };
    let big = proposer.submit(Command::Do { actor: Actor::default(), op: big.into() });
    assert!(matches!(big, Err(NodeError::Refused(Refusal::BadArguments(_)))));
}

#[tokio::test]
async fn what_no_leader_takes_is_given_up_once_its_fate_is_known() {
    let too_large = || Script::Refused(ProposeError::TooLarge { bytes: 9, max_bytes: 5 });
    let broken = || Script::Refused(ProposeError::Unknown("the connection broke".into()));
    // It was never in the log: the empty batch after it proves that.
    let (order, proposer) = stage(vec![broken(), too_large(), broken()], || Script::Commits, |_| {});
    let refused = proposer.propose(make(false)).await;
    assert!(matches!(refused, Err(NodeError::Refused(Refusal::BadArguments(_)))), "{refused:?}");
    let sent: Vec<(u64, usize)> =
        order.attempts.lock().iter().map(|batch| (batch.origin.sequence, batch.commands.len())).collect();
    assert_eq!(sent, [(1, 1), (1, 1), (2, 0), (2, 0)]);
    proposer.propose(make(false)).await.expect("the way is free").outcome.reply.expect("made");
    // It was in the log after all, and its caller gets its outcome.
    let (order, proposer) = stage(vec![Script::Vanishes, too_large(), Script::Vanishes], || Script::Hangs, |_| {});
    let mut submission = proposer.submit(make(false)).expect("taken");
    until(|| order.attempts.lock().len() == 3).await;
    order.apply_from(0);
    assert!(matches!(submission.outcome().await.expect("done").outcome.reply, Ok(Reply::Created { .. })));
}

#[tokio::test]
async fn what_waits_goes_together() {
    let (order, proposer) = stage(vec![Script::Hangs], || Script::Commits, |config| config.max_batches_in_flight = 1);
    let mut first = proposer.submit(make(true)).expect("taken");
    until(|| order.attempts.lock().len() == 1).await;
    let rest: Vec<_> = (0..100).map(|_| proposer.submit(make(true)).expect("taken")).collect();
    order.leadership.send_modify(|leadership| *leadership = Leadership { term: 2, leader: Some(3), leading: false });
    first.outcome().await.expect("done");
    for mut submission in rest {
        submission.outcome().await.expect("done");
    }
    let sizes: Vec<usize> = order.attempts.lock().iter().map(|batch| batch.commands.len()).collect();
    assert_eq!(sizes, [1, 1, 100]);
    assert_eq!(nodes(&order), 101);
}

#[tokio::test]
async fn a_node_that_has_failed_says_so_and_reuses_no_sequence() {
    let (order, proposer) =
        stage(vec![Script::Refused(ProposeError::Fatal("disk".into()))], || Script::Commits, |_| {});
    assert_eq!(proposer.propose(make(true)).await.err(), Some(NodeError::Fatal("disk".into())));
    proposer.propose(make(true)).await.expect("done");
    let sequences: Vec<u64> = order.attempts.lock().iter().map(|batch| batch.origin.sequence).collect();
    assert_eq!(sequences, [1, 2]);
}

fn sequences(order: &Order) -> Vec<(u64, u64)> {
    order.attempts.lock().iter().map(|batch| (batch.origin.sequence, batch.follows)).collect()
}

/// Submits two commands, the second once the first has been sent: a batch for each.
async fn two_in_flight(order: &Order, proposer: &Proposer) -> (Submission, Submission) {
    let first = proposer.submit(make(true)).expect("taken");
    until(|| order.attempts.lock().len() == 1).await;
    let second = proposer.submit(make(true)).expect("taken");
    until(|| order.attempts.lock().len() >= 2).await;
    (first, second)
}

/// The path of the node that a command made.
async fn made(submission: &mut Submission) -> String {
    match submission.outcome().await.expect("done").outcome.reply {
        Ok(Reply::Created { path, .. }) => path.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_batch_does_not_wait_for_the_one_before_it() {
    let (order, proposer) = stage(vec![Script::Hangs, Script::Vanishes], || Script::Commits, |_| {});
    let (mut first, mut second) = two_in_flight(&order, &proposer).await;
    // The second is in the log without the first, so both are sent again.
    assert_eq!((made(&mut first).await, made(&mut second).await), ("/x0000000000".into(), "/x0000000001".into()));
    order.apply_from(0);
    assert_eq!(nodes(&order), 2);
    assert_eq!(sequences(&order), [(1, 0), (2, 1), (1, 0), (2, 1)]);
}

#[tokio::test]
async fn batches_that_overtook_each_other_are_sent_again() {
    let (order, proposer) = stage(vec![Script::Overtaken], || Script::Commits, |_| {});
    let (mut first, mut second) = two_in_flight(&order, &proposer).await;
    assert_eq!((made(&mut first).await, made(&mut second).await), ("/x0000000000".into(), "/x0000000001".into()));
    order.apply_from(0);
    assert_eq!(nodes(&order), 2);
}

#[tokio::test]
async fn what_follows_a_batch_that_was_never_taken_is_sent_anew() {
    let no_leader = || Script::Refused(ProposeError::NoLeader);
    let (order, proposer) = stage(vec![Script::Overtaken, no_leader()], || Script::Commits, |_| {});
    let (mut first, mut second) = two_in_flight(&order, &proposer).await;
    let mut third = proposer.submit(make(true)).expect("taken");
    // The first is applied once there is something in the log.
    order.log.lock().push(encode(
        Origin { node: NodeId(9), incarnation: 1, sequence: 1 },
        0,
        Rules::default(),
        &[],
        None,
    ));
    let made = [made(&mut first).await, made(&mut second).await, made(&mut third).await];
    assert_eq!(made, ["/x0000000000", "/x0000000001", "/x0000000002"]);
    order.apply_from(0);
    assert_eq!(nodes(&order), 3, "{:?}", sequences(&order));
    let sent = order.attempts.lock();
    for batch in sent.iter() {
        let same = sent.iter().find(|other| other.origin == batch.origin);
        assert_eq!(same, Some(batch), "a sequence is never used for other contents");
    }
}

#[cfg(mutants)]
#[test]
#[should_panic(expected = "/x0000000002")]
fn its_mutant_is_noticed() {
    lockkeeper_mutants::activate(Some(lockkeeper_mutants::Mutant::SwapReturnedBatches));
    what_follows_a_batch_that_was_never_taken_is_sent_anew();
}

#[tokio::test]
async fn a_batch_in_whose_place_another_came_is_sent_anew() {
    let (order, proposer) = stage(vec![Script::Hangs], || Script::Commits, |_| {});
    let mut first = proposer.submit(make(true)).expect("taken");
    until(|| order.attempts.lock().len() == 1).await;
    // As if a batch of this node that was given up had been in the log all the same.
    let lost = Origin { node: NodeId(1), incarnation: 7, sequence: 9 };
    order.replica.apply(&[order.entry(&encode(lost, 0, Rules::default(), &[], None))]);
    order.leadership.send_modify(|leadership| *leadership = Leadership { term: 2, leader: Some(3), leading: false });
    assert_eq!(made(&mut first).await, "/x0000000000");
    assert!(sequences(&order).contains(&(10, 9)), "{:?}", sequences(&order));
}

#[tokio::test]
async fn a_snapshot_past_several_batches_brings_the_replies_of_each() {
    let (order, proposer) = stage(vec![], || Script::Hangs, |_| {});
    let (mut first, mut second) = two_in_flight(&order, &proposer).await;
    let mut elsewhere = State::new();
    order.attempts.lock().iter().for_each(|batch| drop(elsewhere.apply(Term(1), batch)));
    let mut snapshot = Vec::new();
    elsewhere.write_snapshot(&mut snapshot).expect("written");
    order.replica.clone().restore(LogPosition { term: 1, index: 9 }, &mut &snapshot[..]).expect("read")();
    assert_eq!((made(&mut first).await, made(&mut second).await), ("/x0000000000".into(), "/x0000000001".into()));
}

#[tokio::test]
async fn batches_in_flight_are_bounded() {
    let (order, proposer) = stage(vec![], || Script::Hangs, |config| config.max_batches_in_flight = 3);
    let mut submissions = Vec::new();
    for sent in 1..=3 {
        submissions.push(proposer.submit(make(true)).expect("taken"));
        until(|| order.attempts.lock().len() == sent).await;
    }
    submissions.push(proposer.submit(make(true)).expect("taken"));
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(order.attempts.lock().len(), 3);
}

#[tokio::test]
async fn a_batch_that_was_not_applied_in_the_log_that_a_snapshot_skips_is_sent_again() {
    let (order, proposer) = stage(vec![Script::Hangs, Script::Hangs], || Script::Commits, |_| {});
    let (mut first, mut second) = two_in_flight(&order, &proposer).await;
    // The second came first, so it was not applied; nobody here sees that.
    let mut elsewhere = State::new();
    order.attempts.lock().iter().rev().for_each(|batch| drop(elsewhere.apply(Term(1), batch)));
    let mut snapshot = Vec::new();
    elsewhere.write_snapshot(&mut snapshot).expect("written");
    order.replica.clone().restore(LogPosition { term: 1, index: 9 }, &mut &snapshot[..]).expect("read")();
    assert_eq!((made(&mut first).await, made(&mut second).await), ("/x0000000000".into(), "/x0000000001".into()));
}

/// Sends two recorded requests, and one that is not, in one batch.
async fn two_recorded_in_one_batch() -> (Recorder, Arc<Order>) {
    let recorder = Recorder::default();
    let traces = Traces::new(Some(Arc::new(recorder.clone())), 0);
    let one = |config: &mut NodeConfig| config.max_batches_in_flight = 1;
    let (order, proposer) = traced_stage(vec![], || Script::Commits, one, traces);
    order.script.lock().push_back(Script::Hangs);
    let sent = order.attempts.lock().len();
    let mut first = proposer.submit(make(true)).expect("taken");
    until(|| order.attempts.lock().len() == sent + 1).await;
    let traced = [Some(trace(1)), None, Some(trace(2))];
    let rest = traced.map(|trace| proposer.submit_traced(make(true), trace).expect("taken"));
    order.leadership.send_modify(|leadership| *leadership = Leadership { term: 2, leader: Some(3), leading: false });
    first.outcome().await.expect("done");
    for mut submission in rest {
        submission.outcome().await.expect("done");
    }
    (recorder, order)
}

#[tokio::test]
async fn each_recorded_request_of_a_batch_has_its_trace() {
    let (recorder, order) = two_recorded_in_one_batch().await;
    let [batch, other] = &recorder.named("lockkeeper.propose")[..] else { panic!("{:?}", recorder.named("")) };
    assert_eq!((batch.parent, &batch.links[..]), (trace(1), &[trace(2)][..]));
    assert_eq!((other.parent, &other.links[..]), (trace(2), &[batch.context][..]));
    for span in [batch, other] {
        assert_eq!((span.outcome.clone(), span.ended), (Some("done".into()), true));
    }
    let carried = BatchTrace { span: batch.context, requests: vec![(0, trace(1)), (2, trace(2))] };
    let attempts = order.attempts.lock();
    assert_eq!(attempts.last().map(|batch| (batch.commands.len(), batch.trace.clone())), Some((3, Some(carried))));
}

#[tokio::test]
async fn a_proposal_ends_with_its_outcome() {
    let recorder = Recorder::default();
    let traces = Traces::new(Some(Arc::new(recorder.clone())), 0);
    let script = vec![Script::Refused(ProposeError::NoLeader), Script::Refused(ProposeError::Fatal("disk".into()))];
    let (_order, proposer) = traced_stage(script, || Script::Commits, |_| {}, traces);
    assert!(proposer.propose_traced(make(true), Some(trace(1))).await.is_err());
    let outcomes: Vec<_> = recorder.named("lockkeeper.propose").into_iter().map(|span| span.outcome).collect();
    assert_eq!(outcomes, [Some("given_up".into()), Some("given_up".into())]);
    let script = vec![Script::Vanishes, Script::Refused(ProposeError::ShuttingDown)];
    let (_order, proposer) =
        traced_stage(script, || Script::Hangs, |_| {}, Traces::new(Some(Arc::new(recorder.clone())), 0));
    let unknown = proposer.propose_traced(make(true), Some(trace(2))).await;
    assert!(matches!(unknown, Err(NodeError::UnknownOutcome(_))), "{unknown:?}");
    assert_eq!(
        recorder.named("lockkeeper.propose").last().and_then(|span| span.outcome.clone()),
        Some("unknown".into())
    );
}

#[tokio::test]
async fn small_commands_do_not_wait_behind_large_ones_that_wait() {
    let (order, proposer) = stage(vec![], || Script::Hangs, |_| {});
    let large = |name: &str| {
        let (path, data) = (NodePath::parse(name).expect("valid"), vec![0; 1_000_000].into());
        Command::Do {
            actor: Actor::of(lockkeeper_core::SessionId(name.len() as u64)),
            op: NodeOp::SetData { path, data, version: None }.into(),
        }
    };
    let _large: Vec<_> =
        ["/a", "/ab", "/abc"].map(large).into_iter().map(|command| proposer.submit(command).expect("taken")).collect();
    until(|| order.attempts.lock().len() == 1).await;
    let _small = [(); 2].map(|()| proposer.submit(make(true)).expect("taken"));
    until(|| order.attempts.lock().iter().map(|batch| batch.commands.len()).sum::<usize>() == 3).await;
    let attempts = order.attempts.lock();
    let is_large = |batch: &Batch| format!("{:?}", batch.commands).contains("SetData");
    assert_eq!(attempts.iter().filter(|batch| is_large(batch)).count(), 1, "one large batch is in flight");
    assert!(is_large(&attempts[0]) && !is_large(attempts.last().expect("there")));
}

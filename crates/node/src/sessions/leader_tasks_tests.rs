//! Promise P5 at the leader: who may acknowledge what, and when. Quorum and clock are made by hand.

use lockkeeper_consensus::{Committed, Config, LogPosition, Members, StateMachine, TransportError};
use lockkeeper_core::limits::MAX_EXPIRED_EPHEMERALS;
use lockkeeper_core::{Actor, Batch, NodeId, Origin, Term, Zxid};
use parking_lot::Mutex;

use super::*;
use crate::observers::records::tracker::SessionTracker;
use crate::replication_double::ReplicationDouble;
use crate::sessions::expiry::one_entry;
use crate::sessions::messages::{TableAnswer, TableCall};
use crate::time::clock::ManualClock;

/// The answer of a quorum, and what happens before it comes.
struct Quorum {
    answer: Mutex<Result<u64, BarrierError>>,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Quorum {
    fn answer(&self) -> Result<u64, BarrierError> {
        if let Some(meanwhile) = self.meanwhile.lock().take() {
            meanwhile();
        }
        self.answer.lock().clone()
    }
}

struct Fixture {
    clock: Arc<ManualClock>,
    replica: Arc<Replica>,
    quorum: Arc<Quorum>,
    replication: Arc<ReplicationDouble>,
    tasks: Arc<LeaderTasks>,
}

fn with_tracker<T>(replica: &Replica, work: impl FnOnce(&mut SessionTracker, u64) -> T) -> T {
    let now_ms = replica.now_ms();
    replica.sessions.with(|records| work(&mut records.leader.as_mut().expect("leading").tracker, now_ms))
}

const MINE: SessionId = SessionId(1);
/// A session of one second is named after this silence: its timeout, and the longest way of a sign of life.
const SILENT: u64 = 1_251;

/// A leader of term 3 that has not yet acted, and one session of one second.
fn stage() -> Fixture {
    let config = NodeConfig::new(Config::new("test", 1, [(1, "here".to_owned())].into()));
    let clock = Arc::new(ManualClock::default());
    let replica = Replica::new(&config, 1, clock.clone(), Arc::new(|why| panic!("{why}")));
    let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 1_000, label: "test".into() };
    let origin = Origin { node: NodeId(2), incarnation: 1, sequence: 1 };
    let payload = Batch::consecutive(origin, 0, vec![open]).encode().into();
    replica.apply(&[Committed { position: LogPosition { term: 2, index: 1 }, clock_ms: 1, payload }]);
    let leadership = Leadership { term: 3, leader: Some(1), leading: true };
    let members = Members { voters: [(1, "here".into())].into(), ..Members::default() };
    let quorum = Arc::new(Quorum { answer: Mutex::new(Ok(3)), meanwhile: Mutex::default() });
    let (confirming, serve) = (quorum.clone(), |_, _| Err(TransportError::Refused));
    let replication = Arc::new(ReplicationDouble::new(leadership, members, move |_| confirming.answer(), serve));
    let tasks = LeaderTasks::new(&config, 1, replica.clone(), replication.clone());
    Fixture { clock, replica, quorum, replication, tasks }
}

impl Fixture {
    async fn keepalive(&self) -> Option<Verdict> {
        self.mention(0).await
    }

    /// Reports a sign of life of this age.
    async fn mention(&self, age_ms: u32) -> Option<Verdict> {
        let answer = self.tasks.acknowledge(&KeepaliveGroup { ages: vec![(MINE, age_ms)] }).await.ok()?;
        Some(answer.verdicts[0])
    }

    fn pass(&self, ms: u64) {
        self.clock.advance(ms);
    }

    fn silent(&self) -> Vec<SessionId> {
        with_tracker(&self.replica, |tracker, now_ms| tracker.take_silent(now_ms, 10))
    }
}

#[tokio::test]
async fn nothing_is_acknowledged_before_a_quorum_has_confirmed_the_term() {
    let stage = stage();
    assert_eq!(stage.keepalive().await, None, "no record yet");
    *stage.quorum.answer.lock() = Err(BarrierError::NoQuorum);
    assert_eq!(stage.tasks.start_term().await, None);
    *stage.quorum.answer.lock() = Ok(4);
    assert_eq!(stage.tasks.start_term().await, None, "that is another term");
    *stage.quorum.answer.lock() = Ok(3);
    assert_eq!(stage.tasks.start_term().await, Some(3));
    assert_eq!(stage.keepalive().await, Some(Verdict::Alive(1_000)));
}

#[tokio::test]
async fn a_deposed_leader_acknowledges_nothing() {
    let stage = stage();
    stage.tasks.start_term().await.expect("leads");
    for word in [Err(BarrierError::NoLeader), Err(BarrierError::NoQuorum), Ok(5)] {
        *stage.quorum.answer.lock() = word;
        assert_eq!(stage.keepalive().await, None);
    }
}

#[tokio::test]
async fn an_acknowledgement_counts_from_when_it_was_heard_and_never_crosses_an_expiry() {
    let stage = stage();
    stage.tasks.start_term().await.expect("leads");
    stage.pass(900);
    // The quorum takes its time: the session lives a full timeout from the arrival, not from the answer.
    let clock = stage.clock.clone();
    *stage.quorum.meanwhile.lock() = Some(Box::new(move || clock.advance(1_000)));
    assert_eq!(stage.keepalive().await, Some(Verdict::Alive(1_000)));
    assert!(stage.silent().is_empty());
    // Here it takes longer than the timeout, and the session is named before the answer.
    let (clock, replica) = (stage.clock.clone(), stage.replica.clone());
    *stage.quorum.meanwhile.lock() = Some(Box::new(move || {
        clock.advance(SILENT);
        let named = with_tracker(&replica, |tracker, now_ms| tracker.take_silent(now_ms, 10));
        assert_eq!(named, [MINE]);
    }));
    assert_eq!(stage.keepalive().await, Some(Verdict::Expiring));
    assert_eq!(stage.keepalive().await, Some(Verdict::Expiring), "once named, nobody promises it anything");
}

/// Another node served a read and reports it half a timeout later: the session dies by the time of the read.
#[tokio::test]
async fn a_sign_of_life_counts_from_when_a_node_heard_it() {
    let stage = stage();
    stage.tasks.start_term().await.expect("leads");
    stage.pass(900);
    assert_eq!(stage.mention(500).await, Some(Verdict::Alive(1_000)));
    stage.pass(SILENT - 501);
    assert!(stage.silent().is_empty());
    stage.pass(1);
    assert_eq!(stage.silent(), [MINE]);
}

#[tokio::test]
async fn a_record_is_kept_for_its_term_and_started_anew_for_the_next() {
    let stage = stage();
    stage.tasks.start_term().await.expect("leads");
    stage.pass(SILENT);
    assert_eq!(stage.silent(), [MINE]);
    // It does not know for a moment that it leads, in the same term: a named session stays named.
    stage.replication.leadership.send_modify(|leadership| leadership.leading = false);
    assert_eq!(stage.tasks.start_term().await, None);
    stage.replication.leadership.send_modify(|leadership| leadership.leading = true);
    assert_eq!(stage.tasks.start_term().await, Some(3));
    assert_eq!(stage.keepalive().await, Some(Verdict::Expiring));
    // In a new term that proposal has no effect, and the timer begins at the latest sign of life.
    *stage.quorum.answer.lock() = Ok(4);
    stage.replication.leadership.send_modify(|leadership| leadership.term = 4);
    assert_eq!(stage.tasks.start_term().await, Some(4));
    assert_eq!(stage.keepalive().await, Some(Verdict::Alive(1_000)));
    stage.pass(1_000);
    assert!(stage.silent().is_empty());
}

impl Fixture {
    /// Applies a command of node 2.
    fn apply(&self, sequence: u64, command: Command) {
        let origin = Origin { node: NodeId(2), incarnation: 1, sequence };
        let payload = Batch::consecutive(origin, 0, vec![command]).encode().into();
        self.replica.apply(&[Committed { position: LogPosition { term: 3, index: sequence }, clock_ms: 1, payload }]);
    }

    /// Applies the session's request for a lock that is free.
    fn apply_acquire(&self, sequence: u64) {
        let op = lockkeeper_core::LockOp::Acquire {
            locks: vec![lockkeeper_core::LockName::parse("l").expect("valid")],
            mode: lockkeeper_core::LockMode::Exclusive,
            delay_ms: 0,
            uuid: lockkeeper_core::RequestId(1),
            label: "".into(),
        };
        self.apply(sequence, Command::Do { actor: Actor::of(MINE), op: op.into() });
    }

    fn spared(&self, named: &[SessionId]) -> usize {
        with_tracker(&self.replica, |tracker, now_ms| tracker.spared(named, now_ms))
    }
}

/// It followed for an hour, and has looked at no clock meanwhile.
#[tokio::test]
async fn a_new_leader_puts_no_expiry_off_for_the_time_for_which_it_followed() {
    let stage = stage();
    stage.replication.leadership.send_modify(|leadership| leadership.leading = false);
    let config = NodeConfig::new(Config::new("test", 1, [(1, "here".to_owned())].into()));
    let proposer = Proposer::start(&config, 1, stage.replica.clone(), stage.replication.clone());
    let tasks = stage.tasks.clone();
    let running = tokio::spawn(async move { tasks.run_expiry(Duration::from_millis(100), &proposer).await });
    tokio::task::yield_now().await;
    stage.pass(3_600_000);
    stage.replication.leadership.send_modify(|leadership| leadership.leading = true);
    while stage.replica.sessions.with(|records| records.leader.is_none()) {
        tokio::task::yield_now().await;
    }
    // Tick by tick, as none of them is to be late.
    for _ in 0..=SILENT / 100 {
        stage.pass(100);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    let is_named = || with_tracker(&stage.replica, |tracker, _| tracker.liveness(MINE) == Liveness::Expiring);
    assert!(is_named(), "silent for an hour, and proposed for expiry");
    running.abort();
}

/// A session that was found silent asks for a lock before its expiry is decided, and is told that it holds.
#[tokio::test]
async fn a_grant_that_comes_before_the_expiry_keeps_the_session() {
    let stage = stage();
    stage.tasks.start_term().await.expect("leads");
    stage.pass(SILENT);
    let (named, seen) = stage.tasks.take_silent(3).expect("leads");
    assert_eq!(named, [MINE]);
    stage.apply_acquire(2);
    assert_eq!(stage.keepalive().await, Some(Verdict::Expiring), "not before it is decided");
    stage.apply(3, Command::ExpireSessions { term: Term(3), seen, sessions: named.clone() });
    assert_eq!(stage.spared(&named), 1);
    assert_eq!(stage.keepalive().await, Some(Verdict::Alive(1_000)));
    // The next silence counts anew.
    stage.pass(SILENT);
    let (named, seen) = stage.tasks.take_silent(3).expect("leads");
    stage.apply(4, Command::ExpireSessions { term: Term(3), seen, sessions: named });
    assert_eq!(stage.keepalive().await, Some(Verdict::Gone));
}

/// The same, but the session is proposed only afterwards: its group was too large, or its expiry was not decided.
#[tokio::test]
async fn a_grant_that_comes_before_the_expiry_is_proposed_again_keeps_the_session() {
    let stage = stage();
    stage.tasks.start_term().await.expect("leads");
    stage.pass(SILENT);
    let (named, _) = stage.tasks.take_silent(3).expect("leads");
    assert_eq!(named, [MINE]);
    with_tracker(&stage.replica, |tracker, _| tracker.propose_again(named));
    stage.apply_acquire(2);
    let (again, seen) = stage.tasks.take_silent(3).expect("leads");
    assert_eq!(again, [MINE]);
    stage.apply(3, Command::ExpireSessions { term: Term(3), seen, sessions: again.clone() });
    assert_eq!(stage.spared(&again), 1);
    assert_eq!(stage.keepalive().await, Some(Verdict::Alive(1_000)));
    // Proposed again without a sign of life in between, it ends.
    stage.pass(SILENT);
    let (named, _) = stage.tasks.take_silent(3).expect("leads");
    with_tracker(&stage.replica, |tracker, _| tracker.propose_again(named));
    let (again, seen) = stage.tasks.take_silent(3).expect("leads");
    stage.apply(4, Command::ExpireSessions { term: Term(3), seen, sessions: again });
    assert_eq!(stage.keepalive().await, Some(Verdict::Gone));
}

#[tokio::test]
async fn the_peer_service_checks_what_comes_in() {
    let stage = stage();
    let slot = PeerServiceSlot::default();
    let code = |result: Result<Bytes, ServiceError>| result.expect_err("refused").code;
    assert_eq!(code(slot.serve(2, Bytes::new()).await), "not_ready");
    let _ = slot.0.set(stage.tasks.clone());
    assert_eq!(code(slot.serve(2, Bytes::from_static(&[0xff; 11])).await), "bad_message");
    let many = SessionMessage::Keepalives(KeepaliveGroup { ages: vec![(MINE, 0); MAX_GROUP + 1] });
    let many = Bytes::from(postcard::to_stdvec(&many).expect("encoded"));
    assert_eq!(code(slot.serve(2, many).await), "bad_message");
    let group = Bytes::from(
        postcard::to_stdvec(&SessionMessage::Keepalives(KeepaliveGroup { ages: vec![(MINE, 0), (SessionId(9), 0)] }))
            .expect("encoded"),
    );
    assert_eq!(code(slot.serve(2, group.clone()).await), "not_leading");
    stage.tasks.start_term().await.expect("leads");
    let answer: KeepaliveAnswer = postcard::from_bytes(&slot.serve(2, group).await.expect("served")).expect("decoded");
    assert_eq!(answer.verdicts, [Verdict::Alive(1_000), Verdict::Gone]);
    // Node 1 leads term 3.
    let begin = TableCall::Begin { term: 3, number: 1, zxid: Zxid(0) };
    let begin = Bytes::from(postcard::to_stdvec(&SessionMessage::Table(begin)).expect("encoded"));
    let answer: TableAnswer = postcard::from_bytes(&slot.serve(2, begin).await.expect("served")).expect("decoded");
    assert_eq!(answer, TableAnswer::Fenced);
}

#[test]
fn one_entry_expires_as_many_sessions_as_own_what_it_may_remove() {
    let sessions: Vec<SessionId> = (1..=4).map(SessionId).collect();
    let owned = |each: [usize; 4]| one_entry(&sessions, move |session| each[session.0 as usize - 1]);
    assert_eq!(owned([0, 0, 0, 0]), 4);
    assert_eq!(owned([MAX_EXPIRED_EPHEMERALS, 0, 1, 0]), 2);
    assert_eq!(owned([MAX_EXPIRED_EPHEMERALS + 1, 0, 0, 0]), 1, "one alone may own more");
    assert_eq!(one_entry(&[], |_| 0), 0);
}

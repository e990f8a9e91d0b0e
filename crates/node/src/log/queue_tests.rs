use futures::FutureExt as _;
use lockkeeper_core::acl::Principals;
use lockkeeper_core::{FencingToken, LockOp, NodeOp, NodePath};

use super::*;
use crate::replica::inflight::{Answer, Stage};
use crate::time::clock::ManualClock;

fn queue_of(max_commands: usize, max_bytes: usize) -> CommandQueue {
    CommandQueue::new(max_commands, max_bytes, Arc::new(ManualClock::default()))
}

fn actor(session: u64, address: [u8; 4]) -> Actor {
    let principals = Principals { address: Some(IpAddr::from(address)), ..Principals::default() };
    Actor { session: Some(SessionId(session)), principals, ..Actor::default() }
}

fn write(number: i32) -> NodeOp {
    NodeOp::SetData { path: NodePath::root(), data: vec![0; 4].into(), version: Some(number) }
}

fn pending(actor: Actor, op: impl Into<Op>) -> Pending {
    let answer = Answer::InOrder(Box::new(|_| {}));
    Pending {
        command: Command::Do { actor, op: op.into() },
        bytes: 100,
        nodes: 1,
        may_wait_until: None,
        stage: Stage::default(),
        answer,
        trace: None,
        proposal: None,
    }
}

/// Session and number of each command, in the order in which they are taken.
async fn taken(queue: &CommandQueue, max_commands: usize) -> Vec<(u64, i32)> {
    named(&queue.take(max_commands, 1_000_000, true).await.expect("open"))
}

fn named(batch: &[Pending]) -> Vec<(u64, i32)> {
    let named = |pending: &Pending| match &pending.command {
        Command::Do { actor, op: Op::Node(NodeOp::SetData { version, .. }) } => {
            (actor.session.unwrap().0, version.unwrap())
        }
        other => panic!("{other:?}"),
    };
    batch.iter().map(named).collect()
}

#[tokio::test]
async fn sessions_take_turns_and_each_keeps_its_order() {
    let queue = queue_of(100, 1_000_000);
    for number in 0..5 {
        queue.push(pending(actor(1, [10, 0, 0, 1]), write(number))).unwrap();
    }
    queue.push(pending(actor(2, [10, 0, 0, 2]), write(0))).unwrap();
    queue.push(pending(actor(2, [10, 0, 0, 2]), write(1))).unwrap();
    assert_eq!(taken(&queue, 3).await, [(1, 0), (2, 0), (1, 1)]);
    assert_eq!(taken(&queue, 100).await, [(2, 1), (1, 2), (1, 3), (1, 4)]);
}

#[tokio::test]
async fn an_address_takes_its_turn_however_many_sessions_another_has() {
    let queue = queue_of(100, 1_000_000);
    for session in 1..=20 {
        queue.push(pending(actor(session, [10, 0, 0, 1]), write(0))).unwrap();
    }
    for number in 0..3 {
        queue.push(pending(actor(99, [10, 0, 0, 2]), write(number))).unwrap();
    }
    assert_eq!(taken(&queue, 4).await, [(1, 0), (99, 0), (2, 0), (99, 1)]);
    assert_eq!(taken(&queue, 3).await, [(3, 0), (99, 2), (4, 0)]);
    assert_eq!(taken(&queue, 100).await.len(), 16);
    let waiting = queue.waiting.lock();
    assert!(waiting.flows.is_empty());
    assert!([&waiting.small, &waiting.large].iter().all(|turns| turns.flows.is_empty() && turns.addresses.is_empty()));
}

#[tokio::test]
async fn a_session_closes_behind_its_own_requests() {
    let queue = queue_of(100, 1_000_000);
    queue.push(pending(actor(1, [10, 0, 0, 1]), write(0))).unwrap();
    let close = Command::CloseSession { session: SessionId(1) };
    queue.push(Pending { command: close.clone(), ..pending(Actor::default(), write(0)) }).unwrap();
    let batch = queue.take(100, 1_000_000, true).await.expect("open");
    assert_eq!(batch[1].command, close);
}

#[tokio::test]
async fn an_address_has_its_share_and_what_makes_room_is_always_taken() {
    let queue = queue_of(10, 1_000_000);
    let greedy = |session| queue.push(pending(actor(session, [10, 0, 0, 1]), write(0)));
    for session in 0..5 {
        greedy(session).unwrap();
    }
    assert_eq!(greedy(99), Err(NodeError::overloaded(Bound::OwnQueuedChanges)), "many sessions are one address");
    let other = |host| queue.push(pending(actor(200, [10, 0, 1, host]), write(0)));
    for host in 0..5 {
        other(host).unwrap();
    }
    assert_eq!(other(9), Err(NodeError::overloaded(Bound::QueuedChanges)));
    let release = LockOp::Release { locks: Vec::new(), token: FencingToken(1) };
    queue.push(pending(actor(1, [10, 0, 0, 1]), release)).unwrap();
    assert_eq!(queue.take(100, 1_000_000, true).await.expect("open").len(), 11);
    greedy(1).unwrap();
}

#[tokio::test]
async fn bytes_have_shares_too_and_a_large_command_goes_alone() {
    let queue = queue_of(100, 350);
    let push = |host| queue.push(pending(actor(1, [10, 0, 0, host]), write(0)));
    push(1).unwrap();
    push(1).unwrap();
    assert_eq!(push(1), Err(NodeError::overloaded(Bound::OwnQueuedChanges)));
    push(2).unwrap();
    assert_eq!(push(3), Err(NodeError::overloaded(Bound::QueuedChanges)));
    assert_eq!(queue.take(100, 50, true).await.expect("open").len(), 1);
    queue.close();
    assert!(queue.take(100, 50, true).await.is_none());
    assert_eq!(push(1), Err(NodeError::ShuttingDown));
}

#[test]
fn a_host_has_one_share_whatever_addresses_it_draws() {
    let network = |text: &str| network_of(text.parse().unwrap());
    assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:2"));
    assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
    assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
    assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
}

#[tokio::test]
async fn an_entry_takes_no_more_commands_than_change_so_many_nodes() {
    let queue = queue_of(100, 10_000);
    for (number, nodes) in [(1, MAX_BATCH_NODES + 1), (2, MAX_BATCH_NODES - 1), (3, 1), (4, 1)] {
        queue.push(Pending { nodes, ..pending(Actor::default(), write(number)) }).unwrap();
    }
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(queue.take(100, 10_000, true).await.unwrap().len());
    }
    assert_eq!(taken, [1, 2, 1], "one command alone may change more");
}

/// The queue, its clock, and a way to add a write of session 1 that can be delayed by this many milliseconds.
fn delaying() -> (Arc<CommandQueue>, Arc<ManualClock>, impl Fn(i32, Option<u64>)) {
    let clock = Arc::new(ManualClock::default());
    let queue = Arc::new(CommandQueue::new(100, 1_000_000, clock.clone()));
    let (of_writes, now) = (queue.clone(), clock.clone());
    let push = move |number, delay_ms: Option<u64>| {
        let may_wait_until = delay_ms.map(|ms| now.now() + Duration::from_millis(ms));
        let write = pending(actor(1, [10, 0, 0, 1]), write(number));
        of_writes.push(Pending { may_wait_until, ..write }).unwrap();
    };
    (queue, clock, push)
}

#[tokio::test]
async fn a_delayed_command_goes_with_the_next_urgent_one_and_keeps_its_place() {
    let (queue, _, push) = delaying();
    push(0, Some(5));
    assert!(taken(&queue, 100).now_or_never().is_none(), "it waits");
    let mut both = std::pin::pin!(taken(&queue, 100));
    assert!(futures::poll!(both.as_mut()).is_pending());
    push(1, None);
    assert_eq!(both.await, [(1, 0), (1, 1)], "at once, in order");
    push(2, None);
    assert_eq!(taken(&queue, 100).now_or_never().unwrap(), [(1, 2)], "nothing is left of the delay");
}

#[tokio::test]
async fn delayed_commands_go_when_the_first_one_is_due() {
    let (queue, clock, push) = delaying();
    push(0, Some(5));
    let mut all = std::pin::pin!(taken(&queue, 100));
    assert!(futures::poll!(all.as_mut()).is_pending());
    push(1, Some(8));
    push(2, Some(3));
    clock.advance(2);
    assert!(futures::poll!(all.as_mut()).is_pending());
    clock.advance(1);
    assert_eq!(all.await, [(1, 0), (1, 1), (1, 2)]);
    push(3, Some(4));
    clock.advance(3);
    assert!(taken(&queue, 100).now_or_never().is_none(), "the time of those before is forgotten");
    clock.advance(1);
    assert_eq!(taken(&queue, 100).await, [(1, 3)]);
}

#[tokio::test]
async fn an_urgent_command_left_for_the_next_batch_is_still_urgent() {
    let (queue, _, push) = delaying();
    push(0, Some(5));
    push(1, None);
    assert_eq!(taken(&queue, 1).await, [(1, 0)]);
    assert_eq!(taken(&queue, 1).now_or_never().unwrap(), [(1, 1)]);
    push(2, Some(5));
    let mut last = std::pin::pin!(queue.take(2, 1_000_000, true));
    assert!(futures::poll!(last.as_mut()).is_pending());
    queue.close();
    assert!(last.now_or_never().unwrap().is_none(), "a queue that closes waits for no time");
}

#[tokio::test]
async fn delays_end_when_somebody_needs_the_outcome() {
    let (queue, _, push) = delaying();
    push(0, Some(5));
    let mut first = std::pin::pin!(taken(&queue, 100));
    assert!(futures::poll!(first.as_mut()).is_pending());
    queue.end_delays();
    assert_eq!(first.await, [(1, 0)]);
    queue.end_delays();
    push(1, Some(5));
    assert!(taken(&queue, 2).now_or_never().is_none(), "one that comes later is delayed");
}

/// A queue with commands of these sessions, all at one address; the large ones are those with a negative number.
fn of_sizes(commands: &[(u64, i32)]) -> CommandQueue {
    let queue = queue_of(100, 10_000_000);
    for (session, number) in commands {
        let bytes = if *number < 0 { LARGE_COMMAND_BYTES + 1 } else { 100 };
        queue.push(Pending { bytes, ..pending(actor(*session, [10, 0, 0, 1]), write(*number)) }).unwrap();
    }
    queue
}

async fn taken_of(queue: &CommandQueue, large_may_go: bool) -> Vec<(u64, i32)> {
    named(&queue.take(100, 1_000_000, large_may_go).await.expect("open"))
}

#[tokio::test]
async fn large_commands_go_in_batches_of_their_own_and_by_turns_with_small_ones() {
    let queue = of_sizes(&[(1, -1), (2, 1), (1, -2), (3, 1), (4, -1)]);
    assert_eq!(taken_of(&queue, true).await, [(2, 1), (3, 1)], "small ones first");
    assert_eq!(taken_of(&queue, true).await, [(1, -1), (4, -1), (1, -2)]);
    let queue = of_sizes(&[(1, -1), (2, 1)]);
    assert_eq!(taken_of(&queue, true).await, [(2, 1)]);
    queue.push(pending(actor(2, [10, 0, 0, 2]), write(2))).unwrap();
    assert_eq!(taken_of(&queue, true).await, [(1, -1)], "its turn comes, whatever else is requested");
    assert_eq!(taken_of(&queue, true).await, [(2, 2)]);
}

#[tokio::test]
async fn small_commands_pass_a_large_one_that_waits_but_not_one_of_their_session() {
    let queue = of_sizes(&[(1, 1), (1, -2), (1, 3), (2, 1)]);
    assert_eq!(taken_of(&queue, false).await, [(1, 1), (2, 1)]);
    assert!(taken_of(&queue, false).now_or_never().is_none(), "a large one is in flight");
    queue.push(pending(actor(2, [10, 0, 0, 1]), write(2))).unwrap();
    assert_eq!(taken_of(&queue, false).await, [(2, 2)]);
    assert_eq!(taken_of(&queue, true).await, [(1, -2)]);
    assert_eq!(taken_of(&queue, false).await, [(1, 3)]);
}

#[tokio::test]
async fn a_delayed_command_behind_a_large_one_still_goes_when_it_is_due() {
    let (queue, clock, push) = delaying();
    let large = Pending { bytes: LARGE_COMMAND_BYTES + 1, ..pending(actor(1, [10, 0, 0, 1]), write(-1)) };
    queue.push(large).unwrap();
    push(2, Some(5));
    assert_eq!(taken_of(&queue, true).await, [(1, -1)]);
    assert!(taken_of(&queue, true).now_or_never().is_none());
    clock.advance(5);
    assert_eq!(taken_of(&queue, true).await, [(1, 2)]);
}

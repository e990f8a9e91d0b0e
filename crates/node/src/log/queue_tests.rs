use lockkeeper_core::acl::Principals;
use lockkeeper_core::{FencingToken, LockOp, NodeOp, NodePath};

use super::*;
use crate::log::inflight::{Answer, Stage};

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
        stage: Stage::default(),
        answer,
        trace: None,
        proposal: None,
    }
}

/// Session and number of each command, in the order in which they are taken.
async fn taken(queue: &CommandQueue, max_commands: usize) -> Vec<(u64, i32)> {
    let batch = queue.take(max_commands, 1_000_000).await.expect("open");
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
    let queue = CommandQueue::new(100, 1_000_000);
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
    let queue = CommandQueue::new(100, 1_000_000);
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
    assert!(waiting.flows.is_empty() && waiting.flow_turns.is_empty() && waiting.address_turns.is_empty());
}

#[tokio::test]
async fn a_session_closes_behind_what_it_asked_for() {
    let queue = CommandQueue::new(100, 1_000_000);
    queue.push(pending(actor(1, [10, 0, 0, 1]), write(0))).unwrap();
    let close = Command::CloseSession { session: SessionId(1) };
    queue.push(Pending { command: close.clone(), ..pending(Actor::default(), write(0)) }).unwrap();
    let batch = queue.take(100, 1_000_000).await.expect("open");
    assert_eq!(batch[1].command, close);
}

#[tokio::test]
async fn an_address_has_its_share_and_what_makes_room_is_always_taken() {
    let queue = CommandQueue::new(10, 1_000_000);
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
    assert_eq!(queue.take(100, 1_000_000).await.expect("open").len(), 11);
    greedy(1).unwrap();
}

#[tokio::test]
async fn bytes_have_shares_too_and_a_large_command_goes_alone() {
    let queue = CommandQueue::new(100, 350);
    let push = |host| queue.push(pending(actor(1, [10, 0, 0, host]), write(0)));
    push(1).unwrap();
    push(1).unwrap();
    assert_eq!(push(1), Err(NodeError::overloaded(Bound::OwnQueuedChanges)));
    push(2).unwrap();
    assert_eq!(push(3), Err(NodeError::overloaded(Bound::QueuedChanges)));
    assert_eq!(queue.take(100, 50).await.expect("open").len(), 1);
    queue.close();
    assert!(queue.take(100, 50).await.is_none());
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
    let queue = CommandQueue::new(100, 10_000);
    for (number, nodes) in [(1, MAX_BATCH_NODES + 1), (2, MAX_BATCH_NODES - 1), (3, 1), (4, 1)] {
        queue.push(Pending { nodes, ..pending(Actor::default(), write(number)) }).unwrap();
    }
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(queue.take(100, 10_000).await.unwrap().len());
    }
    assert_eq!(taken, [1, 2, 1], "one command alone may change more");
}

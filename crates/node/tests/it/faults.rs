//! Requests and watches at replicas that are behind, and at nodes that go down.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use lockkeeper_consensus::PeerKind;
use lockkeeper_core::{NodeKind, NodeOp, Refusal, Zxid};
use lockkeeper_node::{Consistency, Node, NodeConfig, NodeError, WatchItem, WatchSpec, within_leader_limit};

use crate::common::*;

async fn make(node: &Node, at: &str) -> Zxid {
    node.execute(Default::default(), create(at, NodeKind::Persistent, false)).await.unwrap().zxid
}

fn everything() -> WatchSpec {
    WatchSpec { path: path("/"), recursive: true, from: None }
}

fn small_logs(config: &mut NodeConfig) {
    config.consensus.snapshot_every_entries = 50;
    config.consensus.keep_entries = 5;
}

#[tokio::test]
async fn a_replica_that_skips_ahead_looks_at_everything_again() {
    let cluster = Cluster::start(3, small_logs).await;
    let leader = cluster.leader().await;
    let [behind, other] = cluster.but(leader)[..] else { panic!("two others") };
    let (a, b) = (session(cluster.at(other), 60_000).await, session(cluster.at(behind), 60_000).await);
    let grant = granted(cluster.at(other).acquire(caller(a), acquire("skip", 0)).await);
    let waiter = spawn_granted(cluster.at(behind), b, acquire("skip", 60_000));
    until("b to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let mut events = cluster.at(behind).watch(everything()).await.unwrap();
    cluster.net.cut(behind);
    release(cluster.at(other), a, "skip", grant.token).await;
    for number in 0..300 {
        make(cluster.at(other), &format!("/s{number}")).await;
    }
    let purged = |id: u64| cluster.at(id).status().consensus.purged.map_or(0, |at| at.index);
    until("the log to be cut", || (purged(leader) > 100).then_some(())).await;
    let before = cluster.at(behind).status().zxid;
    cluster.net.heal(behind);
    let caught_up = tokio::time::timeout(Duration::from_secs(20), waiter).await;
    let Ok(theirs) = caught_up else {
        panic!(
            "node {behind} does not catch up: {:#?}\nits leader: {:#?}",
            cluster.at(behind).status(),
            cluster.at(leader).status()
        );
    };
    let theirs = theirs.unwrap();
    assert!(theirs.token > grant.token);
    let mut last = before;
    let oldest = loop {
        match events.next().await.unwrap() {
            WatchItem::Lost { oldest } => break oldest,
            WatchItem::Changes(events) => last = events[0].zxid,
            WatchItem::Bookmark(zxid) => last = zxid,
        }
    };
    assert!(oldest > last, "{oldest} {last}");
    assert_eq!(events.next().await, None);
    cluster.finish().await;
}

#[tokio::test]
async fn a_hand_over_needs_no_read_round() {
    let cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    let follower = cluster.but(leader)[0];
    let (a, b) = (session(cluster.at(leader), 60_000).await, session(cluster.at(follower), 60_000).await);
    let grant = granted(cluster.at(leader).acquire(caller(a), acquire("next", 0)).await);
    let waiter = spawn_granted(cluster.at(follower), b, acquire("next", 60_000));
    until("b to wait", || (waiting(&cluster) == 1).then_some(())).await;
    until("a keepalive of b", || cluster.at(follower).session_remaining(b.session)).await;
    cluster.net.answer_with(leader, PeerKind::ReadIndex, Some(Bytes::from_static(b"no read index")));
    release(cluster.at(leader), a, "next", grant.token).await;
    assert!(waiter.await.unwrap().token > grant.token);
    cluster.net.answer_with(leader, PeerKind::ReadIndex, None);
    cluster.finish().await;
}

/// The replica applies the grant long before the end of the session, which came in between.
#[tokio::test]
async fn a_replica_that_is_behind_grants_nothing_to_an_expired_session() {
    let cluster = Cluster::start(3, |config| config.consensus.max_payload_entries = 1).await;
    let leader = cluster.leader().await;
    let [behind, other] = cluster.but(leader)[..] else { panic!("two others") };
    let (a, b) = (session(cluster.at(other), 60_000).await, session(cluster.at(behind), 1_000).await);
    let grant = granted(cluster.at(other).acquire(caller(a), acquire("late", 0)).await);
    let waiter = spawn_acquire(cluster.at(behind), b, acquire("late", 60_000));
    until("b to wait", || (waiting(&cluster) == 1).then_some(())).await;
    cluster.net.cut(behind);
    release(cluster.at(other), a, "late", grant.token).await;
    for number in 0..50 {
        make(cluster.at(other), &format!("/l{number}")).await;
    }
    until("the session to expire", || (cluster.at(other).status().sessions == 1).then_some(())).await;
    cluster.net.heal(behind);
    assert_eq!(waiter.await.unwrap(), Err(NodeError::Refused(Refusal::SessionExpired(b.session))));
    cluster.finish().await;
}

#[tokio::test]
async fn containers_and_ttl_nodes_are_reaped_and_nothing_is_written_in_vain() {
    let cluster = Cluster::start(3, |config| config.reap_every_ms = 50).await;
    let node = cluster.at(2);
    let ttl = create("/ttl", NodeKind::Ttl { ttl_ms: 200 }, false);
    node.execute(Default::default(), ttl).await.unwrap();
    until("the TTL node to go", || (node.status().nodes == 1).then_some(())).await;
    let before = node.status().consensus.last_log;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(node.status().consensus.last_log, before, "an idle cluster writes nothing");
    cluster.finish().await;
}

#[tokio::test]
async fn a_node_goes_down_in_order() {
    let mut cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    let other = cluster.but(leader)[0];
    let (a, b) = (session(cluster.at(other), 60_000).await, session(cluster.at(leader), 60_000).await);
    let grant = granted(cluster.at(other).acquire(caller(a), acquire("down", 0)).await);
    let (id, wanted) = (request_id(), acquire("down", 60_000));
    let (node, first) = (cluster.at(leader).clone(), wanted.clone());
    let waiter = tokio::spawn(async move { node.acquire(keyed(b, id), first).await });
    until("b to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let mut events = cluster.at(leader).watch(everything()).await.unwrap();
    let leaving = cluster.at(leader).clone();
    leaving.shutdown().await;
    // It stands in the queue, so this is no refusal.
    assert!(matches!(waiter.await.unwrap(), Err(NodeError::UnknownOutcome(_))));
    while events.next().await.is_some() {}
    assert!(!leaving.status().ready);
    let late = leaving.execute(Default::default(), NodeOp::Delete { path: path("/locks"), version: None }).await;
    assert_eq!(late, Err(NodeError::ShuttingDown));
    drop(leaving);
    let gone = cluster.kill(leader);
    Cluster::bury(gone).await;
    // The request kept its place, and another node finds it.
    assert_eq!(requests(cluster.at(other), "down").await.len(), 2);
    let node = cluster.at(other).clone();
    let again = tokio::spawn(async move { granted(node.acquire(keyed(b, id), wanted).await) });
    until("b to wait elsewhere", || (waiting(&cluster) == 1).then_some(())).await;
    release(cluster.at(other), a, "down", grant.token).await;
    again.await.unwrap();
    cluster.boot(leader).await;
    cluster.finish().await;
}

/// Their callers have chosen no id, so none of them can ask again at another node and find the request.
#[tokio::test]
async fn requests_that_nobody_can_ask_for_again_leave_their_queues_with_the_node() {
    let mut cluster = Cluster::of_three().await;
    for leads in [false, true] {
        let leader = cluster.leader().await;
        let leaving_id = if leads { leader } else { cluster.but(leader)[0] };
        let other = cluster.but(leaving_id)[0];
        let holder = session(cluster.at(other), 60_000).await;
        let grant = granted(cluster.at(other).acquire(caller(holder), acquire("down", 0)).await);
        let leaving = cluster.at(leaving_id).clone();
        let mut waiters = Vec::new();
        for wanted in [acquire("down", 60_000), acquire_all(&["down", "free"], 60_000), acquire("down", 60_000)] {
            let (node, session) = (leaving.clone(), session(&leaving, 60_000).await);
            waiters.push(tokio::spawn(async move { node.acquire(caller(session), wanted).await }));
        }
        until("all to wait", || (waiting(&cluster) == 3).then_some(())).await;
        leaving.shutdown().await;
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), Err(NodeError::ShuttingDown));
        }
        drop(leaving);
        Cluster::bury(cluster.kill(leaving_id)).await;
        cluster.at(other).read(Consistency::Linearizable, |_| ()).await.unwrap();
        for (name, left) in [("down", 1), ("free", 0)] {
            assert_eq!(requests(cluster.at(other), name).await.len(), left, "{name}, at the leader: {leads}");
        }
        release(cluster.at(other), holder, "down", grant.token).await;
        cluster.boot(leaving_id).await;
    }
    cluster.finish().await;
}

#[tokio::test]
async fn work_of_an_impatient_caller_is_not_executed_once_it_is_refused() {
    let mut cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    let gone = [leader, cluster.but(leader)[1]];
    let node = cluster.at(cluster.but(leader)[0]).clone();
    // Together: between the two the rest would elect, and the node may lead.
    for member in gone.map(|id| cluster.kill(id)) {
        Cluster::bury(member).await;
    }
    until("no leader", || (!node.status().ready && node.status().consensus.leader.is_none()).then_some(())).await;
    let (began, limit) = (Instant::now(), Duration::from_millis(200));
    let opened = within_leader_limit(limit, node.open_session(60_000, "")).await;
    assert!(matches!(opened, Err(NodeError::NoLeader { .. })), "{opened:?}");
    let read = within_leader_limit(limit, node.read(Consistency::Linearizable, |_| ())).await;
    assert!(matches!(read, Err(NodeError::NoLeader { .. })), "{read:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for id in gone {
        cluster.boot(id).await;
    }
    cluster.leader().await;
    let sessions = node.read(Consistency::Linearizable, |state| state.session_count()).await.unwrap().value;
    assert_eq!(sessions, 0, "it was called not executed");
    cluster.finish().await;
}

//! Sessions over three nodes: promises P5, P6 and P10 as far as sessions go.

use std::time::{Duration, Instant};

use futures::StreamExt;
use lockkeeper_core::{NodeEventKind, NodeKind, NodeOp, Refusal};
use lockkeeper_node::{Credential, Node, NodeError, WatchItem, WatchSpec};

use crate::common::*;

async fn exists(node: &Node, mine: &Credential) -> bool {
    let id = mine.session;
    stale(node, move |state| state.session(id).is_some()).await
}

#[tokio::test]
async fn a_silent_session_goes_with_all_it_owned_at_one_point() {
    let cluster = Cluster::of_three().await;
    let node = cluster.at(1);
    let mine = session(node, 1_000).await;
    let opened = Instant::now();
    let grant = granted(node.acquire(caller(mine), acquire("mine", 0)).await);
    for name in ["/e1", "/e2", "/e3"] {
        node.execute(caller(mine), create(name, NodeKind::Ephemeral, false)).await.unwrap();
    }
    let last_sign = Instant::now();
    let watch = WatchSpec { path: path("/"), recursive: true, from: None };
    let mut events = cluster.at(2).watch(watch).await.unwrap();
    let heir = session(cluster.at(3), 30_000).await;
    let theirs = granted(cluster.at(3).acquire(caller(heir), acquire("mine", 20_000)).await);
    assert!(last_sign.elapsed() >= Duration::from_millis(1_000), "expired early");
    assert!(opened.elapsed() < Duration::from_secs(10), "expired far too late");
    assert!(theirs.token > grant.token);
    let mut deleted = Vec::new();
    while deleted.len() < 4 {
        if let WatchItem::Changes(changes) = events.next().await.unwrap() {
            deleted.extend(changes.into_iter().filter(|event| event.kind == NodeEventKind::Deleted));
        }
    }
    assert!(deleted.iter().all(|event| event.zxid == deleted[0].zxid), "{deleted:?}");
    for id in [1, 2, 3] {
        // A caller that learns of the end finds the removal applied.
        let gone = cluster.at(id).keepalive(&mine).await;
        assert_eq!(gone, Err(NodeError::Refused(Refusal::SessionExpired(mine.session))));
        assert!(stale(cluster.at(id), |state| state.get(&path("/e1")).is_none()).await);
    }
    cluster.finish().await;
}

#[tokio::test]
async fn a_waiting_request_keeps_its_session_alive() {
    let cluster = Cluster::of_three().await;
    let holder = session(cluster.at(1), 30_000).await;
    let grant = granted(cluster.at(1).acquire(caller(holder), acquire("long", 0)).await);
    let waiter = session(cluster.at(2), 600).await;
    let waiting_for_it = spawn_acquire(cluster.at(2), waiter, acquire("long", 30_000));
    // For many timeouts.
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    assert!(exists(cluster.at(3), &waiter).await);
    release(cluster.at(1), holder, "long", grant.token).await;
    let theirs = granted(waiting_for_it.await.unwrap());
    assert!(theirs.remaining_ms > 0 && theirs.remaining_ms <= 600, "{}", theirs.remaining_ms);
    cluster.finish().await;
}

#[tokio::test]
async fn a_waiter_whose_session_has_ended_learns_that_and_nothing_else() {
    let cluster = Cluster::of_three().await;
    let holder = session(cluster.at(1), 30_000).await;
    let grant = granted(cluster.at(1).acquire(caller(holder), acquire("s", 0)).await);
    let waiter = session(cluster.at(2), 30_000).await;
    let acquiring = spawn_acquire(cluster.at(2), waiter, acquire("s", 30_000));
    until("the waiter to wait", || (waiting(&cluster) == 1).then_some(())).await;
    cluster.at(3).close_session(&waiter).await.unwrap();
    assert_eq!(acquiring.await.unwrap(), Err(NodeError::Refused(Refusal::SessionExpired(waiter.session))));
    release(cluster.at(1), holder, "s", grant.token).await;
    cluster.finish().await;
}

#[tokio::test]
async fn only_the_secret_opens_a_session() {
    let cluster = Cluster::of_three().await;
    let mine = session(cluster.at(1), 5_000).await;
    // At any node, at once: the node catches up before it reports that the session does not exist.
    for id in [2, 3, 1] {
        cluster.at(id).keepalive(&mine).await.unwrap();
    }
    let wrong = Credential::new(mine.session, [0; 16]);
    assert_eq!(cluster.at(2).keepalive(&wrong).await, Err(NodeError::WrongSecret));
    assert_eq!(cluster.at(2).close_session(&wrong).await, Err(NodeError::WrongSecret));
    let delete = NodeOp::Delete { path: path("/locks"), version: None };
    assert_eq!(cluster.at(3).execute(caller(wrong), delete).await, Err(NodeError::WrongSecret));
    assert!(cluster.at(1).session_remaining(mine.session).is_some_and(|left| left <= Duration::from_secs(5)));
    assert!(!format!("{mine:?}").contains(&format!("{:?}", mine.secret())), "secrets are not printed");
    cluster.finish().await;
}

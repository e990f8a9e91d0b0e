//! Several locks at once over three nodes.

use std::time::{Duration, Instant};

use lockkeeper_core::{Principals, Refusal};
use lockkeeper_node::{Acquire, Acquired, Consistency, Node, NodeError};

use crate::common::*;

/// How many requests are in these queues, by the leader's state.
async fn standing(node: &Node, names: &[&str]) -> usize {
    let names = locks(names);
    let count = node.read(Consistency::Linearizable, move |state| {
        names.iter().map(|name| state.lock(name).map_or(0, |view| view.len())).sum()
    });
    count.await.unwrap().value
}

#[tokio::test]
async fn a_set_whose_caller_goes_leaves_every_queue() {
    let cluster = Cluster::of_three().await;
    let [a, b, c] = sessions(&cluster, 30_000).await;
    let m = granted(cluster.at(1).acquire(caller(a), acquire("m", 0)).await);
    let abandoned = spawn_acquire(cluster.at(2), b, acquire_all(&["l", "m"], 30_000));
    until("the set to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let next = spawn_granted(cluster.at(3), c, acquire("l", 30_000));
    until("c to wait behind it", || (waiting(&cluster) == 2).then_some(())).await;
    abandoned.abort();
    // Though the set's request held `l`.
    let l = next.await.unwrap();
    assert_eq!(standing(cluster.at(1), &["m"]).await, 1);
    release(cluster.at(1), c, "l", l.token).await;
    release(cluster.at(1), a, "m", m.token).await;
    // In every stage: before it is sent, in flight, in the queues, holding.
    for round in 0..30_u32 {
        let dropped = spawn_acquire(cluster.at(u64::from(round) % 3 + 1), b, acquire_all(&["l", "m", "n"], 30_000));
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 120)).await;
        dropped.abort();
        if let Ok(Ok(delivered)) = dropped.await {
            let Acquired::Held(grant) = delivered.value else { panic!("the locks were free") };
            release_all(cluster.at(1), b, &["l", "m", "n"], grant.token).await;
        }
    }
    let last = granted(cluster.at(1).acquire(caller(a), acquire_all(&["l", "m", "n"], 20_000)).await);
    release_all(cluster.at(1), a, &["l", "m", "n"], last.token).await;
    cluster.finish().await;
}

#[tokio::test]
async fn a_set_that_is_broken_by_force_while_it_waits_is_gone_at_once_and_whole() {
    let cluster = Cluster::of_three().await;
    let (a, b) = (session(cluster.at(1), 30_000).await, session(cluster.at(2), 30_000).await);
    let m = granted(cluster.at(1).acquire(caller(a), acquire("m", 0)).await);
    let set = spawn_acquire(cluster.at(2), b, acquire_all(&["l", "m"], 30_000));
    until("the set to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let token = requests(cluster.at(2), "l").await[0].1;
    cluster.at(3).force_release(lock("l"), token, Principals::default()).await.unwrap();
    assert_eq!(set.await.unwrap().unwrap().value, Acquired::Gone);
    until_standing(cluster.at(1), &["l", "m"], 1).await;
    release(cluster.at(1), a, "m", m.token).await;
    cluster.finish().await;
}

async fn until_standing(node: &Node, names: &[&str], count: usize) {
    let started = Instant::now();
    while standing(node, names).await != count {
        assert!(started.elapsed() < Duration::from_secs(30), "waited in vain for {count} in {names:?}");
    }
}

#[tokio::test]
async fn a_retried_set_finds_all_of_its_nodes() {
    let cluster = Cluster::of_three().await;
    let (a, b) = (session(cluster.at(1), 30_000).await, session(cluster.at(2), 30_000).await);
    let m = granted(cluster.at(1).acquire(caller(a), acquire("m", 0)).await);
    let (id, wanted) = (request_id(), acquire_all(&["l", "m"], 30_000));
    let mut tries = Vec::new();
    for (number, node) in [2, 3].into_iter().enumerate() {
        let (node, wanted) = (cluster.at(node).clone(), wanted.clone());
        tries.push(tokio::spawn(async move { node.acquire(keyed(b, id), wanted).await }));
        until("the try to wait", || (waiting(&cluster) == number + 1).then_some(())).await;
    }
    assert_eq!(standing(cluster.at(1), &["l", "m"]).await, 3, "the retry stands where the first try stood");
    tries.remove(0).abort();
    until("the first try to go", || (waiting(&cluster) == 1).then_some(())).await;
    // The cancellation of the first attempt is in flight: let it be decided before the lock is granted.
    cluster.at(2).close_session(&session(cluster.at(2), 30_000).await).await.unwrap();
    release(cluster.at(1), a, "m", m.token).await;
    let theirs = granted(tries.remove(0).await.unwrap());
    let again = granted(cluster.at(1).acquire(keyed(b, id), wanted.clone()).await);
    assert_eq!((again.token, again.paths), (theirs.token, theirs.paths));
    let other = cluster.at(1).acquire(caller(b), Acquire { locks: locks(&["l"]), ..wanted.clone() }).await;
    assert_eq!(other, Err(NodeError::Refused(Refusal::RequestMismatch)), "the same uuid for part of the set");
    release_all(cluster.at(1), b, &["l", "m"], theirs.token).await;
    assert_eq!(cluster.at(3).acquire(keyed(b, id), wanted).await.unwrap().value, Acquired::Gone);
    cluster.finish().await;
}

/// The node of a waiting set is killed and part of the set is released by force: nothing owns the rest until its caller
/// asks again.
async fn a_retry_of_a_broken_set(with_memory: bool) {
    let mut cluster = Cluster::of_three().await;
    let first_node = cluster.but(cluster.leader().await)[0];
    let others = cluster.but(first_node);
    let (a, b, c) = (
        session(cluster.at(others[0]), 60_000).await,
        session(cluster.at(others[1]), 60_000).await,
        session(cluster.at(others[1]), 60_000).await,
    );
    let l = granted(cluster.at(others[0]).acquire(caller(a), acquire("l", 0)).await);
    let (id, wanted) = (request_id(), acquire_all(&["l", "m"], 30_000));
    let who = || if with_memory { keyed(b, id) } else { caller(b) };
    let (node, first, by) = (cluster.at(first_node).clone(), wanted.clone(), who());
    let set = tokio::spawn(async move { node.acquire(by, first).await });
    until("the set to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let killed = cluster.kill(first_node);
    set.abort();
    cluster.leader().await;
    let token = requests(cluster.at(others[0]), "m").await[0].1;
    cluster.at(others[0]).force_release(lock("m"), token, Principals::default()).await.unwrap();
    assert_eq!(standing(cluster.at(others[0]), &["l", "m"]).await, 2, "the rest waits for l still");
    let again = cluster.at(others[1]).acquire(who(), wanted).await;
    if with_memory {
        assert_eq!(again.unwrap().value, Acquired::Gone);
    } else {
        assert!(matches!(again, Err(NodeError::Refused(Refusal::NotQueued { .. }))), "{again:?}");
    }
    assert_eq!(requests(cluster.at(others[1]), "l").await, [(a.session, l.token)], "by the answer the rest has gone");
    release(cluster.at(others[0]), a, "l", l.token).await;
    granted(cluster.at(others[0]).acquire(caller(c), acquire_all(&["l", "m"], 0)).await);
    Cluster::bury(killed).await;
    cluster.finish().await;
}

#[tokio::test]
async fn a_retry_of_a_broken_set_leaves_nothing_behind() {
    a_retry_of_a_broken_set(false).await;
}

#[tokio::test]
async fn a_retry_of_a_broken_set_whose_first_answer_is_remembered_leaves_nothing_behind() {
    a_retry_of_a_broken_set(true).await;
}

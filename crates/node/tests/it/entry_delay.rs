//! Requests behind many others in the queue of a lock wait for another command (`locks/entry_delay.rs`); no others do.

use lockkeeper_core::{AclEntry, Actor, LockMode, NodeKind, NodeOp, NodePath, Sequential};
use lockkeeper_node::{Acquire, Acquired, Credential};
use tokio::sync::oneshot;

use crate::common::counters::Counters;
use crate::common::*;

const DELAYED: &str = "lockkeeper_delayed_requests_total";

/// A session, and its acquire that waits.
type WaitingCall = (Credential, Acquiring);

/// A new session asks at node 1, and is then one of `waiters`.
async fn wait_for(cluster: &Cluster, wanted: Acquire, waiters: usize) -> WaitingCall {
    let mine = session(cluster.at(1), 60_000).await;
    let task = spawn_acquire(cluster.at(1), mine, wanted);
    until("the waiter to wait", || (waiting(cluster) == waiters).then_some(())).await;
    (mine, task)
}

/// A session that holds the lock `busy`, and so many behind it, all at node 1.
async fn crowd(cluster: &Cluster, waiters: usize) -> (Credential, Vec<WaitingCall>) {
    let holder = session(cluster.at(1), 60_000).await;
    granted(cluster.at(1).acquire(caller(holder), acquire("busy", 0)).await);
    let mut behind = Vec::new();
    for place in 1..=waiters {
        behind.push(wait_for(cluster, acquire("busy", 60_000), place).await);
    }
    (holder, behind)
}

#[tokio::test]
async fn patient_exclusive_requests_behind_many_are_delayed() {
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let cluster = Cluster::of_three().await;
    let node = cluster.at(1).clone();
    let (holder, mut tasks) = crowd(&cluster, 10).await;
    assert_eq!(counters.get(DELAYED), 0, "behind ten or fewer");

    // Behind eleven: those that do not wait long, and readers.
    for wait_ms in [0, 99] {
        let mine = session(&node, 60_000).await;
        let acquired = node.acquire(caller(mine), acquire("busy", wait_ms)).await.unwrap().value;
        assert!(!matches!(acquired, Acquired::Held(_)));
    }
    let (_, reader) = wait_for(&cluster, Acquire { mode: LockMode::Shared, ..acquire("busy", 60_000) }, 11).await;
    assert_eq!(counters.get(DELAYED), 0);
    // A recipe's node of another family of names would be refused.
    reader.abort();
    while requests(&node, "busy").await.len() > 11 {
        tokio::task::yield_now().await;
    }

    let patient = acquire("busy", 60_000);
    tasks.push(wait_for(&cluster, patient.clone(), 11).await);
    assert_eq!(counters.get(DELAYED), 1);

    // The same request once more, for the retry of a call whose connection broke.
    let (mine, first) = tasks.pop().unwrap();
    let again = node.clone();
    tasks.push((mine, tokio::spawn(async move { again.acquire(caller(mine), patient).await })));
    until("both attempts to wait", || (waiting(&cluster) == 12).then_some(())).await;
    assert_eq!(counters.get(DELAYED), 1, "it may hold by now");
    tasks.push((mine, first));

    // A recipe's node, as ZooKeeper's clients make it.
    let path = NodePath::parse("/locks/busy/_c_1-lock-").unwrap();
    let (data, acl, kind) = ([].into(), vec![AclEntry::open()], NodeKind::Ephemeral);
    let op = NodeOp::Create { path, data, kind, sequential: Sequential::Suffix, acl };
    let (done, created) = oneshot::channel();
    let on_reply = move |answered| drop(done.send(answered));
    node.submit(Actor::of(holder.session), op.into(), on_reply).unwrap();
    created.await.unwrap().unwrap().value.unwrap();
    assert_eq!(counters.get(DELAYED), 2);
    tasks.into_iter().for_each(|(_, task)| task.abort());
    cluster.finish().await;
}

/// A caller that goes away before its delayed request was sent takes it back: it never enters the queue.
#[tokio::test]
async fn a_delayed_request_goes_with_its_caller() {
    const ABANDONED: &str = "lockkeeper_lock_requests_abandoned_total";
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let cluster = Cluster::of_three().await;
    let node = cluster.at(1).clone();
    let (_, tasks) = crowd(&cluster, 60).await;
    let (mine, before) = (session(&node, 60_000).await, node.status().zxid);
    {
        // Handed over at once, but no other task has run.
        let mut acquiring = std::pin::pin!(node.acquire(caller(mine), acquire("busy", 60_000)));
        assert!(futures::poll!(acquiring.as_mut()).is_pending());
    }
    node.propose_delayed();
    session(&node, 60_000).await;
    assert_eq!(counters.get(ABANDONED), 0);
    assert_eq!(node.status().zxid.0, before.0 + 1, "only that session was opened");
    tasks.into_iter().for_each(|(_, task)| task.abort());
    cluster.finish().await;
}

//! Promise P3, counted: one notification for each release, and one for a waiter that dies in the middle.

use lockkeeper_core::LockMode;
use lockkeeper_node::{Acquire, Credential, Node};

use crate::common::counters::Counters;
use crate::common::*;

const NOTIFIED: &str = "lockkeeper_lock_notifications_total";
const RELEASED: &str = "lockkeeper_lock_releases_total";

/// One after the other, because they share counters. The counters belong to this thread, on which the whole cluster
/// runs, so other tests do not add to them.
#[tokio::test]
async fn wake_ups_are_as_few_as_promised() {
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    each_release_wakes_one_and_each_death_at_most_one(&counters).await;
    each_freed_permit_wakes_one(&counters.anew()).await;
}

async fn each_release_wakes_one_and_each_death_at_most_one(counters: &Counters) {
    let cluster = Cluster::of_three().await;
    let holder = session(cluster.at(1), 60_000).await;
    let mut grant = granted(cluster.at(1).acquire(caller(holder), acquire("herd", 0)).await);
    let mut waiters = Vec::new();
    for place in 0..200_u64 {
        let node = cluster.at(place % 3 + 1).clone();
        let mine = session(&node, 60_000).await;
        let task = tokio::spawn({
            let node = node.clone();
            async move { node.acquire(caller(mine), acquire("herd", 60_000)).await }
        });
        until("the waiter to wait", || (waiting(&cluster) == place as usize + 1).then_some(())).await;
        waiters.push((node, mine, Some(task)));
    }
    assert_eq!(counters.get(NOTIFIED), 0, "waiting wakes nobody");

    // Every fourth dies in the middle: only its successor is checked, and goes on waiting.
    let mut dead = 0;
    for (node, mine, task) in waiters.iter_mut().skip(1).step_by(4) {
        node.close_session(mine).await.unwrap();
        assert!(task.take().unwrap().await.unwrap().is_err());
        dead += 1;
    }
    until("the deaths to be seen everywhere", || (waiting(&cluster) == 200 - dead).then_some(())).await;
    assert_eq!(counters.get(NOTIFIED), dead as u64);
    assert_eq!(counters.get(RELEASED), 0);

    // Each release wakes only the next in the queue.
    let mut owner = (cluster.at(1).clone(), holder);
    let mut released = 0;
    for (node, mine, task) in waiters {
        let Some(task) = task else { continue };
        release(&owner.0, owner.1, "herd", grant.token).await;
        released += 1;
        let next = granted(task.await.unwrap());
        assert!(next.token > grant.token);
        assert_eq!(counters.get(NOTIFIED) - dead as u64, released, "one notification for each release");
        (owner, grant) = ((node, mine), next);
    }
    until("releases to be counted", || (counters.get(RELEASED) == released).then_some(())).await;
    // A holder that dies releases as well.
    let node = cluster.at(2).clone();
    let last = session(&node, 60_000).await;
    let task = tokio::spawn(async move { node.acquire(caller(last), acquire("herd", 60_000)).await });
    until("the last to wait", || (waiting(&cluster) == 1).then_some(())).await;
    owner.0.close_session(&owner.1).await.unwrap();
    granted(task.await.unwrap());
    assert_eq!((counters.get(RELEASED), counters.get(NOTIFIED) - dead as u64), (released + 1, released + 1));
    cluster.finish().await;
}

const PERMITS: u16 = 5;

fn permit(wait_ms: u64) -> Acquire {
    Acquire { mode: LockMode::Permit(PERMITS), ..acquire("sem", wait_ms) }
}

/// Asks for a permit and releases it when signalled.
struct Contender {
    node: Node,
    mine: Credential,
    task: tokio::task::JoinHandle<lockkeeper_node::Grant>,
}

async fn each_freed_permit_wakes_one(counters: &Counters) {
    let cluster = Cluster::of_three().await;
    let mut contenders = Vec::new();
    for place in 0..50_usize {
        let node = cluster.at(place as u64 % 3 + 1).clone();
        let mine = session(&node, 60_000).await;
        let asking = node.clone();
        let task = tokio::spawn(async move { granted(asking.acquire(caller(mine), permit(60_000)).await) });
        let expected = (place + 1).saturating_sub(PERMITS.into());
        until("the place in the queue", || {
            (if expected > 0 { waiting(&cluster) == expected } else { task.is_finished() }).then_some(())
        })
        .await;
        contenders.push(Contender { node, mine, task });
    }
    assert_eq!(counters.get(NOTIFIED), 0, "waiting wakes nobody");
    // A waiter that dies wakes no other, be it the first or the last.
    for at in [49, 30, 20, usize::from(PERMITS)] {
        let dead = contenders.remove(at);
        dead.task.abort();
        let left = contenders.len() - usize::from(PERMITS);
        until("the withdrawal", || (waiting(&cluster) == left).then_some(())).await;
        dead.node.close_session(&dead.mine).await.unwrap();
    }
    until("every node to have seen the deaths", || {
        let zxid = contenders[0].node.status().zxid;
        cluster.members.values().all(|member| member.node.status().zxid >= zxid).then_some(())
    })
    .await;
    assert_eq!((counters.get(NOTIFIED), counters.get(RELEASED)), (0, 0));
    // Each released permit wakes only the first waiter, also if a session's end releases it.
    let mut last = None;
    let mut waiters = contenders.len() - usize::from(PERMITS);
    for (freed, contender) in (1..).zip(contenders) {
        let Contender { node, mine, task } = contender;
        let grant = task.await.unwrap();
        assert!(last.replace(grant.token).is_none_or(|last| last < grant.token), "in the order of arrival");
        if freed % 3 == 0 {
            node.close_session(&mine).await.unwrap();
        } else {
            release(&node, mine, "sem", grant.token).await;
        }
        waiters = waiters.saturating_sub(1);
        until("the next to be woken", || (waiting(&cluster) == waiters).then_some(())).await;
        until("the release to be counted", || (counters.get(RELEASED) == freed).then_some(())).await;
        assert!(counters.get(NOTIFIED) <= freed, "more than one wake-up for a freed permit");
    }
    assert_eq!(counters.get(NOTIFIED), 46 - u64::from(PERMITS), "each of those who waited was woken once");
    cluster.finish().await;
}

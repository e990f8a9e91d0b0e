//! Barrier and double barrier.

use std::time::Duration;

use lockkeeper_client::Transport;
use lockkeeper_client::recipes::{DoubleBarrier, Entered, RecipeError};
use tokio::task::JoinHandle;

use super::support::{Process, client, cluster, is_lost, names, plain_session, session, soon, until};
use crate::wire::Wire;

#[tokio::test]
async fn a_barrier_holds_until_it_is_removed() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let (barrier, other) = (one.barrier("/barriers/a").unwrap(), two.barrier("/barriers/a").unwrap());
    soon("no barrier", barrier.wait()).await.unwrap();
    assert!(!barrier.remove().await.unwrap());
    assert!(barrier.block().await.unwrap());
    assert!(!other.block().await.unwrap());
    let waiting: Vec<_> = [barrier.clone(), other.clone()]
        .map(|barrier| tokio::spawn(async move { barrier.wait().await }))
        .into_iter()
        .collect();
    assert!(other.is_blocked().await.unwrap());
    assert!(waiting.iter().all(|task| !task.is_finished()));
    assert!(other.remove().await.unwrap());
    for task in waiting {
        soon("the barrier to fall", task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn who_waited_goes_on_even_if_another_barrier_is_set_at_once() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let barrier = session.barrier("/barriers/b").unwrap();
    for _ in 0..10 {
        barrier.block().await.unwrap();
        let waiter = barrier.clone();
        let (begun, mut has_begun) = tokio::sync::oneshot::channel();
        let mut wait = tokio::spawn(async move {
            let _ = begun.send(());
            waiter.wait().await
        });
        soon("the task", &mut has_begun).await.unwrap();
        barrier.remove().await.unwrap();
        barrier.block().await.unwrap();
        // Whether it looked before or after the change, one more removal lets it go; most of the time none is needed.
        if tokio::time::timeout(Duration::from_millis(50), &mut wait).await.is_err() {
            barrier.remove().await.unwrap();
            soon("the waiter", wait).await.unwrap().unwrap();
        }
        barrier.remove().await.unwrap();
    }
}

#[tokio::test]
async fn a_barrier_for_life_falls_with_its_session() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let process = Process::start(&cluster, Duration::from_secs(1)).await;
    let barrier = process.session.barrier("/barriers/c").unwrap();
    assert!(process.run(async move { barrier.block_while_alive().await.unwrap() }).await);
    let other = session.barrier("/barriers/c").unwrap();
    let waiting = tokio::spawn(async move { other.wait().await });
    process.die(());
    soon("the barrier to fall", waiting).await.unwrap().unwrap();

    // A waiter whose own session ends is not told that the way is free.
    let barrier = session.barrier("/barriers/d").unwrap();
    barrier.block().await.unwrap();
    let wait = barrier.wait();
    session.close().await.unwrap();
    assert!(is_lost(&soon("the end", wait).await));
}

fn enter(barrier: &DoubleBarrier) -> JoinHandle<Result<Entered, RecipeError>> {
    let barrier = barrier.clone();
    tokio::spawn(async move { barrier.enter().await })
}

#[tokio::test]
async fn all_enter_together_and_leave_together() {
    let cluster = cluster().await;
    let looking = client(&cluster);
    let mut barriers = Vec::new();
    for _ in 0..3 {
        barriers.push(session(&cluster).await.double_barrier("/meetings/a", 3).unwrap());
    }
    for _ in 0..3 {
        let first: Vec<_> = barriers[..2].iter().map(enter).collect();
        until("two are there", async || names(&looking, "/meetings/a/parties").await.len() == 2).await;
        assert!(first.iter().all(|task| !task.is_finished()));
        let mut inside = vec![soon("the third", enter(&barriers[2])).await.unwrap().unwrap()];
        for task in first {
            inside.push(soon("the first two", task).await.unwrap().unwrap());
        }
        assert!(inside.iter().all(|entered| entered.parties() == 3));
        let last = inside.pop().unwrap();
        let leaving: Vec<_> = inside.into_iter().map(|entered| tokio::spawn(entered.leave())).collect();
        until("two have left", async || names(&looking, "/meetings/a/parties").await.len() == 1).await;
        assert!(leaving.iter().all(|task| !task.is_finished()));
        soon("the last", last.leave()).await.unwrap();
        for task in leaving {
            soon("the others", task).await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn the_dead_are_not_waited_for() {
    let cluster = cluster().await;
    let looking = client(&cluster);
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let barrier = one.double_barrier("/meetings/b", 3).unwrap();

    // Dies before the round is full: it does not count, and another comes in its place.
    let process = Process::start(&cluster, Duration::from_secs(1)).await;
    let dying = process.session.double_barrier("/meetings/b", 3).unwrap();
    process.begin(async move {
        let _ = dying.enter().await;
    });
    until("it is there", async || names(&looking, "/meetings/b/parties").await.len() == 1).await;
    process.die(());
    until("it is gone", async || names(&looking, "/meetings/b/parties").await.is_empty()).await;
    let entering: Vec<_> = [&barrier, &two.double_barrier("/meetings/b", 3).unwrap()].map(enter).into_iter().collect();
    until("two are there", async || names(&looking, "/meetings/b/parties").await.len() == 2).await;
    assert!(entering.iter().all(|task| !task.is_finished()));

    // Dies inside: it has left.
    let process = Process::start(&cluster, Duration::from_secs(1)).await;
    let dying = process.session.double_barrier("/meetings/b", 3).unwrap();
    let left = soon("the round", process.run(async move { dying.enter().await.unwrap() })).await;
    let mut leaving = Vec::new();
    for task in entering {
        leaving.push(tokio::spawn(soon("the round", task).await.unwrap().unwrap().leave()));
    }
    until("two have left", async || names(&looking, "/meetings/b/parties").await.len() == 1).await;
    assert!(leaving.iter().all(|task| !task.is_finished()));
    process.die(left);
    for task in leaving {
        soon("the end of the dead", task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn one_too_many_waits_for_the_next_round() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let barrier = session.double_barrier("/meetings/c", 2).unwrap();
    let mut inside = Vec::new();
    for task in [enter(&barrier), enter(&barrier)] {
        inside.push(soon("the round", task).await.unwrap().unwrap());
    }
    let late: Vec<_> = (0..2).map(|_| enter(&barrier)).collect();
    let looking = client(&cluster);
    until("all are there", async || names(&looking, "/meetings/c/parties").await.len() == 4).await;
    assert!(late.iter().all(|task| !task.is_finished()));
    let last = inside.pop().unwrap();
    drop(inside);
    until("one has left by being dropped", async || names(&looking, "/meetings/c/parties").await.len() == 3).await;
    assert!(late.iter().all(|task| !task.is_finished()));
    soon("to leave does not wait for the next round", last.leave()).await.unwrap();
    for task in late {
        let entered = soon("the next round", task).await.unwrap().unwrap();
        assert_eq!(entered.parties(), 2);
        drop(entered);
    }

    assert!(matches!(session.double_barrier("/meetings/c", 0), Err(RecipeError::BadArgument(_))));
    assert!(matches!(session.double_barrier("/meetings/c", 1_001), Err(RecipeError::BadArgument(_))));
    let (three, two) =
        (session.double_barrier("/meetings/d", 3).unwrap(), session.double_barrier("/meetings/d", 2).unwrap());
    let wrong = enter(&three);
    until("it is there", async || names(&looking, "/meetings/d/parties").await.len() == 1).await;
    let _right = soon("two", enter(&two)).await.unwrap().unwrap();
    assert!(matches!(soon("the mismatch", wrong).await.unwrap(), Err(RecipeError::Mismatch { .. })));
}

#[tokio::test]
async fn who_gives_up_entering_leaves_nothing_behind() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let barrier = session.double_barrier("/meetings/e", 2).unwrap();
    for micros in (0..4_000).step_by(250) {
        let gave_up = tokio::time::timeout(Duration::from_micros(micros), barrier.enter()).await;
        assert!(gave_up.is_err());
    }
    let looking = client(&cluster);
    until("nobody is there", async || names(&looking, "/meetings/e/parties").await.is_empty()).await;
}

#[tokio::test]
async fn meeting_ends_with_the_session() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let looking = client(&cluster);
    let there = async || names(&looking, "/meetings/f/parties").await.len();
    let alone = enter(&one.double_barrier("/meetings/f", 2).unwrap());
    until("it is there", async || there().await == 1).await;
    one.close().await.unwrap();
    assert!(is_lost(&soon("the end of entering", alone).await.unwrap()));
    until("it is gone", async || there().await == 0).await;

    let three = session(&cluster).await;
    let entering = enter(&two.double_barrier("/meetings/f", 2).unwrap());
    let stays = soon("both", enter(&three.double_barrier("/meetings/f", 2).unwrap())).await.unwrap().unwrap();
    let leaving = tokio::spawn(soon("both", entering).await.unwrap().unwrap().leave());
    until("one has left", async || there().await == 1).await;
    two.close().await.unwrap();
    assert!(is_lost(&soon("the end of leaving", leaving).await.unwrap()));
    drop(stays);
}

/// Its node was made and nobody heard of it; it gives up, and comes again.
#[tokio::test]
async fn a_party_that_enters_again_after_an_outage_counts_once() {
    let cluster = cluster().await;
    let looking = client(&cluster);
    for (transport, path) in [(Transport::Stream, "/meetings/g"), (Transport::Http, "/meetings/h")] {
        let wire = Wire::to(&cluster.endpoints()[0]).await;
        let (one, two) = (wire.session(transport).await, session(&cluster).await);
        let parties = format!("{path}/parties");
        let there = async || names(&looking, &parties).await;
        let other = two.double_barrier(path, 2).unwrap();
        let first = enter(&other);
        until("the directories are there", async || there().await.len() == 1).await;
        first.abort();
        until("it has left", async || there().await.is_empty()).await;

        wire.mute();
        let gives_up = enter(&one.double_barrier(path, 2).unwrap());
        until("its node is there", async || there().await.len() == 1).await;
        let ghost = there().await;
        gives_up.abort();
        assert!(gives_up.await.unwrap_err().is_cancelled());
        // Through another handle, too.
        let again = enter(&one.double_barrier(path, 2).unwrap());
        wire.cut();
        wire.mend();
        until("it stands there anew", async || {
            let now = there().await;
            !now.is_empty() && now != ghost
        })
        .await;
        assert_eq!(there().await.len(), 1, "{transport:?}");
        let mark = looking.node(path, &Default::default()).await.unwrap().stat.version;
        assert!(mark == 0 && !again.is_finished(), "{transport:?}: the round opened for one party");
        let last = soon("the round", enter(&other)).await.unwrap().unwrap();
        let entered = soon("the round", again).await.unwrap().unwrap();
        assert_eq!((entered.parties(), last.parties()), (2, 2));
    }
}

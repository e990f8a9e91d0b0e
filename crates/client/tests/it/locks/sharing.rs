//! In-process sharing: one place in the cluster's queue, and turns that never overlap.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_client::{Error, Session, Sharing};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::test_cluster::{SOON, TestCluster, soon};

/// Only the number of turns counts.
fn passes(max_passes: u32) -> Sharing {
    Sharing { max_passes, max_time: SOON }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_have_one_place_in_the_queue_and_turns_never_overlap() {
    let setting = TestCluster::new().await;
    let (session, other) = (setting.session().await, setting.session().await);
    let blocking = other.lock("a").lock().await.unwrap();
    let (inside, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for n in 0..64 {
        // Handles made one by one share as clones do.
        let lock = session.lock("a").shared_in_process(passes(15));
        let (inside, begun) = (inside.clone(), begun.clone());
        tasks.spawn(async move {
            begun.fetch_add(1, Ordering::SeqCst);
            let guard = lock.lock().await.unwrap();
            assert!(!inside.swap(true, Ordering::SeqCst), "two turns at once");
            tokio::task::yield_now().await;
            inside.store(false, Ordering::SeqCst);
            let token = guard.token();
            // Both ways of ending a turn.
            if n % 2 == 0 {
                guard.release().await.unwrap()
            } else {
                drop(guard)
            }
            token
        });
    }
    setting.until("a", 1, 1).await;
    while begun.load(Ordering::SeqCst) < 64 {
        tokio::task::yield_now().await;
    }
    setting.until("a", 1, 1).await;
    let before = blocking.token();
    blocking.release().await.unwrap();
    let tokens: BTreeSet<u64> = soon(tasks.join_all()).await.into_iter().collect();
    assert!(tokens.first() > Some(&before));
    assert!((4..=8).contains(&tokens.len()), "{} grants for 64 turns, 16 to a grant", tokens.len());
    setting.until("a", 0, 0).await;
}

#[tokio::test]
async fn who_gives_up_is_skipped_and_the_last_takes_the_request_along() {
    let setting = TestCluster::new().await;
    let (session, other) = (setting.session().await, setting.session().await);
    let lock = session.lock("a").shared_in_process(passes(100));
    let blocking = other.lock("a").lock().await.unwrap();
    {
        let waits = futures::future::join3(lock.lock(), lock.lock(), lock.lock());
        tokio::select! {
            _ = waits => panic!("two holders"),
            () = setting.until("a", 1, 1) => {}
        }
    }
    setting.until("a", 1, 0).await;
    assert!(lock.lock_timeout(Duration::from_millis(20)).await.unwrap().is_none());
    assert!(lock.try_lock().await.unwrap().is_none());
    setting.until("a", 1, 0).await;
    blocking.release().await.unwrap();
    let first = soon(lock.lock()).await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(lock.lock_timeout(Duration::from_millis(20)).await.unwrap().is_none());
    let (mut gone, mut next) = (Box::pin(lock.lock()), Box::pin(lock.lock()));
    assert!(futures::poll!(&mut gone).is_pending() && futures::poll!(&mut next).is_pending());
    drop(gone);
    let token = first.token();
    drop(first);
    let second = soon(next).await.unwrap();
    assert_eq!(second.token(), token, "passed on");
    second.release().await.unwrap();
    assert!(soon(lock.try_lock()).await.unwrap().is_some(), "free again");
}

#[tokio::test]
async fn those_who_wait_hear_of_a_lost_session() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let lock = session.lock("a").shared_in_process(Sharing::default());
    let held = lock.lock().await.unwrap();
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(lock.lock())).collect();
    for wait in &mut waiting {
        assert!(futures::poll!(wait).is_pending());
    }
    session.close().await.unwrap();
    for wait in waiting {
        assert!(matches!(soon(wait).await, Err(Error::Lost(_))));
    }
    assert!(held.is_lost());
    assert!(matches!(held.release().await, Err(Error::Lost(_))));
}

/// The first guard hears of it and is kept; those who wait do not wait for it to go.
#[tokio::test]
async fn those_who_wait_ask_anew_when_the_grant_is_lost() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let lock = session.lock("a").shared_in_process(passes(100));
    let first = lock.lock().await.unwrap();
    let (mut second, mut third) = (Box::pin(lock.lock()), Box::pin(lock.lock()));
    assert!(futures::poll!(&mut second).is_pending() && futures::poll!(&mut third).is_pending());
    setting.client.force_release("a", first.token()).await.unwrap();
    let second = soon(second).await.unwrap();
    assert!(first.is_lost() && !second.is_lost() && second.token() > first.token());
    assert!(matches!(first.release().await, Err(Error::Lost(_))));
    let token = second.token();
    drop(second);
    let third = soon(third).await.unwrap();
    assert_eq!(third.token(), token, "passed on, whatever became of the first");
    third.release().await.unwrap();
    setting.until("a", 0, 0).await;
}

/// Broken off at any moment, in the moment of the turn included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_that_are_broken_off_anywhere_never_stop_the_line() {
    let setting = TestCluster::new().await;
    let session: Session = setting.session().await;
    let lock = session.lock("a").shared_in_process(passes(10));
    let mut tasks = JoinSet::new();
    for n in 0..40_u64 {
        let lock = lock.clone();
        tasks.spawn(async move {
            for round in 0..10 {
                let micros = (n * 131 + round * 977) % 3_000;
                match n % 3 {
                    0 => drop(timeout(Duration::from_micros(micros), lock.lock()).await),
                    1 => drop(lock.lock_timeout(Duration::from_micros(micros)).await.unwrap()),
                    _ => drop(lock.try_lock().await.unwrap()),
                }
            }
        });
    }
    soon(tasks.join_all()).await;
    soon(lock.lock()).await.unwrap().release().await.unwrap();
    setting.until("a", 0, 0).await;
}

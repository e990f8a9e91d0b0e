//! Read-write lock, semaphore, several locks at once, reentrant lock, spin lock.

use std::time::Duration;

use lockkeeper_client::api::Code;
use lockkeeper_client::locks::Backoff;
use lockkeeper_client::{Error, Reading};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::test_cluster::{SOON, TestCluster, soon};

#[tokio::test]
async fn readers_share_and_writers_are_alone_and_not_starved() {
    let setting = TestCluster::new().await;
    let (one, other) = (setting.session().await, setting.session().await);
    let (mine, theirs) = (one.rw_lock("a"), other.rw_lock("a"));
    let first = mine.read().await.unwrap();
    let second = theirs.try_read().await.unwrap().expect("readers share");
    assert!(theirs.try_write().await.unwrap().is_none());
    assert!(theirs.write_timeout(Duration::from_millis(30)).await.unwrap().is_none());
    let writing = tokio::spawn(async move { theirs.write().await.unwrap() });
    setting.until("a", 2, 1).await;
    assert!(mine.try_read().await.unwrap().is_none(), "a writer waits");
    assert!(mine.read_timeout(Duration::from_millis(30)).await.unwrap().is_none());
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = soon(writing).await.unwrap();
    assert!(mine.try_read().await.unwrap().is_none());
    drop(writer);
    soon(mine.read()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_writer_becomes_a_reader_without_letting_go() {
    let setting = TestCluster::new().await;
    let (one, other) = (setting.session().await, setting.session().await);
    let writer = one.rw_lock("a").write().await.unwrap();
    let token = writer.token();
    let theirs = other.rw_lock("a");
    let reading = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.read().await.unwrap() }
    });
    setting.until("a", 1, 1).await;
    let writing = tokio::spawn(async move { theirs.write().await.unwrap() });
    setting.until("a", 1, 2).await;
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(reader.token(), token);
    let read = soon(reading).await.unwrap();
    setting.until("a", 2, 1).await;
    // Whatever the stream has to tell comes before this answer.
    one.client().keepalive().await.unwrap();
    assert!(!reader.is_lost(), "the writer's node has gone, the reader's has come");
    read.release().await.unwrap();
    reader.release().await.unwrap();
    soon(writing).await.unwrap().release().await.unwrap();
    let broken = one.rw_lock("a").write().await.unwrap();
    setting.client.force_release("a", broken.token()).await.unwrap();
    assert!(matches!(broken.downgrade().await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn a_semaphore_has_so_many_permits() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let semaphore = session.semaphore("s", 2);
    let (one, two) = (semaphore.acquire().await.unwrap(), semaphore.try_acquire().await.unwrap().unwrap());
    assert_ne!(one.token(), two.token());
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert!(semaphore.acquire_timeout(Duration::from_millis(30)).await.unwrap().is_none());
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.unwrap() }
    });
    setting.until("s", 2, 1).await;
    drop(two);
    let three = soon(waiting).await.unwrap();
    setting.until("s", 2, 0).await;
    let other_number = session.semaphore("s", 3).try_acquire().await;
    assert_eq!(other_number.unwrap_err().code(), Some(Code::LockMismatch));
    assert_eq!(session.lock("s").try_lock().await.unwrap_err().code(), Some(Code::LockMismatch));
    one.release().await.unwrap();
    three.release().await.unwrap();
    assert!(session.semaphore("s", 0).acquire().await.is_err());
}

#[tokio::test]
async fn several_locks_are_taken_together_or_not_at_all() {
    let setting = TestCluster::new().await;
    let (one, other) = (setting.session().await, setting.session().await);
    let both = one.multi_lock(["b", "a", "b"]);
    let guard = both.lock().await.unwrap();
    assert_eq!(guard.names().collect::<Vec<_>>(), ["a", "b"]);
    assert!(other.lock("a").try_lock().await.unwrap().is_none());
    assert!(other.lock("b").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    let blocking = other.lock("b").lock().await.unwrap();
    assert!(both.try_lock().await.unwrap().is_none());
    assert!(both.lock_timeout(Duration::from_millis(30)).await.unwrap().is_none());
    other.lock("a").try_lock().await.unwrap().expect("nothing of it was left behind").release().await.unwrap();
    let waiting = tokio::spawn(async move { both.lock().await.unwrap() });
    setting.until("b", 1, 1).await;
    blocking.release().await.unwrap();
    let guard = soon(waiting).await.unwrap();
    drop(guard);
    setting.until("a", 0, 0).await;
    setting.until("b", 0, 0).await;
    let last_gone = async |lock| {
        let directory = format!("/locks/{lock}");
        setting.client.node(&directory, &Reading::default()).await.unwrap().stat.pzxid
    };
    assert_eq!(last_gone("a").await, last_gone("b").await, "a dropped guard gives all back in one transaction");
    for is_dropped in [true, false] {
        let guard = one.multi_lock(["a", "b"]).lock().await.unwrap();
        setting.client.force_release("b", guard.token()).await.unwrap();
        soon(guard.lost()).await;
        if is_dropped {
            drop(guard);
        } else {
            assert!(guard.release().await.is_err(), "it is told");
        }
        setting.until("a", 0, 0).await;
    }
    assert!(one.multi_lock(Vec::<String>::new()).lock().await.is_err());
    assert!(one.multi_lock((0..257).map(|n| n.to_string())).lock().await.is_err());
}

#[tokio::test]
async fn who_holds_a_reentrant_lock_may_take_it_again() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let outer = session.reentrant("a").lock().await.unwrap();
    let inner = session.reentrant("a").lock().await.unwrap();
    assert_eq!((outer.token(), outer.hold_count()), (inner.token(), 2));
    setting.until("a", 1, 0).await;
    let (tell, tried) = oneshot::channel();
    let another_task = tokio::spawn({
        let lock = session.reentrant("a");
        async move {
            assert!(lock.try_lock().await.unwrap().is_none());
            assert!(lock.lock_timeout(Duration::from_millis(30)).await.unwrap().is_none());
            tell.send(()).unwrap();
            lock.lock().await.unwrap()
        }
    });
    soon(tried).await.unwrap();
    setting.until("a", 1, 1).await;
    outer.release().await.unwrap();
    setting.until("a", 1, 1).await;
    drop(inner);
    let theirs = soon(another_task).await.unwrap();
    assert!(session.reentrant("a").try_lock().await.unwrap().is_none(), "the task that took it is another");
    theirs.release().await.unwrap();
    soon(session.reentrant("a").lock()).await.unwrap().release().await.unwrap();
    setting.until("a", 0, 0).await;
}

#[tokio::test]
async fn a_named_owner_is_one_owner_in_all_its_tasks() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let lock = session.reentrant("a");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock_as("order 7").await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(soon(task).await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token() && guard.hold_count() == 8));
    assert!(lock.try_lock_as("order 8").await.unwrap().is_none());
    setting.until("a", 1, 0).await;
    drop(guards);
    assert!(soon(lock.lock_timeout_as("order 8", SOON)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_reentrant_hold_that_was_lost_is_not_entered_again() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let lock = session.reentrant("a");
    let held = lock.lock().await.unwrap();
    session.close().await.unwrap();
    assert!(matches!(lock.lock().await, Err(Error::Lost(_))));
    assert!(matches!(held.release().await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn spinning_does_not_stand_in_the_queue() {
    let setting = TestCluster::new().await;
    let (one, other) = (setting.session().await, setting.session().await);
    let held = one.lock("a").lock().await.unwrap();
    let backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(20) };
    let spin = other.spin_lock("a", backoff);
    assert!(spin.try_lock().await.unwrap().is_none());
    assert!(spin.lock_timeout(Duration::from_millis(50)).await.unwrap().is_none());
    let mut spinning = Box::pin(spin.lock());
    assert!(timeout(Duration::from_millis(30), &mut spinning).await.is_err());
    held.release().await.unwrap();
    soon(spinning).await.unwrap().release().await.unwrap();
    setting.until("a", 0, 0).await;
}

//! The plain lock, and what all guards have in common.

use std::time::Duration;

use lockkeeper_client::api::Code;
use lockkeeper_client::locks::{Guard, Lock};
use lockkeeper_client::{Client, Error, Options, Session, SessionOptions, Transport};
use tokio::time::{Instant, timeout};

use super::TRANSPORTS;
use crate::test_cluster::{TestCluster, soon};

#[tokio::test]
async fn one_at_a_time_and_larger_tokens() {
    let setting = TestCluster::new().await;
    let (one, other) = (setting.session().await, setting.session().await);
    let first = one.lock("a").label("one").lock().await.unwrap();
    assert!(first.remaining() > Duration::from_secs(5) && !first.is_lost());
    assert!(other.lock("a").try_lock().await.unwrap().is_none());
    let before = Instant::now();
    assert!(other.lock("a").lock_timeout(Duration::from_millis(50)).await.unwrap().is_none());
    assert!(before.elapsed() >= Duration::from_millis(50));
    // The session outlives its guards: its end would be a loss.
    let waiter = other.clone();
    let waiting = tokio::spawn(async move { waiter.lock("a").lock().await.unwrap() });
    setting.until("a", 1, 1).await;
    let token = first.token();
    first.release().await.unwrap();
    let second = soon(waiting).await.unwrap();
    assert!(second.token() > token);
    let lost = second.lost();
    drop(second);
    setting.until("a", 0, 0).await;
    assert!(timeout(Duration::ZERO, lost).await.is_err(), "a dropped guard reports no loss");
    drop(other);
}

#[tokio::test]
async fn a_lock_with_a_fixed_time_ends_by_the_clock_and_is_never_renewed() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let lock = session.lock("a").max_hold(Duration::from_millis(800));
    let first = lock.lock().await.unwrap();
    assert!(first.remaining() <= Duration::from_millis(800));
    let because = soon(first.lost()).await;
    assert!(because.contains("fixed time"), "{because}");
    // The cluster frees it although its guard is still there.
    let second = soon(session.lock("a").lock()).await.unwrap();
    assert!(second.token() > first.token());
    assert!(matches!(first.release().await, Err(Error::Lost(_))));
    assert!(session.lock("a").max_hold(Duration::from_secs(5)).try_lock().await.unwrap().is_none());
    second.release().await.unwrap();

    let third = lock.lock().await.unwrap();
    third.release().await.unwrap();
    setting.until("a", 0, 0).await;
    drop(lock.lock().await.unwrap());
    setting.until("a", 0, 0).await;
    let too_long = session.lock("a").max_hold(Duration::from_secs(48 * 3_600)).lock().await;
    assert!(matches!(too_long, Err(Error::Refused(problem)) if problem.detail.contains("max_session_timeout_ms")));
    setting.until("a", 0, 0).await;
}

#[tokio::test]
async fn a_session_that_another_process_opened_is_kept_alive_and_left_open() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let held = session.lock("a").lock().await.unwrap();
    let adopted = Session::adopt(session.client(), session.credential()).await.unwrap();
    assert_eq!((adopted.id(), adopted.timeout()), (session.id(), session.timeout()));
    assert!(adopted.left() > Duration::ZERO);
    drop(adopted);
    assert!(!held.is_lost());
    held.release().await.unwrap();
    session.close().await.unwrap();
    let over = Session::adopt(session.client(), session.credential()).await;
    assert!(matches!(over, Err(Error::Lost(_))), "{over:?}");
}

/// Labels are replicated, and shown to everybody who may look at sessions.
#[tokio::test]
async fn a_session_is_labelled_with_its_process_and_none_of_its_arguments() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let shown = setting.client.session(session.id()).await.unwrap();
    let program = std::env::args_os().next().unwrap();
    let program = std::path::Path::new(&program).file_name().unwrap().to_string_lossy().into_owned();
    let expected = format!(", {}, {program}", std::process::id());
    assert!(shown.label.contains('@') && shown.label.ends_with(&expected), "{}", shown.label);
}

#[tokio::test]
async fn a_dropped_wait_leaves_the_queue_and_nothing_behind() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let session = setting.session_over(transport).await;
        let lock = session.lock("a");
        let held = lock.lock().await.unwrap();
        {
            let mut wait = Box::pin(lock.lock());
            tokio::select! {
                _ = &mut wait => panic!("two holders"),
                () = setting.until("a", 1, 1) => {}
            }
        }
        setting.until("a", 1, 0).await;
        held.release().await.unwrap();
        setting.until("a", 0, 0).await;
    }
}

/// Broken off at any moment, the moment of the grant included.
#[tokio::test]
async fn waits_that_are_broken_off_anywhere_leave_nothing_held() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let session = setting.session_over(transport).await;
        let names: Vec<(u64, String)> =
            (0..4_000).step_by(50).map(|micros| (micros, format!("{transport:?}/{micros}"))).collect();
        for (micros, name) in &names {
            drop(timeout(Duration::from_micros(*micros), session.lock(name).lock()).await);
        }
        for (_, name) in &names {
            setting.until(name, 0, 0).await;
        }
        assert!(!session.left().is_zero(), "it was not the session's end that freed them");
    }
}

/// What is dropped is given back before anything that is asked afterwards.
#[tokio::test]
async fn a_lock_is_free_as_soon_as_its_guard_was_dropped() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    for _ in 0..50 {
        assert!(session.lock("a").try_lock().await.unwrap().is_some());
        assert!(session.multi_lock(["a", "b", "c"]).try_lock().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn who_waits_for_themselves_waits_in_vain() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let _held = session.lock("a").lock().await.unwrap();
    assert!(session.lock("a").lock_timeout(Duration::from_millis(50)).await.unwrap().is_none());
}

#[tokio::test]
async fn work_ends_with_the_lock() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let guard = session.lock("a").lock().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    let (lost, closing) = (guard.lost(), session.clone());
    let work = guard.run(std::future::pending::<()>());
    let (ended, closed) = tokio::join!(soon(work), closing.close());
    assert!(matches!(ended, Err(Error::Lost(_))));
    closed.unwrap();
    assert!(guard.is_lost() && guard.remaining().is_zero());
    soon(lost).await;
    assert!(matches!(guard.run(async { panic!("polled without the lock") }).await, Err::<(), _>(Error::Lost(_))));
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost(_))), "{released:?}");
    assert!(matches!(session.lock("a").lock().await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn a_session_that_ends_while_waiting_is_an_error() {
    let setting = TestCluster::new().await;
    let (one, other) = (setting.session().await, setting.session().await);
    let _held = one.lock("a").lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = other.lock("a");
        async move { lock.lock().await }
    });
    setting.until("a", 1, 1).await;
    other.close().await.unwrap();
    assert!(matches!(soon(waiting).await.unwrap(), Err(Error::Lost(_))));
    setting.until("a", 1, 0).await;
}

#[tokio::test]
async fn a_lock_that_was_broken_is_reported_at_its_release() {
    let setting = TestCluster::new().await;
    let session = setting.session_over(Transport::Http).await;
    let guard = session.lock("a").lock().await.unwrap();
    setting.client.force_release("a", guard.token()).await.unwrap();
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn a_lock_that_was_broken_is_told_over_the_stream() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let guard = session.lock("a").lock().await.unwrap();
    let other = session.lock("b").lock().await.unwrap();
    let (lost, working) = (guard.lost(), guard.run(std::future::pending::<()>()));
    let broken = setting.client.force_release("a", guard.token());
    let (worked, broken) = tokio::join!(soon(working), broken);
    broken.unwrap();
    assert!(matches!(worked, Err(Error::Lost(_))));
    soon(lost).await;
    assert!(guard.is_lost() && guard.remaining().is_zero());
    assert!(!other.is_lost() && !session.left().is_zero());
    let next = session.lock("a").lock().await.unwrap();
    drop(guard);
    assert!(setting.client.verify("a", next.token()).await.unwrap().held, "a lost guard frees nobody's later grant");
    other.release().await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn what_the_cluster_refuses_is_refused() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    for bad in ["", "/", "a/../b"] {
        assert_eq!(session.lock(bad).lock().await.unwrap_err().code(), Some(Code::BadPath), "{bad}");
    }
}

/// A guard may be dropped where no runtime is, and in one that goes down.
#[test]
fn guards_may_be_dropped_anywhere() {
    let cluster = tokio::runtime::Runtime::new().unwrap();
    let setting = cluster.block_on(TestCluster::new());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (session, outside): (Session, Guard) = runtime.block_on(async {
        let client = Client::new(setting.cluster.endpoints(), Options::default()).unwrap();
        let options = SessionOptions { timeout: Duration::from_secs(1), ..SessionOptions::default() };
        let session = Session::open(&client, &options).await.unwrap();
        let guard = session.lock("outside").lock().await.unwrap();
        (session, guard)
    });
    drop(outside);
    cluster.block_on(setting.until("outside", 0, 0));
    let lock: Lock = session.lock("inside");
    let inside = runtime.block_on(async { lock.lock().await.unwrap() });
    runtime.spawn(async move {
        let _inside = inside;
        std::future::pending::<()>().await;
    });
    runtime.shutdown_background();
    drop(lock);
    drop(session);
    // Whether it was given back or ended with the session.
    cluster.block_on(setting.until("inside", 0, 0));
}

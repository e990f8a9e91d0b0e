//! Lost answers, broken connections, stopped nodes: nothing is left behind, and every waiter keeps its place.

use std::time::Duration;

use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::{Error, Guard, Session, Transport};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::TRANSPORTS;
use crate::test_cluster::{SOON, TestCluster, soon};
use crate::wire::Wire;

/// A session over a wire that then swallows what the node says.
async fn session_over_muted_wire(cluster: &TestCluster, transport: Transport) -> (Wire, Session) {
    let wire = Wire::to(&cluster.cluster.endpoints()[0]).await;
    let session = wire.session(transport).await;
    session.lock("warm").lock().await.unwrap().release().await.unwrap();
    wire.mute();
    (wire, session)
}

/// The grant was made and nobody ever heard of it.
#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_taken_back() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let (wire, session) = session_over_muted_wire(&setting, transport).await;
        let answer = session.lock("a").try_lock().await;
        assert!(matches!(answer, Err(Error::UnknownOutcome(_))), "{transport:?}: {answer:?}");
        setting.until("a", 1, 0).await;
        wire.mend();
        wire.disconnect();
        setting.until("a", 0, 0).await;
        assert!(!session.left().is_zero());
    }
}

/// The lost answer was that both locks are held; then one was broken by force. The other must not block the next
/// request.
#[tokio::test]
async fn a_multi_lock_that_lost_a_part_before_it_was_told_does_not_wait_for_itself() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        for broken in ["a", "b"] {
            let (wire, session) = session_over_muted_wire(&setting, transport).await;
            let lock = session.multi_lock(["a", "b"]);
            let waiting = tokio::spawn(async move { lock.lock().await });
            setting.until("a", 1, 0).await;
            let token = setting.client.lock(broken).await.unwrap().holders[0].token;
            setting.client.force_release(broken, token).await.unwrap();
            wire.mend();
            wire.disconnect();
            let guard = soon(waiting).await.unwrap().unwrap();
            assert!(guard.token() > token, "{transport:?}, {broken}");
            setting.until("a", 1, 0).await;
            setting.until("b", 1, 0).await;
            guard.release().await.unwrap();
            setting.until("a", 0, 0).await;
            setting.until("b", 0, 0).await;
        }
    }
}

/// The same for one who does not wait any more: what is left goes in the background.
#[tokio::test]
async fn what_is_left_of_a_multi_lock_is_taken_back() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let (wire, session) = session_over_muted_wire(&setting, transport).await;
        let answer = session.multi_lock(["a", "b"]).try_lock().await;
        assert!(matches!(answer, Err(Error::UnknownOutcome(_))), "{transport:?}: {answer:?}");
        setting.until("a", 1, 0).await;
        setting.until("b", 1, 0).await;
        let token = setting.client.lock("a").await.unwrap().holders[0].token;
        setting.client.force_release("a", token).await.unwrap();
        wire.mend();
        wire.disconnect();
        setting.until("b", 0, 0).await;
        assert!(!session.left().is_zero());
    }
}

/// Likewise if its caller has gone in the meantime.
#[tokio::test]
async fn a_wait_that_was_given_up_in_silence_is_taken_back() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let (wire, session) = session_over_muted_wire(&setting, transport).await;
        {
            let lock = session.lock("a");
            let mut wait = Box::pin(lock.lock());
            tokio::select! {
                answer = &mut wait => panic!("{transport:?}: {answer:?}"),
                () = setting.until("a", 1, 0) => {}
            }
        }
        wire.mend();
        wire.disconnect();
        setting.until("a", 0, 0).await;
        assert!(!session.left().is_zero());
    }
}

/// The release took effect and nobody heard of it. Another call of the session holds the lock once more: the release in
/// the background must not give that hold back.
#[tokio::test]
async fn a_release_that_was_not_answered_gives_back_one_hold() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let wire = Wire::to(&setting.cluster.endpoints()[0]).await;
        let session = wire.session(transport).await;
        let guard = session.lock("a").lock().await.unwrap();
        let again = Acquire { reentrant: true, ..Acquire::default() };
        let give_up_at = Instant::now() + SOON;
        session.client().acquire("a", &again).await.unwrap();
        let holds = async || setting.client.lock("a").await.unwrap().holders.first().map(|holder| holder.holds);
        assert_eq!(holds().await, Some(2));
        wire.mute();
        let token = guard.token();
        let answer = guard.release().await;
        assert!(matches!(answer, Err(Error::UnknownOutcome(_))), "{transport:?}: {answer:?}");
        // Nothing is carried until the wire is mended, so the count below has no repetition that comes after.
        wire.cut();
        assert_eq!(holds().await, Some(1));
        let carried = wire.carried("token");
        wire.mend();
        while wire.carried("token") == carried {
            assert!(Instant::now() < give_up_at + SOON, "the release is not repeated");
            sleep(Duration::from_millis(5)).await;
        }
        // Over the same wire, and answered: the cluster has the repetition too, or will have it soon.
        for _ in 0..50 {
            session.client().verify("a", token).await.unwrap();
            assert_eq!(holds().await, Some(1), "{transport:?}");
            sleep(Duration::from_millis(10)).await;
        }
        session.client().release("a", token).await.unwrap();
        setting.until("a", 0, 0).await;
    }
}

#[tokio::test]
async fn a_release_that_was_not_answered_is_seen_through() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let wire = Wire::to(&setting.cluster.endpoints()[0]).await;
        let session = wire.session(transport).await;
        let guard = session.lock("a").lock().await.unwrap();
        wire.mute();
        wire.disconnect();
        let answer = guard.release().await;
        let unsure = matches!(answer, Err(Error::UnknownOutcome(_) | Error::Unreachable { .. }));
        assert!(unsure, "{transport:?}: {answer:?}");
        wire.mend();
        wire.disconnect();
        setting.until("a", 0, 0).await;
        assert!(!session.left().is_zero());
        session.lock("a").lock().await.unwrap().release().await.unwrap();
    }
}

/// Over the stream it keeps its place; over HTTP a broken connection may cost it.
#[tokio::test]
async fn a_wait_goes_on_when_its_connection_breaks() {
    let setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let wire = Wire::to(&setting.cluster.endpoints()[0]).await;
        let (broken, direct) = (wire.session(transport).await, setting.session().await);
        let held = direct.lock("a").lock().await.unwrap();
        let (tell, mut told) = mpsc::unbounded_channel();
        for (waiting, who, session) in [(1, "broken", &broken), (2, "direct", &direct)] {
            let (lock, tell) = (session.lock("a"), tell.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                tell.send(who).unwrap();
                guard.release().await.unwrap();
            });
            setting.until("a", 1, waiting).await;
        }
        for _ in 0..5 {
            wire.disconnect();
            sleep(Duration::from_millis(20)).await;
        }
        setting.until("a", 1, 2).await;
        held.release().await.unwrap();
        let order = [soon(told.recv()).await.unwrap(), soon(told.recv()).await.unwrap()];
        assert!(transport == Transport::Http || order == ["broken", "direct"], "{order:?}");
        setting.until("a", 0, 0).await;
    }
}

/// The session waits for lock "a".
fn wait(session: &Session) -> JoinHandle<Result<Guard, Error>> {
    let lock = session.lock("a");
    tokio::spawn(async move { lock.lock().await })
}

/// Each node goes down and comes back while one holds and others wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_outlive_every_node_in_turn() {
    let mut setting = TestCluster::of(3).await;
    let (one, other) = (setting.session().await, setting.session_over(Transport::Http).await);
    let held = one.lock("a").lock().await.unwrap();
    let second = wait(&other);
    setting.until("a", 1, 1).await;
    let third = wait(&one);
    setting.until("a", 1, 2).await;
    for node in 1..=3 {
        setting.cluster.stop(node).await.unwrap();
        setting.until("a", 1, 2).await;
        setting.cluster.restart(node).await.unwrap();
    }
    assert!(!held.is_lost());
    let first_token = held.token();
    held.release().await.unwrap();
    let guard = soon(second).await.unwrap().unwrap();
    let second_token = guard.token();
    drop(guard);
    let guard = soon(third).await.unwrap().unwrap();
    assert!(first_token < second_token && second_token < guard.token(), "in the order in which they asked");
    guard.release().await.unwrap();
    setting.until("a", 0, 0).await;
}

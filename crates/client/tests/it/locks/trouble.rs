//! Lost answers, broken connections, stopped nodes: nothing is left behind, and every waiter keeps its place.

use std::time::Duration;

use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::{Client, Error, Guard, Options, Session, SessionOptions, Transport};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::TRANSPORTS;
use crate::test_cluster::{SOON, TestCluster, soon};
use crate::wire::{Wire, impatient};

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

/// Each node goes down and comes back while one holds and others wait; then all of them do at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_outlive_every_node_in_turn() {
    let mut setting = TestCluster::of(3).await;
    // Longer than the nodes are away.
    let opened = async |transport: Transport| {
        let options = SessionOptions { timeout: Duration::from_secs(30), transport, ..SessionOptions::default() };
        Session::open(&setting.client, &options).await.unwrap()
    };
    let (one, other) = (opened(Transport::Stream).await, opened(Transport::Http).await);
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
    for node in 1..=3 {
        setting.cluster.stop(node).await.unwrap();
    }
    // The first one runs from here on, and is ready only with another.
    let alone = timeout(Duration::from_millis(100), setting.cluster.restart(1)).await;
    assert!(alone.is_err(), "{alone:?}");
    for node in [2, 3] {
        setting.cluster.restart(node).await.unwrap();
    }
    setting.until("a", 1, 2).await;
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

/// Without a cluster for longer than the session can be trusted. One who waits is told as well.
#[tokio::test]
async fn a_holder_without_a_cluster_is_told_in_time() {
    let mut setting = TestCluster::new().await;
    for transport in TRANSPORTS {
        let client = Client::new(setting.cluster.endpoints(), impatient()).unwrap();
        let options = SessionOptions { timeout: Duration::from_millis(1_500), transport, ..SessionOptions::default() };
        let session = Session::open(&client, &options).await.unwrap();
        let guard = session.lock("a").lock().await.unwrap();
        let waiter = Session::open(&client, &options).await.unwrap();
        let waiting = wait(&waiter);
        setting.until("a", 1, 1).await;
        setting.cluster.stop(1).await.unwrap();
        let began = Instant::now();
        let stopped = guard.run(std::future::pending::<()>());
        assert!(matches!(soon(stopped).await, Err(Error::Lost(_))), "{transport:?}");
        assert!(began.elapsed() < Duration::from_millis(1_500), "{transport:?}: told too late");
        assert!(matches!(session.lock("b").lock().await, Err(Error::Lost(_))), "{transport:?}");
        let waited = soon(waiting).await.unwrap();
        assert!(matches!(waited, Err(Error::Lost(_))), "{transport:?}: {waited:?}");
        setting.cluster.restart(1).await.unwrap();
        drop(guard);
        setting.until("a", 0, 0).await;
    }
}

/// The endpoint of the leader, as node 1 knows it.
async fn leader_endpoint(cluster: &TestCluster) -> String {
    leader_endpoint_but(cluster, "").await
}

/// The same once it is another one.
async fn leader_endpoint_but(cluster: &TestCluster, before: &str) -> String {
    let give_up_at = Instant::now() + SOON;
    loop {
        let status = cluster.client.status_of(&cluster.client.endpoints()[0], false, SOON).await;
        if let Some(leader) = status.unwrap().leader {
            let endpoint = cluster.cluster.endpoints()[usize::try_from(leader).unwrap() - 1].clone();
            if endpoint != before {
                return endpoint;
            }
        }
        assert!(Instant::now() < give_up_at, "no leader");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_session_follows_the_leader_with_its_lock_and_its_place() {
    let setting = TestCluster::of(3).await;
    // Another endpoint is asked when the first is silent for half a second.
    let options = SessionOptions { timeout: Duration::from_secs(6), ..SessionOptions::default() };
    let opened = || {
        let client = Client::new(setting.cluster.endpoints(), Options::default()).unwrap();
        let options = &options;
        async move { Session::open(&client, options).await.unwrap() }
    };
    let (holder, waiter, last) = (opened().await, opened().await, opened().await);
    let first = leader_endpoint(&setting).await;
    let guard = holder.lock("a").lock().await.unwrap();
    let waiting = wait(&waiter);
    setting.until("a", 1, 1).await;
    let waiting_last = wait(&last);
    setting.until("a", 1, 2).await;

    setting.client.transfer_leadership(None).await.unwrap();
    leader_endpoint_but(&setting, &first).await;
    // A stream that has moved already moves again after half a minute.
    let give_up_at = Instant::now() + Duration::from_secs(60);
    for session in [&holder, &waiter, &last] {
        while session.client().preferred().as_str() != leader_endpoint(&setting).await {
            assert!(Instant::now() < give_up_at, "the session has not moved");
            sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(!guard.is_lost());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token && !waiting_last.is_finished());
    next.release().await.unwrap();
    soon(waiting_last).await.unwrap().unwrap().release().await.unwrap();
}

//! Transactions against a real cluster: all or nothing, and nothing once the lock they rest on is gone.

use lockkeeper_client::api::Code;
use lockkeeper_client::api::nodes::{Create, Kind, TxnOp, TxnResult};
use lockkeeper_client::recipes::TxnError;
use lockkeeper_client::{Reading, Session};

use crate::test_cluster::TestCluster;

async fn two_sessions() -> (TestCluster, Session, Session) {
    let cluster = TestCluster::new().await;
    let (one, other) = (cluster.session().await, cluster.session().await);
    (cluster, one, other)
}

async fn data(session: &Session, path: &str) -> Option<Vec<u8>> {
    match session.client().node(path, &Reading::default()).await {
        Ok(node) => Some(node.data.to_bytes().unwrap()),
        Err(error) if error.code() == Some(Code::NoNode) => None,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn changes_take_place_together_and_say_what_came_of_each() {
    let (_cluster, session, _) = two_sessions().await;
    let guard = session.lock("tree").lock().await.unwrap();
    let sequential = Create { kind: Kind::Ephemeral, sequential: true, ..Create::default() };
    let done = session
        .txn()
        .if_held("tree", guard.token())
        .create("/app", "root")
        .create("/app/a", b"\xff\x00")
        .create_as("/app/n-", sequential)
        .set("/app", "changed", Some(0))
        .check("/app", Some(1))
        .delete("/app/a", None)
        .commit()
        .await
        .unwrap();
    assert_eq!(done.results.len(), 7);
    assert_eq!((done.results[0].clone(), done.results[6].clone()), (TxnResult::LockHeld, TxnResult::Delete));
    assert_eq!((done.path(1), done.path(3), done.path(4)), (Some("/app"), Some("/app/n-0000000001"), None));
    assert_eq!(done.stat(3).unwrap().ephemeral_owner, Some(session.id()));
    assert_eq!((done.stat(4).unwrap().mzxid, done.stat(4).unwrap().version), (done.zxid, 1));
    assert!(done.stat(6).is_none() && done.path(7).is_none());
    assert_eq!(data(&session, "/app").await.unwrap(), b"changed");
    assert_eq!(data(&session, "/app/a").await, None);
}

#[tokio::test]
async fn whoever_shows_a_token_that_does_not_hold_changes_nothing() {
    let (_cluster, session, other) = two_sessions().await;
    let guard = session.lock("job").lock().await.unwrap();
    let token = guard.token();
    session.txn().if_held("job", token).create("/job", "1").commit().await.unwrap();
    // It is the token that counts, so that a holder may have another process write.
    other.txn().if_held("job", token).set("/job", "2", None).commit().await.unwrap();

    let refused = async |session: &Session, token: u64| {
        let late = session.txn().check("/job", None).if_held("job", token).set("/job", "late", None).commit().await;
        match late {
            Err(TxnError::NotHeld { operation: 1, lock, token: shown }) => {
                assert_eq!((lock.as_str(), shown), ("job", token));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(data(session, "/job").await.unwrap(), b"2");
    };
    refused(&session, token + 1).await;
    refused(&session, 0).await;

    // Taken away by force: the holder may not know yet, and the token protects all the same.
    other.client().force_release("job", token).await.unwrap();
    let next = other.lock("job").lock().await.unwrap();
    refused(&session, token).await;
    next.release().await.unwrap();
    refused(&session, token).await;
}

#[tokio::test]
async fn a_waiter_does_not_hold() {
    let (_cluster, session, other) = two_sessions().await;
    let guard = session.lock("job").lock().await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("job").lock().await });
    let waits = loop {
        if let Some(request) = session.client().lock("job").await.unwrap().queue.first() {
            break request.token;
        }
    };
    let early = session.txn().if_held("job", waits).create("/early", "").commit().await.unwrap_err();
    assert!(matches!(early, TxnError::NotHeld { .. }), "{early}");
    guard.release().await.unwrap();
    let _held = waiting.await.unwrap().unwrap();
    session.txn().if_held("job", waits).create("/in-time", "").commit().await.unwrap();
}

#[tokio::test]
async fn one_refused_operation_undoes_all_and_is_named() {
    let (_cluster, session, _) = two_sessions().await;
    session.txn().create("/a", "1").commit().await.unwrap();
    let cases = [
        (session.txn().create("/b", "").create("/a", ""), 1, Code::NodeExists, "creating /a"),
        (session.txn().create("/b", "").set("/a", "x", Some(7)), 1, Code::BadVersion, "setting /a"),
        (session.txn().create("/b", "").check("/c", None), 1, Code::NoNode, "checking /c"),
        (session.txn().create("/b/c", ""), 0, Code::NoNode, "creating /b/c"),
        (session.txn().create("/b", "").create("/b/c", "").delete("/b", None), 2, Code::NotEmpty, "deleting /b"),
    ];
    for (txn, at, why, words) in cases {
        match txn.commit().await.unwrap_err() {
            TxnError::Refused { operation, what, cause } => {
                assert_eq!((operation, cause, what.as_str()), (at, why, words));
            }
            other => panic!("{words}: {other}"),
        }
        assert_eq!(data(&session, "/b").await, None, "{words}");
    }
    assert_eq!(data(&session, "/a").await.unwrap(), b"1");
}

#[tokio::test]
async fn what_is_out_of_bounds_is_refused() {
    let (_cluster, session, _) = two_sessions().await;
    let code = |error: TxnError| match error {
        TxnError::Client(error) => error.code(),
        other => panic!("{other}"),
    };
    assert_eq!(code(session.txn().commit().await.unwrap_err()), Some(Code::BadRequest));
    let check = || TxnOp::Check { path: "/".into(), version: None };
    let many = |count: usize| (0..count).fold(session.txn(), |txn, _| txn.with(check()));
    many(1_024).commit().await.unwrap();
    assert!(matches!(code(many(1_025).commit().await.unwrap_err()), Some(Code::BadRequest | Code::TooLarge)));
    assert!(session.txn().create("no/slash", "").commit().await.is_err());
    assert!(session.txn().if_held("", 1).commit().await.is_err());
}

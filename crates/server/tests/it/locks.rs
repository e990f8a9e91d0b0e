//! Locks over HTTP: acquire to release, then each refusal.

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquired, Lock, Locks, Released};
use lockkeeper_api::sessions::Sessions;
use reqwest::{Method, StatusCode};
use serde_json::json;
use uuid::Uuid;

use crate::harness::{Cluster, Got, eventually};

#[tokio::test]
async fn a_lock_from_acquire_to_release() {
    let node = Cluster::start(1).await;
    let (first, second) = (node.session(10_000).await, node.session(10_000).await);
    let got = node.post("/v1/locks/orders/42/acquire", Some(&first.credential), json!({ "label": "worker 1" })).await;
    assert_eq!(got.status, StatusCode::OK);
    let zxid = got.zxid;
    let held: Acquired = got.json();
    assert_eq!(Some(held.zxid), zxid);
    assert_eq!((held.lock.as_str(), held.session_id, held.session_timeout_ms), ("orders/42", first.session_id, 10_000));
    assert!(held.session_remaining_ms <= 10_000 && held.session_remaining_ms > 5_000, "{held:?}");
    assert!(held.path.starts_with("/locks/orders/42/_c_") && held.credential.is_none());

    let busy =
        node.post("/v1/locks/orders/42/acquire", Some(&second.credential), json!({})).await.problem(Code::LockBusy);
    assert_eq!(busy.holders.len(), 1);
    assert_eq!((busy.holders[0].token, busy.holders[0].label.as_str()), (held.token, "worker 1"));

    let waiting = node.post(
        "/v1/locks/orders/42/acquire",
        Some(&second.credential),
        json!({ "wait_ms": 20_000, "label": "worker 2" }),
    );
    let release = async {
        eventually("the second waits", async || node.get("/v1/locks/orders/42").await.json::<Lock>().waiting == 1)
            .await;
        let shown: Lock = node.get("/v1/locks/orders/42").await.json();
        assert_eq!((shown.holders.len(), shown.queue.len()), (1, 1));
        assert_eq!(shown.queue[0].label, "worker 2");
        assert_eq!(shown.queue[0].waits_for.as_deref(), Some(held.path.as_str()));
        let list: Locks = node.get("/v1/locks?prefix=orders/").await.json();
        assert_eq!((list.locks.len(), list.locks[0].holding, list.locks[0].waiting), (1, 1, 1));
        assert_eq!(list.locks[0].holder.as_ref().unwrap().label, "worker 1");
        assert!(node.verify("orders/42", held.token).await.held);
        let released =
            node.post("/v1/locks/orders/42/release", Some(&first.credential), json!({ "token": held.token })).await;
        assert_eq!(released.json::<Released>().token, held.token);
    };
    let (next, ()) = tokio::join!(waiting, release);
    let next: Acquired = next.json();
    assert!(next.token > held.token);
    assert!(!node.verify("orders/42", held.token).await.held);
    assert!(node.verify("orders/42", next.token).await.held);

    let again = node.post("/v1/locks/orders/42/release", Some(&first.credential), json!({ "token": held.token })).await;
    again.problem(Code::NotHeld);
    let foreign =
        node.post("/v1/locks/orders/42/release", Some(&first.credential), json!({ "token": next.token })).await;
    foreign.problem(Code::NotHeld);
    assert!(node.verify("orders/42", next.token).await.held, "nobody frees another's lock");
}

/// Who waits in vain learns why: the place, and for each holder label, token and since when.
#[tokio::test]
async fn a_wait_that_ends_tells_place_and_holder() {
    let node = Cluster::start(1).await;
    let body = json!({ "ttl_ms": 30_000, "label": "pg_dump" });
    let held: Acquired = node.post("/v1/locks/nightly/acquire", None, body.clone()).await.json();
    let tried = node.post("/v1/locks/nightly/acquire", None, body.clone()).await.problem(Code::LockBusy);
    assert_eq!(tried.place, Some(1), "nobody waits: {tried:?}");

    let mut waiting = body;
    waiting["wait_ms"] = 60_000.into();
    let first = node.post("/v1/locks/nightly/acquire", None, waiting.clone());
    tokio::pin!(first);
    let waits = async || node.get("/v1/locks/nightly").await.json::<Lock>().waiting == 1;
    tokio::select! {
        _ = &mut first => panic!("two hold the lock"),
        () = eventually("the first one waits", waits) => {}
    }
    waiting["wait_ms"] = 50.into();
    let busy = node.post("/v1/locks/nightly/acquire", None, waiting).await.problem(Code::LockBusy);
    assert_eq!(busy.place, Some(2), "behind the first one: {busy:?}");
    let [holder] = &busy.holders[..] else { panic!("{busy:?}") };
    assert_eq!((holder.label.as_str(), holder.token), ("pg_dump", held.token));
    assert!(holder.since_ms > 0);
    for part in ["\"pg_dump\"", "place 2", ", queued ", &format!("(token {})", held.token)] {
        assert!(busy.detail.contains(part), "{part} in {}", busy.detail);
    }
}

#[tokio::test]
async fn ttl_makes_a_session_and_takes_it_back() {
    let node = Cluster::start(1).await;
    let held: Acquired =
        node.post("/v1/locks/job/acquire", None, json!({ "ttl_ms": 30_000, "label": "cron" })).await.json();
    let credential = held.credential.clone().expect("the session's credential");
    assert_eq!(held.session_timeout_ms, 30_000);
    let sessions = async || node.get("/v1/sessions").await.json::<Sessions>().sessions.len();
    assert_eq!(sessions().await, 1);

    let busy = node.post("/v1/locks/job/acquire", None, json!({ "ttl_ms": 30_000, "wait_ms": 20 })).await;
    busy.problem(Code::LockBusy);
    eventually("the session of the unlucky one is closed", async || sessions().await == 1).await;

    // A client that disconnects while it waits leaves neither request nor session.
    let gone = node.post("/v1/locks/job/acquire", None, json!({ "ttl_ms": 30_000, "wait_ms": 60_000 }));
    let seen = eventually("it waits", async || node.get("/v1/locks/job").await.json::<Lock>().waiting == 1);
    tokio::select! {
        _ = gone => panic!("got a lock that is held"),
        () = seen => {}
    }
    eventually("its session is closed", async || sessions().await == 1).await;
    eventually("its request has left", async || node.get("/v1/locks/job").await.json::<Lock>().waiting == 0).await;

    let released = node.post("/v1/locks/job/release", Some(&credential), json!({ "token": held.token })).await;
    assert_eq!(released.status, StatusCode::OK);
}

#[tokio::test]
async fn a_retried_request_is_the_same_request() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    let ask = json!({ "request_id": Uuid::new_v4() });
    let first: Acquired = node.post("/v1/locks/a/acquire", Some(&session.credential), ask.clone()).await.json();
    let second: Acquired = node.post("/v1/locks/a/acquire", Some(&session.credential), ask.clone()).await.json();
    assert_eq!((first.token, &first.path), (second.token, &second.path));
    let other = json!({ "request_id": ask["request_id"], "mode": "shared" });
    node.post("/v1/locks/a/acquire", Some(&session.credential), other).await.problem(Code::RequestMismatch);
    let released = node.post("/v1/locks/a/release", Some(&session.credential), json!({ "token": first.token })).await;
    assert_eq!(released.status, StatusCode::OK);
    node.post("/v1/locks/a/acquire", Some(&session.credential), ask).await.problem(Code::NotQueued);

    let id = Uuid::new_v4().to_string();
    let release = async |token: u64| {
        let request =
            node.request(Method::POST, "/v1/locks/b/release").header("lockkeeper-session", &session.credential);
        let request = request.header("lockkeeper-request-id", &id).json(&json!({ "token": token }));
        Got::of(request.send().await.unwrap()).await
    };
    let held: Acquired = node.post("/v1/locks/b/acquire", Some(&session.credential), json!({})).await.json();
    assert_eq!(release(held.token).await.status, StatusCode::OK);
    assert_eq!(release(held.token).await.status, StatusCode::OK, "the first answer again");
    release(held.token + 1).await.problem(Code::RequestMismatch);
}

#[tokio::test]
async fn forced_release_hits_that_grant_alone_and_can_be_switched_off() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    let held: Acquired = node.post("/v1/locks/x/y/acquire", Some(&session.credential), json!({})).await.json();
    let wrong = format!("/v1/locks/x/y/holders/{}", held.token + 1);
    node.call(Method::DELETE, &wrong, None, None).await.problem(Code::NotHeld);
    let path = format!("/v1/locks/x/y/holders/{}", held.token);
    let forged = format!("{}.{:032x}", session.session_id, 7);
    node.call(Method::DELETE, &path, Some(&forged), None).await.problem(Code::WrongSecret);
    assert!(node.verify("x/y", held.token).await.held, "who does not prove who it is breaks nothing");
    let broken: Released = node.call(Method::DELETE, &path, None, None).await.json();
    assert_eq!((broken.lock.as_str(), broken.token), ("x/y", held.token));
    node.post("/v1/locks/x/y/release", Some(&session.credential), json!({ "token": held.token }))
        .await
        .problem(Code::NotHeld);

    let strict = Cluster::start_with(1, |config| config.admin.allow_force_release = false).await;
    let session = strict.session(10_000).await;
    let held: Acquired = strict.post("/v1/locks/x/acquire", Some(&session.credential), json!({})).await.json();
    let path = format!("/v1/locks/x/holders/{}", held.token);
    strict.call(Method::DELETE, &path, None, None).await.problem(Code::Forbidden);
    assert!(strict.verify("x", held.token).await.held);
}

#[tokio::test]
async fn bad_lock_requests_change_nothing() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    let before = node.zxid().await;
    let mine = Some(session.credential.as_str());
    node.post("/v1/locks/a/acquire", None, json!({})).await.problem(Code::SessionRequired);
    node.post("/v1/locks/a/acquire", mine, json!({ "ttl_ms": 1000 })).await.problem(Code::BadRequest);
    node.post("/v1/locks/a/acquire", mine, json!({ "wait_ms": 600_001 })).await.problem(Code::BadRequest);
    node.post("/v1/locks/a/acquire", mine, json!({ "wait_ms": -1 })).await.problem(Code::BadRequest);
    node.post("/v1/locks/a/acquire", mine, json!({ "mode": "greedy" })).await.problem(Code::BadRequest);
    node.post("/v1/locks/a/acquire", mine, json!({ "label": "x".repeat(257) })).await.problem(Code::BadRequest);
    node.post("/v1/locks/a/acquire", mine, json!({ "request_id": "7" })).await.problem(Code::BadRequest);
    node.post("/v1/locks/a/release", mine, json!({})).await.problem(Code::BadRequest);
    node.post("/v1/locks/a/release", None, json!({ "token": 1 })).await.problem(Code::SessionRequired);
    node.post("/v1/locks/a/release", mine, json!({ "token": 1 })).await.problem(Code::NotHeld);
    node.post("/v1/locks/a/b", mine, json!({})).await.problem(Code::MethodNotAllowed);
    node.call(Method::DELETE, "/v1/locks/a/holders/x", mine, None).await.problem(Code::BadRequest);
    let unused: Lock = node.get("/v1/locks/nobody/uses/this").await.json();
    assert!(unused.holders.is_empty() && unused.queue.is_empty());
    assert_eq!(node.zxid().await, before, "nothing changed");
}

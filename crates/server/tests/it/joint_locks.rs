//! Several locks under one request, permits, lock delay and downgrade over HTTP.

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquired, Downgraded, Lock, Mode, Released};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Cluster, Got, Running, eventually};

async fn acquire(node: &Running, lock: &str, credential: &str, body: Value) -> Got {
    node.post(&format!("/v1/locks/{lock}/acquire"), Some(credential), body).await
}

async fn release(node: &Running, lock: &str, credential: &str, body: Value) -> Got {
    node.post(&format!("/v1/locks/{lock}/release"), Some(credential), body).await
}

async fn shown(node: &Running, lock: &str) -> Lock {
    node.get(&format!("/v1/locks/{lock}")).await.json()
}

#[tokio::test]
async fn several_locks_are_had_and_given_back_together() {
    let node = Cluster::start(1).await;
    let (one, two) = (node.session(20_000).await.credential, node.session(20_000).await.credential);
    let all: Acquired = acquire(&node, "m/b", &one, json!({ "also": ["z", "a/b/c"] })).await.json();
    assert_eq!((all.lock.as_str(), all.also.clone()), ("m/b", vec!["a/b/c".to_owned(), "z".to_owned()]));
    assert!(all.path.starts_with("/locks/m/b/_c_"), "{}", all.path);
    assert!(all.also_paths[0].starts_with("/locks/a/b/c/_c_") && all.also_paths[1].starts_with("/locks/z/_c_"));
    for lock in ["m/b", "a/b/c", "z"] {
        assert_eq!(shown(&node, lock).await.holders[0].token, all.token, "one token for all");
    }
    let busy = acquire(&node, "free", &two, json!({ "also": ["z"] })).await.problem(Code::LockBusy);
    assert!(busy.detail.contains("lock z") && busy.holders[0].token == all.token, "{busy}");
    assert!(shown(&node, "free").await.holders.is_empty(), "all or nothing");
    let wrong = json!({ "token": all.token, "also": ["z", "other"] });
    release(&node, "m/b", &one, wrong).await.problem(Code::NotHeld);
    assert_eq!(shown(&node, "z").await.holders.len(), 1, "all or none");
    let released: Released =
        release(&node, "m/b", &one, json!({ "token": all.token, "also": ["a/b/c", "z"] })).await.json();
    assert_eq!(released.token, all.token);
    for lock in ["m/b", "a/b/c", "z"] {
        assert!(shown(&node, lock).await.holders.is_empty());
    }
}

#[tokio::test]
async fn what_is_left_of_several_is_given_back_in_one_transaction() {
    let node = Cluster::start(1).await;
    let (one, two) = (node.session(20_000).await.credential, node.session(20_000).await.credential);
    let all: Acquired = acquire(&node, "a", &one, json!({ "also": ["b", "c"] })).await.json();
    node.call(Method::DELETE, &format!("/v1/locks/b/holders/{}", all.token), None, None).await.json::<Value>();
    let whole = json!({ "token": all.token, "also": ["b", "c"] });
    release(&node, "a", &one, whole).await.problem(Code::NotHeld);
    let in_part = json!({ "token": all.token, "also": ["b", "c"], "even_in_part": true });
    release(&node, "a", &two, in_part.clone()).await.problem(Code::NotQueued);
    assert_eq!(shown(&node, "c").await.holders.len(), 1, "it takes the owner's session");
    let released: Released = release(&node, "a", &one, in_part.clone()).await.json();
    for lock in ["a", "c"] {
        let directory: Value = node.get(&format!("/v1/nodes/locks/{lock}")).await.json();
        assert_eq!(directory["stat"]["pzxid"], released.zxid, "{lock}");
        assert!(shown(&node, lock).await.holders.is_empty());
    }
    release(&node, "a", &one, in_part).await.problem(Code::NotQueued);
}

#[tokio::test]
async fn permits_bound_how_many_hold() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await.credential;
    let ask = json!({ "mode": "permit", "permits": 2 });
    let first: Acquired = acquire(&node, "s", &session, ask.clone()).await.json();
    assert_eq!(first.mode, Mode::Permit);
    acquire(&node, "s", &session, ask.clone()).await.json::<Acquired>();
    acquire(&node, "s", &session, ask.clone()).await.problem(Code::LockBusy);
    let view = shown(&node, "s").await;
    assert_eq!((view.holders.len(), view.holders[0].permits, view.holders[0].mode), (2, Some(2), Mode::Permit));
    for other in [json!({ "mode": "permit", "permits": 3 }), json!({}), json!({ "mode": "shared" })] {
        acquire(&node, "s", &session, other).await.problem(Code::LockMismatch);
    }
    release(&node, "s", &session, json!({ "token": first.token })).await.json::<Released>();
    acquire(&node, "s", &session, ask.clone()).await.json::<Acquired>();
    acquire(&node, "l", &session, json!({})).await.json::<Acquired>();
    acquire(&node, "l", &session, ask).await.problem(Code::LockMismatch);
}

#[tokio::test]
async fn a_delay_keeps_the_place_of_one_whose_session_expired() {
    let node = Cluster::start_with(1, |config| config.timing.reap_interval_ms = 60_000).await;
    let (dies, waits) = (node.session(500).await.credential, node.session(20_000).await.credential);
    let held: Acquired = acquire(&node, "d", &dies, json!({ "delay_ms": 1_500 })).await.json();
    assert_eq!(shown(&node, "d").await.holders[0].delay_ms, 1_500);
    let waiting = acquire(&node, "d", &waits, json!({ "wait_ms": 20_000 }));
    let seen = async {
        eventually("the place is kept free", async || {
            let lock = shown(&node, "d").await;
            lock.holders.iter().chain(&lock.queue).any(|request| request.delayed_until_ms.is_some())
        })
        .await;
        let verified = node.post("/v1/locks/d/verify", None, json!({ "token": held.token })).await;
        assert_eq!(verified.json::<Value>()["held"], false, "the dead holder's token holds no more");
        std::time::Instant::now()
    };
    let (granted, seen) = tokio::join!(waiting, seen);
    let granted: Acquired = granted.json();
    assert!(granted.token > held.token && seen.elapsed().as_millis() > 500, "{:?}", seen.elapsed());
    // A release has no delay.
    let held = granted;
    release(&node, "d", &waits, json!({ "token": held.token })).await.json::<Released>();
    acquire(&node, "d", &waits, json!({})).await.json::<Acquired>();
}

#[tokio::test]
async fn a_writer_becomes_a_reader_without_letting_go() {
    let node = Cluster::start(1).await;
    let (one, two) = (node.session(20_000).await.credential, node.session(20_000).await.credential);
    let written: Acquired = acquire(&node, "w", &one, json!({ "mode": "write" })).await.json();
    let reading = acquire(&node, "w", &two, json!({ "mode": "shared", "wait_ms": 20_000 }));
    let downgrading = async {
        eventually("a reader waits", async || shown(&node, "w").await.waiting == 1).await;
        let body = json!({ "token": written.token });
        let foreign = node.post("/v1/locks/w/downgrade", Some(&two), body.clone()).await;
        foreign.problem(Code::NotHeld);
        node.post("/v1/locks/w/downgrade", Some(&one), body).await.json::<Downgraded>()
    };
    let (reader, downgraded) = tokio::join!(reading, downgrading);
    assert!(reader.json::<Acquired>().token > written.token);
    assert_eq!((downgraded.lock.as_str(), downgraded.token), ("w", written.token));
    assert!(downgraded.path.contains("__READ__"), "{}", downgraded.path);
    assert_eq!(shown(&node, "w").await.holders.len(), 2);
    node.post("/v1/locks/w/downgrade", None, json!({ "token": 1 })).await.problem(Code::SessionRequired);
}

#[tokio::test]
async fn bad_requests_name_the_field_and_change_nothing() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await.credential;
    let before = node.zxid().await;
    let many: Vec<String> = (0..256).map(|n| format!("l{n}")).collect();
    for (body, field) in [
        (json!({ "also": many }), "'also'"),
        (json!({ "also": ["b", "b"] }), "lock b"),
        (json!({ "also": ["a"] }), "lock a"),
        (json!({ "also": "b" }), "sequence"),
        (json!({ "mode": "permit" }), "'permits'"),
        (json!({ "mode": "permit", "permits": 0 }), "'permits'"),
        (json!({ "mode": "permit", "permits": 1_001 }), "'permits'"),
        (json!({ "mode": "permit", "permits": 70_000 }), "70000"),
        (json!({ "permits": 2 }), "'permits'"),
        (json!({ "mode": "shared", "permits": 2 }), "'permits'"),
        (json!({ "delay_ms": 600_001 }), "'delay_ms'"),
        (json!({ "delay_ms": -1 }), "-1"),
    ] {
        let problem = acquire(&node, "a", &session, body.clone()).await.problem(Code::BadRequest);
        assert!(problem.detail.contains(field), "{body}: {problem}");
    }
    for also in ["", "/b", "b//c", "..", "b/../c"] {
        let problem = acquire(&node, "a", &session, json!({ "also": [also] })).await.problem(Code::BadPath);
        assert!(problem.detail.contains("'also'"), "{problem}");
        release(&node, "a", &session, json!({ "token": 1, "also": [also] })).await.problem(Code::BadPath);
    }
    release(&node, "a", &session, json!({ "token": 1, "also": ["a"] })).await.problem(Code::BadRequest);
    node.call(Method::POST, "/v1/locks/a/downgrade", Some(&session), Some(json!({}))).await.problem(Code::BadRequest);
    assert_eq!(node.zxid().await, before, "nothing changed");
}

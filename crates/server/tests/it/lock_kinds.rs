//! Kinds of locks: several under one request, with a delay, re-entered by their session, without a queue.

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquired, Lock, Released};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::{Cluster, Got, Running, eventually};
use crate::stream_client::StreamClient;

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
async fn what_cannot_be_re_entered_is_refused() {
    let node = Cluster::start(1).await;
    let own = node.session(20_000).await.credential;
    for body in [
        json!({ "reentrant": true, "also": ["b"] }),
        json!({ "reentrant": true, "mode": "shared" }),
        json!({ "reentrant": true, "mode": "permit", "permits": 2 }),
    ] {
        let problem = acquire(&node, "a", &own, body).await.problem(Code::BadRequest);
        assert!(problem.detail.contains("reentrant"), "{problem}");
    }
    acquire(&node, "s", &own, json!({ "mode": "shared" })).await.json::<Acquired>();
    acquire(&node, "s", &own, json!({ "reentrant": true })).await.problem(Code::LockMismatch);
}

#[tokio::test]
async fn a_request_names_up_to_256_locks() {
    let node = Cluster::start(1).await;
    let own = node.session(20_000).await.credential;
    let names = |count: usize| (0..count).map(|number| format!("m{number:03}")).collect::<Vec<_>>();
    let all: Acquired = acquire(&node, "l", &own, json!({ "also": names(255) })).await.json();
    assert_eq!((all.also.len(), all.also_paths.len()), (255, 255));
    assert_eq!(shown(&node, "m254").await.holders[0].token, all.token);
    let given_back = json!({ "token": all.token, "also": names(255) });
    release(&node, "l", &own, given_back).await.json::<Released>();
    assert!(shown(&node, "m254").await.holders.is_empty());
    let problem = acquire(&node, "l", &own, json!({ "also": names(256) })).await.problem(Code::BadRequest);
    assert!(problem.detail.contains("255"), "{problem}");
}

#[tokio::test]
async fn a_lock_is_re_entered_on_the_stream_too() {
    let node = Cluster::start(1).await;
    let own = node.session(20_000).await.credential;
    let first: Acquired = acquire(&node, "l", &own, json!({})).await.json();
    let (mut wire, _) = StreamClient::greeted(&node, &own).await;
    let held = wire.get(json!({ "acquire_lock": { "name": "l", "body": { "reentrant": true } } })).await;
    assert_eq!((&held["token"], &held["holds"]), (&json!(first.token), &json!(2)), "{held}");
    let released = wire.get(json!({ "release_lock": { "name": "l", "body": { "token": first.token } } })).await;
    assert_eq!(released["still_held"], json!(1), "{released}");
    assert!(node.verify("l", first.token).await.held);
    // Its loss is still reported.
    let path = format!("/v1/locks/l/holders/{}", first.token);
    node.call(reqwest::Method::DELETE, &path, None, None).await.json::<Value>();
    let lost = wire.kind("lock_lost").await;
    assert_eq!(lost["token"], json!(first.token), "{lost}");
}

#[tokio::test]
async fn a_lock_without_a_queue() {
    let node = Cluster::start(1).await;
    let (own, other) = (node.session(20_000).await.credential, node.session(20_000).await.credential);
    let id = Uuid::new_v4();
    let held: Acquired = acquire(&node, "u", &own, json!({ "unfair": true, "request_id": id })).await.json();
    let repeated: Acquired = acquire(&node, "u", &own, json!({ "unfair": true, "request_id": id })).await.json();
    assert_eq!(held.token, repeated.token, "a retry finds its grant");

    acquire(&node, "u", &other, json!({ "unfair": true, "wait_ms": 50 })).await.problem(Code::LockBusy);
    assert_eq!(shown(&node, "u").await.waiting, 0);
    let id = Uuid::new_v4();
    let ask = json!({ "unfair": true, "wait_ms": 20_000, "request_id": id });
    let waits = acquire(&node, "u", &other, ask.clone());
    let give_back = async {
        let waiting = async || shown(&node, "u").await.waiting == 0;
        eventually("it is not in the queue", waiting).await;
        release(&node, "u", &own, json!({ "token": held.token })).await.json::<Released>();
    };
    let (next, ()) = tokio::join!(waits, give_back);
    let next: Acquired = next.json();
    assert!(next.token > held.token);
    let repeated: Acquired = acquire(&node, "u", &other, ask).await.json();
    assert_eq!(repeated.token, next.token, "the grant of a later attempt");
    let at_once = json!({ "unfair": true, "request_id": id });
    let repeated: Acquired = acquire(&node, "u", &other, at_once).await.json();
    assert_eq!(repeated.token, next.token, "without waiting");
    release(&node, "u", &other, json!({ "token": next.token })).await.json::<Released>();

    // Another call, whose id follows: it has no part in the attempts of that one.
    let following = Uuid::from_u128(id.as_u128().wrapping_add(1));
    let ask = json!({ "unfair": true, "request_id": following });
    let held: Acquired = acquire(&node, "u", &other, ask).await.json();
    assert!(held.token > next.token);
}

#[tokio::test]
async fn sessions_of_100_ms_where_the_configuration_allows_them() {
    let cluster = Cluster::start_with(1, |config| config.timing.min_session_timeout_ms = 100).await;
    let held: Acquired = cluster.post("/v1/locks/short/acquire", None, json!({ "ttl_ms": 100 })).await.json();
    assert_eq!(held.session_timeout_ms, 100);
    eventually("it is free again", async || shown(&cluster, "short").await.holders.is_empty()).await;
    assert_eq!(cluster.session(1).await.timeout_ms, 100);
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
        assert!(!node.verify("d", held.token).await.held, "the dead holder's token holds no more");
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
    node.call(reqwest::Method::POST, "/v1/locks/a/downgrade", Some(&session), Some(json!({})))
        .await
        .problem(Code::BadRequest);
    assert_eq!(node.zxid().await, before, "nothing changed");
}

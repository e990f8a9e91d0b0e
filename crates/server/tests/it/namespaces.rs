//! Limits of namespaces (promise P13), over HTTP, on the stream and with access control.

use std::time::{Duration, Instant};

use lockkeeper_api::Code;
use lockkeeper_api::access::{Namespace, Namespaces};
use lockkeeper_api::locks::Acquired;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::access::{enable, principal};
use crate::harness::{Cluster, Running};

async fn limit(node: &Running, name: &str, limits: Value) {
    let change = json!({ "put_namespace": { "name": name, "limits": limits } });
    node.change(change).await;
}

async fn namespaces(node: &Running) -> Vec<Namespace> {
    node.get("/v1/namespaces").await.json::<Namespaces>().namespaces
}

#[tokio::test]
async fn what_a_namespace_has_is_bounded_and_shown() {
    let node = Cluster::start(1).await;
    let own = node.session(20_000).await.credential;
    let other = node.session(20_000).await.credential;
    limit(&node, "orders", json!({ "lock_requests": 1, "nodes": 4, "sessions": 1, "bytes": 100_000 })).await;
    let held: Acquired = node.post("/v1/locks/orders/1/acquire", Some(&own), json!({})).await.json();
    let problem = node.post("/v1/locks/orders/2/acquire", Some(&own), json!({})).await.problem(Code::NamespaceFull);
    for word in ["namespace orders", "1 of at most 1 lock requests", "lockkeeper namespaces"] {
        assert!(problem.status == 409 && problem.detail.contains(word), "{problem}");
    }
    let waiting = json!({ "wait_ms": 1_000 });
    node.post("/v1/locks/orders/1/acquire", Some(&other), waiting).await.problem(Code::NamespaceFull);
    node.post("/v1/gates/orders/1/begin", Some(&other), json!({ "fingerprint": "f" }))
        .await
        .problem(Code::NamespaceFull);
    let data = json!({ "data": { "text": "x".repeat(200_000) } });
    let large = node.post("/v1/nodes/orders", None, data).await.problem(Code::NamespaceFull);
    assert!(large.detail.contains("bytes"), "{large}");
    assert_eq!(node.post("/v1/nodes/orders", None, json!({})).await.status, StatusCode::CREATED);
    node.post("/v1/nodes/orders/more", None, json!({})).await.problem(Code::NamespaceFull);
    // Other names are not affected, and giving back makes room.
    assert_eq!(node.post("/v1/nodes/orders2", None, json!({})).await.status, StatusCode::CREATED);
    let shown = namespaces(&node).await;
    assert_eq!(shown.len(), 1);
    let (usage, limits) = (shown[0].usage, shown[0].limits);
    assert_eq!((usage.sessions, usage.lock_requests, usage.nodes, limits.nodes), (1, 1, 4, Some(4)));
    let figures = node.get("/metrics").await.text;
    for line in [
        r#"lockkeeper_namespace_used{namespace="orders",resource="nodes"} 4"#,
        r#"lockkeeper_namespace_limit{namespace="orders",resource="nodes"} 4"#,
    ] {
        assert!(figures.contains(line), "{line} in {figures}");
    }
    node.post("/v1/locks/orders/1/release", Some(&own), json!({ "token": held.token })).await;
    let again = node.post("/v1/locks/orders/1/acquire", Some(&other), json!({})).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text);
    node.change(json!({ "delete_namespace": { "name": "orders" } })).await;
    assert!(namespaces(&node).await.is_empty());
    let figures = node.get("/metrics").await.text;
    assert!(!figures.contains(r#"lockkeeper_namespace_used{"#), "{figures}");
    let free = node.post("/v1/locks/orders/2/acquire", Some(&own), json!({})).await;
    assert_eq!(free.status, StatusCode::OK, "{}", free.text);
}

/// A client that repeats what is refused takes no room in the log.
#[tokio::test]
async fn a_refusal_of_a_full_namespace_is_not_replicated() {
    let node = Cluster::start(1).await;
    let own = node.session(20_000).await.credential;
    limit(&node, "orders", json!({ "nodes": 1, "lock_requests": 0 })).await;
    limit(&node, "parts", json!({ "bytes": 10_000 })).await;
    limit(&node, "pairs", json!({ "lock_requests": 1 })).await;
    assert_eq!(node.post("/v1/nodes/parts", None, json!({})).await.status, StatusCode::CREATED);
    assert_eq!(node.post("/v1/nodes/orders", None, json!({})).await.status, StatusCode::CREATED);
    let log = async || node.status().await.last_log_index;
    let before = log().await;
    for _ in 0..20 {
        node.post("/v1/nodes/orders/a", Some(&own), json!({})).await.problem(Code::NamespaceFull);
        node.post("/v1/locks/orders/a/acquire", Some(&own), json!({})).await.problem(Code::NamespaceFull);
        // What is left is not enough: of bytes, and for two requests.
        let large = json!({ "data": { "text": "x".repeat(20_000) } });
        node.post("/v1/nodes/parts/a", Some(&own), large).await.problem(Code::NamespaceFull);
        let two = json!({ "also": ["pairs/b"] });
        node.post("/v1/locks/pairs/a/acquire", Some(&own), two).await.problem(Code::NamespaceFull);
        // No session is opened for it either.
        let made = json!({ "ttl_ms": 10_000 });
        node.post("/v1/locks/orders/a/acquire", None, made).await.problem(Code::NamespaceFull);
    }
    let entries = log().await - before;
    assert!(entries < 20, "100 refusals made {entries} log entries");
}

/// A retry of what was done gets its answer, however full the namespace is by then.
#[tokio::test]
async fn a_retry_in_a_full_namespace_gets_the_first_answer() {
    let node = Cluster::start(1).await;
    let own = node.session(20_000).await.credential;
    limit(&node, "orders", json!({ "nodes": 1 })).await;
    let create = async || {
        let request = node.request(Method::POST, "/v1/nodes/orders").json(&json!({}));
        let request = request.header("lockkeeper-session", &own);
        let id = "7d3f0a52-0f7b-4a4e-9d53-1f6f4c1d2b11";
        crate::harness::Got::of(request.header("lockkeeper-request-id", id).send().await.unwrap()).await
    };
    let first = create().await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.text);
    let again = create().await;
    assert_eq!((again.status, again.text), (first.status, first.text));
}

#[tokio::test]
async fn requests_above_the_rate_wait_and_are_then_refused_and_others_are_not_held_up() {
    let node = Cluster::start(1).await;
    let own = node.session(20_000).await.credential;
    let held: Acquired = node.post("/v1/locks/orders/1/acquire", Some(&own), json!({})).await.json();
    limit(&node, "orders", json!({ "requests_per_s": 2 })).await;
    let began = Instant::now();
    let asked = (0..30).map(|_| node.get("/v1/locks/orders/1"));
    let answers = futures::future::join_all(asked).await;
    let refused: Vec<_> = answers.into_iter().filter(|got| got.status != StatusCode::OK).collect();
    // Three at once, the next after half a second; nobody waits longer.
    assert!((1..=26).contains(&refused.len()), "{} of 30 were refused", refused.len());
    for got in refused {
        let problem = got.problem(Code::RateLimited);
        assert!(problem.status == 429 && problem.retry_after_ms.is_some(), "{problem}");
        assert!(problem.detail.contains("2 requests a second"), "{problem}");
    }
    assert!(began.elapsed() >= Duration::from_millis(500));
    let credential = Some(own.as_str());
    let released = node.post("/v1/locks/orders/1/release", credential, json!({ "token": held.token })).await;
    assert_eq!(released.status, StatusCode::OK, "what gives back is never refused: {}", released.text);
    assert_eq!(node.get("/v1/locks/parts/1").await.status, StatusCode::OK);
    let figures = node.get("/metrics").await.text;
    let series = r#"lockkeeper_namespace_requests_refused_total{namespace="orders"}"#;
    assert!(figures.contains(series), "{figures}");
    node.change(json!({ "delete_namespace": { "name": "orders" } })).await;
    assert!(!node.get("/metrics").await.text.contains(series), "a series goes with the limits");
}

#[tokio::test]
async fn only_an_administrator_sets_limits_and_an_owner_sees_its_own() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let billing = principal(&node, &admin, "billing", json!([])).await.token.unwrap();
    let admin = node.with(&admin);
    for (name, owner) in [("orders", json!("billing")), ("parts", Value::Null)] {
        let limits = json!({ "sessions": 1, "requests_per_s": 1_000 });
        admin.change(json!({ "put_namespace": { "name": name, "owner": owner, "limits": limits } })).await;
    }
    let billing = node.with(&billing);
    let refused = billing.post("/v1/access", None, json!({ "delete_namespace": { "name": "orders" } })).await;
    refused.problem(Code::Forbidden);
    let own: Namespaces = billing.get("/v1/namespaces").await.json();
    assert_eq!(own.namespaces.iter().map(|one| &one.name[..]).collect::<Vec<_>>(), ["orders"]);
    let all: Namespaces = admin.get("/v1/namespaces").await.json();
    assert_eq!(all.namespaces.len(), 2);
    // An idle session of the owner counts, and a refused one makes no log entry.
    billing.post("/v1/sessions", None, json!({})).await;
    billing.post("/v1/sessions", None, json!({})).await.problem(Code::NamespaceFull);
    let stale = json!({ "put_namespace": { "name": "orders", "limits": {}, "version": 1 } });
    admin.post("/v1/access", None, stale).await.problem(Code::BadVersion);
    let rate = json!({ "put_namespace": { "name": "orders", "limits": { "requests_per_s": 0 } } });
    let problem = admin.post("/v1/access", None, rate).await.problem(Code::BadRequest);
    assert!(problem.detail.contains("requests_per_s"), "{problem}");
}

/// Nobody uses up the rate of a namespace in which it has no right.
#[tokio::test]
async fn a_stranger_uses_up_nothing_of_the_rate() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let reads = json!([{ "resource": "locks", "prefix": "orders", "rights": ["read"] }]);
    let billing = principal(&node, &admin, "billing", reads).await.token.unwrap();
    let stranger = principal(&node, &admin, "stranger", json!([])).await.token.unwrap();
    let limits = json!({ "requests_per_s": 1 });
    node.with(&admin).change(json!({ "put_namespace": { "name": "orders", "limits": limits } })).await;
    for _ in 0..5 {
        node.with(&stranger).get("/v1/locks/orders/1").await.problem(Code::Forbidden);
    }
    let answered = node.with(&billing).get("/v1/locks/orders/1").await;
    assert_eq!(answered.status, StatusCode::OK, "{}", answered.text);
}

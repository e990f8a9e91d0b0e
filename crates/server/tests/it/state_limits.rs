//! Bounds on the replicated state, over HTTP: what a session may own, and how large the state may grow.

use lockkeeper_api::Code;
use lockkeeper_api::gates::{Gate, GateView, Settled};
use lockkeeper_api::locks::Acquired;
use lockkeeper_api::nodes::Changed;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::Cluster;

#[tokio::test]
async fn a_session_owns_no_more_than_it_may_whatever_the_way() {
    let node = Cluster::start_with(1, |config| config.limits.ephemerals_per_session = 2).await;
    let own = node.session(20_000).await.credential;
    let ephemeral = json!({ "kind": "ephemeral" });
    assert_eq!(node.post("/v1/nodes/one", Some(&own), ephemeral.clone()).await.status, StatusCode::CREATED);
    let held: Acquired = node.post("/v1/locks/l/acquire", Some(&own), json!({})).await.json();
    let refused = |path: &str, body| {
        let (path, node, own) = (path.to_owned(), &node, own.clone());
        async move { node.post(&path, Some(&own), body).await.problem(Code::TooManyEphemerals) }
    };
    let problem = refused("/v1/nodes/two", ephemeral.clone()).await;
    assert_eq!(problem.status, 409);
    for word in ["owns 2 ephemeral nodes", "limits.ephemerals_per_session allows 2", "raise"] {
        assert!(problem.detail.contains(word), "{problem}");
    }
    refused("/v1/locks/m/acquire", json!({})).await;
    refused("/v1/gates/g/begin", json!({ "fingerprint": "f" })).await;
    let create = json!({ "op": "create", "path": "/two", "kind": "ephemeral" });
    let txn = node.post("/v1/txn", Some(&own), json!({ "operations": [create] })).await;
    assert_eq!(txn.problem(Code::TransactionFailed).cause, Some(Code::TooManyEphemerals));
    // Another session has its own bound, and deleting makes room.
    let other = node.session(20_000).await.credential;
    assert_eq!(node.post("/v1/nodes/two", Some(&other), ephemeral.clone()).await.status, StatusCode::CREATED);
    node.post("/v1/locks/l/release", Some(&own), json!({ "token": held.token })).await;
    assert_eq!(node.post("/v1/nodes/three", Some(&own), ephemeral).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_full_state_takes_no_more_data_and_goes_on_locking() {
    let node = Cluster::start_with(1, |config| config.limits.state_mib = 16).await;
    let own = node.session(20_000).await.credential;
    let large = json!({ "data": { "text": "x".repeat(1024 * 1024) } });
    let before = node.status().await;
    assert_eq!((before.state_bytes_limit, before.alarms.len()), (16 << 20, 0));
    for number in 0..15 {
        let made = node.post(&format!("/v1/nodes/large-{number}"), None, large.clone()).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    }
    let problem = node.post("/v1/nodes/large-15", None, large.clone()).await.problem(Code::StateFull);
    assert!(problem.status == 409 && problem.detail.contains("limits.state_mib allows 16 MiB"), "{problem}");
    assert_eq!(node.post("/v1/nodes/small", None, json!({})).await.status, StatusCode::CREATED);
    node.call(Method::PUT, "/v1/nodes/small", None, Some(large)).await.problem(Code::StateFull);
    let now = node.status().await;
    assert!(now.state_bytes > 15 << 20, "{now:?}");
    assert!(now.alarms.iter().any(|alarm| alarm.contains("limits.state_mib")), "{now:?}");
    let figures = node.get("/metrics").await.text;
    for line in ["lockkeeper_alarms 1", "lockkeeper_state_bytes_limit 16777216", "lockkeeper_state_bytes 157"] {
        assert!(figures.contains(line), "{line}");
    }
    // Data fills the state, and locks still have room.
    let rest = (16 << 20) - usize::try_from(now.state_bytes).unwrap() - 1_000;
    let filling = json!({ "data": { "text": "x".repeat(rest) } });
    node.call(Method::PUT, "/v1/nodes/small", None, Some(filling)).await.json::<Changed>();
    for number in 0..4 {
        node.post(&format!("/v1/nodes/more-{number}"), None, json!({})).await;
    }
    node.post("/v1/nodes/more", None, json!({})).await.problem(Code::StateFull);
    let held: Acquired = node.post("/v1/locks/l/acquire", Some(&own), json!({})).await.json();
    assert_eq!(
        node.post("/v1/locks/l/release", Some(&own), json!({ "token": held.token })).await.status,
        StatusCode::OK
    );
    node.session(20_000).await;
    // A gate is begun only while its largest result has room beside those of the work that is under way: nothing is
    // refused once the work is done.
    let result = json!({ "text": "x".repeat(64 * 1024) });
    let mut under_way = Vec::new();
    for number in 0.. {
        let gate = format!("/v1/gates/g{number}");
        let begun = node.post(&format!("{gate}/begin"), None, json!({ "fingerprint": "f" })).await;
        if !begun.status.is_success() {
            assert!(number > 1, "gates have room beside the data");
            begun.problem(Code::StateFull);
            let again = node.post("/v1/gates/g0/begin", None, json!({ "fingerprint": "f" })).await.json::<GateView>();
            assert!(matches!(again.gate, Gate::InProgress { .. }), "{again:?}");
            break;
        }
        let Gate::Proceed { token, .. } = begun.json::<GateView>().gate else { panic!("{}", begun.text) };
        under_way.push((gate, token));
    }
    for (gate, token) in under_way {
        let finish = json!({ "token": token, "result": result });
        node.post(&format!("{gate}/finish"), None, finish).await.json::<Settled>();
    }
    for number in 0..6 {
        let gone = node.call(Method::DELETE, &format!("/v1/nodes/large-{number}"), None, None).await;
        assert_eq!(gone.status, StatusCode::OK);
    }
    assert!(node.status().await.alarms.is_empty());
    assert_eq!(node.post("/v1/nodes/more", None, json!({})).await.status, StatusCode::CREATED);
}

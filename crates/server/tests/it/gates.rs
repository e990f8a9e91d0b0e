//! Gates over HTTP: an operation runs once however often it is asked for; and each refusal.

use lockkeeper_api::gates::{Gate, GateView, Settled};
use lockkeeper_api::{Code, Data};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Cluster, Got, Running, eventually};

async fn begin(node: &Running, credential: Option<&str>, body: Value) -> Got {
    node.post("/v1/gates/pay/42/begin", credential, body).await
}

#[track_caller]
fn proceeds(got: &Got) -> u64 {
    match got.json::<GateView>().gate {
        Gate::Proceed { token, until_ms } if until_ms > 0 => token,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_operation_is_run_once_and_its_result_is_kept() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    node.get("/v1/gates/pay/42").await.problem(Code::NotFound);
    let got = begin(&node, Some(&session.credential), json!({ "fingerprint": "f", "label": "worker 1" })).await;
    assert_eq!((got.status, got.json::<GateView>().key.as_str()), (StatusCode::OK, "pay/42"));
    let token = proceeds(&got);
    for got in [
        begin(&node, None, json!({ "fingerprint": "f" })).await,
        begin(&node, Some(&session.credential), json!({ "fingerprint": "f" })).await,
        node.get("/v1/gates/pay/42").await,
    ] {
        let Gate::InProgress { token: by, session_id, label, since_ms, until_ms } = got.json::<GateView>().gate else {
            panic!("{}", got.text)
        };
        assert_eq!((by, session_id, label.as_str()), (token, Some(session.session_id), "worker 1"));
        assert_eq!(until_ms - since_ms, 60_000, "a minute where nothing is said");
    }
    begin(&node, None, json!({ "fingerprint": "g" })).await.problem(Code::GateMismatch);
    let finish = json!({ "token": token, "result": { "text": "paid" }, "keep_ms": 60_000 });
    node.post("/v1/gates/pay/42/finish", None, finish.clone()).await.problem(Code::GateNotPending);
    let settled: Settled = node.post("/v1/gates/pay/42/finish", Some(&session.credential), finish.clone()).await.json();
    assert_eq!((settled.key.as_str(), settled.token), ("pay/42", token));
    // A retry gets the same answer; another result is refused.
    node.post("/v1/gates/pay/42/finish", Some(&session.credential), finish).await.json::<Settled>();
    let other = json!({ "token": token, "result": { "text": "refunded" } });
    node.post("/v1/gates/pay/42/finish", Some(&session.credential), other).await.problem(Code::GateNotPending);
    let got = begin(&node, None, json!({ "fingerprint": "f" })).await;
    let Gate::Done { token: by, result, since_ms, until_ms } = got.json::<GateView>().gate else {
        panic!("{}", got.text)
    };
    assert_eq!((by, result, until_ms - since_ms), (token, Data::Text("paid".into()), 60_000));
    begin(&node, None, json!({ "fingerprint": "g" })).await.problem(Code::GateMismatch);
    let figures = node.get("/metrics").await.text;
    for outcome in ["proceed", "in_progress", "done", "mismatch", "finished"] {
        let wanted = format!("lockkeeper_gate_outcomes_total{{outcome=\"{outcome}\"}}");
        assert!(figures.contains(&wanted), "{wanted}");
    }
}

#[tokio::test]
async fn a_gate_opens_when_its_worker_fails_or_goes_or_takes_too_long() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    let ask = json!({ "fingerprint": "f" });
    let first = proceeds(&begin(&node, Some(&session.credential), ask.clone()).await);
    let failed = node.post("/v1/gates/pay/42/fail", Some(&session.credential), json!({ "token": first })).await;
    assert_eq!(failed.status, StatusCode::OK);
    let second = proceeds(&begin(&node, Some(&session.credential), ask.clone()).await);
    assert!(second > first);
    node.post("/v1/gates/pay/42/fail", Some(&session.credential), json!({ "token": first }))
        .await
        .problem(Code::GateNotPending);
    let path = format!("/v1/sessions/{}", session.session_id);
    node.call(Method::DELETE, &path, Some(&session.credential), None).await;
    let third = proceeds(&begin(&node, None, json!({ "fingerprint": "f", "pending_ms": 50 })).await);
    assert!(third > second);
    eventually("its time is over", async || {
        matches!(begin(&node, None, ask.clone()).await.json::<GateView>().gate, Gate::Proceed { .. })
    })
    .await;
    node.post("/v1/gates/pay/42/finish", None, json!({ "token": third })).await.problem(Code::GateNotPending);
}

#[tokio::test]
async fn bad_gate_requests_name_the_field_and_change_nothing() {
    let node = Cluster::start(1).await;
    let before = node.zxid().await;
    for (body, field) in [
        (json!({}), "fingerprint"),
        (json!({ "fingerprint": "" }), "'fingerprint'"),
        (json!({ "fingerprint": "x".repeat(257) }), "'fingerprint'"),
        (json!({ "fingerprint": "f", "pending_ms": 0 }), "'pending_ms'"),
        (json!({ "fingerprint": "f", "pending_ms": 86_400_001 }), "'pending_ms'"),
        (json!({ "fingerprint": "f", "pending_ms": -1 }), "-1"),
        (json!({ "fingerprint": "f", "label": "x".repeat(257) }), "'label'"),
        (json!({ "fingerprint": "f", "label": "a\nb" }), "'label'"),
        (json!({ "fingerprint": "f", "surprise": 1 }), "surprise"),
    ] {
        let problem = begin(&node, None, body.clone()).await.problem(Code::BadRequest);
        assert!(problem.detail.contains(field), "{body}: {problem}");
    }
    let finish = async |body: Value| node.post("/v1/gates/a/finish", None, body).await;
    for (body, field) in [
        (json!({}), "token"),
        (json!({ "token": 1, "keep_ms": 0 }), "'keep_ms'"),
        (json!({ "token": 1, "keep_ms": 366_u64 * 24 * 3_600_000 }), "'keep_ms'"),
        (json!({ "token": 1, "result": { "hex": "0" } }), "'result'"),
        (json!({ "token": 1, "result": { "hex": "00", "text": "a" } }), "'text' or 'hex'"),
    ] {
        let problem = finish(body.clone()).await.problem(Code::BadRequest);
        assert!(problem.detail.contains(field), "{body}: {problem}");
    }
    let large = json!({ "token": 1, "result": { "text": "x".repeat(65_537) } });
    assert!(finish(large).await.problem(Code::TooLarge).detail.contains("'result'"));
    finish(json!({ "token": 1 })).await.problem(Code::GateNotPending);
    node.post("/v1/gates/a/fail", None, json!({ "token": 1 })).await.problem(Code::GateNotPending);
    for path in ["/v1/gates//begin", "/v1/gates/a//b/begin"] {
        node.post(path, None, json!({ "fingerprint": "f" })).await.problem(Code::BadPath);
    }
    node.post("/v1/gates/a/b", None, json!({})).await.problem(Code::MethodNotAllowed);
    assert_eq!(node.zxid().await, before, "nothing changed");
    // Other nodes cannot be created there, and a directory is no gate.
    node.post("/v1/nodes/gates", None, json!({})).await;
    let own = json!({ "data": { "text": "not a gate" } });
    node.post("/v1/nodes/gates/mine", None, own).await.problem(Code::Forbidden);
    node.post("/v1/nodes/gates/mine", None, json!({ "kind": "container" })).await;
    let got = node.post("/v1/gates/mine/begin", None, json!({ "fingerprint": "f" })).await;
    assert_eq!(got.status.as_u16() / 100, 4, "{}", got.text);
    assert_eq!(node.get("/v1/gates/mine").await.status.as_u16() / 100, 4);
}

//! Gates over HTTP: an operation runs once however often it is asked for; and each refusal.

use lockkeeper_api::gates::{Gate, GateReset, GateState, GateView, Gates, Settled};
use lockkeeper_api::{Code, Data};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::access::{enable, principal};
use crate::audit::{records, with_file};
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
    assert_eq!((by, result, until_ms.unwrap() - since_ms), (token, Data::Text("paid".into()), 60_000));
    begin(&node, None, json!({ "fingerprint": "g" })).await.problem(Code::GateMismatch);
    let figures = node.get("/metrics").await.text;
    for outcome in ["proceed", "in_progress", "done", "mismatch", "finished"] {
        let wanted = format!("lockkeeper_gate_outcomes_total{{outcome=\"{outcome}\"}}");
        assert!(figures.contains(&wanted), "{wanted}");
    }
}

#[tokio::test]
async fn a_beginning_whose_time_is_over_gives_way_and_finishes_nothing() {
    let node = Cluster::start(1).await;
    let late = proceeds(&begin(&node, None, json!({ "fingerprint": "f", "pending_ms": 50 })).await);
    let mut next = 0;
    eventually("another to proceed", async || {
        let got = begin(&node, None, json!({ "fingerprint": "f" })).await;
        if let Gate::Proceed { token, .. } = got.json::<GateView>().gate {
            next = token;
        }
        next > 0
    })
    .await;
    assert!(next > late, "{next} after {late}");
    node.post("/v1/gates/pay/42/finish", None, json!({ "token": late })).await.problem(Code::GateNotPending);
    node.post("/v1/gates/pay/42/finish", None, json!({ "token": next })).await.json::<Settled>();
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
        (json!({ "fingerprint": "f", "keep_ms": 0 }), "'keep_ms'"),
        (json!({ "fingerprint": "f", "keep_ms": 365 * 86_400_000_u64 + 1 }), "'keep_ms'"),
        (json!({ "fingerprint": "f", "keep": "forever", "keep_ms": 1 }), "'keep_ms'"),
    ] {
        let problem = begin(&node, None, body.clone()).await.problem(Code::BadRequest);
        assert!(problem.detail.contains(field), "{body}: {problem}");
    }
    let finish = async |body: Value| node.post("/v1/gates/a/finish", None, body).await;
    for (body, field) in [
        (json!({}), "token"),
        (json!({ "token": 1, "keep_ms": 0 }), "'keep_ms'"),
        (json!({ "token": 1, "keep_ms": 366_u64 * 24 * 3_600_000 }), "'keep_ms'"),
        (json!({ "token": 1, "keep": "always" }), "always"),
        (json!({ "token": 1, "keep": "forever", "keep_ms": 5 }), "'keep_ms'"),
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

#[tokio::test]
async fn gates_are_listed_page_by_page() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    let list = async |query: &str| -> Gates { node.get(&format!("/v1/gates{query}")).await.json() };
    assert_eq!(list("").await.gates, []);
    for key in ["pay/1", "pay/2", "mail/1"] {
        let begun = json!({ "fingerprint": "f", "label": format!("worker of {key}") });
        proceeds(&node.post(&format!("/v1/gates/{key}/begin"), Some(&session.credential), begun).await);
    }
    let token = proceeds(&node.post("/v1/gates/pay/3/begin", None, json!({ "fingerprint": "f" })).await);
    let finish = json!({ "token": token, "result": { "text": "paid" } });
    node.post("/v1/gates/pay/3/finish", None, finish).await.json::<Settled>();
    let all = list("").await;
    let keys = |page: &Gates| page.gates.iter().map(|gate| gate.key.clone()).collect::<Vec<_>>();
    assert_eq!((keys(&all), &all.next), (["mail/1", "pay/1", "pay/2", "pay/3"].map(str::to_owned).into(), &None));
    let (running, done) = (&all.gates[1], &all.gates[3]);
    assert_eq!((running.state, running.session_id), (GateState::InProgress, Some(session.session_id)));
    assert_eq!((running.label.as_str(), running.result_bytes), ("worker of pay/1", None));
    assert_eq!((done.state, done.token, done.session_id), (GateState::Done, token, None));
    assert_eq!((done.result_bytes, done.until_ms.unwrap() - done.since_ms), (Some(4), 24 * 3_600_000));
    let mut found = Vec::new();
    let mut query = "?prefix=pay/&limit=1".to_owned();
    loop {
        let page = list(&query).await;
        assert!(page.gates.len() <= 1);
        found.extend(keys(&page));
        let Some(next) = page.next else { break };
        query = format!("?prefix=pay/&limit=1&consistency=stale&after={next}");
    }
    assert_eq!(found, ["pay/1", "pay/2", "pay/3"]);
    for bad in ["?limit=0", "?limit=1001", "?surprise=1", &format!("?prefix={}", "x".repeat(1025))] {
        node.get(&format!("/v1/gates{bad}")).await.problem(Code::BadRequest);
    }
    node.get("/v1/gates?after=a//b").await.problem(Code::BadPath);
}

#[tokio::test]
async fn a_list_has_the_gates_that_the_caller_may_read() {
    let node = Cluster::start(1).await;
    let secret = enable(&node).await;
    let admin = node.with(&secret);
    let rules = json!([{ "resource": "gates", "prefix": "pay", "rights": ["acquire"] }]);
    let pay = principal(&node, &secret, "pay", rules).await.token.unwrap();
    let pay = node.with(&pay);
    let session = pay.session(30_000).await;
    let own = Some(session.credential.as_str());
    for key in ["pay/1", "pay/2"] {
        pay.post(&format!("/v1/gates/{key}/begin"), own, json!({ "fingerprint": "f" })).await.json::<GateView>();
    }
    admin.post("/v1/gates/payroll/begin", None, json!({ "fingerprint": "f" })).await.json::<GateView>();
    let found: Gates = pay.get("/v1/gates?prefix=pay&limit=1").await.json();
    assert_eq!((found.gates.len(), found.next.as_deref()), (1, Some("pay/1")));
    assert_eq!(found.gates[0].principal.as_deref(), Some("pay"));
    let found: Gates = pay.get("/v1/gates?prefix=pay").await.json();
    assert_eq!(found.gates.len(), 2, "payroll is another name");
    for foreign in ["", "?prefix=pa", "?prefix=payroll"] {
        pay.get(&format!("/v1/gates{foreign}")).await.problem(Code::Forbidden);
    }
    assert_eq!(admin.get("/v1/gates").await.json::<Gates>().gates.len(), 3);
}

#[tokio::test]
async fn a_result_is_kept_for_ever_until_the_gate_is_reset() {
    let node = Cluster::start_with(1, with_file).await;
    let session = node.session(20_000).await;
    let own = Some(session.credential.as_str());
    let ask = json!({ "fingerprint": "f" });
    let token = proceeds(&begin(&node, own, ask.clone()).await);
    let finish = json!({ "token": token, "result": { "text": "paid" }, "keep": "forever" });
    for _ in 0..2 {
        node.post("/v1/gates/pay/42/finish", own, finish.clone()).await.json::<Settled>();
    }
    let limited = json!({ "token": token, "result": { "text": "paid" } });
    node.post("/v1/gates/pay/42/finish", own, limited).await.problem(Code::GateNotPending);
    node.call(Method::DELETE, &format!("/v1/sessions/{}", session.session_id), own, None).await;
    let shown: Value = node.get("/v1/gates/pay/42").await.json();
    assert_eq!((&shown["state"], &shown["result"]["text"]), (&json!("done"), &json!("paid")));
    assert!(shown.get("until_ms").is_none(), "{shown}");
    let listed: Gates = node.get("/v1/gates?prefix=pay").await.json();
    assert_eq!((listed.gates[0].state, listed.gates[0].until_ms), (GateState::Done, None));

    // With another token nothing happens; without one, or with its own, the gate is open again.
    let reset = async |query: &str| node.call(Method::DELETE, &format!("/v1/gates/pay/42{query}"), None, None).await;
    let problem = reset(&format!("?token={}", token + 1)).await.problem(Code::BadVersion);
    assert!(problem.detail.contains(&format!("has token {token}")), "{problem}");
    let done: GateReset = reset(&format!("?token={token}")).await.json();
    assert_eq!((done.key.as_str(), done.token, done.was), ("pay/42", token, GateState::Done));
    node.get("/v1/gates/pay/42").await.problem(Code::NotFound);
    reset("").await.problem(Code::NotFound);
    let again = proceeds(&begin(&node, None, json!({ "fingerprint": "another" })).await);
    assert!(again > token);
    // The worker learns that it is not pending any more.
    let done: GateReset = reset("").await.json();
    assert_eq!((done.token, done.was), (again, GateState::InProgress));
    node.post("/v1/gates/pay/42/finish", None, json!({ "token": again })).await.problem(Code::GateNotPending);
    for bad in ["?token=x", "?surprise=1"] {
        reset(bad).await.problem(Code::BadRequest);
    }
    let figures = node.get("/metrics").await.text;
    assert!(figures.contains("lockkeeper_gate_outcomes_total{outcome=\"reset\"} 2"), "{figures}");

    let records = records(&node, 4).await;
    let shown: Vec<(&Value, &Value, &Value)> =
        records.iter().map(|record| (&record["gate"], &record["token"], &record["outcome"])).collect();
    let (not_done, done, gate) = (json!("not_done"), json!("done"), json!("pay/42"));
    assert_eq!(
        shown,
        [
            (&gate, &json!(token + 1), &not_done),
            (&gate, &json!(token), &done),
            (&gate, &Value::Null, &not_done),
            (&gate, &json!(again), &done),
        ]
    );
    assert!(records.iter().all(|record| record["event"] == "gate_reset"), "{records:?}");
}

#[tokio::test]
async fn resets_can_be_switched_off() {
    let strict = Cluster::start_with(1, |config| config.admin.allow_force_release = false).await;
    proceeds(&begin(&strict, None, json!({ "fingerprint": "f" })).await);
    let problem = strict.call(Method::DELETE, "/v1/gates/pay/42", None, None).await.problem(Code::Forbidden);
    assert!(problem.detail.contains("admin.allow_force_release"), "{problem}");
}
